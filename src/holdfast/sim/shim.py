"""Simulated shims and bodies: the production attempt lifecycle with a program that only takes time.

A body has a duration, an exit code and an output; it may ignore SIGTERM, and it may take its machine down.
"""

from typing import TYPE_CHECKING

import msgspec

from holdfast.model import AttemptId, JobId
from holdfast.node.core.attempt_lifecycle import Act, AttemptLifecycle, BodyOutcome, Phase
from holdfast.node.core.events import ShimStatus
from holdfast.node.core.order import Order
from holdfast.sim.process import SimProcess
from holdfast.sim.world import Timer

if TYPE_CHECKING:
    from holdfast.sim.node import Machine

SIGTERM, SIGKILL = 15, 9


class SimProgram(msgspec.Struct, frozen=True):
    """What a job's body does, on any machine: the same job, the same output."""

    duration_ms: int
    exit_code: int = 0
    stdout_sha256: str = ""
    stdout_bytes: int = 0
    ignores_term: bool = False
    saves_every_ms: int = 0
    """The interval at which its checkpoint folder is captured; 0: only on request."""
    fells_machine_at_ms: int | None = None
    """Takes its machine down after running this long."""


class SimBody:
    """A running program. It freezes with its machine, and then still needs the rest of its time."""

    def __init__(self, shim: "SimShim", program: SimProgram) -> None:
        self.shim, self.program = shim, program
        self._left_ms = program.duration_ms
        self._resumed = 0
        self._ran_ms = 0
        self._timer: Timer | None = None
        self.dead = False
        self._paused = False
        self._drag: int | None = 1
        self.resume()

    @property
    def ran_ms(self) -> int:
        """How long it has run, not counting freezes."""
        return self._ran_ms + self.awake_ms

    @property
    def awake_ms(self) -> int:
        """How long it has run since its last freeze."""
        return 0 if self._paused else self.shim.machine.world.now - self._resumed

    @property
    def computed_ms(self) -> int:
        """Processor time so far."""
        return self.program.duration_ms - self._left()

    @property
    def dragged(self) -> bool:
        return self._drag != 1

    def drag(self, factor: int | None) -> None:
        """From now on the rest takes this many times as long; None: it makes no progress, but stays alive."""
        standing = self._paused
        self.pause()
        self._drag = factor
        if not standing:
            self.resume()

    @property
    def _slowness(self) -> int | None:
        return None if self._drag is None else self._drag * self.shim.machine.slowness

    def _left(self) -> int:
        slowness = self._slowness
        if self._paused or slowness is None:
            return self._left_ms
        return max(0, self._left_ms - (self.shim.machine.world.now - self._resumed) // slowness)

    def resume(self) -> None:
        machine = self.shim.machine
        self._resumed = machine.world.now
        self._paused = False
        if not self.dead and self._slowness is not None:
            self._timer = machine.world.call_in(self._left_ms * self._slowness, self._run_out)

    def pause(self) -> None:
        if self._paused:
            return
        self.shim.machine.world.cancel(self._timer)
        self._left_ms = self._left()
        self._ran_ms, self._paused = self.ran_ms, True

    def _run_out(self) -> None:
        program = self.program
        if program.fells_machine_at_ms is not None:
            self.shim.machine.felled(self.shim.machine)
            return
        self.end(program.exit_code, None)

    def end(self, exit_code: int | None, signal: int | None) -> None:
        if self.dead:
            return
        self.dead = True
        self.shim.machine.world.cancel(self._timer)
        self.shim.body_gone(exit_code, signal)

    def vanish(self) -> None:
        """Ended without anything left to report to."""
        if not self.dead:
            self.dead = True
            self.shim.machine.world.cancel(self._timer)
            self.shim.machine.body_ended(self.shim)


class SimShim(SimProcess):
    def __init__(self, machine: "Machine", order: Order, program: SimProgram) -> None:
        super().__init__(machine.world)
        self.machine, self.order, self.program = machine, order, program
        self.attempt, self.job = AttemptId(order.attempt), JobId(order.job)
        self.body: SimBody | None = None
        self.alive = True
        self._lifecycle = AttemptLifecycle(order, machine.clock.read())
        self._timer: Timer | None = None
        self._said: tuple[Phase, BodyOutcome | None] | None = None
        self._act()

    def status(self) -> ShimStatus:
        lifecycle = self._lifecycle
        printed = self.program if lifecycle.phase is Phase.ENDED and self._ran_out() else None
        return ShimStatus(
            lifecycle.phase,
            lifecycle.outcome,
            stdout_bytes=printed.stdout_bytes if printed else 0,
            stdout_sha256=printed.stdout_sha256 if printed else "",
        )

    def _ran_out(self) -> bool:
        outcome = self._lifecycle.outcome
        return outcome is not None and outcome.exit_code is not None

    # --- commands of the agent ---

    def tell(self, do: str, at_ms: int, reason: str) -> None:
        now = self.machine.clock.read()
        match do:
            case "go":
                self._lifecycle.go(now)
            case "lease":
                self._lifecycle.lease(at_ms)
            case "contact":
                self._lifecycle.contact(at_ms)
            case _:
                self._lifecycle.stop(reason)
        self._act()

    def fault(self, code: str, detail: str) -> None:
        self._lifecycle.fault(code, detail)
        self._act()

    # --- actions of the attempt lifecycle ---

    def _act(self) -> None:
        if not self.alive:
            return
        act = self._lifecycle.due(self.machine.clock.read())
        match act:
            case Act.START:
                self.later(self.machine.random.randrange(1, 20), self._spawn)
            case Act.TERM:
                if self.body is not None and not self.program.ignores_term:
                    self.later(self.machine.random.randrange(1, 40), self._signal, SIGTERM)
            case Act.KILL:
                self.later(self.machine.random.randrange(0, 10), self._signal, SIGKILL)
            case Act.NOTHING:
                pass
        self._publish()
        self._schedule()
        if act is not Act.NOTHING:
            self._act()

    def _spawn(self) -> None:
        if self.machine.disk_full:
            self._lifecycle.spawn_failed("node_disk_full", "no space left on device")
        else:
            self.body = SimBody(self, self.program)
            self.machine.body_started(self)
            self._lifecycle.body_started(self.machine.clock.read())
        self._act()

    def _signal(self, signal: int) -> None:
        if self.body is not None:
            self.body.end(None, signal)

    def body_gone(self, exit_code: int | None, signal: int | None) -> None:
        self.machine.body_ended(self)
        self.run(self._reap, exit_code, signal)

    def _reap(self, exit_code: int | None, signal: int | None) -> None:
        self._lifecycle.body_ended(exit_code, signal, self.machine.clock.read())
        self._act()

    def _publish(self) -> None:
        news = (self._lifecycle.phase, self._lifecycle.outcome)
        if news == self._said:
            return
        self._said = news
        self.machine.status_written(self)
        if self._lifecycle.phase is Phase.ENDED:
            self.alive = False
            self.machine.shim_gone(self)
            self.forget_everything()

    def _schedule(self) -> None:
        self.world.cancel(self._timer)
        deadline = self._lifecycle.next_deadline()
        if deadline is not None and self.alive:
            delay = max(0, self.machine.clock.when(deadline) - self.world.now)
            self._timer = self.later(delay, self._act)

    # --- the end ---

    def die(self) -> None:
        """Killed: nothing more is written, and the body dies with it."""
        self.alive = False
        self.forget_everything()
        if self.body is not None:
            self.body.vanish()
        self.machine.shim_gone(self)

    def freeze(self) -> None:
        super().freeze()
        if self.body is not None:
            self.body.pause()

    def thaw(self) -> None:
        if self.body is not None:
            self.body.resume()
        super().thaw()
