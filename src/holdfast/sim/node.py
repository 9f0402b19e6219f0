"""Simulated machines: the production node core under an agent that can die, freeze, restart and lie.

Nothing is decided here. A machine has a disk with one folder per attempt, a clock, a link, shims that survive the
agent, and an agent that drives the core: it connects, scans after a restart, and delivers logs.
"""

from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import Any

import msgspec

from holdfast.kernel.events import Checkpointed
from holdfast.model import AttemptId, Failure, FailureCode, Gpu, Hardware, NodeId, Resources
from holdfast.model.messages import Hello, Load, Progress, Refusal, Welcome
from holdfast.node.core.admission import Means
from holdfast.node.core.attempt_lifecycle import Phase
from holdfast.node.core.core import NodeCore
from holdfast.node.core.events import (
    AttemptInputs,
    CaptureCheckpoint,
    CommandReceived,
    Connected,
    Delivered,
    Disconnected,
    HangUp,
    LeaveAsked,
    LoadMeasured,
    NodeAction,
    NodeEvent,
    NodeTick,
    Progressed,
    Recovered,
    RememberEpoch,
    Remove,
    Removed,
    Say,
    ShimDied,
    ShimSaid,
    ShimStatus,
    Spawn,
    SpawnFailed,
    Tell,
)
from holdfast.node.core.order import Order
from holdfast.node.core.redial import WELCOME_MS_MAX, DialEnd, Redial, belongs, ending_of
from holdfast.sim.delivery import Logs, LogsKept
from holdfast.sim.lies import Liar
from holdfast.sim.network import DOWN, UP, SimLink, Stream
from holdfast.sim.orchestrator import SimOrchestrator
from holdfast.sim.process import SimProcess
from holdfast.sim.shim import SimProgram, SimShim
from holdfast.sim.watch import InvariantWatch
from holdfast.sim.world import Clock, SimWorld, Timer

LOGS_AGAIN_MS = 700
LOAD_EVERY_MS = 5_000
LOOK_EVERY_MS = 700


class AttemptFolder(msgspec.Struct):
    """`attempts/<id>/` on a machine's disk."""

    order: Order
    status: ShimStatus | None = None


class MachineSpec(msgspec.Struct, frozen=True):
    id: NodeId
    offered: Resources
    site: str = ""
    arch: str = "x86_64"
    gpus: tuple[Gpu, ...] = ()
    token_id: str = ""
    token_sha256: str = ""


