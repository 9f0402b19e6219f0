"""One type for time: whole milliseconds. Nothing here reads a clock; time is always passed in."""

from typing import NewType

Instant = NewType("Instant", int)
"""A moment, in milliseconds. In the kernel: served time (`model.journal.WallTimes` converts it for people). On a node:
CLOCK_BOOTTIME."""

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
NEVER = Instant(2**62)
"""Later than any deadline."""


def after(moment: Instant, duration_ms: int) -> Instant:
    return Instant(moment + duration_ms)
