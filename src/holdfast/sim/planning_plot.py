"""Plots of a plan: braille dots for a terminal of 80 columns, and SVG. Only draws; computes no results.

Two plots are drawn: the share of jobs done over time and, if several checkpoint intervals were tried, the time of a job
with each.
"""

import math
from collections.abc import Sequence

from holdfast.sim.planning import LOSSES, QUANTILES, Cause, Plan, Summary
from holdfast.sim.svg import Drawing

COLOURS = {
    Cause.USEFUL: "green", Cause.REDONE: "red", Cause.SAVING: "blue", Cause.DETECTING: "amber",
    Cause.PREPARING: "violet", Cause.WAITING: "grey", Cause.DELIVERING: "teal",
}  # fmt: skip
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
Points = Sequence[tuple[float, float]]


def span(ms: float) -> str:
    """`8.2 s`, `12.5 min`, `10 h 12 min`, `3 d 4 h`."""
    if ms < 60_000:
        return f"{ms / 1_000:.3g} s"
    if ms < 3_600_000:
        return f"{ms / 60_000:.3g} min"
    minutes = round(ms / 60_000)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    hours = round(ms / 3_600_000)
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"


def done_by(one: Summary) -> list[tuple[float, float]]:
    """(time, share of the jobs that were submitted and are done by then)."""
    return [(float(ms), step / QUANTILES) for step, ms in enumerate(one.quantiles_ms)]


def by_interval(plan: Plan) -> list[Summary]:
    return [one for one in plan.sweep if one.succeeded]


# --- braille ---


