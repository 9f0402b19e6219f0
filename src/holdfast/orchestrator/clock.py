"""The leader's clock: kernel time that never runs back, and by how much the loop itself was late.

Kernel time starts at max(last committed, wall clock) and then advances with CLOCK_BOOTTIME, which counts a
suspended machine and cannot be set back. A wall clock that jumps ahead is followed, and the jump counts as
lateness, so that setting a clock blames no node.

The loop promises to look at the clock every `pulse_ms`. Time beyond the promise is lateness, whatever the cause
(SIGSTOP, suspend, swap, a long computation, a store that stalls). `look()` is called before anything is judged,
so the first event after a freeze already finds the deadlines moved.
"""

import time
from collections.abc import Callable

from holdfast.boottime import boottime_ms
from holdfast.model import Instant, Settings


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class LeaderClock:
    def __init__(
        self,
        settings: Settings,
        last_ms: int = 0,
        boottime: Callable[[], int] = boottime_ms,
        wall: Callable[[], int] = wall_ms,
    ) -> None:
        self.tolerance_ms = settings.late_tolerance_ms
        self.pulse_ms = max(20, min(200, settings.late_tolerance_ms // 2))
        self._boottime, self._wall = boottime, wall
        self._seen_ms = boottime()
        self._promised_ms = self._seen_ms + self.pulse_ms
        self._now_ms = max(last_ms, wall())

    def now(self) -> Instant:
        """Kernel time, without judging whether the loop was late."""
        seen = self._boottime()
        self._now_ms += max(0, seen - self._seen_ms)
        self._seen_ms = max(seen, self._seen_ms)
        return Instant(self._now_ms)

    def look(self, stalled: bool = False) -> tuple[Instant, int]:
        """(now, late_ms). `stalled`: the loop runs but cannot act (a commit is overdue), so it keeps no promise."""
        self.now()
        seen = self._seen_ms
        late = seen - self._promised_ms
        jump = self._wall() - self._now_ms
        if jump > self.tolerance_ms:
            self._now_ms += jump
            self._promised_ms = seen + self.pulse_ms
            return Instant(self._now_ms), max(0, late) + jump
        if late > self.tolerance_ms:
            self._promised_ms = seen + (0 if stalled else self.pulse_ms)
            return Instant(self._now_ms), late
        return Instant(self._now_ms), 0

    def late(self) -> bool:
        """Whether the next look will find lateness."""
        seen = self._boottime()
        jump = self._wall() - self._now_ms - max(0, seen - self._seen_ms)
        return seen - self._promised_ms > self.tolerance_ms or jump > self.tolerance_ms

    def kept(self) -> None:
        """The pulse ran as promised; the next one is due in `pulse_ms`."""
        self._promised_ms = self._boottime() + self.pulse_ms