class Machine:
    def __init__(
        self,
        spec: MachineSpec,
        world: SimWorld,
        watch: InvariantWatch,
        link: SimLink,
        find: Callable[[Random], SimOrchestrator | None],
        programs: dict[str, SimProgram],
    ) -> None:
        self.spec, self.world, self.watch, self.link = spec, world, watch, link
        self.find = find
        """Returns the orchestrator that currently answers at the address."""
        self.programs = programs
        self.random = world.stream()
        self.clock = self._fresh_clock()
        self.folders: dict[AttemptId, AttemptFolder] = {}
        self.gpu_ids = tuple(f"{spec.id}/gpu{number}" for number in range(len(spec.gpus)))
        """Identifiers of its GPUs, as the driver reports them."""
        self.epoch = 0
        """Stored on disk."""
        self.disk_full = False
        self.slowness = 1
        self.up = True
        self.shims: dict[AttemptId, SimShim] = {}
        self.liar: Liar | None = None
        self.agent: SimAgent | None = None
        self.boots = 0
        self._contact_at = 0
        self.impatient: Callable[[Machine], None] = lambda _: None
        """Called when the agent closes a connection because no welcome came."""
        self.felled: Callable[[Machine], None] = lambda _: None
        """Called when a body takes the machine down."""

    @property
    def means(self) -> Means:
        return Means("none", gpus=self.gpu_ids)

    def _fresh_clock(self) -> Clock:
        return Clock(self.world, self.random.randrange(1_000, 10_000_000), self.random.randrange(-20_000, 20_000))

    # --- power ---

    def start_agent(self) -> None:
        if self.up and self.agent is None:
            self.boots += 1
            self.agent = self.new_agent(f"{self.spec.id}#{self.boots}")
            self.agent.begin()

    def new_agent(self, instance: str) -> "SimAgent":
        return SimAgent(self, instance)

    def stop_agent(self, why: str) -> None:
        agent, self.agent = self.agent, None
        if agent is not None:
            agent.end(why)

    def fall(self, why: str) -> None:
        """Power is lost: every process ends without notifying anybody, and unsynced data may be missing."""
        if not self.up:
            return
        self.world.note(f"{self.spec.id} loses power: {why}")
        self.up = False
        self.link.sever(UP)
        self.link.sever(DOWN)
        if self.agent is not None:
            agent, self.agent = self.agent, None
            agent.vanish()
        for attempt in sorted(self.shims):
            self.shims[attempt].die()
        for attempt in sorted(self.folders):
            if self.random.random() < 0.2:
                self.folders[attempt].status = None

    def rise(self) -> None:
        if self.up:
            return
        self.world.note(f"{self.spec.id} is up again")
        self.up = True
        self.clock = self._fresh_clock()
        self.link.mend(UP)
        self.link.mend(DOWN)
        self.start_agent()

    def freeze(self, whole: bool) -> None:
        """`whole`: including bodies and shims; otherwise only the agent freezes."""
        if self.agent is not None:
            self.agent.freeze()
        if whole:
            for attempt in sorted(self.shims):
                self.shims[attempt].freeze()

    def thaw(self) -> None:
        for attempt in sorted(self.shims):
            if attempt in self.shims and self.shims[attempt].frozen:
                self.shims[attempt].thaw()
        if self.agent is not None and self.agent.frozen:
            self.agent.thaw()

    def set_slowness(self, factor: int) -> None:
        running = [shim for shim in self.running if not shim.frozen]
        for shim in running:
            if shim.body is not None:
                shim.body.pause()
        self.slowness = factor
        for shim in running:
            if shim.body is not None:
                shim.body.resume()

    @property
    def contact_at(self) -> int:
        """When an orchestrator was last heard from; an open session counts as contact."""
        return self.world.now if self.agent is not None and self.agent.core.connected else self._contact_at

    def lost_contact(self) -> None:
        self._contact_at = self.world.now

    @property
    def running(self) -> list[SimShim]:
        return [s for _, s in sorted(self.shims.items()) if s.body is not None and not s.body.dead]

    # --- called by shims ---

    def body_started(self, shim: SimShim) -> None:
        self.world.note(f"the body of {shim.attempt} starts on {self.spec.id}")
        self.watch.tell("body_started", self.spec.id, shim.attempt, shim.job)

    def body_ended(self, shim: SimShim) -> None:
        self.world.note(f"the body of {shim.attempt} ends on {self.spec.id}")
        self.watch.tell("body_ended", self.spec.id, shim.attempt, shim.job)

    def status_written(self, shim: SimShim) -> None:
        status = shim.status()
        folder = self.folders.get(shim.attempt)
        if folder is not None:
            folder.status = status
        agent = self.agent
        if agent is not None:
            agent.later(self.random.randrange(1, 5), agent.shim_said, shim.attempt, status)

    def shim_gone(self, shim: SimShim) -> None:
        self.shims.pop(shim.attempt, None)

    def kill_shim(self, shim: SimShim) -> None:
        shim.die()
        agent = self.agent
        if agent is not None:
            agent.later(self.random.randrange(1, 60), agent.shim_died, shim.attempt)


