"""One planned world: the production kernel, node core and attempt lifecycle with a fleet that fails and returns, for
hours or days.

Nothing is decided or estimated here: jobs are submitted, machines lose power and return, and the clock shows when the
results were accepted. Only repeated messages are skipped. While every job is computing, being prepared, or waiting with
no machine free, reports and answers repeat themselves; then the orchestrator and all agents sleep, as if their hosts
were suspended, while bodies continue. The kernel treats this like any freeze of its own: deadlines move, and nobody is
blamed. The world wakes in time before a machine that holds work goes down, so that its silence is detected as usual,
and at once when a body ends or a machine returns that a job waits for. `leaps=False` skips nothing: a test compares
the two.
"""

from hashlib import sha256
from random import Random

import msgspec

from holdfast.kernel.decision import Answer
from holdfast.kernel.events import AnyEvent, Submitted
from holdfast.model import (
    AttemptPhase,
    JobId,
    JobSpec,
    Need,
    NodeId,
    NodeState,
    Owner,
    Recovery,
    Resources,
    Settings,
    job_id,
)
from holdfast.model.job import TIME_LIMIT_MS_MAX
from holdfast.sim.network import SimLink
from holdfast.sim.node import MachineSpec
from holdfast.sim.orchestrator import SimOrchestrator
from holdfast.sim.planning import Cause, PlannedOutcome, Question
from holdfast.sim.planning_ledger import Ledger
from holdfast.sim.planning_machine import PlannedMachine
from holdfast.sim.scene import WALL_EPOCH_MS
from holdfast.sim.shim import SimProgram
from holdfast.sim.store import SimStore
from holdfast.sim.watch import InvariantWatch
from holdfast.sim.world import Clock, RunsAway, SimWorld

STEP_MS = 250
"""How often to check whether the world may sleep."""
LEAP_MS_MIN = 2_000
SUBMIT_MS = 5_000
"""The fleet has joined by then."""
PATIENCE = 30
"""A run is given up when the jobs take this many times as long as without failures."""
EVENTS_MAX = 5_000_000
"""A guard against endless worlds; how much is simulated is planned beforehand (planning_effort)."""
SLOT = Resources(1_000, 1_000, 1_000)
_COMING_BACK = (NodeState.SUSPECT, NodeState.LOST, NodeState.QUARANTINED, NodeState.PROBATION)


