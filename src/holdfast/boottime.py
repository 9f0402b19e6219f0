"""The clock that durations are counted on, by nodes and orchestrator alike: it goes on while the machine is suspended,
and nobody can set it. Moments of it mean nothing on another machine, or after a restart."""

import time


def boottime_ms() -> int:
    """Now."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
