"""Stories about waiting long: a large job among small ones, and a long job whose machines come and go."""

from random import Random
from typing import Any

import pytest
from by_hand import SETTINGS, Network, seen
from msgspec.structs import replace

from holdfast.kernel.decision import Explanation, ToSession
from holdfast.kernel.events import CancelAsked, Checkpointed, ExplainAsked, NodeSaid
from holdfast.kernel.health import POISON_WINDOW_MS
from holdfast.model import (
    Attempt,
    Failure,
    FailureCode,
    Job,
    JobPhase,
    Need,
    Recovery,
    Resources,
    job_id,
)
from holdfast.model.messages import Held, HeldPhase, Ping, Pong

SMALL = Need(Resources(1_000, 512, 100))
LARGE = Need(Resources(4_000, 4_096, 1_000))
"""All that a node offers."""


class Busy(Network):
    """A network whose small jobs each run for a while and then end, and are followed by others for ever."""

    def __init__(self, nodes: int, seed: int = 0, length_ms: tuple[int, int] = (500, 1_500)) -> None:
        super().__init__()
        self.random = Random(seed)
        self.length_ms = length_ms
        self.ends: dict[str, int] = {}
        self.made = 0
        for number in range(nodes):
            self.join(f"node_{number:02}")

    def live(self) -> list[Attempt]:
        return [r for r in self.rows.values() if isinstance(r, Attempt) and r.live]

    def pass_time(self, ms: int, owners: tuple[str, ...] = ("bob",), step: int = 100) -> None:
        for _ in range(0, ms, step):
            while sum(isinstance(r, Job) and r.phase is JobPhase.QUEUED for r in self.rows.values()) < 3:
                self.made += 1
                self.submit(f"small {self.made}", owner=owners[self.made % len(owners)], need=SMALL)
            for node in self.sessions:
                held = [a for a in self.live() if a.node == node]
                self.report(node, *(self.as_seen(a) for a in held))
            self.wait(step, step)

    def as_seen(self, attempt: Attempt) -> Held:
        end = self.ends.setdefault(attempt.id, self.now + self.random.randrange(*self.length_ms))
        if self.now < end:
            return seen(attempt, HeldPhase.RUNNING)
        # That it fails keeps the story short: no result has to be verified.
        return seen(attempt, HeldPhase.FINISHED, failure=Failure(FailureCode.EXIT_CODE, exit_code=1))


def with_one_held(owner: str = "ann", others: str = "bob") -> tuple[Busy, str]:
    """Two machines full of small jobs, a large one that waits, and a machine that is held for it. From here on what
    runs runs for long."""
    network = Busy(nodes=2)
    network.pass_time(2_000, owners=(others,))
    network.submit("large", owner=owner, priority=9, need=LARGE)
    for _ in range(100):
        network.pass_time(100, owners=(others,))
        if held_nodes(network):
            break
    (node,) = held_nodes(network)
    network.ends = {attempt.id: network.now + 60_000 for attempt in network.live()}
    network.length_ms = (60_000, 60_001)
    return network, node


def held_nodes(network: Network) -> list[str]:
    return [str(r.reserved) for r in network.rows.values() if isinstance(r, Job) and r.live and r.reserved]


