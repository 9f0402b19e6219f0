"""Record worlds for `tests/kernel/recorded` and `tests/unit/recorded_nodes`. Run this on purpose, after a change that
is meant to decide otherwise, and look at the difference before you commit it.

    python tests/record_worlds.py            the seeds that are recorded now, decided anew
    python tests/record_worlds.py --choose   other seeds, chosen so that few worlds run every branch

The inputs come from simulated worlds. Between them are put questions that people ask, and messages that a broken or
hostile machine might send: repeated, late, of another session, with another fence.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import coverage
import msgspec
from msgspec.structs import replace

import drawn_network
import recordings
from holdfast.kernel import events
from holdfast.kernel.kernel import Kernel
from holdfast.model import (
    BUILD,
    CONTAINER,
    JOBS,
    NETWORK,
    PLAIN,
    AttemptId,
    Failure,
    FailureCode,
    Instant,
    Job,
    JobId,
    JobSpec,
    JoinToken,
    Need,
    NodeId,
    Owner,
    Resources,
    TokenId,
    job_of,
)  # fmt: skip
from holdfast.model.messages import (
    Discard,
    Drained,
    Go,
    HeldPhase,
    Hello,
    Load,
    Ping,
    Progress,
    Renewed,
    Report,
    Save,
    Start,
    Welcome,
)  # fmt: skip
from holdfast.node.core import events as core_events
from holdfast.node.core.admission import Means, NodeLimits
from holdfast.node.core.attempt_lifecycle import BodyOutcome, EndKind, Order, Phase
from holdfast.node.core.core import NodeCore
from holdfast.sim.plan import plan
from holdfast.sim.scene import Scene
from recordings import NODES, WORLDS, Line

CANDIDATES = range(1, 601)
WORLDS_MAX, NODES_MAX = 24, 16
LOOK_EVERY = 16
"""The kernel's state is hashed once in so many events."""
EXTRA_EVERY = 12
"""Once in so many events something is asked or said that the world did not have."""
SOURCE = Path(__file__).resolve().parent.parent / "src" / "holdfast"

Told = tuple[Any, int]
"""An event, and when."""


class Ear:
    """Everything that the cores of one world were told."""

    def __init__(self) -> None:
        self.kernels: dict[int, tuple[Kernel, Line, list[Told]]] = {}
        self.nodes: dict[int, tuple[NodeCore, Line, list[Told]]] = {}


@contextmanager
def listening(ear: Ear) -> Iterator[None]:
    decide, act = Kernel.apply, NodeCore.apply

    def apply(self: Kernel, event: events.AnyEvent, now: Instant) -> Any:
        if id(self) not in ear.kernels:
            ear.kernels[id(self)] = (self, recordings.kernel_begin(self), [])
        ear.kernels[id(self)][2].append((event, now))
        return decide(self, event, now)

    def apply_node(self: NodeCore, event: core_events.NodeEvent, now: Instant) -> Any:
        if id(self) not in ear.nodes:
            ear.nodes[id(self)] = (self, recordings.node_begin(self), [])
        ear.nodes[id(self)][2].append((event, now))
        return act(self, event, now)

    Kernel.apply, NodeCore.apply = apply, apply_node  # type: ignore[method-assign]
    try:
        yield
    finally:
        Kernel.apply, NodeCore.apply = decide, act  # type: ignore[method-assign]


def heard(seed: int) -> Ear:
    ear = Ear()
    with listening(ear):
        verdict = Scene(plan(seed)).run()
    assert verdict.ok, verdict.says
    return ear


# --- the kernel ---