class SimAgent(SimProcess):
    """Drives one `NodeCore` for the lifetime of an agent process."""

    def __init__(self, machine: Machine, instance: str) -> None:
        super().__init__(machine.world)
        self.machine, self.instance = machine, instance
        self._random = machine.random
        self.core = NodeCore(machine.spec.id, instance, machine.epoch, machine.spec.offered, machine.means)
        self._stream: Stream | None = None
        self._welcomed = False
        self._timer: Timer | None = None
        self._due: int | None = None
        self._undelivered: dict[AttemptId, Logs] = {}
        self._busy_until = 0
        self._redial = Redial(self.machine.clock.read())
        self._captures: dict[AttemptId, Checkpointed] = {}
        """Checkpoints in transfer."""
        self._saved_at: dict[AttemptId, int] = {}

    # --- start and end ---

    def begin(self) -> None:
        machine = self.machine
        for attempt in sorted(machine.folders):
            folder = machine.folders[attempt]
            self._feed(Recovered(folder.order, folder.status))
            ended = folder.status is not None and folder.status.phase is Phase.ENDED
            if ended and folder.status is not None:
                self._keep_logs(attempt, folder.status)
            elif attempt not in machine.shims:
                self._feed(ShimDied(attempt, "the shim was gone when the agent came back"))
            else:
                self.shim_said(attempt, machine.shims[attempt].status())
        self.later(self._random.randrange(5, 100), self._dial)
        self._measure()
        self._look()
        self._deliver_logs()

    def end(self, why: str) -> None:
        self._note_contact()
        self.forget_everything()
        if self._stream is not None:
            self._stream.close(DOWN, why)

    def vanish(self) -> None:
        self._note_contact()
        self.forget_everything()
        if self._stream is not None:
            self._stream.vanish(DOWN)

    def _note_contact(self) -> None:
        if self.core.connected:
            self.machine.lost_contact()

    def leave(self, grace_ms: int) -> None:
        self.run(self._feed, LeaveAsked(grace_ms))

    # --- the session ---

    def _dial(self) -> None:
        if self._stream is not None or self.core.left:
            return
        link = self.machine.link
        self._redial.dialled(self.machine.clock.read())
        orchestrator = self.machine.find(self._random) if link.whole else None
        if orchestrator is None:
            self._dial_again(DialEnd.LOST, welcomed=False)
            return
        self._stream = link.open(self, orchestrator)
        orchestrator.accept(self._stream)
        self._welcomed = False
        self.later(WELCOME_MS_MAX, self._give_up_on, self._stream)
        self._say(self._hello())

    def _hello(self) -> Hello:
        spec = self.machine.spec
        hardware = Hardware(arch=spec.arch, total=spec.offered, gpus=spec.gpus, hostname=spec.id)
        return Hello(
            spec.id, self.instance, f"key of {spec.id}", "0.1.0", hardware, spec.offered, "none", name=spec.id,
            site=spec.site, held=self.core.held(), epoch_seen=self.core.epoch_seen,
            token_id=spec.token_id, token_sha256=spec.token_sha256,
        )  # fmt: skip

    def _dial_again(self, end: DialEnd, *, welcomed: bool) -> None:
        now_ms, draw = self.machine.clock.read(), self._random.getrandbits(64)
        ours = end is DialEnd.APART and belongs(self._hello())
        wait_ms = self._redial.ended(end, now_ms, draw, welcomed=welcomed, belongs=ours)
        if wait_ms is None:
            self.later(0, self.machine.stop_agent, "it is not wanted")
        else:
            self.later(wait_ms, self._dial)

    def _give_up_on(self, stream: Stream) -> None:
        if self._stream is stream and not self._welcomed:
            self.machine.impatient(self.machine)
            self._hang_up("no welcome came")

    def _hang_up(self, why: str, end: DialEnd = DialEnd.LOST) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close(DOWN, why)
            self._disconnected(end)

    def broke(self, stream: Stream, why: str) -> None:
        self.run(self._broke, stream)

    def _broke(self, stream: Stream) -> None:
        if stream is self._stream:
            self._stream = None
            self._disconnected(DialEnd.LOST)

    def _disconnected(self, end: DialEnd) -> None:
        self._note_contact()
        welcomed, self._welcomed = self._welcomed, False
        if welcomed:
            self._feed(Disconnected())
        self._dial_again(end, welcomed=welcomed)

    def heard(self, stream: Stream, message: Any) -> None:
        slowness = self.machine.slowness
        if slowness == 1:
            self.run(self._heard, stream, message)
            return
        self._busy_until = max(self._busy_until, self.world.now + self._random.randrange(20 * slowness))
        self.later(self._busy_until - self.world.now, self._heard, stream, message)

    def _heard(self, stream: Stream, message: Any) -> None:
        if stream is not self._stream:
            return
        match message:
            case LogsKept(attempt):
                if self._undelivered.pop(attempt, None) is not None:
                    self._feed(Delivered(attempt))
            case Welcome():
                if not self._welcomed:
                    self._welcomed = True
                    self._feed(Connected(message))
                    self.machine.watch.tell("commanded", self.machine.spec.id, message, self._stream is not None)
            case Refusal():
                self._hang_up(message.says, ending_of(message))
            case _:
                self._told(message)

    def _told(self, command: Any) -> None:
        heeded = self.core.connected
        actions = self._apply(CommandReceived(command))
        did = any(isinstance(action, Spawn | Remove) for action in actions)
        if heeded:
            self.machine.watch.tell("commanded", self.machine.spec.id, command, did)
        self._carry_out(actions)

    def _say(self, message: Any) -> None:
        if self._stream is not None:
            self._stream.send(UP, message)

    # --- the core ---

    def _feed(self, event: NodeEvent) -> None:
        self._carry_out(self._apply(event))

    def _apply(self, event: NodeEvent) -> list[NodeAction]:
        return self.core.apply(event, self.machine.clock.read())

    def _carry_out(self, actions: list[NodeAction]) -> None:
        machine = self.machine
        for action in actions:
            match action:
                case Say(message):
                    self._say(machine.liar.twist(message) if machine.liar is not None else message)
                case Tell(attempt, do, at_ms, reason):
                    shim = machine.shims.get(attempt)
                    if shim is not None:
                        shim.later(self._random.randrange(1, 5), shim.tell, do, at_ms, reason)
                case Spawn(order, attempt_inputs):
                    self._spawn(order, attempt_inputs)
                case CaptureCheckpoint(attempt):
                    self._capture(attempt)
                case Remove(attempt):
                    self.later(self._random.randrange(1, 50), self._remove, attempt)
                case RememberEpoch(epoch):
                    machine.epoch = epoch
                case HangUp(why):
                    self._hang_up(why)
        if self.core.left:
            self.later(200, machine.stop_agent, "left")
        self._schedule()

    def _schedule(self) -> None:
        due = self.core.next_due()
        if due == self._due and self._timer is not None:
            return
        self.world.cancel(self._timer)
        self._due, self._timer = due, None
        if due is not None:
            delay = max(1, self.machine.clock.when(due) - self.world.now)
            self._timer = self.later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._feed(NodeTick())

    # --- attempts on this machine ---

    def _spawn(self, order: Order, attempt_inputs: AttemptInputs) -> None:
        attempt = AttemptId(order.attempt)
        if self.machine.disk_full:
            failure = Failure(FailureCode.NODE_DISK_FULL, "no space left on device")
            self.later(self._random.randrange(1, 20), self._feed, SpawnFailed(attempt, failure))
            return
        self.machine.folders[attempt] = AttemptFolder(order)
        self.later(self._random.randrange(5, 60) * self.machine.slowness, self._start_shim, order)

    def _start_shim(self, order: Order) -> None:
        machine = self.machine
        shim = SimShim(machine, order, machine.programs[order.job])
        if shim.alive:
            machine.shims[shim.attempt] = shim

    def _remove(self, attempt: AttemptId) -> None:
        self.machine.folders.pop(attempt, None)
        self._undelivered.pop(attempt, None)
        self._feed(Removed(attempt))

    def shim_said(self, attempt: AttemptId, status: ShimStatus) -> None:
        self._feed(ShimSaid(attempt, status))
        if status.phase is Phase.ENDED:
            self._keep_logs(attempt, status)

    def shim_died(self, attempt: AttemptId) -> None:
        self._feed(ShimDied(attempt, "the shim was killed"))

    def _keep_logs(self, attempt: AttemptId, status: ShimStatus) -> None:
        logs = self._undelivered[attempt] = Logs(attempt, status.stdout_sha256, status.stdout_bytes)
        if self._welcomed:
            self._say(logs)

    def _deliver_logs(self) -> None:
        """Unacknowledged logs are sent again, until they are acknowledged."""
        if self._welcomed:
            for attempt in sorted(self._undelivered):
                self._say(self._undelivered[attempt])
        self.later(LOGS_AGAIN_MS, self._deliver_logs)

    def _capture(self, attempt: AttemptId) -> None:
        """The content of checkpoints is not simulated; that they were saved, and whose save counts, is."""
        folder, shim = self.machine.folders.get(attempt), self.machine.shims.get(attempt)
        if folder is not None:
            done_ms = shim.body.computed_ms if shim is not None and shim.body is not None else 0
            manifest = sha256(f"{attempt} {done_ms}".encode()).hexdigest()
            self._captures[attempt] = Checkpointed(attempt, folder.order.fence, manifest, 4_096)
        self.later(self._random.randrange(20, 2_000), self._captured, attempt)

    def _captured(self, attempt: AttemptId) -> None:
        """The transfer took a while: the attempt may be revoked or gone by now."""
        saved = self._captures.pop(attempt, None)
        orchestrator = self.machine.find(self._random) if self.machine.link.whole else None
        if saved is not None and orchestrator is not None:
            saved = self.machine.liar.saved(saved) if self.machine.liar is not None else saved
            orchestrator.ask(saved, lambda _: None)

    def _look(self) -> None:
        """Sample the progress of each body for the next report. Checkpoints are captured at the interval that the job
        set."""
        for shim in self.machine.running:
            if shim.body is not None:
                self._feed(Progressed(shim.attempt, Progress("run", cpu_ms=shim.body.computed_ms)))
            every_ms = shim.program.saves_every_ms
            if self.machine.liar is not None and self.machine.liar.saves_at_will:
                self._capture(shim.attempt)
            elif every_ms and self.world.now - self._saved_at.setdefault(shim.attempt, self.world.now) >= every_ms:
                self._saved_at[shim.attempt] = self.world.now
                self._capture(shim.attempt)
        self.later(LOOK_EVERY_MS, self._look)

    def _measure(self) -> None:
        load = Load(
            cpu_permille=100 * min(9, len(self.machine.running)), sick="disk full" if self.machine.disk_full else ""
        )
        self._feed(LoadMeasured(load))
        self.later(LOAD_EVERY_MS, self._measure)
