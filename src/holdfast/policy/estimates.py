"""Prediction intervals from past observations, and how they widen when too many were wrong (docs/decisions/0015).

An interval should be right four times out of five: it reaches from the 10th to the 90th percentile. Amounts are
milliseconds. Nothing here knows about jobs, nodes or the time.
"""

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

TAIL = 0.1
"""Of a hundred observations, ten should fall below the interval and ten above."""
FLOOR_MS = 250
FLOOR_PERMILLE = 50
"""Even constant durations jitter: an interval reaches at least this far to both sides."""
STRETCH_MIN, STRETCH_MAX = 250, 8_000


class Spread(NamedTuple):
    """Lower bound, middle, upper bound."""

    low: int
    middle: int
    high: int

    def plus(self, other: "Spread") -> "Spread":
        """The sum of two independent durations. The widths add as a root of squares, because both are rarely wrong in
        the same direction."""
        middle = self.middle + other.middle
        below = isqrt((self.middle - self.low) ** 2 + (other.middle - other.low) ** 2)
        above = isqrt((self.high - self.middle) ** 2 + (other.high - other.middle) ** 2)
        return Spread(max(0, middle - below), middle, middle + above)

    def stretched(self, permille: int) -> "Spread":
        """Scaled around its middle, but never narrower than the minimum jitter."""
        floor = FLOOR_MS + self.middle * FLOOR_PERMILLE // 1000
        below = max(floor, (self.middle - self.low) * permille // 1000)
        above = max(floor, (self.high - self.middle) * permille // 1000)
        return Spread(max(0, self.middle - below), self.middle, self.middle + above)


def spread(seen: Sequence[int]) -> Spread:
    """The interval for the next value, if it is like the ones seen. `seen` must not be empty.

    Of n values seen, the next is below the r-th smallest with probability r / (n + 1), whatever the distribution. Fewer
    than nine values do not determine the 10th percentile: then the interval extends beyond them, further for fewer.
    """
    order = sorted(seen)
    n = len(order)
    rank = TAIL * (n + 1)
    middle = (order[(n - 1) // 2] + order[n // 2]) // 2
    if rank >= 1:
        return Spread(_at(order, rank), middle, _at(order, n + 1 - rank))
    beyond = 1 + 1.25 * (1 - rank)
    return Spread(int(order[0] / beyond), middle, int(order[-1] * beyond) + 1)


def _at(order: list[int], rank: float) -> int:
    """The value at a rank, interpolated between two neighbours; the first has rank 1."""
    below = int(rank)
    low = order[below - 1]
    high = order[min(below, len(order) - 1)]
    return low + int((high - low) * (rank - below))


def left(seen: Sequence[int], passed_ms: int) -> Spread | None:
    """The remaining duration of something that has already lasted `passed_ms`; None: none of those seen lasted
    longer."""
    longer = [ms - passed_ms for ms in seen if ms > passed_ms]
    return spread(longer) if longer else None


def mean_ms(seen: Sequence[int]) -> int:
    return sum(seen) // len(seen)


def adapted(stretch_permille: int, right: bool) -> int:
    """The stretch after one more interval was checked. A miss widens it four times as much as a hit narrows it, so it
    settles where four of five are right, however the intervals were made."""
    changed = stretch_permille * 98 // 100 if right else stretch_permille * 108 // 100 + 1
    return min(STRETCH_MAX, max(STRETCH_MIN, changed))