def world(seed: int, ear: Ear) -> list[Line]:
    """One network in three is closed: its machines need a token."""
    random = Random(f"recorded {seed}")
    closed = seed % 3 == 0
    lines: list[Line] = []
    for _, begin, told in ear.kernels.values():
        if closed:
            begin, told = _closed(begin, told)
        lines.append(begin)
        kernel = recordings.begun_kernel(begin)
        ended: dict[str, Job] = {}
        for place, (event, now) in enumerate(told, 1):
            batch = [event]
            if place > 1 and random.randrange(EXTRA_EVERY) == 0:
                batch += _extras(random, [e for e, _ in told[:place]], now, ended)
            for one in batch:
                if isinstance(one, events.Submitted) and one.job in ended:
                    continue  # the shell finds it in the store, and does not ask
                line, decision = recordings.kernel_step(kernel, one, now, len(lines) % LOOK_EVERY == 0)
                lines.append(line)
                ended |= {row.id: row for row in decision.changes if isinstance(row, Job) and not row.live}
    return lines


def _closed(begin: Line, told: list[Told]) -> tuple[Line, list[Told]]:
    state = msgspec.json.decode(begin.begin, type=recordings.KernelBegin)
    state.settings = replace(state.settings, open_join=False)
    led, now = told[0]
    joining = [
        (replace(event, hello=_with_token(event.hello, 0, "")) if isinstance(event, events.NodeJoined) else event, at)
        for event, at in told[1:]
    ]
    begun = Line(begin=msgspec.Raw(msgspec.json.encode(state)))
    return begun, [(led, now), (events.TokenMade(_token(0, now, -1)), now), *joining]


def _token(number: int, now: int, uses: int) -> JoinToken:
    lives_ms = 1_000_000 if number == 0 else 3_000
    return JoinToken(TokenId(f"token_{number}"), f"{number:02}" * 32, Instant(now), Instant(now + lives_ms), uses)


def _with_token(hello: Hello, number: int, other_node: str) -> Hello:
    """The fourth one has another secret."""
    secret = f"{number % 4:02}" * 32
    held = () if other_node else hello.held
    node = NodeId(other_node or hello.node)
    return replace(hello, node=node, token_id=f"token_{number}", token_sha256=secret, held=held)


def _extras(random: Random, told: list[events.AnyEvent], now: int, ended: dict[str, Job]) -> list[events.AnyEvent]:
    submitted = [e for e in told if isinstance(e, events.Submitted)]
    joined = [e for e in told if isinstance(e, events.NodeJoined)]
    said = [e for e in told if isinstance(e, events.NodeSaid)]
    verified = [e for e in told if isinstance(e, events.Verified)]
    saved = [e for e in told if isinstance(e, events.Checkpointed)]
    found: list[Callable[[], list[events.AnyEvent]]] = [
        lambda: [events.EstimatesAsked(tuple(e.job for e in submitted[-4:]))],
        lambda: [events.Tick(random.choice((0, 0, 40, 900)))],
        lambda: [events.TokenMade(_token(random.randrange(1, 5), now, random.choice((-1, 1, 2))))],
        lambda: [events.TokenRevoked(TokenId(f"token_{random.randrange(1, 5)}"))],
    ]
    if submitted:
        one = random.choice(submitted)
        recent = submitted[-1]
        found += [
            lambda: [events.ExplainAsked(e.job) for e in submitted[-3:]],
            lambda: [events.ExplainAsked(one.job)],
            lambda: [events.CheckAsked(one.owner, one.spec)],
            lambda: [events.CheckAsked(one.owner, recent.spec, without=tuple(e.hello.node for e in joined[-2:]))],
            lambda: [one],
            lambda: [replace(one, spec_hash="another")],
            lambda: [events.CancelAsked(one.job, random.choice(("", "admin")))],
        ]
    if ended:
        found += [lambda: [events.FilesReceived(ended[random.choice(sorted(ended))])]]
    if submitted and joined:
        there = random.choice(joined).hello.node
        key = random.choice(("", "once"))
        found += [
            lambda: [events.MoveAsked(submitted[-1].job, there, "ada", key)],
            lambda: [events.CheckAsked(Owner("ada"), submitted[-1].spec, there)],
            lambda: [events.DrainAsked(there, True), events.DrainAsked(there, False, "admin")],
            lambda: [events.DrainAsked(NodeId("node_nowhere"))],
        ]
    if joined:
        dial = random.choice(joined)
        hello = dial.hello
        late = joined[-1].session + 1_000_000 + now
        found += [
            lambda: [events.NodeBroke(dial.session, hello.node, "late news")],
            lambda: [events.NodeJoined(late, replace(hello, public_key="another key"))],
            lambda: [events.NodeJoined(late, replace(hello, instance=f"{hello.instance}+", held=()))],
            lambda: [events.NodeJoined(late, replace(hello, offered=Resources(100, 100, 100, 0)))],
            lambda: [events.NodeJoined(late + n, _with_token(hello, n, f"node_new_{now}_{n}")) for n in range(1, 5)],
        ]
    if said:
        words = random.choice(said[-20:])
        found += [lambda: [words], lambda: [replace(words, session=words.session + 1)]]
        if isinstance(words.message, Report):
            report = words.message
            found += [
                lambda: [replace(words, message=replace(report, seq=report.seq + 1, held=(), full=True))],
                lambda: [replace(words, message=replace(report, seq=report.seq + 1))],
            ]
    if verified:
        checked = random.choice(verified[-3:])
        found += [lambda: [checked], lambda: [replace(checked, fence=checked.fence + 1)]]
        found += [lambda: [replace(checked, ok=not checked.ok)]]
    if saved:
        point = random.choice(saved[-3:])
        found += [lambda: [point], lambda: [replace(point, fence=point.fence - 1, manifest="ee" * 32)]]
        found += [lambda: [replace(point, manifest="ff" * 32)]]
    return random.choice(found)()


