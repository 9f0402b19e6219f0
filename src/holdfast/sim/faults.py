"""Injects faults and undoes them. Every injection is counted, and all can be undone at once.

It also records which nodes have an excuse for misbehaving: rules about blame ask `troubled`.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.kernel.events import DrainAsked
from holdfast.model import AttemptId, Node, NodeId
from holdfast.sim.lies import Liar, Lie
from holdfast.sim.network import DOWN, UP
from holdfast.sim.node import Machine
from holdfast.sim.orchestrator import SimOrchestrator
from holdfast.sim.plan import FaultKind
from holdfast.sim.store import StoreCopy

if TYPE_CHECKING:
    from holdfast.sim.scene import Scene

RIPPLE_MS = 12_000
"""The effects of a fault outlast it: retries, rejected results, a shim's death reported after a reconnect."""
AGAIN_MS = 400
MASS_CUT_MIN = 3
"""A network needs at least this many machines."""
TRIES_MAX = 40
"""A fault without a possible victim (no body to orphan, no leader to kill) is retried at this interval."""


class Injector:
    def __init__(self, scene: "Scene") -> None:
        self.scene = scene
        self.world = scene.world
        self.counts: Counter[FaultKind] = Counter()
        self.leader_left_at = -(10**9)
        """When a fault last killed or replaced the leader, so that its nodes have to find the next one."""
        self.random = scene.world.stream()
        self._undos: dict[int, Callable[[], None]] = {}
        self._number = 0
        self._active: Counter[NodeId] = Counter()
        self.blamers: set[NodeId] = set()
        """Machines that blamed owners who were not to blame. They may be found out much later."""
        self._calm_since: dict[NodeId, int] = {}
        self._cuts: list[frozenset[NodeId]] = []
        self._over = False
        scene.store.rotted = self._rotted
        for machine in scene.machines.values():
            machine.felled = self._felled
            machine.impatient = self._impatient

    # --- queries by rules ---

    def troubled(self, node: NodeId) -> bool:
        """Whether this machine or its link has a fault, or had one recently."""
        return self._active[node] > 0 or self.world.now - self._calm_since.get(node, -(10**9)) <= RIPPLE_MS

    def trouble(self, node: NodeId) -> None:
        self._active[node] += 1

    def calm(self, node: NodeId) -> None:
        self._active[node] -= 1
        self._calm_since[node] = self.world.now

    def cut_with(self, node: NodeId) -> frozenset[NodeId]:
        """The machines that are cut off together with this one, or were recently; empty: it is not cut off."""
        return frozenset[NodeId]().union(*(cut for cut in self._cuts if node in cut))

    # --- injecting ---

    def inject(self, kind: FaultKind, tries: int = 0) -> None:
        if self._over:
            return
        if getattr(self, f"_{kind.value}")():
            self.counts[kind] += 1
        elif tries < TRIES_MAX:
            self.world.call_in(AGAIN_MS, self.inject, kind, tries + 1)

    def heal(self) -> None:
        """Undo all faults now. No further faults are injected."""
        self._over = True
        for number in sorted(self._undos):
            self._undo(number)

    def _for(self, low_ms: int, high_ms: int, undo: Callable[[], None], node: NodeId | None = None) -> None:
        """The fault lasts between `low_ms` and `high_ms`, then `undo` ends it."""
        self._number += 1
        if node is not None:
            self.trouble(node)

        def ended() -> None:
            undo()
            if node is not None:
                self.calm(node)

        self._undos[self._number] = ended
        self.world.call_in(self.random.randrange(low_ms, high_ms), self._undo, self._number)

    def _undo(self, number: int) -> None:
        undo = self._undos.pop(number, None)
        if undo is not None:
            undo()

    def _machine(self, fit: Callable[[Machine], bool] = lambda _: True) -> Machine | None:
        fitting = [m for m in self.scene.machines.values() if m.up and m.agent is not None and fit(m)]
        return self.random.choice(fitting) if fitting else None

    def _victim(self) -> Machine | None:
        """Often one that has strikes: it may be quarantined, and must not escape that."""
        struck = self._machine(self._struck) if self.random.random() < 0.3 else None
        return struck or self._machine()

    def _leader(self) -> SimOrchestrator | None:
        leader = self.scene.leader
        return leader if leader is not None and leader.core.leads and not leader.frozen else None

    # --- machines ---

    def _crash(self) -> bool:
        machine = self._victim()
        if machine is None:
            return False
        machine.fall("power cut")
        self._for(500, 30_000, machine.rise, machine.spec.id)
        return True

    def _felled(self, machine: Machine) -> None:
        """A job's body took the machine down. Not a fault of the plan; it happens after healing too. The machine
        restarts."""
        machine.fall("a job's body felled it")
        self._for(1_000, 8_000, machine.rise, machine.spec.id)

    def _impatient(self, machine: Machine) -> None:
        """The node itself broke the stream, so being suspected for that is correct."""
        self._calm_since[machine.spec.id] = self.world.now

    def _freeze(self) -> bool:
        machine = self._machine()
        if machine is None:
            return False
        whole = self.random.random() < 0.6
        self.world.note(f"{machine.spec.id} freezes" + (" with all it runs" if whole else ": the agent only"))
        machine.freeze(whole)
        self._for(300, 15_000, lambda: self._wake(machine), machine.spec.id)
        return True

    def _wake(self, machine: Machine) -> None:
        self.world.note(f"{machine.spec.id} goes on")
        machine.thaw()

    def _suspend(self) -> bool:
        machine = self._machine()
        if machine is None:
            return False
        self.world.note(f"{machine.spec.id} is suspended")
        machine.freeze(True)
        self._sever(machine, UP, DOWN)

        def resume() -> None:
            self._wake(machine)
            self._mend(machine, UP, DOWN)

        self._for(1_000, 30_000, resume, machine.spec.id)
        return True

    def _disk_full(self) -> bool:
        machine = self._machine(lambda m: not m.disk_full)
        if machine is None:
            return False
        self.world.note(f"the disk of {machine.spec.id} is full")
        machine.disk_full = True
        for shim in machine.running:
            if self.random.random() < 0.5:
                shim.later(self.random.randrange(1, 500), shim.fault, "node_disk_full", "no space left on device")

        def freed() -> None:
            self.world.note(f"the disk of {machine.spec.id} has room again")
            machine.disk_full = False

        self._for(1_000, 10_000, freed, machine.spec.id)
        return True

    def _slow_node(self) -> bool:
        machine = self._machine(lambda m: m.slowness == 1)
        if machine is None:
            return False
        factor = self.random.randrange(3, 9)
        self.world.note(f"{machine.spec.id} is {factor} times slower")
        machine.set_slowness(factor)

        def recovered() -> None:
            self.world.note(f"{machine.spec.id} is as fast as ever")
            machine.set_slowness(1)

        self._for(2_000, 15_000, recovered, machine.spec.id)
        return True

    def _slow_body(self) -> bool:
        return self._dragged(self.random.randrange(5, 40), "gets on {} times slower")

    def _stalled_body(self) -> bool:
        return self._dragged(None, "stands still")

    def _dragged(self, factor: int | None, words: str) -> bool:
        """One body makes slow progress, or none, on a healthy machine."""
        machine = self._machine(lambda m: any(s.body is not None and not s.body.dragged for s in m.running))
        if machine is None:
            return False
        shim = self.random.choice([s for s in machine.running if s.body is not None and not s.body.dragged])
        body = shim.body
        assert body is not None
        self.world.note(f"the body of {shim.attempt} on {machine.spec.id} {words.format(factor)}")
        body.drag(factor)

        def recovered() -> None:
            if not body.dead:
                self.world.note(f"the body of {shim.attempt} gets on as ever")
                body.drag(1)

        self._for(2_000, 25_000, recovered)
        return True

    def _lying_node(self) -> bool:
        machine = self._machine(lambda m: m.liar is None and bool(m.folders))
        if machine is None:
            return False
        kind = self.random.choice(tuple(Lie))
        self.world.note(f"{machine.spec.id} lies from now on: {kind.value}")
        machine.liar = Liar(kind, self.random)
        if kind is Lie.BLAMED_OWNERS:
            self.blamers.add(machine.spec.id)

        def honest() -> None:
            self.world.note(f"{machine.spec.id} is honest again")
            machine.liar = None

        self._for(2_000, 15_000, honest, machine.spec.id)
        return True

    def _agent_restart(self) -> bool:
        machine = self._victim()
        if machine is None:
            return False
        self.world.note(f"the agent of {machine.spec.id} is killed; its shims live on")
        machine.stop_agent("killed")
        self._for(50, 4_000, machine.start_agent, machine.spec.id)
        return True

    def _shim_kill(self) -> bool:
        machine = self._machine(lambda m: bool(m.shims))
        if machine is None:
            return False
        shim = machine.shims[self.random.choice(sorted(machine.shims))]
        self.world.note(f"the shim of {shim.attempt} on {machine.spec.id} is killed")
        machine.kill_shim(shim)
        self._for(50, 51, lambda: None, machine.spec.id)
        return True

    # --- links ---

    def _sever(self, machine: Machine, *directions: int) -> None:
        for direction in directions:
            machine.link.sever(direction)

    def _mend(self, machine: Machine, *directions: int) -> None:
        for direction in directions:
            machine.link.mend(direction)

    def _partition(self, words: str, *directions: int) -> bool:
        machine = self._victim()
        if machine is None:
            return False
        self.world.note(f"{words} {machine.spec.id}")
        self._sever(machine, *directions)

        def whole() -> None:
            self.world.note(f"the link of {machine.spec.id} is whole again")
            self._mend(machine, *directions)

        self._for(500, 25_000, whole, machine.spec.id)
        return True

    def _partition_both(self) -> bool:
        return self._partition("nothing passes to or from", UP, DOWN)

    def _partition_in(self) -> bool:
        return self._partition("nothing passes to", DOWN)

    def _partition_out(self) -> bool:
        return self._partition("nothing comes from", UP)

    def _mass_cut(self) -> bool:
        """A switch fails: most machines are cut off at the same moment."""
        there = [m for m in self.scene.machines.values() if m.up and m.agent is not None and m.link.whole]
        count = max(MASS_CUT_MIN, (len(there) + 1) // 2)
        if len(there) < count:
            return False
        cut = self.random.sample(there, self.random.randrange(count, len(there) + 1))
        names = frozenset(machine.spec.id for machine in cut)
        self.world.note(f"the network is cut: nothing passes to or from {', '.join(sorted(names))}")
        self._cuts.append(names)
        for machine in cut:
            self._sever(machine, UP, DOWN)
            self.trouble(machine.spec.id)

        def whole() -> None:
            self.world.note("the network is whole again")
            for machine in cut:
                self._mend(machine, UP, DOWN)
                self.calm(machine.spec.id)
            self.world.call_in(RIPPLE_MS, self._cuts.remove, names)

        self._for(500, 20_000, whole)
        return True

    def _zombie(self) -> bool:
        """Cut off or frozen while it runs something, long enough for its work to be taken over; then it returns.

        Sometimes its link is very slow before it dies, so that the last messages each side received are old."""
        machine = self._machine(lambda m: bool(m.running) and m.link.whole)
        if machine is None:
            return False
        if not machine.link.extra_ms and self.random.random() < 0.4:
            slow_ms = self.random.randrange(300, 1_000)
            self.world.note(f"the link of {machine.spec.id} is dying: {slow_ms} ms slower")
            machine.link.extra_ms = slow_ms
            self._for(1_500, 3_000, lambda: self._dropped(machine, asleep=False), machine.spec.id)
        else:
            self._dropped(machine, asleep=self.random.random() < 0.5)
        return True

    def _dropped(self, machine: Machine, asleep: bool) -> None:
        if self._over:
            machine.link.extra_ms = 0
            return
        self.world.note(f"{machine.spec.id} drops out while it runs {', '.join(s.attempt for s in machine.running)}")
        if asleep:
            machine.freeze(True)
        else:
            self._sever(machine, UP, DOWN)

        def back() -> None:
            self.world.note(f"{machine.spec.id} returns with what it held")
            machine.link.extra_ms = 0
            if asleep:
                machine.thaw()
            else:
                self._mend(machine, UP, DOWN)

        self._for(3_000, 20_000, back, machine.spec.id)

    def _weather(self, what: str, value: float | int, words: str) -> bool:
        machine = self._machine(lambda m: not getattr(m.link, what))
        if machine is None:
            return False
        self.world.note(f"the link of {machine.spec.id} {words}")
        setattr(machine.link, what, value)

        def clear() -> None:
            self.world.note(f"the link of {machine.spec.id} is fine again")
            setattr(machine.link, what, 0)

        self._for(1_000, 15_000, clear, machine.spec.id)
        return True

    def _delay(self) -> bool:
        return self._weather("extra_ms", self.random.randrange(50, 1_200), "is slow")

    def _reorder(self) -> bool:
        return self._weather("reorder", self.random.uniform(0.05, 0.5), "mixes up messages")

    def _drop(self) -> bool:
        return self._weather("drop", self.random.uniform(0.05, 0.5), "loses messages")

    def _repeat(self) -> bool:
        return self._weather("repeat", self.random.uniform(0.05, 0.5), "repeats messages")

    # --- orchestrators and the operator ---

    def _orchestrator_crash(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        silently = self.random.random() < 0.3
        self.world.note(f"{leader.name} {'loses power' if silently else 'is killed'}")
        leader.die(silently)
        self._away(self.random.randrange(200, 8_000))
        return True

    def _orchestrator_restart(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        self.world.note(f"{leader.name} is restarted")
        leader.die(False)
        self._away(self.random.randrange(20, 400))
        return True

    def _away(self, for_ms: int) -> None:
        """The leader was killed, and no other orchestrator is started for this long."""
        self.leader_left_at = self.world.now
        self.scene.leaderless_until = self.world.now + for_ms

    def _orchestrator_freeze(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        self.world.note(f"{leader.name} freezes")
        leader.freeze()
        since = self.world.now
        self._for(300, 30_000, lambda: self._thaw(leader, since))
        return True

    def _thaw(self, leader: SimOrchestrator, since: int) -> None:
        if leader.alive and leader.frozen:
            self.world.note(f"{leader.name} goes on")
            self._late_news(since)
            leader.thaw()

    def _late_news(self, since: int) -> None:
        """Faults of machines during the freeze are only noticed now."""
        for node, calm in self._calm_since.items():
            if calm >= since - RIPPLE_MS:
                self._calm_since[node] = self.world.now

    def _two_leaders(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        self.world.note(f"{leader.name} stands still and is replaced; it will not know")
        leader.freeze()
        self.leader_left_at = since = self.world.now
        self.scene.start_orchestrator()
        self._for(300, 10_000, lambda: self._thaw(leader, since))
        return True

    def _store_failure(self) -> bool:
        store = self.scene.store
        if store.full or store.stall_ms or self._leader() is None:
            return False
        if self.random.random() < 0.5:
            self.world.note("the disk under the store is full")
            store.full = True
        else:
            store.stall_ms = self.random.randrange(1_500, 6_000)
            self.world.note(f"the store takes {store.stall_ms} ms for a commit")

        since = self.world.now

        def well() -> None:
            self.world.note("the store is well again")
            self._late_news(since)
            store.full, store.stall_ms = False, 0

        self._for(300, 8_000, well)
        return True

    def _deposed_leader(self) -> bool:
        """Another orchestrator takes the lead while the present leader continues, unaware, and keeps its nodes. It is
        stopped in the end: a leader with nothing to write would never find out."""
        leader = self._leader()
        if leader is None:
            return False
        self.world.note(f"{leader.name} is replaced while it runs")
        self.leader_left_at = self.world.now
        self.scene.start_orchestrator()

        def stopped() -> None:
            if leader.alive:
                self.world.note(f"{leader.name} is stopped")
                leader.die(False)

        self._for(300, 10_000, stopped)
        return True

    def _restored_store(self) -> bool:
        """A backup is made, and the orchestrator is restarted from it: at once, or when much has happened since. Its
        logs are as old as its state, or as new as what is lost. The restore skips numbers."""
        leader = self._leader()
        if leader is None:
            return False
        self.world.note(f"a backup of {leader.name} is made")
        backup = self.scene.store.backup()
        at_once = self.random.random() < 0.3
        self._for(1 if at_once else 500, 2 if at_once else 12_000, lambda: self._restore(backup))
        return True

    def _restore(self, backup: StoreCopy) -> None:
        if self.scene.restore(backup, with_logs=self.random.random() < 0.5):
            self._away(self.random.randrange(200, 4_000))

    def _clock_jump(self) -> bool:
        """The wall clock of the orchestrator's machine is set, or is wrong from the start of the next process."""
        leader, scene = self._leader(), self.scene
        if leader is None or scene.wall_ahead_ms:
            return False
        by_ms = int(10 ** self.random.uniform(3, 11.5)) * self.random.choice((1, -1))
        scene.wall_ahead_ms = by_ms
        if self.random.random() < 0.5:
            self.world.note(f"the wall clock of {leader.name} jumps by {by_ms} ms")
            scene.walls[leader.name].jump(by_ms)
        else:
            self.world.note(f"{leader.name} is restarted with a wall clock that is wrong by {by_ms} ms")
            leader.die(False)
            self._away(self.random.randrange(20, 400))

        def right() -> None:
            self.world.note("the wall clock is right again")
            scene.wall_ahead_ms = 0
            for wall in scene.walls.values():
                wall.jump(scene.wall_error(wall))

        self._for(500, 15_000, right)
        return True

    def _upset(self, what: str, value: float, words: str) -> bool:
        """The store misbehaves now and then, for a while."""
        store = self.scene.store
        if getattr(store, what) or self._leader() is None:
            return False
        self.world.note(words)
        setattr(store, what, value)
        since = self.world.now

        def well() -> None:
            self.world.note("the store is well again")
            self._late_news(since)
            setattr(store, what, 0.0)

        self._for(300, 8_000, well)
        return True

    def _lost_answer(self) -> bool:
        return self._upset("forgetful", self.random.uniform(0.02, 0.5), "answers of the store get lost")

    def _io_errors(self) -> bool:
        return self._upset("flaky", self.random.uniform(0.02, 0.5), "the disk under the store gives errors")

    def _bit_rot(self) -> bool:
        return self._upset("rot", self.random.uniform(0.2, 1.0), "the disk under the logs damages what it keeps")

    def _rotted(self, attempt: AttemptId) -> None:
        """Nobody is excused: the machine that delivered the log must not be blamed for the difference."""
        self.world.note(f"the log of {attempt} is damaged")

    def _shared_disk_full(self) -> bool:
        """Logs and state are on one disk."""
        store = self.scene.store
        if store.full or store.logs_full or self._leader() is None:
            return False
        self.world.note("the disk under the store and the logs is full")
        store.full = store.logs_full = True
        since = self.world.now

        def freed() -> None:
            self.world.note("the disk under the store and the logs has room again")
            self._late_news(since)
            store.full = store.logs_full = False

        self._for(300, 8_000, freed)
        return True

    def _drain(self) -> bool:
        machine, leader = self._machine(), self._leader()
        if machine is None or leader is None:
            return False
        if self.random.random() < 0.4 and machine.agent is not None:
            machine = self._machine(self._struck) or machine
            assert machine.agent is not None
            self.world.note(f"{machine.spec.id} is asked to leave")
            machine.agent.leave(self.random.randrange(5_000))
            self._for(6_000, 20_000, lambda: self._come_back(machine), machine.spec.id)
            return True
        self.world.note(f"{machine.spec.id} is drained by its operator")
        node = machine.spec.id
        leader.ask(DrainAsked(node, True, "operator"), lambda _: None)
        self._for(1_000, 15_000, lambda: self._undrain(node), node)
        return True

    def _struck(self, machine: Machine) -> bool:
        """Whether it has strikes: going away must not clear them."""
        row = self.scene.store.rows.get(("node", machine.spec.id))
        return isinstance(row, Node) and row.strikes > 0

    def _come_back(self, machine: Machine) -> None:
        """Its operator starts it again, whether or not it had finished leaving."""
        machine.stop_agent("restarted by its operator")
        machine.start_agent()

    def _undrain(self, node: NodeId) -> None:
        self.scene.people.insist(DrainAsked(node, False, "operator"))