class PlannedNetwork:
    def __init__(self, question: Question, seed: int, leaps: bool = True) -> None:
        self.question, self.seed, self._leaps = question, seed, leaps
        self.length_ms = question.length_ms
        self.settings = msgspec.structs.replace(Settings.preset(question.preset), open_join=True)
        self.world = SimWorld(seed, EVENTS_MAX if leaps else 50 * EVENTS_MAX)
        self.store, self.watch = SimStore(), InvariantWatch()
        self.asleep = False
        self.saved: dict[str, int] = {}
        """The progress that each manifest holds."""
        self._woken = False
        self._random = self.world.stream()
        self.jobs = [job_id(Owner("planner"), f"job {number}") for number in range(question.jobs)]
        self.programs: dict[str, SimProgram] = {
            job: SimProgram(question.length_ms, 0, sha256(job.encode()).hexdigest(), 1_000) for job in self.jobs
        }
        clock = Clock(self.world, 1_000, 0)
        wall = Clock(self.world, WALL_EPOCH_MS, 0)
        self.orchestrator = SimOrchestrator(
            "orchestrator", self.world, self.store, self.settings, self.watch, clock, wall
        )
        self.machines: dict[NodeId, PlannedMachine] = {}
        self.ledger = self.new_ledger()
        self.watch.add([self.ledger])
        for number in range(question.nodes):
            spec = MachineSpec(NodeId(f"node_{number}"), SLOT)
            self.machines[spec.id] = PlannedMachine(spec, self, Random(f"{seed} {number}"))

    def new_ledger(self) -> Ledger:
        return Ledger(self)

    def new_link(self) -> SimLink:
        return SimLink(self.world, self.world.stream(), 1)

    def find(self, _: Random) -> SimOrchestrator | None:
        return self.orchestrator if self.orchestrator.serves else None

    # --- the run ---

    def run(self) -> PlannedOutcome:
        self.orchestrator.start()
        for machine in self.machines.values():
            self.world.call_in(self._random.randrange(500, 1_500), machine.start_agent)
            machine.plan_fall()
        for job in self.jobs:
            self.world.call_at(SUBMIT_MS, self._submit, job)
        rounds = -(-self.question.jobs // self.question.nodes)
        limit = SUBMIT_MS + PATIENCE * rounds * (self.length_ms + self.question.prepare_ms + 60_000)
        self.world.run_until(SUBMIT_MS)
        try:
            while self.ledger.live and self.world.now < limit:
                self._step(limit)
        except RunsAway:
            return msgspec.structs.replace(self.ledger.outcome(self.seed), cut=True)
        return self.ledger.outcome(self.seed)

    def spec(self) -> JobSpec:
        question = self.question
        return JobSpec(
            ("body",),
            name="planned",
            need=Need(SLOT),
            recovery=Recovery.RESUME if question.every_ms else Recovery.RESTART,
            checkpoint_ms=question.every_ms,
            attempts_max=question.attempts,
            time_limit_ms=TIME_LIMIT_MS_MAX,
            queue_limit_ms=TIME_LIMIT_MS_MAX,
        )

    def _submit(self, job: JobId) -> None:
        spec = self.spec()
        self.ledger.open(job, self.world.now)
        self._insist(Submitted(job, Owner("planner"), spec, sha256(msgspec.msgpack.encode(spec)).hexdigest()))

    def _insist(self, event: AnyEvent) -> None:
        def answered(answer: Answer | None) -> None:
            if answer is None:
                self.world.call_in(500, self._insist, event)

        self.orchestrator.ask(event, answered)

    def _step(self, limit: int) -> None:
        until = self._next_word(limit)
        if self._leaps and until - self.world.now >= LEAP_MS_MIN and self._nothing_new():
            self._sleep()
            self.world.run_until(until, lambda: self._woken)
            self._wake()
        self.world.run_until(min(limit, self.world.now + STEP_MS), self._all_ended)

    def _all_ended(self) -> bool:
        return not self.ledger.live

    # --- sleep ---

    def stir(self) -> None:
        """Something happened that must be reported: wake the world."""
        self._woken = True

    def room_appeared(self) -> None:
        """A machine is back. Wake the world if a job waits for one, or if no other machine is idle."""
        waits = any(a.cause is Cause.WAITING and a.ended is None for a in self.ledger.accounts.values())
        self._woken |= waits or not self._spare()

    def _spare(self) -> bool:
        """Whether a machine is idle and would be given work at once."""
        return any(m.idle and self.ledger.states.get(m.spec.id) is NodeState.READY for m in self.machines.values())

    def _proving(self) -> bool:
        """Whether an idle machine is still in quarantine or on probation."""
        return any(m.idle and self.ledger.states.get(m.spec.id) in _COMING_BACK for m in self.machines.values())

    def _next_word(self, limit: int) -> int:
        """The next predictable moment at which messages matter: a machine that holds work goes down. The kernel is
        lenient for a while after a freeze, so the world must wake early enough for that to be over."""
        forgiving = self.settings.silence_ceiling_ms + 3 * self.settings.keepalive_ms
        falls = [m.falls_at for m in self.machines.values() if m.falls_at is not None and m.folders]
        return min([limit, *(at - forgiving for at in falls)])

    def _nothing_new(self) -> bool:
        """Every job is recorded as computing or being prepared, or waits while no machine is free; and if a job had to
        move, every idle machine has had time to prove itself."""
        room = None
        for account in self.ledger.accounts.values():
            if account.ended is not None:
                continue
            phases = {a.phase for a in account.attempts.values()}
            match account.cause:
                case Cause.USEFUL | Cause.SAVING if phases and phases <= {AttemptPhase.RUNNING}:
                    pass
                case Cause.PREPARING if phases & {AttemptPhase.PREPARING} and all(
                    a.id in self.machines[a.node].making_ready
                    for a in account.attempts.values()
                    if a.phase is not AttemptPhase.RUNNING
                ):
                    pass
                case Cause.WAITING:
                    if room is None:
                        room = any(m.idle for m in self.machines.values())
                    if room:
                        return False
                case _:
                    return False
        return self._spare() or not self._proving()

    def _sleep(self) -> None:
        self.asleep, self._woken = True, False
        self.orchestrator.freeze()
        for machine in self.machines.values():
            machine.freeze(True)

    def _wake(self) -> None:
        self.asleep = False
        self.orchestrator.thaw()
        for machine in self.machines.values():
            machine.thaw()


def play(question: Question, seed: int, leaps: bool = True) -> PlannedOutcome:
    """Simulate one world of this question."""
    return PlannedNetwork(question, seed, leaps).run()