# --- nodes ---


def nodes(seed: int, ear: Ear) -> list[Line]:
    random = Random(f"recorded nodes {seed}")
    lines: list[Line] = []
    for _, begin, told in ear.nodes.values():
        lines.append(begin)
        core = recordings.begun_node(begin)
        for event, now in _with_node_extras(random, told):
            lines.append(recordings.node_step(core, event, now))
    return lines


def _with_node_extras(random: Random, told: list[Told]) -> Iterator[Told]:
    for place, (event, now) in enumerate(told):
        yield event, now
        if place and random.randrange(EXTRA_EVERY) == 0:
            yield _node_extra(random, [e for e, _ in told[: place + 1]]), now


def _node_extra(random: Random, told: list[core_events.NodeEvent]) -> core_events.NodeEvent:
    spoken = [e for e in told if isinstance(e, core_events.CommandReceived)]
    shims = [e for e in told if isinstance(e, core_events.ShimSaid)]
    met = [e for e in told if isinstance(e, core_events.Connected)]
    found: list[Callable[[], core_events.NodeEvent]] = [
        lambda: core_events.NodeTick(),
        lambda: core_events.OfferAsked(Resources(random.randrange(100, 4_000), 2_000, 4_000, 0)),
        lambda: core_events.OfferAsked(paused=random.random() < 0.5, grace_ms=random.choice((0, 500)), why="noise"),
        lambda: random.choice(told),
    ]
    if spoken:
        found += [lambda: random.choice(spoken[-6:])] * 3
        command = random.choice(spoken[-6:]).command
        if "epoch" in command.__struct_fields__:
            found += [lambda: core_events.CommandReceived(replace(command, epoch=command.epoch - 1))]  # type: ignore[union-attr]
    if shims:
        shim = random.choice(shims[-4:])
        fault = Failure(FailureCode.RUNTIME_FAULT, "it could not be done")
        found += [
            lambda: core_events.ShimDied(shim.attempt, "killed"),
            lambda: core_events.SpawnFailed(shim.attempt, fault),
            lambda: core_events.Undeliverable(shim.attempt, fault),
            lambda: core_events.Removed(shim.attempt),
            lambda: core_events.Delivered(shim.attempt, core_events.DeliveredFiles("ab" * 32, 2, 30)),
            lambda: shim,
        ]
    if met:
        welcome = met[-1].welcome
        found += [
            lambda: core_events.Connected(replace(welcome, epoch=welcome.epoch - 1)),
            lambda: core_events.Connected(replace(welcome, epoch=welcome.epoch + 1)),
        ]
    if len(told) > 40:
        found += [lambda: core_events.LeaveAsked(random.choice((0, 3_000)))]
    return random.choice(found)()