class Braille:
    """Each cell has two dots across and four down."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._cells = [[0] * columns for _ in range(rows)]

    def dot(self, x: int, y: int) -> None:
        if 0 <= x < 2 * self.columns and 0 <= y < 4 * self.rows:
            self._cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]

    def stroke(self, x0: int, y0: int, x1: int, y1: int) -> None:
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(steps + 1):
            self.dot(round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps))

    def lines(self) -> list[str]:
        return ["".join(chr(0x2800 + cell) for cell in row) for row in self._cells]


def braille(curves: Sequence[Points], box: tuple[float, float, float, float], columns: int, rows: int) -> list[str]:
    """Curves in a box given as x0, x1, y0, y1."""
    x0, x1, y0, y1 = box
    canvas = Braille(columns, rows)

    def place(x: float, y: float) -> tuple[int, int]:
        across = (x - x0) / ((x1 - x0) or 1) * (2 * columns - 1)
        down = (y1 - y) / ((y1 - y0) or 1) * (4 * rows - 1)
        return round(across), round(down)

    for curve in curves:
        for one, other in zip(curve, curve[1:] or curve, strict=False):
            canvas.stroke(*place(*one), *place(*other))
    return canvas.lines()


def _framed(rows: list[str], ticks: dict[int, str], under: list[tuple[int, str]]) -> list[str]:
    """The rows of a plot with labels to the left and below."""
    wide = max([len(words) for words in ticks.values()], default=0)
    lines = [f"{ticks.get(number, ''):>{wide}} ┤{row}" if number in ticks else f"{'':>{wide}} │{row}"
             for number, row in enumerate(rows)]  # fmt: skip
    columns = len(rows[0]) if rows else 0
    lines.append(f"{'':>{wide}} └{'─' * columns}")
    beneath = [" "] * (columns + 12)
    free = 0
    for column, words in sorted(under):
        at = max(0, min(column - len(words) // 2, columns - len(words)))
        if at >= free:
            beneath[at : at + len(words)] = words
            free = at + len(words) + 2
    lines.append((f"{'':>{wide}}  " + "".join(beneath)).rstrip())
    return lines


def terminal(plan: Plan, columns: int = 62, rows: int = 8) -> list[str]:
    """Both plots, as lines."""
    shown: list[str] = []
    done = done_by(plan.here)
    if len(done) > 1:
        start, end = done[0][0], done[-1][0]
        end = end if end > start else start + 1
        plot = braille([done], (start, end, 0.0, 1.0), columns, rows)
        shown += ["jobs done after"]
        middle = (start + end) / 2
        shown += _framed(plot, {0: "100 %", rows // 2: "50 %", rows - 1: "0 %"},
                         [(0, span(start)), (columns // 2, span(middle)), (columns, span(end))])  # fmt: skip
    tried = by_interval(plan)
    if len(tried) > 1:
        means = [(math.log(one.every_ms), float(one.mean_ms)) for one in tried]
        low, high = min(y for _, y in means), max(y for _, y in means)
        plot = braille([means], (means[0][0], means[-1][0], low, high), columns, rows)
        shown += ["", "mean time of a job by checkpoint interval"]
        width = (means[-1][0] - means[0][0]) or 1
        under = [(round((x - means[0][0]) / width * columns), span(one.every_ms))
                 for (x, _), one in zip(means, tried, strict=True)]  # fmt: skip
        shown += _framed(plot, {0: span(high), rows - 1: span(low)}, under)
    return shown


# --- SVG ---


def svg(plan: Plan, title: str) -> str:
    tried = by_interval(plan)
    drawing = Drawing(760, 500 if len(tried) > 1 else 250, "A plan for a network", title)
    drawing.text(20, 30, title, bold=True, size=14)
    _svg_done(drawing, plan, 20, 52, 410, 180)
    _svg_causes(drawing, plan.here, 470, 52, 270)
    if len(tried) > 1:
        _svg_intervals(drawing, plan, tried, 20, 290, 720, 180)
    return drawing.svg()


def _axes(drawing: Drawing, x: float, y: float, width: float, height: float) -> None:
    drawing.line([(x, y), (x, y + height), (x + width, y + height)], "line", 1)


def _svg_done(drawing: Drawing, plan: Plan, x: float, y: float, width: float, height: float) -> None:
    drawing.text(x, y, "Share of jobs done after…", "faint", 12)
    left, top, wide, high = x + 44, y + 14, width - 60, height - 36
    _axes(drawing, left, top, wide, high)
    for share in (0.0, 0.5, 1.0):
        drawing.text(left - 8, top + high * (1 - share) + 4, f"{share:.0%}", "faint", 11, "end")
    done = done_by(plan.here)
    if len(done) < 2:
        words = "no job was done in time" if plan.here.runs else "no world was simulated to its end"
        drawing.text(left + wide / 2, top + high / 2, words, "red", 12, "middle")
        return
    start, end = done[0][0], done[-1][0]
    scale = wide / ((end - start) or 1)
    drawing.line([(left + (ms - start) * scale, top + high * (1 - share)) for ms, share in done], "green", 2)
    for share, ms in (("p50", plan.here.p50_ms), ("p95", plan.here.p95_ms)):
        at = left + (ms - start) * scale
        drawing.line([(at, top), (at, top + high)], "faint", 1, dashed=True)
        drawing.text(at + 4, top + high - 6, share, "faint", 10)
    drawing.text(left, top + high + 18, span(start), "faint", 11)
    drawing.text(left + wide, top + high + 18, span(end), "faint", 11, "end")


def _svg_causes(drawing: Drawing, one: Summary, x: float, y: float, width: float) -> None:
    drawing.text(x, y, f"Lost time of a job, by cause (goodput {one.goodput:.1%})", "faint", 12)
    most = max([one.spent_ms.get(cause.value, 0) for cause in LOSSES] + [1])
    for number, cause in enumerate(LOSSES):
        ms = one.spent_ms.get(cause.value, 0)
        top = y + 16 + number * 27
        drawing.text(x, top + 12, cause.value, size=12)
        drawing.rect(x + 124, top + 2, max(1.0, (width - 200) * ms / most), 13, COLOURS[cause], "", 2)
        drawing.text(x + width, top + 12, span(ms), "faint", 11, "end")


def _svg_intervals(
    drawing: Drawing, plan: Plan, tried: Sequence[Summary], x: float, y: float, width: float, height: float
) -> None:
    drawing.text(x, y, "Time of a job by checkpoint interval: mean (solid) and p95 (dashed)", "faint", 12)
    left, top, wide, high = x + 84, y + 14, width - 104, height - 40
    _axes(drawing, left, top, wide, high)
    first, last = math.log(tried[0].every_ms), math.log(tried[-1].every_ms)
    low = min(one.mean_ms for one in tried)
    most = max(one.p95_ms for one in tried)

    def at(every: float, ms: float) -> tuple[float, float]:
        return (left + wide * (math.log(every) - first) / ((last - first) or 1),
                top + high - (high - 8) * (ms - low) / ((most - low) or 1))  # fmt: skip

    drawing.line([at(one.every_ms, one.p95_ms) for one in tried], "amber", 1.5, dashed=True)
    drawing.line([at(one.every_ms, one.mean_ms) for one in tried], "blue", 2)
    free = 0.0
    for one in tried:
        across, down = at(one.every_ms, one.mean_ms)
        good = one.every_ms == plan.surely_best_ms
        drawing.dot(across, down, 5 if good else 3, "green" if good else "blue")
        words = span(one.every_ms) + (" (best)" if good else "")
        if across - 3 * len(words) >= free:
            drawing.text(across, top + high + 18, words, "green" if good else "faint", 11, "middle", bold=good)
            free = across + 3 * len(words) + 8
    if tried[0].every_ms <= plan.formula_every_ms <= tried[-1].every_ms:
        across, _ = at(plan.formula_every_ms, low)
        drawing.line([(across, top), (across, top + high)], "faint", 1, dashed=True)
        drawing.text(across + 5, top + 10, f"Young/Daly: {span(plan.formula_every_ms)}", "faint", 10)
    drawing.text(left - 8, top + 12, span(most), "faint", 11, "end")
    drawing.text(left - 8, top + high, span(low), "faint", 11, "end")
