"""Decides for one attempt when its body starts and when it must die. Pure: knows no clock, process or file.

The shim drives it in production, the simulator in a simulated world. Duties of the caller:

1. Call `due(now)` after every event and at `next_deadline()`, and carry out the act it returns.
2. After `START`, call `body_started`, `spawn_later` or `spawn_failed`; once the body and all its processes are dead,
   call `body_ended`.
3. Pass times in milliseconds of one clock that runs on while the machine is suspended (CLOCK_BOOTTIME).
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, cast

from holdfast.node.core.order import DURATION_MS_MAX, Order

KILL_MARGIN_MS = 100
"""SIGKILL is sent this long before a lease ends, because a process does not die at once."""
KILL_AGAIN_MS = 1_000
"""A body that is still alive this long after SIGKILL gets another: it may have forked in between."""


class Act(StrEnum):
    """What the shim must do now."""

    NOTHING = "nothing"
    START = "start"
    TERM = "term"
    KILL = "kill"


class Phase(StrEnum):
    PREPARING = "preparing"
    READY = "ready"
    """Prepared, waiting for the go."""
    RUNNING = "running"
    ENDED = "ended"


class EndKind(StrEnum):
    """Why the body ended."""

    EXIT = "exit"
    """It ended by itself: `exit_code` or `signal` says how."""
    TIME_LIMIT = "time_limit"
    LEASE = "lease"
    ORPHAN = "orphan"
    STOPPED = "stopped"
    """It was stopped on request; `detail` has the reason given."""
    FAULT = "fault"
    """The runtime around the body failed; `code` and `detail` say how."""


@dataclass(frozen=True)
class BodyOutcome:
    kind: EndKind
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    code: str = ""
    """A code of `model.failure` (`runtime_fault`, `node_disk_full` …); set for `fault` only."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(raw: object) -> "BodyOutcome":
        """Read an outcome from `status.json`. Raises ValueError if it is invalid."""
        given = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
        number, text = (int, type(None)), (str,)
        expected = {"exit_code": number, "signal": number, "detail": text, "code": text}
        for key, types in expected.items():
            if type(given.get(key, "" if types is text else None)) not in types:
                raise ValueError(f"an outcome's {key} is of the wrong type")
        return BodyOutcome(EndKind(given.get("kind", "")), **{key: given[key] for key in expected if key in given})


