"""An interval from what was seen before: how wide, and how it widens when too many were wrong (docs/decisions/0015).

Intervals are meant to hold four times of five: the tenth to the ninetieth part of what is known. Amounts are
milliseconds. Nothing here knows jobs, nodes or the time.
"""

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

TAIL = 0.1
"""Of a hundred, ten should come earlier and ten later."""
FLOOR_MS = 250
FLOOR_PERMILLE = 50
"""Things that always took the same still jitter: an interval reaches at least this far to both sides."""
STRETCH_MIN, STRETCH_MAX = 250, 8_000


class Spread(NamedTuple):
    """From, about, to."""

    low: int
    middle: int
    high: int

    def plus(self, other: "Spread") -> "Spread":
        """One after the other, where neither knows of the other: uncertainties add up like the sides of a right
        angle, for both are rarely wrong in the same direction."""
        middle = self.middle + other.middle
        below = isqrt((self.middle - self.low) ** 2 + (other.middle - other.low) ** 2)
        above = isqrt((self.high - self.middle) ** 2 + (other.high - other.middle) ** 2)
        return Spread(max(0, middle - below), middle, middle + above)

    def stretched(self, permille: int) -> "Spread":
        """Wider or narrower around its middle, but never narrower than what jitters anyway."""
        floor = FLOOR_MS + self.middle * FLOOR_PERMILLE // 1000
        below = max(floor, (self.middle - self.low) * permille // 1000)
        above = max(floor, (self.high - self.middle) * permille // 1000)
        return Spread(max(0, self.middle - below), self.middle, self.middle + above)


def spread(seen: Sequence[int]) -> Spread:
    """What the next one should lie in, if it is like these; there must be one at least.

    Of n that were seen, the next lies below the r-th smallest with probability r / (n + 1), whatever the distribution.
    Fewer than nine cannot hold a tenth: then the interval reaches beyond them, the further the fewer they are.
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
    """The value at a rank that may lie between two of them; the first has rank 1."""
    below = int(rank)
    low = order[below - 1]
    high = order[min(below, len(order) - 1)]
    return low + int((high - low) * (rank - below))


def left(seen: Sequence[int], passed_ms: int) -> Spread | None:
    """How much longer one that has lasted so long will last; None: none of those seen lasted longer."""
    longer = [ms - passed_ms for ms in seen if ms > passed_ms]
    return spread(longer) if longer else None


def mean_ms(seen: Sequence[int]) -> int:
    return sum(seen) // len(seen)


def adapted(stretch_permille: int, right: bool) -> int:
    """The stretch after one more was judged. A miss widens four times as much as a hit narrows, so it settles where
    four of five are right, whatever the intervals were made from."""
    changed = stretch_permille * 98 // 100 if right else stretch_permille * 108 // 100 + 1
    return min(STRETCH_MAX, max(STRETCH_MIN, changed))
