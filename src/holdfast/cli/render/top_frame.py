"""Renders one frame of `holdfast top`: the state of the network, for a window of a given size. Sends no requests.

Every row has a fixed place and is cut, never wrapped: a frame is exactly as large as the window, even at 80 columns.
"""

from collections.abc import Callable, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.render import estimate_text
from holdfast.cli.render.jobs import STYLES, ago, clean, clock
from holdfast.cli.render.nodes import WORKS, because, held, place, standing
from holdfast.quantities import spoken_cores, spoken_ms
from holdfast.wire.http import EventView, JobView, NodeView, ScoreView

WIDE = 120
"""Columns from which there is room for ids and causes."""
SMALL = 70
"""Columns below which the memory and load of a machine are left out, so that its state still fits."""
BAR = 8


class TopState(msgspec.Struct, frozen=True):
    """What `top` knows at one moment; also what `--json` prints."""

    url: str
    at_ms: int
    nodes: list[NodeView]
    running: list[JobView]
    """Jobs that machines work on, newest first."""
    queued: list[JobView]
    """Sorted by estimated start."""
    more_queued: bool
    """More jobs wait than are listed."""
    events: list[EventView]
    scores: dict[str, ScoreView]
    trouble: str = ""
    """Why this state is out of date; empty if it is current."""
    more_running: bool = False
    """More jobs run than are listed."""


def frame(seen: TopState, width: int, height: int) -> RenderableType:
    """A frame of at most this size."""
    nodes = sorted((node for node in seen.nodes if node.state != "gone"), key=place)
    names = {node.id: node.title for node in seen.nodes}
    wants = [len(part) + 1 if part else 0 for part in (nodes, seen.running, seen.queued)] + [len(seen.events)]
    # A line for each title, one for the head and one for the keys.
    rows = shares(max(0, height - 2 - len(wants)), wants)
    wide = width >= WIDE
    parts: list[RenderableType] = [_head(seen, nodes, width)]
    parts += [_title(f"machines ({len(nodes)})", width), _nodes(nodes[: max(0, rows[0] - 1)], width)]
    running = f"{len(seen.running)}{'+' if seen.more_running else ''}"
    parts += [_title(f"running ({running})", width)]
    parts += [_jobs(seen.running[: max(0, rows[1] - 1)], names, wide, seen.at_ms)]
    waiting = f"{len(seen.queued)}{'+' if seen.more_queued else ''}"
    parts += [_title(f"waiting ({waiting})", width), _queue(seen.queued[: max(0, rows[2] - 1)], seen.at_ms, wide)]
    parts += [_title("lately", width), _events(seen.events[-rows[3] :] if rows[3] else [], wide)]
    return Group(*parts)


def shares(room: int, wants: Sequence[int]) -> list[int]:
    """How many rows each part gets: as many as it wants; if there are too few, the largest parts shrink."""
    given = list(wants)
    while sum(given) > room and any(given):
        largest = max(range(len(given)), key=lambda part: given[part])
        given[largest] -= 1
    return given


def _head(seen: TopState, nodes: list[NodeView], width: int) -> Text:
    working = sum(standing(node) in WORKS for node in nodes)
    busy = f"{working} of {len(nodes)} machines take work"
    text = Text.assemble(
        ("holdfast top ", "bold"), (clean(seen.url), "dim"), f"  {busy}  ", (clock(seen.at_ms)[:8], "dim")
    )
    if seen.trouble:
        text = Text.assemble(("holdfast top ", "bold"), (clean(seen.trouble), "bold red"))
    text.truncate(width, overflow="ellipsis")
    return text


def _title(words: str, width: int) -> Text:
    return Text(f"─ {words} ".ljust(width, "─")[:width], style="dim", no_wrap=True)


