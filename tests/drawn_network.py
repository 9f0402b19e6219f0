"""A network drawn by chance for recordings of the kernel: few nodes and owners, times that fall exactly on deadlines.

A simulated world is driven by machines that keep their clocks, so a deadline is always met a little late. Here a tick
comes at the very moment, or one millisecond before. The nodes are honest most of the time.
"""

from random import Random
from typing import Any

from msgspec.structs import replace

import recordings
from holdfast.kernel import events
from holdfast.kernel.decision import CloseSession, Decision, ToSession, Verify
from holdfast.kernel.kernel import Kernel
from holdfast.model import (
    JOBS,
    PLAIN,
    Attempt,
    AttemptId,
    Failure,
    FailureCode,
    Gpu,
    Hardware,
    Input,
    Job,
    JobId,
    JobSpec,
    Need,
    NodeId,
    Owner,
    Recovery,
    Resources,
    Result,
    Settings,
    Workload,
    job_id,
)
from holdfast.model.messages import (
    Discard,
    Go,
    Held,
    HeldPhase,
    Hello,
    Leaving,
    Load,
    Offers,
    Ping,
    Pong,
    Progress,
    Refusal,
    Report,
    Start,
)
from recordings import Line

ROUNDS = 260
LOOK_EVERY = 16
PHASES = (HeldPhase.PREPARING, HeldPhase.READY, HeldPhase.RUNNING, HeldPhase.UPLOADING, HeldPhase.FINISHED)


class Machine:
    """What one node would say."""

    def __init__(self, name: str, gpus: int, cpu: int) -> None:
        self.id = NodeId(name)
        self.offered = Resources(cpu, cpu, 4 * cpu, gpus)
        self.gpus = tuple(Gpu("Drawn 1", 8_000, "535.1", "12.2", f"{name}/{n}") for n in range(gpus))
        self.instance = 1
        self.session: int | None = None
        self.seq = 0
        self.held: dict[AttemptId, Held] = {}
        self.leased: set[AttemptId] = set()
        self.nonce: int | None = None
        self.cpu_ms = 0


