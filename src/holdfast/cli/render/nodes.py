"""Renders machines: all of them in a table, one with its history, and the node on this machine.

Sends no requests. Machines with problems come first, with the problem in words.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cleaning import clean
from holdfast.cli.entry_facts import facts_of
from holdfast.cli.render import jobs as render_jobs
from holdfast.cli.render.jobs import NARROW, SHORT_ID, STYLES, ago, amounts_line, columns, event
from holdfast.quantities import counted, spoken_cores, spoken_mib, spoken_ms
from holdfast.wire.http import EventView, NodeView

UNSAFE = "UNSAFE: no isolation"
"""Shown in every listing of a node whose jobs run as plain processes."""

ORDER = (
    "lost", "quarantined", "suspect", "away", "probation", "draining", "drained", "paused", "full", "ready", "gone",
)  # fmt: skip
"""The results of `standing`, in the order of a listing: problems first."""
FITS, FITS_LESS = 78, 60
"""Columns below which a table of nodes leaves out memory and GPUs, and then also the id, so that no state is cut."""
WORKS = ("probation", "full", "ready")
"""Results of `standing` for nodes that get work, or would get it if they had room."""


def isolation(node: NodeView) -> Text:
    return Text(UNSAFE, style="bold red") if node.isolation == "none" else Text(clean(node.isolation))


def held(node: NodeView) -> int:
    """The number of attempts on a node. Not every caller sees their ids, and older orchestrators send only these."""
    return max(node.holds, len(node.attempts))


def standing(node: NodeView) -> str:
    """The condition of a node in one word: its state, or what else keeps work from it."""
    if node.state not in ("ready", "probation"):
        return node.state
    if not node.connected:
        return "away"
    if node.draining:
        if (node.draining_because or node.pause_cause) and not node.drained:
            return "paused"
        return "draining" if held(node) else "drained"
    if node.state == "ready" and any(node.free.get(kind, 1) <= 0 for kind in ("cpu_milli", "memory_mib")):
        return "full"
    return node.state


def because(node: NodeView) -> str:
    """The reason for the `standing` of a node; empty if there is none to show."""
    word, cause, since = standing(node), clean(node.cause), ago(node.state_since_ms)
    if word in ("paused", "draining", "drained"):
        holds = f"; still holds {counted(held(node), 'attempt')}" if held(node) else ""
        return (clean(node.draining_because) + holds).removeprefix("; ")
    if word == "away":
        return "not connected; expected back"
    if word == "full":
        return f"no room: holds {counted(held(node), 'attempt')}" if held(node) else "offers nothing"
    if word in ("ready", "gone"):
        return ""
    return f"for {since}: {cause}" if cause else f"for {since}"


def _remark(node: NodeView) -> str:
    word, why = standing(node), because(node)
    match word:
        case "drained":
            return why
        case "paused":
            return why if _pause_cause(node) == "operator" else f"{word}: {why}"
        case "draining" | "away" | "full":
            return f"{word}: {why}"
        case _:
            return f"{word} {why}"


def _pause_cause(node: NodeView) -> str:
    from holdfast.model.old_sentences import pause_cause

    return node.pause_cause or pause_cause(node.draining_because)


def nodes(listed: Sequence[NodeView], *, everyone: bool = False) -> None:
    """`everyone`: also nodes that have left."""
    out = render_jobs.console()
    shown = sorted((node for node in listed if everyone or node.state != "gone"), key=place)
    if not listed:
        out.print("No nodes. See how one joins with: holdfast token new")
        return
    if shown:
        out.print(_wide(shown) if out.width >= NARROW else _narrow(shown, out.width))
    for node in shown if out.width < NARROW else ():
        if because(node) and not (standing(node) == "full" and held(node)):  # which is normal
            out.print(Text.assemble((f"{_name(node)}: ", "bold"), _remark(node)))
        if node.isolation == "none":
            out.print(Text.assemble((f"{_name(node)}: ", "bold"), isolation(node)))
    for line in summary(listed, everyone=everyone):
        out.print(line, style="dim")


def summary(listed: Sequence[NodeView], *, everyone: bool = False) -> list[str]:
    """One line that counts the nodes by condition, and one with the resources that are free."""
    here = [node for node in listed if node.state != "gone"]
    counts = Counter(map(standing, here))
    said = ", ".join(f"{counts[word]} {word}" for word in reversed(ORDER) if counts[word])
    parts: list[str] = []
    works = [node for node in here if standing(node) in WORKS]
    if works:
        free, offered = (
            {kind: sum(amounts(node, kind) for node in works) for kind in ("cpu_milli", "memory_mib")}
            for amounts in (_free, _offered)
        )
        cores = f"{spoken_cores(free['cpu_milli'])} of {spoken_cores(offered['cpu_milli'])} cores"
        parts.append(f"free: {cores}, {_of(free['memory_mib'], offered['memory_mib'])} memory")
    if len(listed) > len(here) and not everyone:
        parts.append(f"{len(listed) - len(here)} gone (--all)")
    return [f"{counted(len(here), 'node')}{': ' if said else ''}{said}", *(["; ".join(parts)] if parts else [])]


def place(node: NodeView) -> tuple[int, str, str]:
    """The sort key of a listing."""
    word = standing(node)
    # A full node is healthy, and is listed with the ready ones.
    return ORDER.index("ready" if word == "full" else word) if word in ORDER else 0, node.name, node.id


def _name(node: NodeView) -> str:
    return clean(node.title)


def _offered(node: NodeView, kind: str) -> int:
    return node.offered.get(kind, 0) if node.offered else node.total.get(kind, 0)


def _free(node: NodeView, kind: str) -> int:
    return max(0, node.free.get(kind, 0))


def _cores(node: NodeView) -> str:
    return f"{spoken_cores(_free(node, 'cpu_milli'))}/{spoken_cores(_offered(node, 'cpu_milli'))}"


def _of(free: int, total: int) -> str:
    unit, name = (1024, "GiB") if total >= 4096 else (1, "MiB")
    return f"{free / unit:.0f}/{total / unit:.0f} {name}"


def _memory(node: NodeView) -> str:
    return _of(_free(node, "memory_mib"), _offered(node, "memory_mib"))


def _word(node: NodeView) -> Text:
    word = standing(node)
    return Text(clean(word), style=STYLES.get(word, ""))


def _wide(listed: Sequence[NodeView]) -> Table:
    rows = columns("id", "name", "state", "isolation", "cpu free", "memory free", "gpus", "holds", "since", "why")
    for node in listed:
        rows.add_row(
            clean(node.id),
            _name(node),
            _word(node),
            isolation(node),
            _cores(node),
            _memory(node),
            str(_offered(node, "gpus")),
            str(held(node)),
            ago(node.state_since_ms),
            because(node) if standing(node) != node.state else clean(node.cause),
        )
    return rows


def _narrow(listed: Sequence[NodeView], width: int) -> Table:
    """A table for a small window, with shortened ids. The reasons are printed below it."""
    cells = {
        "name": lambda node: _name(node)[:14],
        "id": lambda node: clean(node.id)[:SHORT_ID],
        "state": _word,
        "cpu free": _cores,
        "memory free": _memory,
        "gpus": lambda node: str(_offered(node, "gpus")),
        "holds": lambda node: str(held(node)),
    }
    left_out = () if width >= FITS else ("memory free", "gpus") if width >= FITS_LESS else ("memory free", "gpus", "id")
    shown = {name: cell for name, cell in cells.items() if name not in left_out}
    rows = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        rows.add_column(column, no_wrap=True)
    for node in listed:
        rows.add_row(*(cell(node) for cell in shown.values()))
    return rows


def node(view: NodeView) -> None:
    out = render_jobs.console()
    word = standing(view)
    also = f", {word}" if word != view.state else ""
    out.print(Text.assemble((clean(view.id), "bold"), " ", render_jobs.styled(view.state), also, " ", clean(view.name)))
    heard = f", heard {spoken_ms(view.silent_ms)} ago" if view.silent_ms is not None else ""
    facts: dict[str, str | Text] = {
        "isolation": isolation(view),
        "cause": clean(view.cause),
        "since": ago(view.state_since_ms),
        "connected": f"yes{heard}" if view.connected else "no",
        "no new work": clean(view.draining_because),
        "version": clean(view.version),
        "machine": clean(f"{view.hostname} {view.arch} {view.cpu_model}"),
        "site": clean(view.site),
        "has": amounts_line(view.total),
        "offers": amounts_line(view.offered) if view.offered else "",
        "free": amounts_line(view.free),
        "gpus": clean(", ".join(view.gpus)),
        "load": _load(view.load),
        "holds": clean(" ".join(view.attempts)) or (counted(held(view), "attempt") if held(view) else ""),
        "operator": clean(view.operator),
    }
    for name, value in facts.items():
        if value:
            out.print(Text.assemble(f"  {name:<12} ", value))
    label = f"{view.name} ({view.id})" if view.name else view.id
    for happened in view.events:
        event(replace(happened, text=_unnamed(happened, label)))


def _unnamed(happened: EventView, label: str) -> str:
    """The text of an event, without the machine's name if that is in the heading."""
    from holdfast.model.cause_text import KINDS, entry_text

    facts = facts_of(happened)
    if facts is None or facts.label != label or happened.kind not in KINDS or not happened.kind.startswith("node."):
        return happened.text
    return entry_text(happened.kind, replace(facts, label=""))