# --- a node that is told anything ---

DRAWN, DRAWN_NETWORKS = 10, 14
"""So many nodes hear what nobody planned: few attempts, fences and epochs, so that most of it concerns what is held."""
DRAWN_EVENTS = 900


def drawn_node(seed: int) -> list[Line]:
    random = Random(f"drawn node {seed}")
    means = Means(
        "none", (JOBS, PLAIN, *random.choice(((), (CONTAINER,), (BUILD, CONTAINER, NETWORK)))),
        "/run/engine" if seed % 2 else "", ("gpu0", "gpu1"), random.choice(({}, {"pids": 5})),
    )  # fmt: skip
    limits = NodeLimits(attempts_max=random.choice((3, 4, 256)), argv_bytes_max=12, env_bytes_max=9)
    core = NodeCore(NodeId("node_a"), "first", 3, Resources(4_000, 4_000, 8_000, 2), means, limits)
    lines = [recordings.node_begin(core)]
    now = 1_000
    said = 0
    for number in range(DRAWN_EVENTS):
        now += random.choice((0, 0, 1, 40, 50, 200, 200, 1_000))
        if random.random() < 0.2 and (due := core.next_due()) is not None:
            now = max(now, due + random.choice((-1, 0, 0)))
        lines.append(recordings.node_step(core, _drawn(random, core, number, said), now))
        said = max([said, *map(int, re.findall(rb'"seq":(\d+)', bytes(lines[-1].decided)))])
    return lines


def _drawn(random: Random, core: NodeCore, number: int, said: int) -> core_events.NodeEvent:
    fresh = attempt = AttemptId(f"att_{random.choice('abc')}.{max(1, number // 15 - random.randrange(2))}")
    held = core.held()
    if held and random.random() < 0.8:
        attempt = random.choice(held).attempt
    known = next((h for h in held if h.attempt == attempt), None)
    fence = known.fence if known is not None and random.random() < 0.8 else random.randrange(1, 4)
    fault = Failure(random.choice(list(FailureCode)), "so it was said")
    if number < 3:
        return core_events.Recovered(_drawn_order(random, attempt, fence), _drawn_status(random))
    epoch = core.epoch_seen
    over = known is not None and known.phase in (HeldPhase.REFUSED, HeldPhase.FINISHED, HeldPhase.UPLOADING)
    choices: list[tuple[int, Callable[[], core_events.NodeEvent]]] = [
        (
            40 if over else 2,
            lambda: core_events.CommandReceived(Discard(epoch, attempt, fence, _mostly(random, "lost", ""))),
        ),
        (4, lambda: core_events.CommandReceived(_drawn_start(random, attempt, fence, epoch))),
        (14, lambda: core_events.CommandReceived(_drawn_start(random, fresh, random.randrange(1, 3), epoch))),
        (22, lambda: core_events.CommandReceived(_drawn_command(random, attempt, fence, epoch, said))),
        (16, lambda: core_events.ShimSaid(attempt, _drawn_status(random))),
        (3, lambda: core_events.ShimDied(attempt, "killed")),
        (2, lambda: core_events.SpawnFailed(attempt, fault)),
        (5, lambda: core_events.Delivered(attempt, core_events.DeliveredFiles(random.choice(("", "ab" * 32)), 2, 30))),
        (3, lambda: core_events.Undeliverable(attempt, fault)),
        (5, lambda: core_events.Progressed(attempt, Progress("run", cpu_ms=number, printed=7))),
        (20 if over else 3, lambda: core_events.Removed(attempt)),
        (3, lambda: core_events.LoadMeasured(Load(random.randrange(3), sick=random.choice(("", "", "hot"))))),
        (2, lambda: core_events.Connected(_drawn_welcome(random, epoch))),
        (1, core_events.Disconnected),
        (1, lambda: _drawn_offer(random)),
        (12, core_events.NodeTick),
    ]  # fmt: skip
    if number > DRAWN_EVENTS - 100:
        choices.append((2, lambda: core_events.LeaveAsked(random.choice((-5, 0, 4_000, 9_000)))))
    return random.choices([make for _, make in choices], [weight for weight, _ in choices])[0]()


