"""Machines of a planned world: they fail and return at random, and their bodies save checkpoints and resume from them.

The production node core and attempt lifecycle decide, as in every simulated world. Added here: a body with progress,
which pauses while it writes a checkpoint and starts from the one that the orchestrator names; preparation time; and
sleep (see `planning_world`), during which the agent sends nothing and bodies continue.
"""

from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from holdfast.kernel.events import Checkpointed
from holdfast.model import AttemptId
from holdfast.model.messages import Progress
from holdfast.node.core.events import AttemptInputs, Progressed
from holdfast.node.core.order import Order
from holdfast.sim.node import AttemptFolder, Machine, MachineSpec, SimAgent
from holdfast.sim.process import SimProcess
from holdfast.sim.shim import SimShim

if TYPE_CHECKING:
    from holdfast.sim.planning_world import PlannedNetwork

LOOK_EVERY_MS = 10_000


class PlannedMachine(Machine):
    def __init__(self, spec: MachineSpec, network: "PlannedNetwork", chance: Random) -> None:
        super().__init__(spec, network.world, network.watch, network.new_link(), network.find, network.programs)
        self.network = network
        self._chance = chance
        """Random source of this machine's failures alone: they do not depend on the jobs, so that plans can be
        compared."""
        self.falls_at: int | None = None
        self.making_ready: set[AttemptId] = set()

    @property
    def idle(self) -> bool:
        return self.up and not (self.shims or self.making_ready)

    def new_agent(self, instance: str) -> SimAgent:
        return PlannedAgent(self, instance)

    def start_agent(self) -> None:
        super().start_agent()
        if self.network.asleep and self.agent is not None:
            self.agent.freeze()

    # --- churn ---

    def plan_fall(self) -> None:
        mean = self.network.question.mtbf_ms
        if mean:
            at = self.falls_at = self.world.now + round(self._chance.expovariate(1 / mean))
            self.world.call_at(at, self._fall)

    def _fall(self) -> None:
        self.falls_at = None
        self.making_ready.clear()
        self.fall("churn")
        self.network.ledger.fell(self.spec.id)
        mean = self.network.question.return_ms
        if mean:
            self.world.call_in(round(self._chance.expovariate(1 / mean)), self._return)

    def _return(self) -> None:
        self.rise()
        self.plan_fall()
        self.network.room_appeared()

    # --- bodies ---

    def body_started(self, shim: SimShim) -> None:
        super().body_started(shim)
        self.network.ledger.started(shim, self.network.length_ms - shim.program.duration_ms)
        every = self.network.question.every_ms
        if every:
            self.world.call_in(every, self._save, shim)

    def body_ended(self, shim: SimShim) -> None:
        super().body_ended(shim)
        self.network.ledger.ended(shim)
        self.network.stir()

    def _save(self, shim: SimShim) -> None:
        body = shim.body
        if body is None or body.dead:
            return
        body.pause()
        self.network.ledger.saving(shim, True)
        self.world.call_in(self.network.question.cost_ms, self._saved, shim)

    def _saved(self, shim: SimShim) -> None:
        """The checkpoint is written and captured: the orchestrator is notified, and the body continues."""
        body = shim.body
        if body is None or body.dead:
            return
        reached = self.network.length_ms - shim.program.duration_ms + body.computed_ms
        manifest = sha256(f"{shim.attempt} {reached}".encode()).hexdigest()
        self.network.saved[manifest] = reached
        orchestrator = self.network.orchestrator
        orchestrator.ask(Checkpointed(shim.attempt, shim.order.fence, manifest, 4_096), lambda _: None)
        body.resume()
        self.network.ledger.saving(shim, False)
        self.world.call_in(self.network.question.every_ms, self._save, shim)


class PlannedAgent(SimAgent):
    @property
    def _planned(self) -> PlannedMachine:
        return cast(PlannedMachine, self.machine)

    def _tick(self) -> None:
        """A tick missed during sleep runs after the next one was scheduled: keep only one."""
        self.world.cancel(self._timer)
        super()._tick()

    def _look(self) -> None:
        """Less often than with injected faults: nothing here makes slow progress, and a day is long."""
        for shim in self.machine.running:
            if shim.body is not None:
                self._feed(Progressed(shim.attempt, Progress("run", cpu_ms=shim.body.computed_ms)))
        self.later(LOOK_EVERY_MS, self._look)

    def _deliver_logs(self) -> None:
        if self._welcomed:
            for attempt in sorted(self._undelivered):
                self._say(self._undelivered[attempt])
        self.later(LOOK_EVERY_MS, self._deliver_logs)

    def _spawn(self, order: Order, attempt_inputs: AttemptInputs) -> None:
        attempt = AttemptId(order.attempt)
        machine = self._planned
        machine.folders[attempt] = AttemptFolder(order)
        machine.making_ready.add(attempt)
        takes = machine.network.question.prepare_ms + machine.random.randrange(5, 60)
        machine.world.call_in(takes, self._ready, order, attempt_inputs.checkpoint)

    def _ready(self, order: Order, checkpoint: str) -> None:
        attempt = AttemptId(order.attempt)
        if self.machine.agent is self and attempt in self._planned.making_ready:
            self._planned.network.stir()
            self.run(self._begin_shim, order, checkpoint)

    def _begin_shim(self, order: Order, checkpoint: str) -> None:
        machine = self._planned
        attempt = AttemptId(order.attempt)
        machine.making_ready.discard(attempt)
        if attempt not in machine.folders:
            return  # no longer wanted
        done = machine.network.saved.get(checkpoint, 0)
        program = machine.programs[order.job]
        shim = PlannedShim(machine, order, replace(program, duration_ms=program.duration_ms - done))
        if shim.alive:
            machine.shims[shim.attempt] = shim

    def _captured(self, attempt: AttemptId) -> None:
        """Nobody drains the machines of a planned world, so no extra captures are requested."""


class PlannedShim(SimShim):
    """A shim that sleeps with the world."""

    def freeze(self) -> None:
        """The world sleeps: the shim reports nothing. Its body continues to compute."""
        SimProcess.freeze(self)

    def thaw(self) -> None:
        """A session that stayed open is contact, and the agent would have reported it every few minutes."""
        if self.machine.agent is not None and self.machine.agent.core.connected:
            self._lifecycle.contact(self.machine.clock.read())
        SimProcess.thaw(self)
