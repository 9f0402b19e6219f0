"""Decides for one attempt when its body starts and when it must die. Pure: knows no clock, process or file.

The shim is its hands, the simulator its other world. Duties of whoever drives it:

1. Call `due(now)` after every event and at `next_deadline()`, and do what it says.
2. After `START`, tell it `body_started` or `spawn_failed`; once the body and all it left behind are
   dead, tell it `body_ended`.
3. Times are milliseconds of one clock that goes on while the machine is suspended (CLOCK_BOOTTIME).
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, cast

from holdfast.node.core.order import DURATION_MS_MAX, Order

KILL_MARGIN_MS = 100
"""SIGKILL is sent this much before a lease ends: a process does not die in the moment it is told to."""
KILL_AGAIN_MS = 1_000
"""A body that is still there this long after SIGKILL gets another: it may have forked in between."""


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
    """Why the body is no more."""

    EXIT = "exit"
    """By itself: `exit_code` or `signal` says how."""
    TIME_LIMIT = "time_limit"
    LEASE = "lease"
    ORPHAN = "orphan"
    STOPPED = "stopped"
    """Somebody asked for it; `detail` has the reason given."""
    FAULT = "fault"
    """The machinery around the body failed; `code` and `detail` say how."""


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
        """Read one from `status.json`; ValueError where it is none."""
        given = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
        number, text = (int, type(None)), (str,)
        expected = {"exit_code": number, "signal": number, "detail": text, "code": text}
        for key, types in expected.items():
            if type(given.get(key, "" if types is text else None)) not in types:
                raise ValueError(f"an outcome's {key} is of the wrong type")
        return BodyOutcome(EndKind(given.get("kind", "")), **{key: given[key] for key in expected if key in given})


class AttemptLifecycle:
    """One attempt's life. Every way out of it has a bound: time limit, lease, orphan limit, or a stop."""

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
        """Why the body is being stopped. Set once; a lease renewed after that comes too late."""
        self._term: int | None = None
        self._kill: int | None = None

    # --- events ---

    def go(self, now: int) -> None:
        """The body may start, as soon as and only while a lease holds."""
        self._went = True
        self.contact(now)

    def lease(self, until_ms: int) -> None:
        """The body must be dead at `until_ms`. A lease never shrinks: what was granted was granted."""
        self._lease_until = max(self._lease_until, until_ms)

    def contact(self, at_ms: int) -> None:
        """The orchestrator was last heard of at `at_ms`."""
        self._contact = max(self._contact, at_ms)

    def stop(self, reason: str) -> None:
        self._end_for(BodyOutcome(EndKind.STOPPED, detail=reason))

    def fault(self, code: str, detail: str) -> None:
        """The machinery failed (a disk is full …): the body's work can no longer count."""
        self._end_for(BodyOutcome(EndKind.FAULT, code=code, detail=detail))

    def body_started(self, now: int) -> None:
        if self.phase is not Phase.ENDED and self._started is None:
            self._started = now
            self.phase = Phase.RUNNING

    def spawn_failed(self, code: str, detail: str) -> None:
        if self._started is None:
            self._end(self._cause or BodyOutcome(EndKind.FAULT, code=code, detail=detail))

    def body_ended(self, exit_code: int | None, signal: int | None, now: int) -> None:
        """The body and everything it had started are dead. What it did before it was told to stop counts."""
        cause = self._cause
        told = self._term is not None or self._kill is not None
        if cause is None or not (told or cause.kind is EndKind.FAULT):
            cause = BodyOutcome(EndKind.EXIT)
        self._end(BodyOutcome(cause.kind, exit_code, signal, cause.detail, cause.code))

    # --- decisions ---

    def due(self, now: int) -> Act:
        """What to do at this moment. Each act is named once; SIGKILL again while the body is still there."""
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
        """When `due` may next say something new by the passing of time alone; None: only after an event."""
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
        """What anybody may know: part of `status.json` and of every line to the agent."""
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
        """Find the first limit that has passed. The lease first: it alone protects somebody else."""
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
        """A lease about to end is no lease to start under: the body would be stopped at once."""
        return self._went and self._cause is None and now < self._lease_term_at()

    def _orphan_at(self) -> int:
        return self._contact + self.order.orphan_ms_max

    def _lease_kill_at(self) -> int:
        if self.order.lease_ms == 0:
            return DURATION_MS_MAX
        return self._lease_until - min(KILL_MARGIN_MS, self.order.lease_ms // 10)

    def _lease_term_at(self) -> int:
        """Early enough for the grace; but the grace takes at most a quarter of a lease, or a long one would
        have a body stopped after the first late renewal."""
        if self.order.lease_ms == 0:
            return DURATION_MS_MAX
        return self._lease_kill_at() - min(self.order.stop_grace_ms, self.order.lease_ms // 4)

    def _kill_at(self, now: int) -> int:
        """The moment of SIGKILL: the grace after SIGTERM, or the end of the lease, whichever is first. A body
        whose machinery failed gets no grace: nothing it says can count."""
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
