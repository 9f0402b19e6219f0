"""Detects stragglers: what counts as progress, and when a body takes too long compared with similar jobs."""

from collections.abc import Sequence

STALL_CPU_MS = 50
"""A program that uses less processor time than this between two samples is waiting: a thread that polls once a second
uses less in minutes, and anything that computes uses more at once."""


def got_on(cpu_ms: int, printed: int, cpu_before_ms: int, printed_before: int) -> bool:
    """Whether a body has made progress since the last time it did: it printed, or computed for at least `STALL_CPU_MS`.
    Lower counters than before mean that the counters were restarted."""
    return printed != printed_before or cpu_ms < cpu_before_ms or cpu_ms - cpu_before_ms >= STALL_CPU_MS


def median_ms(took_ms: Sequence[int]) -> int:
    """The upper median: the longer of two in the middle, so that nothing is called slow too early."""
    return sorted(took_ms)[len(took_ms) // 2]


def slow_after_ms(took_ms: Sequence[int], peers_min: int, factor: int, floor_ms: int) -> int | None:
    """max(floor, factor · median of the durations of similar jobs); None while fewer than `peers_min` are known."""
    if len(took_ms) < peers_min:
        return None
    return max(floor_ms, factor * median_ms(took_ms))