def _drawn_offer(random: Random) -> core_events.OfferAsked:
    offered = random.choice((None, Resources(random.randrange(2_000, 4_000), 4_000, 8_000, 1)))
    return core_events.OfferAsked(
        offered, random.choice((None, False, False, True)), random.choice((-1, 0, 900)), "noise"
    )


def _mostly(random: Random, usual: Any, *others: Any) -> Any:
    return usual if random.random() < 0.93 else random.choice(others)


def _drawn_start(random: Random, attempt: AttemptId, fence: int, epoch: int) -> Start:
    amounts = Resources(
        random.choice((0, 500, 500, 2_000)), random.choice((100, 100, 4_000)), 10, random.randrange(3) // 2
    )
    spec = JobSpec(
        _mostly(random, ("run",), ("run", "9 letters"), ("run", "10 letters"), ("",), (), ("a", "b\0")),
        env=_mostly(
            random, {"A": "1"}, {"A": "8 bytes.", "B": ""}, {"A": "9 bytes..", "B": ""}, {"1A": ""}, {"B": "\0"}
        ),
        need=Need(amounts, features=_mostly(random, (JOBS,), (JOBS, NETWORK))),
        package=_mostly(random, "", "ab" * 32, "no hash"),
        image=_mostly(random, "", "busybox"),
        dockerfile=_mostly(random, "", "Dockerfile"),
        checkpoint_ms=random.choice((0, 0, 1, 1_000)),
    )
    lease_ms = random.choice((0, 2_000, 9_000, 9_000))
    job = _mostly(random, job_of(attempt), JobId("job_other"))
    return Start(epoch, attempt, fence, job, spec, _mostly(random, 60_000, 1, 0), lease_ms)


def _drawn_command(random: Random, attempt: AttemptId, fence: int, epoch: int, said: int) -> Any:
    seq = max(0, said - random.randrange(-1, 4))
    epoch += _mostly(random, 0, -1, 1)
    return random.choice((
        *[Go(epoch, attempt, fence, seq)] * 4, *[Renewed(epoch, seq, (attempt,))] * 4, Save(epoch, attempt, fence),
        Ping(epoch, seq), Drained(epoch, random.random() < 0.5),
    ))  # fmt: skip


def _drawn_welcome(random: Random, epoch: int) -> Welcome:
    node = NodeId("node_a" if random.random() < 0.9 else "node_b")
    grace_ms = random.choice((0, 500))
    return Welcome(
        node, epoch + random.choice((0, 0, 0, 1, -1)), 5_000, 700, 6_000, random.choice((300, 20_000)), grace_ms
    )


def _drawn_status(random: Random) -> core_events.ShimStatus:
    phase = random.choice((*Phase, Phase.READY, Phase.RUNNING))
    outcome = None
    if phase is Phase.ENDED and random.random() < 0.95:
        outcome = BodyOutcome(
            random.choice((*EndKind, EndKind.EXIT, EndKind.EXIT)), random.choice((0, 0, 3, None)),
            random.choice((None, None, 9)), "", random.choice(("oom_job", "exit_code", "")),
        )  # fmt: skip
    return core_events.ShimStatus(phase, outcome, 5, 6, "cd" * 32, go=random.random() < 0.5)


