"""When a body gets nowhere: what counts as getting on, and how long is far too long beside what others took."""

from collections.abc import Sequence

STALL_CPU_MS = 50
"""Less processor time than this between two looks is a program that waits: a thread that polls once a second needs
less in minutes, anything that computes needs it in a moment."""


def got_on(cpu_ms: int, printed: int, cpu_before_ms: int, printed_before: int) -> bool:
    """Whether a body did anything worth the name since it was last seen doing so: it printed, or computed for at least
    `STALL_CPU_MS`. Fewer than before means another count began."""
    return printed != printed_before or cpu_ms < cpu_before_ms or cpu_ms - cpu_before_ms >= STALL_CPU_MS


def median_ms(took_ms: Sequence[int]) -> int:
    """The upper median: of two in the middle the longer, so that nobody is called slow too early."""
    return sorted(took_ms)[len(took_ms) // 2]


def slow_after_ms(took_ms: Sequence[int], peers_min: int, factor: int, floor_ms: int) -> int | None:
    """max(floor, factor · median of what peers took); None while fewer than `peers_min` are known."""
    if len(took_ms) < peers_min:
        return None
    return max(floor_ms, factor * median_ms(took_ms))
