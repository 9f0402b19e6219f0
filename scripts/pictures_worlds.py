"""Simulated worlds that the pictures are drawn from: what the production code decided in them.

Each is staged: a job, a fault at a certain moment, and then the production kernel, node core and attempt lifecycle
react. Nothing here prescribes their reaction.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from holdfast.kernel.decision import Row
from holdfast.model import Attempt, Job, JobPhase, JobSpec, Node, Recovery, Verdict
from holdfast.sim.network import DOWN, UP
from holdfast.sim.plan import plan
from holdfast.sim.planning import Question
from holdfast.sim.planning_ledger import Ledger
from holdfast.sim.planning_world import SUBMIT_MS, PlannedNetwork
from holdfast.sim.scene import Scene
from holdfast.sim.shim import SimShim
from holdfast.sim.watch import Rule

WORLDS = 160
"""This many worlds show every change of a job's state that is not extremely rare."""


@dataclass
class Bar:
    """An activity with a duration, on one node: `preparing`, `computing`, `again` or `saving`."""

    node: str
    what: str
    since: float
    until: float
    attempt: str = ""


@dataclass
class Timeline:
    """The events of a staged world, in seconds since the job was submitted."""

    bars: list[Bar] = field(default_factory=list)
    marks: list[tuple[float, str, str]] = field(default_factory=list)
    """(second, kind, node)"""
    fences: dict[str, int] = field(default_factory=dict)
    """By attempt."""
    where: dict[str, str] = field(default_factory=dict)
    """The node of each attempt."""
    verdict: Verdict | None = None
    says: str = ""

    def at(self, kind: str, node: str | None = None) -> float:
        return next(second for second, what, where in self.marks if what == kind and node in (None, where))

    def has(self, kind: str) -> bool:
        return any(what == kind for _, what, _ in self.marks)


class Noting(Ledger):
    """A ledger that also records when each activity of a body began and ended."""

    def __init__(self, scene: "Staged") -> None:
        super().__init__(scene)
        self.tale = Timeline()
        self._open: dict[str, tuple[str, float]] = {}

    @property
    def second(self) -> float:
        return (self.network.world.now - SUBMIT_MS) / 1000

    def _stretch(self, shim: SimShim, what: str | None) -> None:
        before = self._open.pop(shim.attempt, None)
        if before is not None and self.second > before[1]:
            self.tale.bars.append(Bar(shim.machine.spec.id, before[0], before[1], self.second, shim.attempt))
        if what is not None:
            self._open[shim.attempt] = (what, self.second)

    def started(self, shim: SimShim, from_ms: int) -> None:
        account = self.accounts[shim.job]
        behind = account.furthest_ms - from_ms
        super().started(shim, from_ms)
        self._stretch(shim, "again" if behind > 0 else "computing")
        self.tale.marks.append((self.second, f"started from {from_ms / 1000:g} s", shim.machine.spec.id))
        if behind > 0:
            self.network.world.call_in(behind, self._caught_up, shim)

    def _caught_up(self, shim: SimShim) -> None:
        if self._open.get(shim.attempt, ("", 0))[0] == "again":
            self._stretch(shim, "computing")

    def saving(self, shim: SimShim, now_saving: bool) -> None:
        super().saving(shim, now_saving)
        self._stretch(shim, "saving" if now_saving else "computing")

    def ended(self, shim: SimShim) -> None:
        super().ended(shim)
        self._stretch(shim, None)
        self.tale.marks.append((self.second, "body ended", shim.machine.spec.id))

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for before, after in rows:
            match after:
                case Attempt():
                    self.tale.fences[after.id], self.tale.where[after.id] = after.fence, after.node
                    if before is None:
                        self._mark("offered", after.node)
                    if isinstance(before, Attempt):
                        if after.revoked is not None and before.revoked is None:
                            self._mark("revoked", after.node)
                        if after.go and not before.go:
                            self._mark("go", after.node)
                        if not after.live and before.live:
                            self._mark("gone", after.node)
                case Node() if isinstance(before, Node) and before.state is not after.state:
                    self._mark(after.state.value, after.id)
                case Job() if after.phase is JobPhase.ENDED:
                    self._mark("ended", "")
                    self.tale.verdict = after.verdict
                    self.tale.says = after.failure.code.value if after.failure is not None else ""
                case _:
                    pass
        super().durable(rows)

    def _mark(self, kind: str, node: str) -> None:
        self.tale.marks.append((self.second, kind, node))


