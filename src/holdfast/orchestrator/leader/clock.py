"""The orchestrator's wall clock: shown to people. No deadline depends on it; see `leader.core.LeaderClock`."""

import time


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