def _drawn_order(random: Random, attempt: AttemptId, fence: int) -> Order:
    lease_ms = random.choice((0, 6_000))
    return Order(
        attempt, fence, job_of(attempt), ("run",), 60_000, 20_000, 500, 1_000, lease_ms=lease_ms,
        wait_for_go=lease_ms > 0, runtime="none", resources={"cpu_milli": 500, "gpus": 1}, gpu_ids=("gpu0",),
    )  # fmt: skip


# --- the choice ---


Candidate = dict[int, tuple[Path, set[Any], int]]
"""Seed -> its file, the branches that it runs, its size."""


def measured(make: Callable[[int, Ear], list[Line]], replay: Callable[[Sequence[Line]], str], rooms: tuple[str, ...],
             ears: Iterator[tuple[int, Ear]], folder: Path) -> Candidate:  # fmt: skip
    found: Candidate = {}
    for seed, ear in ears:
        path = folder / f"{make.__name__}_{seed}.jsonl.gz"
        recordings.write(path, make(seed, ear))
        lines = recordings.read(path)
        watch = coverage.Coverage(
            data_file=None, branch=True, include=[f"{SOURCE}/{room}/*" for room in rooms], config_file=False
        )
        with watch.collect():
            says = replay(lines)
        assert not says, f"seed {seed}: {says}"
        data = watch.get_data()
        arcs = {(file, arc) for file in data.measured_files() for arc in data.arcs(file) or ()}
        found[seed] = (path, arcs, path.stat().st_size)
    return found


def choose(candidates: Candidate, most: int) -> list[int]:
    """Greedily: the most branches that no chosen world ran yet, for its size; then the richest small ones."""
    chosen: list[int] = []
    ran: set[Any] = set()
    while len(chosen) < most:
        left = [seed for seed in candidates if seed not in chosen]
        best = max(left, key=lambda s: (len(candidates[s][1] - ran) ** 2 / candidates[s][2], len(candidates[s][1])))
        ran |= candidates[best][1]
        chosen.append(best)
    sys.stdout.write(f"{len(ran)} branches, {sum(candidates[s][2] for s in chosen)} bytes: {chosen}\n")
    return chosen


def recorded(folder: Path) -> list[int]:
    return sorted(int(path.name.split("_")[1].partition(".")[0]) for path in folder.glob("seed_*.jsonl.gz"))


def main() -> int:
    parser = argparse.ArgumentParser(description="record simulated worlds")
    parser.add_argument("--choose", action="store_true", help="choose the worlds anew")
    parser.add_argument("--candidates", type=int, default=len(CANDIDATES))
    asked = parser.parse_args()
    worlds, machines = recorded(WORLDS), recorded(NODES)
    if asked.choose:
        worlds, machines = _chosen(range(1, asked.candidates + 1))
    for folder, seeds, make in ((WORLDS, worlds, world), (NODES, machines, nodes)):
        for seed in set(recorded(folder)) - set(seeds):
            (folder / f"seed_{seed}.jsonl.gz").unlink()
        for seed in seeds:
            recordings.write(folder / f"seed_{seed}.jsonl.gz", make(seed, heard(seed)))
    for seed in range(DRAWN):
        recordings.write(NODES / f"drawn_{seed}.jsonl.gz", drawn_node(seed))
    for seed in range(DRAWN_NETWORKS):
        recordings.write(WORLDS / f"drawn_{seed}.jsonl.gz", drawn_network.record(seed))
    sys.stdout.write(f"recorded {len(worlds)} worlds and the nodes of {len(machines)}\n")
    return 0


def _chosen(seeds: range) -> tuple[list[int], list[int]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ears = {seed: heard(seed) for seed in seeds}
        worlds = measured(world, recordings.replay_world, ("kernel", "policy"), iter(ears.items()), folder)
        machines = measured(nodes, recordings.replay_node, ("node/core",), iter(ears.items()), folder)
        return choose(worlds, WORLDS_MAX), choose(machines, NODES_MAX)


if __name__ == "__main__":
    sys.exit(main())