class Staged(PlannedNetwork):
    """One job, and one fault."""

    def __init__(self, question: Question, recovery: Recovery, seed: int = 1) -> None:
        self._recovery = recovery
        super().__init__(question, seed, leaps=False)

    def new_ledger(self) -> Ledger:
        return Noting(self)

    def spec(self) -> JobSpec:
        return replace(super().spec(), recovery=self._recovery)

    @property
    def tale(self) -> Timeline:
        assert isinstance(self.ledger, Noting)
        return self.ledger.tale

    def fault(self, after_ms: int, how: str, for_ms: int) -> None:
        """At that moment, the node that runs the job loses its power or its link, for this long."""
        self.world.call_at(SUBMIT_MS + after_ms, self._strike, how, for_ms)

    def _strike(self, how: str, for_ms: int) -> None:
        machine = next(m for m in self.machines.values() if m.running)
        now = (self.world.now - SUBMIT_MS) / 1000
        self.tale.marks.append((now, how, machine.spec.id))
        if how == "power lost":
            machine.fall("staged")
            self.ledger.fell(machine.spec.id)
            self.world.call_in(for_ms, machine.rise)
            return
        for direction in (UP, DOWN):
            machine.link.sever(direction)
            self.world.call_in(for_ms, machine.link.mend, direction)
        self.world.call_in(for_ms, self._healed, machine.spec.id)

    def _healed(self, node: str) -> None:
        self.tale.marks.append(((self.world.now - SUBMIT_MS) / 1000, "healed", node))

    def told(self, until_ms: int) -> Timeline:
        """Run until this long after the submission."""
        self.run()
        self.world.run_until(SUBMIT_MS + until_ms)
        return self.tale


def takeover() -> Timeline:
    """A machine loses power under a job that saves its state; another continues; the first comes back."""
    question = Question(3, 40_000, every_ms=10_000, cost_ms=1_000, prepare_ms=1_500)
    stage = Staged(question, Recovery.RESUME)
    stage.fault(31_000, "power lost", 12_000)
    return stage.told(66_000)


def fence() -> Timeline:
    """A machine is cut off, continues to compute, and comes back with a result that is no longer wanted."""
    stage = Staged(Question(2, 20_000, prepare_ms=1_000), Recovery.RESTART)
    stage.fault(9_000, "cut off", 36_000)
    return stage.told(52_000)


def lease() -> Timeline:
    """Work that must not run twice, on a machine that is cut off: its lease expires on both sides."""
    stage = Staged(Question(2, 60_000, prepare_ms=1_000), Recovery.NEVER)
    stage.fault(12_000, "cut off", 40_000)
    return stage.told(40_000)


# --- the states of a job ---


class _Steps(Rule):
    def __init__(self, scene: Any) -> None:
        super().__init__(scene)
        self.counts: Counter[tuple[str, str]] = Counter()

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for before, after in rows:
            if isinstance(after, Job):
                was = before.phase.value if isinstance(before, Job) else ""
                now = after.phase.value
                if now != was:
                    verdict = f" {after.verdict.value}" if after.verdict is not None else ""
                    self.counts[was, now + verdict] += 1


def steps(worlds: int = WORLDS) -> Counter[tuple[str, str]]:
    """Every change of a job's state in this many simulated worlds, and how often it occurred."""
    counts: Counter[tuple[str, str]] = Counter()
    for seed in range(1, worlds + 1):
        scene = Scene(plan(seed))
        look = _Steps(scene)
        scene.watch.add([look])
        scene.run()
        counts.update(look.counts)
    return counts