def _load(load: dict[str, int]) -> str:
    """The load of the whole machine, whatever causes it."""
    words = {
        "cpu_permille": lambda amount: f"processor {amount // 10} %",
        "memory_used_mib": lambda amount: f"{spoken_mib(amount)} memory used",
        "disk_free_mib": lambda amount: f"{spoken_mib(amount)} disk free",
    }
    return ", ".join(say(load[kind]) for kind, say in words.items() if kind in load)


def node_status(found: dict[str, Any]) -> None:
    """A node as its own machine sees it."""
    out = render_jobs.console()
    hours: dict[str, Any] = found.get("hours", {})
    states = [word for word in ("paused", "drained", "leaving") if found.get(word)]
    link = "connected" if found.get("connected") else "not connected"
    trouble = "" if found.get("connected") else found.get("trouble")
    out.print(Text.assemble((clean(str(found.get("node"))), "bold"), " ", ", ".join([link, *states])))
    facts = {
        "name": found.get("name"),
        "orchestrator": found.get("orchestrator"),
        "no link": trouble,
        "isolation": found.get("isolation"),
        "can": ", ".join(found.get("features", ())),
        "has": amounts_line(found.get("hardware", {}).get("total", {})),
        "offers": amounts_line(found.get("offered", {})),
        "in use": amounts_line(found.get("in_use", {})),
        "hours": f"{hours['set']}; {hours['says']}" if hours.get("says") else "",
        "no new work": "drained by the network's operator; only they can undo it" if found.get("drained") else "",
    }
    for name, value in facts.items():
        if value:
            out.print(Text.assemble(f"  {name:<12} ", clean(str(value))))
    _health(out, found.get("health", {}))
    if found.get("held"):
        rows = columns("attempt", "phase", "stage", "cpu", "memory", "may use")
        for held in found["held"]:
            at = held.get("progress") or {}
            cpu = spoken_ms(int(at.get("cpu_ms", 0))) if at.get("cpu_ms") else ""
            memory = spoken_mib(int(at.get("memory_mib", 0))) if at.get("memory_mib") else ""
            limits = amounts_line(held["limits"]) if held.get("limits") else ""
            state = f"{held['phase']}, being removed" if held.get("unwanted") else str(held["phase"])
            rows.add_row(
                clean(str(held["attempt"])), clean(state), clean(str(at.get("stage", ""))), cpu, memory, limits
            )
        out.print(rows)
    for failed in found.get("recent_failures", ()):
        since = f"{ago(int(failed['at_ms']))} ago, " if failed.get("at_ms") else ""
        words = f"{since}{failed.get('attempt')}: {failed.get('code')}: {failed.get('detail')}"
        out.print(Text.assemble(("  failed       ", "red"), clean(words)))


def _health(out: Console, health: dict[str, Any]) -> None:
    """What is wrong with the machine, its warnings, and its sensor readings."""
    if health.get("sick"):
        out.print(Text.assemble(("  sick         ", "red"), clean(str(health["sick"]))))
    for warning in health.get("warnings", ()):
        out.print(Text.assemble(("  warning      ", "yellow"), clean(str(warning))))
    readings: dict[str, Any] = health.get("readings") or {}
    heat = [f"{s['name']} {s['celsius']} °C" for s in readings.get("sensors", ())]
    errors = [
        f"{g['name']} {g['uncorrected']} uncorrected errors" for g in readings.get("gpus") or () if g["uncorrected"]
    ]
    if heat or errors:
        out.print(Text.assemble("  sensors      ", clean(", ".join([*heat, *errors])[:400])))
