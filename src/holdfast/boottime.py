"""The clock that nodes and orchestrators measure durations with: it continues while the machine is suspended, and
cannot be set. Its values mean nothing on another machine, or after a reboot."""

import time


def boottime_ms() -> int:
    """The current time of this clock, in milliseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