def _grid(*columns: tuple[str, int]) -> Table:
    """A table that fills the window; a column with a weight of 0 is as wide as its content."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True, padding=(0, 1, 0, 0))
    for name, weight in columns:
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=weight or None)
    return table


def _nodes(nodes: list[NodeView], width: int) -> RenderableType:
    if not nodes:
        return Group()
    wide, small = width >= WIDE, width < SMALL
    load = [] if small else [("memory, GiB", 0), ("load", 0)]
    extra = [("id", 0), ("why", 3)] if wide else []
    table = _grid(("name", 2), ("state", 2), ("cores in use", 0), *load, ("holds", 0), ("heard", 0), *extra)
    for node in nodes:
        why = because(node) if standing(node) != node.state else clean(node.cause)
        more = [Text(clean(node.id), style="dim"), Text(why, style="dim")] if wide else []
        permille = node.load.get("cpu_permille")
        busy = Text("" if permille is None else f"{permille // 10:>3} %")
        table.add_row(
            Text(clean(node.title)),
            Text(clean(standing(node)), style=STYLES.get(standing(node), "")),
            used(node, "cpu_milli", spoken_cores),
            *([] if small else [used(node, "memory_mib", _gib), busy]),
            Text(f"{held(node):>5}"),
            Text(spoken_ms(node.silent_ms or 0)) if node.connected else Text("gone", style="red"),
            *more,
        )
    return table


def used(node: NodeView, kind: str, spoken: Callable[[int], str]) -> Text:
    """A bar, and how much of what the node offers is in use."""
    total = node.offered.get(kind, 0) or node.total.get(kind, 0)
    taken = max(0, total - node.free.get(kind, 0))
    full = min(BAR, -(-BAR * taken // total)) if total else 0
    style = "red" if total and taken >= total else "green"
    return Text.assemble(("█" * full, style), ("░" * (BAR - full), "dim"), f" {spoken(taken)}/{spoken(total)}")


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f}" if mib < 10 * 1024 else f"{mib / 1024:.0f}"


def _jobs(jobs: list[JobView], names: dict[str, str], wide: bool, at_ms: int) -> RenderableType:
    if not jobs:
        return Group()
    extra = [("attempt", 0), ("owner", 0), ("age", 0)] if wide else []
    table = _grid(("job", 0), ("name", 2), ("phase", 0), ("machine", 2), ("at", 0), *extra, ("estimate", 3))
    for job in jobs:
        more = [Text(str(job.attempts_made)), Text(clean(job.owner)), Text(ago(job.submitted_ms))] if wide else []
        table.add_row(
            Text(job.id),
            Text(clean(job.name or " ".join(job.argv))),
            Text(job.phase, style=STYLES.get(job.phase, "")),
            Text(clean(names.get(job.node or "", job.node or ""))),
            Text(far(job)),
            *more,
            Text(estimate_text.short(job.estimate, at_ms)),
        )
    return table


def far(job: JobView) -> str:
    """Progress of the newest attempt: a percentage if known, else the CPU time or the stage."""
    if not job.progress:
        return ""
    at = job.progress[-1]
    if at.total:
        return f"{clean(at.stage)} {100 * at.done // at.total} %"
    return f"{spoken_ms(at.cpu_ms)} cpu" if at.cpu_ms else clean(at.stage)


def _queue(jobs: list[JobView], at_ms: int, wide: bool) -> RenderableType:
    if not jobs:
        return Group()
    extra = [("owner", 0), ("priority", 0)] if wide else []
    table = _grid(("job", 0), ("name", 2), ("waits", 0), *extra, ("for", 3), ("estimate", 3))
    for job in jobs:
        more = [Text(clean(job.owner)), Text(str(job.priority))] if wide else []
        table.add_row(
            Text(job.id),
            Text(clean(job.name or " ".join(job.argv))),
            Text(ago(job.submitted_ms)),
            *more,
            Text(clean(job.waiting)),
            Text(estimate_text.short(job.estimate, at_ms)),
        )
    return table


def _events(events: list[EventView], wide: bool) -> RenderableType:
    lines = [_event(event, wide) for event in events]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _event(event: EventView, wide: bool) -> Text:
    """With the beginning of the job's or node's id, which is enough for every command."""
    whom = event.job or event.node or ""
    at, kind = (clock(event.at_ms)[:8], "dim"), f"  {clean(event.kind):<18}"
    return Text.assemble(
        at, kind, (f" {clean(whom)[: 18 if wide else 9]:<{18 if wide else 9}}", "cyan"), f" {clean(event.text)}"
    )
