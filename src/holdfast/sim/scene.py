"""One simulated world: built from its plan and run to its verdict."""

from collections import Counter
from random import Random

import msgspec

from holdfast.model import Job, NodeId
from holdfast.policy.restored import number_skip
from holdfast.sim.checkers import RULES
from holdfast.sim.faults import Injector
from holdfast.sim.network import SimLink
from holdfast.sim.node import Machine
from holdfast.sim.orchestrator import SimOrchestrator
from holdfast.sim.people import People
from holdfast.sim.plan import FaultKind, WorldPlan, plan
from holdfast.sim.store import SimStore, StoreCopy
from holdfast.sim.watch import Broken, InvariantWatch
from holdfast.sim.world import Clock, RunsAway, SimWorld

WALL_EPOCH_MS = 1_700_000_000_000
"""The reading of a correct wall clock when a world begins."""
SKEW_MS = 1_500
APART_MS = 1_000
"""Between two restores of backups."""


class WorldVerdict(msgspec.Struct, frozen=True):
    """How a world ended."""

    seed: int
    ok: bool
    says: str
    trace: str
    events: int
    virtual_ms: int
    faults: dict[str, int]
    jobs: dict[str, int]
    turned_away: int
    """Requests that a leader refused because too much waited already."""

    @property
    def replay(self) -> str:
        return f"holdfast sim --seed {self.seed} --story"


class Scene:
    def __init__(self, the_plan: WorldPlan) -> None:
        self.plan = the_plan
        self.settings = the_plan.settings
        self.world = SimWorld(the_plan.seed)
        self.store = SimStore(self.world.stream())
        self.watch = InvariantWatch()
        self._random = self.world.stream()
        self.orchestrators: list[SimOrchestrator] = []
        self.machines: dict[NodeId, Machine] = {}
        for spec in the_plan.machines:
            link = SimLink(self.world, self.world.stream(), self._random.choice((0, 1, 5, 20)))
            link.give_up_ms = self._random.randrange(5_000, 30_000)
            self.machines[spec.id] = Machine(spec, self.world, self.watch, link, self.find, the_plan.programs)
        self.people = People(self)
        self.faults = Injector(self)
        self.walls: dict[str, Clock] = {}
        """The wall clock that each orchestrator reads."""
        self.wall_ahead_ms = 0
        """The error of the wall clock of an orchestrator that starts now."""
        self._restored_at = -APART_MS
        self.leaderless_until = 0
        """No replacement for a dead orchestrator is started before this time."""
        self.watch.add(rule(self) for rule in RULES)

    # --- orchestrators ---

    def start_orchestrator(self) -> SimOrchestrator:
        skew_ms = self._random.randrange(-SKEW_MS, SKEW_MS)
        boottime = Clock(self.world, self._random.randrange(1_000, 1_000_000), 0)
        wall = Clock(self.world, WALL_EPOCH_MS + skew_ms + self.wall_ahead_ms, 0)
        name = f"orchestrator {len(self.orchestrators) + 1}"
        self.walls[name] = wall
        orchestrator = SimOrchestrator(
            name,
            self.world,
            self.store,
            self.settings,
            self.watch,
            boottime,
            wall,
        )
        orchestrator.core.events_max = self.plan.events_max
        self.orchestrators.append(orchestrator)
        orchestrator.start()
        return orchestrator

    def restore(self, backup: StoreCopy, with_logs: bool) -> bool:
        """Kill every orchestrator and replace the store by a backup, and its logs too, or not. False: it was too soon
        after the last time."""
        if self.world.now - self._restored_at < APART_MS:
            self.world.note("the backup is not used: another one has just been restored")
            return False
        logs = "with logs" if with_logs else "without logs"
        self.world.note(f"all orchestrators are killed, and the store is restored from a backup {logs}")
        self._restored_at = self.world.now
        for orchestrator in self.orchestrators:
            if orchestrator.alive:
                orchestrator.die(False)
        self.store.restore(backup, with_logs)
        self.store.skip_ahead(*number_skip((WALL_EPOCH_MS + self.world.now) // 1_000))
        self.watch.restored(self.store.rows)
        self.people.restored()
        return True

    def wall_error(self, wall: Clock) -> int:
        """The correction that a wall clock needs, to within a second."""
        error = WALL_EPOCH_MS + self.world.now - wall.read()
        return error if abs(error) > SKEW_MS else 0

    def _supervise(self) -> None:
        """As an init system does: soon there is always one orchestrator."""
        if self.leader is None and self.world.now >= self.leaderless_until:
            self.start_orchestrator()
        self.world.call_in(100, self._supervise)

    @property
    def leader(self) -> SimOrchestrator | None:
        """The youngest live process."""
        return next((o for o in reversed(self.orchestrators) if o.alive), None)

    def find(self, random: Random) -> SimOrchestrator | None:
        """The orchestrator that answers a connection: mostly the youngest, sometimes a replaced one that does not know
        it."""
        serving = [o for o in self.orchestrators if o.serves]
        if not serving:
            return None
        return serving[0] if len(serving) > 1 and random.random() < 0.2 else serving[-1]

    # --- the run ---

    def run(self) -> WorldVerdict:
        says = ""
        try:
            self._run()
        except Broken as broken:
            says = str(broken)
            self.world.note(f"RULE BROKEN: {says}")
        except RunsAway as lost:
            says = f"runs_away: {lost}"
        return self._verdict(says)

    def _run(self) -> None:
        self._supervise()
        for machine in self.machines.values():
            self.world.call_in(self._random.randrange(1_000), machine.start_agent)
        self.people.begin()
        for at, kind in self.plan.faults:
            self.world.call_at(at, self.faults.inject, kind)
        self.world.run_until(self.plan.safety_ms)
        self.faults.heal()
        self.leaderless_until = 0
        self.world.note("everything is healed; from here on the world must settle")
        self.watch.tell("healed")
        limit = self.world.now + self.plan.bound_ms
        while not self.settled() and self.world.now < limit:
            self.world.run_until(min(limit, self.world.now + 1_000))
        self.watch.tell("finished")

    def settled(self) -> bool:
        """Whether every request is answered, every job has ended, and no machine holds anything."""
        return (
            self.people.satisfied
            and not any(isinstance(row, Job) and row.live for row in self.store.rows.values())
            and not any(machine.folders or machine.shims for machine in self.machines.values())
        )

    def _verdict(self, says: str) -> WorldVerdict:
        jobs = Counter(
            (row.verdict.value if row.verdict else "unended")
            for row in self.store.rows.values() if isinstance(row, Job)
        )  # fmt: skip
        return WorldVerdict(
            self.plan.seed, not says, says, self.world.trace_hash(), self.world.happened, self.world.now,
            {kind.value: self.faults.counts[kind] for kind in FaultKind}, dict(jobs),
            sum(orchestrator.turned_away for orchestrator in self.orchestrators),
        )  # fmt: skip


def run(seed: int) -> WorldVerdict:
    return Scene(plan(seed)).run()
