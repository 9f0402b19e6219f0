"""Renders estimates: when something starts and ends, what the estimate is based on, and how often estimates were right.

Uses only what the network reported, and sends no requests.
"""

import time
from collections.abc import Mapping

from holdfast.quantities import spoken_ms
from holdfast.wire.http import EstimateView, ScoreView

PROMISED = "target: 4 of 5"


def now_ms() -> int:
    return round(time.time() * 1000)


def span(when: tuple[int, int], at_ms: int) -> str:
    """`in 40 s to 2 min`; a time in the past counts as now."""
    low, high = (spoken_ms(max(0, moment - at_ms)) for moment in when)
    if when[1] <= at_ms:
        return "any moment"
    if when[0] <= at_ms:
        return f"within {high}"
    return f"in {low}" if low == high else f"in {low} to {high}"


def line(estimate: EstimateView, at_ms: int | None = None) -> str:
    """The whole estimate, in one line."""
    at_ms = now_ms() if at_ms is None else at_ms
    parts: list[str] = []
    if estimate.start is not None:
        parts.append(f"starts {span(estimate.start, at_ms)}")
    if estimate.end is not None:
        parts.append(f"ends {span(estimate.end, at_ms)}")
    words = ", ".join(parts)
    words = f"{words} ({estimate.says})" if words and estimate.end is not None else "; ".join([*parts, estimate.says])
    if estimate.end is None and estimate.latest_ms is not None:
        words += f"; its time limit ends it in {spoken_ms(max(0, estimate.latest_ms - at_ms))} at the latest"
    return words


def _briefly(when: tuple[int, int], at_ms: int) -> str:
    """`4–9 s`, `40 s – 2 min`."""
    low, high = (spoken_ms(max(0, moment - at_ms)) for moment in when)
    if when[0] <= at_ms:
        return "a moment" if when[1] <= at_ms else f"< {high}"
    (less, unit), (more, same) = low.split(" "), high.split(" ")
    if unit == "s" and same == "s" and float(more) >= 10:
        less, more = (str(round(float(part))) for part in (less, more))
        high = f"{more} s"
    return high if low == high else f"{less}–{high}" if unit == same else f"{low} – {high}"


def short(estimate: EstimateView | None, at_ms: int | None = None) -> str:
    """The next estimated event, for a column: `starts in 4–9 s`; empty if there is none."""
    if estimate is None:
        return ""
    at_ms = now_ms() if at_ms is None else at_ms
    if estimate.start is not None and estimate.start[1] > at_ms:
        return f"starts in {_briefly(estimate.start, at_ms)}"
    return f"ends in {_briefly(estimate.end, at_ms)}" if estimate.end is not None else ""


def scores(found: Mapping[str, ScoreView]) -> str:
    """How often estimates were right, in one line."""
    sorts = {"start": "starts", "end": "ends", "end_running": "ends while running"}
    parts = [
        f"{words} {found[sort].right} of {found[sort].judged}"
        for sort, words in sorts.items()
        if sort in found and found[sort].judged
    ]
    return f"right so far: {', '.join(parts)}; {PROMISED}" if parts else "none has been judged so far"
