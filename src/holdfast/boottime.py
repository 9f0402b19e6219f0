"""The clock that nodes and orchestrators measure durations with: it continues while the machine is suspended, and
cannot be set. Its values mean nothing on another machine, or after a reboot."""

import time


def boottime_ms() -> int:
    """Now."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