class AttemptLifecycle:
    """The lifecycle of one attempt. It is always bounded: by a time limit, a lease, the orphan limit or a stop."""

    def __init__(self, order: Order, now: int) -> None:
        self.order = order
        self.phase = Phase.READY if order.wait_for_go else Phase.PREPARING
        self.outcome: BodyOutcome | None = None
        self._went = not order.wait_for_go
        self._lease_until = 0
        self._contact = now
        self._asked_to_start = False
        self._started: int | None = None
        self._cause: BodyOutcome | None = None
        """Why the body is being stopped. Set once; a lease that is renewed later does not undo it."""
        self._term: int | None = None
        self._kill: int | None = None

    # --- events ---

    def go(self, now: int) -> None:
        """The body may start, but only while a lease holds."""
        self._went = True
        self.contact(now)

    def lease(self, until_ms: int) -> None:
        """The body must be dead at `until_ms`. A lease never shrinks."""
        self._lease_until = max(self._lease_until, until_ms)

    def contact(self, at_ms: int) -> None:
        """The last contact with the orchestrator was at `at_ms`."""
        self._contact = max(self._contact, at_ms)

    def stop(self, reason: str) -> None:
        self._end_for(BodyOutcome(EndKind.STOPPED, detail=reason))

    def fault(self, code: str, detail: str) -> None:
        """The runtime failed (a disk is full …): the body's work can no longer count."""
        self._end_for(BodyOutcome(EndKind.FAULT, code=code, detail=detail))

    def body_started(self, now: int) -> None:
        if self.phase is not Phase.ENDED and self._started is None:
            self._started = now
            self.phase = Phase.RUNNING

    def spawn_later(self) -> None:
        """It could not be started now: `due` returns START again, if it still may."""
        self._asked_to_start = False

    def spawn_failed(self, code: str, detail: str) -> None:
        if self._started is None:
            self._end(self._cause or BodyOutcome(EndKind.FAULT, code=code, detail=detail))

    def body_ended(self, exit_code: int | None, signal: int | None, now: int) -> None:
        """The body and everything it started are dead. If it ended before it was told to stop, its own exit counts."""
        cause = self._cause
        told = self._term is not None or self._kill is not None
        if cause is None or not (told or cause.kind is EndKind.FAULT):
            cause = BodyOutcome(EndKind.EXIT)
        self._end(BodyOutcome(cause.kind, exit_code, signal, cause.detail, cause.code))

    # --- decisions ---

    def due(self, now: int) -> Act:
        """What to do now. Each act is returned once, except that KILL is repeated while the body is still alive."""
        if self.phase is Phase.ENDED:
            return Act.NOTHING
        self._judge(now)
        if self.outcome is not None:
            return Act.NOTHING
        if self._started is None:
            if self._asked_to_start or not self._may_start(now):
                return Act.NOTHING
            self._asked_to_start = True
            return Act.START
        if now >= self._kill_at(now):
            self._kill = now
            return Act.KILL
        if self._cause is not None and self._term is None:
            self._term = now
            return Act.TERM
        return Act.NOTHING

    def next_deadline(self) -> int | None:
        """When `due` may next return an act because of time alone; None: only after an event."""
        if self.phase is Phase.ENDED:
            return None
        if self._cause is None:
            moments = [self._orphan_at()]
            if self._started is not None:
                moments += [self._started + self.order.time_limit_ms, self._lease_term_at()]
            return min(moments)
        told = self._term is not None or self._kill is not None
        return self._kill_at(0) if told else None

    def status(self) -> dict[str, Any]:
        """The public state: part of `status.json` and of every line to the agent."""
        return {
            "attempt": self.order.attempt,
            "fence": self.order.fence,
            "phase": self.phase.value,
            "go": self._went,
            "stopping": self._cause.kind.value if self._cause and not self.outcome else "",
            "started_ms": self._started,
            "outcome": self.outcome.to_dict() if self.outcome else None,
        }

    # --- rules ---

    def _judge(self, now: int) -> None:
        """Find the first limit that has passed. The lease comes first: it prevents a second body elsewhere."""
        if self._cause is not None:
            return
        order = self.order
        if self._started is not None and now >= self._lease_term_at():
            self._end_for(BodyOutcome(EndKind.LEASE, detail="the lease was not renewed in time"))
        elif self._started is not None and now >= self._started + order.time_limit_ms:
            self._end_for(BodyOutcome(EndKind.TIME_LIMIT, detail=f"ran {order.time_limit_ms} ms, its limit"))
        elif now >= self._orphan_at():
            self._end_for(BodyOutcome(EndKind.ORPHAN, detail=f"no word for {order.orphan_ms_max} ms"))

    def _may_start(self, now: int) -> bool:
        """A body does not start under a lease that is about to end: it would be stopped at once."""
        return self._went and self._cause is None and now < self._lease_term_at()

    def _orphan_at(self) -> int:
        return self._contact + self.order.orphan_ms_max

    def _lease_kill_at(self) -> int:
        if self.order.lease_ms == 0:
            return DURATION_MS_MAX
        return self._lease_until - min(KILL_MARGIN_MS, self.order.lease_ms // 10)

    def _lease_term_at(self) -> int:
        """Early enough for the grace. The grace takes at most a quarter of the lease: otherwise, with a long grace, the
        first late renewal would stop the body."""
        if self.order.lease_ms == 0:
            return DURATION_MS_MAX
        return self._lease_kill_at() - min(self.order.stop_grace_ms, self.order.lease_ms // 4)

    def _kill_at(self, now: int) -> int:
        """When to send SIGKILL: at the end of the grace after SIGTERM or at the end of the lease, whichever is first. A
        body whose runtime failed gets no grace: its work cannot count."""
        if self._kill is not None:
            return self._kill + KILL_AGAIN_MS
        moment = self._lease_kill_at()
        if self._cause is not None and self._cause.kind is EndKind.FAULT:
            return min(moment, now)
        if self._term is not None:
            return min(moment, self._term + self.order.stop_grace_ms)
        return moment

    def _end_for(self, cause: BodyOutcome) -> None:
        if self._cause is not None or self.outcome is not None:
            return
        self._cause = cause
        if not self._asked_to_start:
            self._end(cause)

    def _end(self, outcome: BodyOutcome) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.phase = Phase.ENDED