class DrawnNetwork:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(f"drawn network {seed}")
        self.settings = replace(
            Settings.test(),
            open_join=True,
            suspect_ms_max=random.choice((6_000, 12_000)),
            orphan_ms_max=4_000,
            poison_nodes=random.choice((2, 3)),
            attempts_max=random.choice((2, 3, 6)),
            candidates=random.choice((1, 2, 3)),
            strikes_to_quarantine=random.choice((1, 2)),
            quarantine_share_max_permille=random.choice((500, 1_000)),
            quarantine_ms=1_000,
            quarantine_ms_max=random.choice((3_000, 8_000)),
            probation_wins=random.choice((1, 2)),
            lease_ms=2_000,
            queue_ms_max=random.choice((20_000, 200_000)),
            reserve_ms=random.choice((500, 3_000)),
            stall_ms=1_500,
            slow_ms_min=500,
            slow_peers_min=random.choice((1, 3)),
            save_ms_max=1_000,
            drain_ms=random.choice((500, 2_000)),
            lasting_ms=random.choice((1_000, 60_000)),
            owner_live_jobs_max=random.choice((5, 100)),
            live_jobs_max=random.choice((9, 100)),
        )
        self.kernel = Kernel(self.settings)
        self.lines: list[Line] = [recordings.kernel_begin(self.kernel)]
        self.now = 1_000_000
        self.epoch = 0
        self.sessions = 0
        self.machines = [
            Machine(f"node_{chr(97 + n)}", random.choice((0, 0, 1, 2)), random.choice((1_000, 2_000, 4_000)))
            for n in range(random.choice((2, 4, 6)))
        ]
        self.jobs: dict[JobId, events.Submitted] = {}
        self.ended: dict[JobId, Job] = {}
        self.verify: list[Verify] = []
        self.attempts: dict[AttemptId, Attempt] = {}
        self.saves = 0

    def record(self) -> list[Line]:
        self._lead()
        for machine in self.machines:
            self._join(machine)
        for _ in range(ROUNDS):
            self._pass_time()
            for machine in self.machines:
                self._live_on(machine)
            self._something()
        return self.lines

    def _live_on(self, machine: Machine) -> None:
        """A machine that is connected reports and answers, mostly."""
        if machine.session is not None and self.random.random() < 0.35:
            self._report(machine)
        if machine.session is not None and machine.nonce is not None and self.random.random() < 0.8:
            nonce, machine.nonce = machine.nonce, None
            self.tell(events.NodeSaid(machine.session, machine.id, Pong(nonce)))

    def tell(self, event: events.AnyEvent) -> Decision:
        line, decision = recordings.kernel_step(self.kernel, event, self.now, len(self.lines) % LOOK_EVERY == 0)
        self.lines.append(line)
        for row in decision.changes:
            if isinstance(row, Job) and not row.live:
                self.ended[row.id] = row
            elif isinstance(row, Attempt):
                self.attempts[row.id] = row
        for send in decision.sends:
            self._carry_out(send)
        return decision

    def _carry_out(self, send: Any) -> None:
        match send:
            case Verify():
                self.verify.append(send)
            case CloseSession(session, _):
                for machine in self.machines:
                    if machine.session == session:
                        machine.session = None
            case ToSession(session, _, message):
                machine = next((m for m in self.machines if m.session == session), None)
                if machine is not None and self.random.random() < 0.95:
                    self._hear(machine, message)
            case _:
                raise AssertionError(f"nobody carries out {send}")

    def _hear(self, machine: Machine, message: Any) -> None:
        match message:
            case Start() if message.attempt not in machine.held:
                machine.held[message.attempt] = Held(message.attempt, message.fence, HeldPhase.PREPARING)
                if message.lease_ms:
                    machine.leased.add(message.attempt)
            case Go() if message.attempt in machine.held:
                held = machine.held[message.attempt]
                if held.phase is HeldPhase.READY:
                    machine.held[message.attempt] = replace(held, phase=HeldPhase.RUNNING)
            case Discard():
                machine.held[message.attempt] = Held(message.attempt, message.fence, HeldPhase.GONE)
            case Ping():
                machine.nonce = message.nonce
            case Refusal():
                machine.session = None
            case _:
                pass

    # --- time and leadership ---

    def _pass_time(self) -> None:
        draw = self.random.random()
        due = self.kernel.next_due()
        if draw < 0.3 and due is not None and due - self.now < 5_000:
            self.now = max(self.now, due - self.random.choice((0, 0, 0, 1)))
            self.tell(events.Tick())
        elif draw < 0.6:
            self.now += self.random.choice((1, 10, 50, 100, 250))
        elif draw < 0.62:
            self.now += 1_500
            self.tell(events.Tick(self.random.choice((0, 600, 1_500))))

    def _lead(self) -> None:
        self.epoch += 1
        self.tell(events.Led(self.epoch, 7))

    def _restart(self) -> None:
        rows = list(self.kernel.rows())
        self.kernel = Kernel.load(self.settings, rows)
        self.lines.append(recordings.kernel_begin(self.kernel))
        self.now += self.random.choice((0, 300, 4_000))
        self.verify.clear()
        for machine in self.machines:
            machine.session = None
        self._lead()

    # --- what happens ---

    def _something(self) -> None:
        random = self.random
        machine = random.choice(self.machines)
        draw = random.random()
        if machine.session is None and draw < 0.5:
            self._join(machine)
        elif draw < 0.40:
            self._submit()
        elif draw < 0.62 and self.verify:
            self._verified(self.verify.pop(0))
        elif draw < 0.72:
            self._saved()
        elif draw < 0.80:
            self._ask()
        elif draw < 0.81 and machine.session is not None:
            self.tell(events.NodeSaid(machine.session, machine.id, Pong(5)))
        elif draw < 0.84:
            self._break(machine)
        elif draw < 0.90:
            self._move(machine)
        elif draw < 0.925:
            self.tell(events.DrainAsked(machine.id, random.random() < 0.4, random.choice(("", "admin"))))
        elif draw < 0.94 and machine.session is not None:
            self._offers(machine)
        elif draw < 0.96 and self.jobs:
            self.tell(events.CancelAsked(random.choice(list(self.jobs)), random.choice(("", "admin"))))
        elif draw < 0.97 and self.ended:
            self.tell(events.FilesReceived(self.ended[random.choice(list(self.ended))]))
        elif draw < 0.98:
            self._restart()
        elif draw < 0.985 and machine.session is not None:
            leaving = Leaving(random.choice((0, 800)), random.random() < 0.3)
            self.tell(events.NodeSaid(machine.session, machine.id, leaving))

    def _join(self, machine: Machine) -> None:
        random = self.random
        if random.random() < 0.15:
            machine.instance += 1
            machine.held.clear()
        self.sessions += 1
        machine.session, machine.seq, machine.nonce = self.sessions, 0, None
        hardware = Hardware(total=machine.offered, gpus=machine.gpus, arch=random.choice(("x86_64", "x86_64", "arm64")))
        hello = Hello(
            machine.id, f"start {machine.instance}", f"key {machine.id}", "0.1.0", hardware, machine.offered, "none",
            site=random.choice(("", "north")), features=(JOBS, PLAIN), held=tuple(machine.held.values()),
            epoch_seen=self.epoch, name=random.choice(("", "big")),
        )  # fmt: skip
        self.tell(events.NodeJoined(self.sessions, hello))

    def _break(self, machine: Machine) -> None:
        if machine.session is not None:
            session, machine.session = machine.session, None
            self.tell(events.NodeBroke(session - (self.random.random() < 0.1), machine.id, "cut"))

    def _report(self, machine: Machine) -> None:
        assert machine.session is not None
        random = self.random
        full = random.random() < 0.6
        told = [self._moved_on(machine, held) for held in list(machine.held.values()) if full or random.random() < 0.5]
        for held in told:
            if held.phase is HeldPhase.GONE:
                machine.held.pop(held.attempt, None)
                machine.leased.discard(held.attempt)
            else:
                machine.held[held.attempt] = held
        machine.seq += 1
        load = Load(random.choice((0, 500, 1_000)), sick="hot" if random.random() < 0.04 else "") if full else None
        renew = tuple(held.attempt for held in told if held.attempt in machine.leased and held.phase in PHASES[2:3])
        seq = machine.seq - (random.random() < 0.03)
        self.tell(events.NodeSaid(machine.session, machine.id, Report(seq, full, tuple(told), load, renew)))

    def _moved_on(self, machine: Machine, held: Held) -> Held:
        random = self.random
        draw = random.random()
        if held.phase not in PHASES or held.phase is HeldPhase.FINISHED:
            return held
        if draw < 0.03:
            failure = Failure(FailureCode.REFUSED, "no room")
            return replace(held, phase=HeldPhase.REFUSED, failure=failure, progress=None)
        if draw < 0.10:
            code = random.choice((FailureCode.EXIT_CODE, FailureCode.RUNTIME_FAULT, FailureCode.NODE_DISK_FULL,
                                  FailureCode.OOM_NODE, FailureCode.LEASE_LOST, FailureCode.DRAINED))  # fmt: skip
            return Held(held.attempt, held.fence, HeldPhase.FINISHED, failure=Failure(code, "so it ended"))
        if draw < 0.35:
            leased = held.attempt in machine.leased
            place = PHASES.index(held.phase)
            if leased and held.phase is HeldPhase.READY:
                return held
            following = PHASES[place + 1] if leased or held.phase is not HeldPhase.PREPARING else HeldPhase.RUNNING
            if following is HeldPhase.FINISHED:
                manifest = random.choice(("", "cd" * 32))
                if manifest and random.random() < 0.9:
                    self.tell(events.ContentDelivered(held.attempt, held.fence, manifest))
                return Held(held.attempt, held.fence, following, Result("ab" * 32, 7, manifest=manifest))
            return Held(held.attempt, held.fence, following)
        machine.cpu_ms += random.choice((0, 0, 300))
        return replace(held, progress=Progress("run", cpu_ms=machine.cpu_ms, printed=machine.cpu_ms // 900))

    def _submit(self) -> None:
        random = self.random
        if self.jobs and random.random() < 0.08:
            old = random.choice(list(self.jobs.values()))
            if old.job not in self.ended:
                self.tell(replace(old, spec_hash=random.choice((old.spec_hash, "another"))))
            return
        owner = Owner(random.choice(("ada", "ada", "ben")))
        id = job_id(owner, f"job {len(self.jobs)}")
        recovery = random.choice((Recovery.RESTART, Recovery.RESUME, Recovery.RESUME, Recovery.NEVER))
        amounts = Resources(random.choice((100, 500, 1_000, 2_000, 4_000)), 100, 10, random.choice((0, 0, 0, 1, 2)))
        spec = JobSpec(
            ("run",), name=random.choice(("sum", "train")), recovery=recovery, priority=random.choice((2, 5, 5, 9)),
            need=Need(amounts, arch=random.choice(("", "", "x86_64")), gpu_driver_min=random.choice(("", "", "535.1"))),
            workload=random.choice(list(Workload)), time_limit_ms=random.choice((None, None, 1_000, 5_000)),
            queue_limit_ms=random.choice((None, None, 1_000)), attempts_max=random.choice((None, None, 1, 2)),
            checkpoint_ms=random.choice((0, 500)) if recovery is Recovery.RESUME else 0,
            package=random.choice(("", "aa" * 32)),
            inputs=random.choice(((), (Input("one", manifest="bb" * 32),))),
        )  # fmt: skip
        self.jobs[id] = events.Submitted(id, owner, spec, f"hash {len(self.jobs)}")
        self.tell(self.jobs[id])

    def _verified(self, asked: Verify) -> None:
        random = self.random
        fence = asked.fence + (random.random() < 0.05)
        self.tell(events.Verified(asked.attempt, fence, random.random() < 0.85, "it differs"))

    def _saved(self) -> None:
        random = self.random
        live = [a for a in self.attempts.values() if a.live]
        if live:
            attempt = random.choice(live)
            self.saves += random.choice((0, 1, 1))
            fence = attempt.fence - (random.random() < 0.1)
            self.tell(events.Checkpointed(attempt.id, fence, f"{self.saves:064x}", 100 + self.saves))

    def _ask(self) -> None:
        random = self.random
        if not self.jobs:
            self.tell(events.EstimatesAsked())
            return
        asked = list(self.jobs.values())[-6:]
        one = random.choice(asked)
        node = random.choice((None, None, random.choice(self.machines).id, NodeId("node_none")))
        without = tuple(m.id for m in random.sample(self.machines, random.choice((0, 0, 1))))
        self.tell(random.choice((
            events.ExplainAsked(one.job), events.ExplainAsked(one.job),
            events.EstimatesAsked(tuple(e.job for e in asked)), events.CheckAsked(one.owner, one.spec, node, without),
        )))  # fmt: skip

    def _move(self, machine: Machine) -> None:
        random = self.random
        if self.jobs:
            job = random.choice(list(self.jobs)[-8:])
            node = machine.id if random.random() < 0.95 else NodeId("node_none")
            self.tell(events.MoveAsked(job, node, random.choice(("", "ada")), random.choice(("", "", "once"))))

    def _offers(self, machine: Machine) -> None:
        random = self.random
        assert machine.session is not None
        cpu = random.choice((500, 1_000, 4_000))
        offered = Resources(cpu, cpu, 4 * cpu, random.randrange(len(machine.gpus) + 1))
        paused = random.random() < 0.2
        self.tell(
            events.NodeSaid(machine.session, machine.id, Offers(offered, paused, random.choice((0, 700)), "noise"))
        )


def record(seed: int) -> list[Line]:
    return DrawnNetwork(seed).record()