@pytest.mark.spec("J13")
@pytest.mark.parametrize("seed", range(12))
def test_a_large_job_runs_although_small_ones_take_every_room_that_appears(seed: int) -> None:
    # given a network kept full by small jobs, so that a whole machine is never free
    network = Busy(nodes=1 + seed % 3, seed=seed)
    network.pass_time(2_000)
    network.submit("large", need=LARGE)
    # when it has waited its time, and what ran by then has ended
    network.pass_time(network.settings.reserve_ms * 3 // 2 + network.length_ms[1] + 500)
    # then it was given its machine, and the others have theirs back
    assert network.attempts("large"), network.job("large")
    assert network.attempts("large")[0].holds == LARGE.resources
    network.pass_time(4_000)
    assert held_nodes(network) == []
    assert {a.owner for a in network.live()} == {"bob"}


@pytest.mark.spec("J13", "H6")
def test_who_waits_for_a_machine_that_is_held_is_told_so() -> None:
    network, node = with_one_held()
    answer = network.tell(ExplainAsked(job_id("ann", "large"))).answer
    assert isinstance(answer, Explanation)
    assert answer.waiting_for == f"room on {node}, which takes nothing new until this job fits there"
    waiting = next(r for r in network.rows.values() if isinstance(r, Job) and r.live and r.owner == "bob" and r.waiting)
    answer = network.tell(ExplainAsked(waiting.id)).answer
    assert isinstance(answer, Explanation)
    assert answer.gates["held free for another job"] == 1


@pytest.mark.spec("J13", "J14")
def test_what_is_held_is_known_again_after_a_restart_and_let_go_when_the_job_ends() -> None:
    # given a machine that is held for a job
    network, node = with_one_held()
    # when the orchestrator starts again and everyone dials in
    before = network.kernel.digest()
    network.restart(epoch=2)
    assert network.job("large").reserved == node
    for name in list(network.sessions):
        network.join(name, held=tuple(network.as_seen(a) for a in network.live() if a.node == name))
    network.pass_time(200)
    # then what ends there still leaves room that nobody else takes
    assert before != network.kernel.digest()  # the epoch is another
    held = [a for a in network.live() if a.node == node]
    network.ends[held[0].id] = network.now
    network.pass_time(500)
    assert len([a for a in network.live() if a.node == node]) == len(held) - 1
    # and when its owner stops the job, everybody may have it
    network.tell(CancelAsked(job_id("ann", "large")))
    assert held_nodes(network) == []
    network.pass_time(500)
    assert len([a for a in network.live() if a.node == node]) == len(held)


@pytest.mark.spec("J13")
def test_an_owner_who_holds_less_may_have_the_room_that_is_held_for_another() -> None:
    # given an owner whose jobs fill both machines, with a large one waiting, for which a machine is held
    network, node = with_one_held(owner="flood", others="flood")
    # when something ends there, the flood's own next job does not get the room
    first, second, *_ = [a for a in network.live() if a.node == node]
    network.ends[first.id] = network.now
    network.pass_time(300, owners=("flood",))
    held = len([a for a in network.live() if a.node == node])
    # then somebody who holds nothing does, at once
    network.submit("first", owner="newcomer", need=SMALL)
    assert [a.node for a in network.attempts("first", owner="newcomer")] == [node]
    assert len([a for a in network.live() if a.node == node]) == held + 1
    # and somebody who waits already does as well, as soon as there is room
    network.submit("first", owner="another", need=SMALL)
    assert network.attempts("first", owner="another") == []
    network.ends[second.id] = network.now
    network.pass_time(100, owners=("flood",))
    assert [a.node for a in network.attempts("first", owner="another")] == [node]


@pytest.mark.spec("J13")
def test_few_machines_are_held_at_a_time() -> None:
    network = Busy(nodes=20, length_ms=(500, 12_000))
    network.pass_time(3_000)
    for number in range(8):
        network.submit("large", owner=f"owner {number}", need=LARGE)
    most = 0
    for _ in range(20):
        network.pass_time(300)
        most = max(most, len(held_nodes(network)))
    assert most == 2


@pytest.mark.spec("J13")
def test_nothing_is_held_for_a_job_that_any_room_would_serve() -> None:
    """The network is full of jobs of one size, and others of that size wait for long: they need no help."""
    network = Busy(nodes=2, length_ms=(2_000, 4_000))
    for _ in range(40):
        network.pass_time(300)
        assert held_nodes(network) == []
    assert network.made > 20


@pytest.mark.spec("J13", "H3")
def test_a_machine_that_goes_away_is_not_held_any_longer() -> None:
    network, node = with_one_held()
    network.leave(node)
    del network.sessions[node]
    network.pass_time(network.settings.reserve_ms)
    assert held_nodes(network) == [n for n in network.sessions if n != node]


# --- long jobs ---


def run_on(network: Network, ms: int) -> None:
    """Every node goes on with what it holds for so long, and drops what was revoked."""
    for _ in range(0, ms, 200):
        for node in network.sessions:
            held = [a for a in network.attempts() if a.node == node and a.live]
            network.report(node, *(seen(a, HeldPhase.GONE if a.revoked else HeldPhase.RUNNING) for a in held))
        network.wait(200, 200)
        sends = [s for s in network.sends if isinstance(s, ToSession)]
        for session, node, ping in [(s.session, s.node, s.message) for s in sends]:
            if isinstance(ping, Ping):
                network.tell(NodeSaid(session, node, Pong(ping.nonce)))


def drop_and_return(network: Network, node: str) -> None:
    """The link drops and comes back before the second contender's body has started."""
    network.leave(node)
    held = tuple(seen(a, HeldPhase.RUNNING) for a in network.attempts() if a.node == node and a.live)
    network.join(node, held=held)


@pytest.mark.spec("J5", "J8")
def test_a_long_job_on_a_link_that_drops_now_and_then_does_not_run_out_of_attempts() -> None:
    # given a job that runs for long
    network = Network(replace(SETTINGS, attempts_max=2))
    network.join("node_a")
    network.submit()
    network.report("node_a", seen(network.attempts()[0], HeldPhase.RUNNING))
    network.join("node_b")
    # when the link of its machine drops again and again, each time after it got on for a while
    for _ in range(20):
        run_on(network, network.settings.lasting_ms + 400)
        drop_and_return(network, "node_a")
        assert network.attempts()[-1].node == "node_b"
    # then each drop was answered by a takeover, and the first attempt still runs
    assert len(network.attempts()) == 21
    assert network.attempts()[0].may_win
    assert network.job().live


LONG_MS = POISON_WINDOW_MS + 60_000


def dying_under(
    lives_ms: int = LONG_MS,
    saves: bool = True,
    anew: bool = True,
    said: FailureCode = FailureCode.RUNTIME_FAULT,
    recovery: Recovery = Recovery.RESUME,
    nodes: int = 4,
    away: bool = True,
) -> Network:
    """A job whose machine is gone three times. Another goes on each time, and the first comes back without its body.
    `anew`: what is saved differs from what was saved before. `nodes`: with one, the job waits until it is back. `away`:
    else it is not gone, and only its body is."""
    network = Network(replace(SETTINGS, attempts_max=1))
    for number in range(nodes):
        network.join(f"node_{number}")
    network.submit(recovery=recovery, checkpoint_ms=1_000)
    for turn in range(3):
        if not network.job().live:
            break
        run_on(network, lives_ms)
        running = network.attempts()[-1]
        if saves:
            network.tell(Checkpointed(running.id, running.fence, f"{turn if anew else 0:064x}", 10))
        gone = seen(running, HeldPhase.FINISHED, failure=Failure(said))
        if not away:
            network.report(running.node, gone)
            continue
        network.leave(running.node)
        del network.sessions[running.node]
        run_on(network, 600)
        network.join(running.node, held=(gone,))
    run_on(network, 10_000)
    return network


@pytest.mark.spec("J5", "J8")
@pytest.mark.parametrize("nodes", [4, 1], ids=["taken over", "nobody had room"])
def test_a_long_job_whose_machines_die_and_come_back_empty_does_not_run_out_of_attempts(nodes: int) -> None:
    # given a job that saves its work and may not fail once, and machines that are each switched off now and then
    network = dying_under(nodes=nodes)
    # then the job goes on, and no machine that died was counted as a failure of it
    assert network.job().live
    assert network.job().failures == 0
    assert len(network.attempts()) == 4


@pytest.mark.spec("J8")
@pytest.mark.parametrize(
    "story",
    [
        {"lives_ms": 60_000},
        {"saves": False},
        {"anew": False},
        {"recovery": Recovery.RESTART},
        {"said": FailureCode.UPLOAD_TIMEOUT},
        {"nodes": 1, "lives_ms": 60_000},
        {"nodes": 1, "saves": False},
        {"nodes": 1, "away": False},
    ],
    ids=[
        "soon",
        "unsaved",
        "the same saved again",
        "from the beginning",
        "delivers too late",
        "soon, alone",
        "unsaved, alone",
        "its machine stood all the while",
    ],
)
def test_a_job_that_gets_nowhere_or_fails_by_itself_is_given_up(story: dict[str, Any]) -> None:
    """It would start from the beginning for ever, fail again, or be what machines die of."""
    assert not dying_under(**story).job().live


@pytest.mark.spec("J8")
def test_a_job_that_never_lasts_runs_out_of_attempts() -> None:
    network = Network(replace(SETTINGS, attempts_max=2))
    network.join("node_a")
    network.submit()
    network.report("node_a", seen(network.attempts()[0], HeldPhase.RUNNING))
    network.join("node_b")
    for _ in range(20):
        run_on(network, 200)
        drop_and_return(network, "node_a")
    assert network.now < 1_000_000 + network.settings.lasting_ms
    assert len(network.attempts()) == 8
