"""Jobs and nodes as HTML for notebooks. Everything is escaped: names, commands and reasons are untrusted."""

import time
from collections.abc import Iterable, Sequence
from html import escape

from holdfast.cleaning import clean
from holdfast.client.objects import state_of, took_ms
from holdfast.quantities import spoken_ms
from holdfast.wire.http import ArrayView, JobView, NodeView

_COLOUR = {
    "succeeded": "#1a7f37",
    "failed": "#cf222e",
    "cancelled": "#6e7781",
    "running": "#0969da",
    "ready": "#1a7f37",
    "suspect": "#9a6700",
    "lost": "#cf222e",
    "quarantined": "#9a6700",
}
ROWS_MAX = 200
"""Nobody reads more rows in a notebook, and a page with all of them is slow."""
WORDS_MAX = 120


def job_card(job: JobView) -> str:
    rows = [("command", " ".join(job.argv)), ("owner", job.owner)]
    if job.node:
        rows.append(("node", job.node))
    if job.waiting:
        rows.append(("waits for", job.waiting))
    if (took := took_ms(job)) is not None:
        rows.append(("took", spoken_ms(took)))
    if job.attempts_made > 1:
        rows.append(("attempts", str(job.attempts_made)))
    if job.failure is not None:
        rows.append(("failed", f"{job.failure.says} {job.failure.detail}".strip() + f" [{job.failure.code}]"))
    if job.files is not None:
        rows.append(("files", f"{job.files.files} ({job.files.bytes:,} bytes)"))
    title = f"{_text(job.name)} {_code(job.id)}" if job.name else _code(job.id)
    body = "".join(f"<tr><th style='text-align:left'>{_text(a)}</th><td>{_text(b)}</td></tr>" for a, b in rows)
    return f"<div class='holdfast'><b>{title}</b> {_state(state_of(job))}<table>{body}</table></div>"


def job_table(jobs: Sequence[JobView], more: bool = False) -> str:
    rows = (
        [_code(job.id), _text(job.name), _state(state_of(job)), _text(" ".join(job.argv)), _text(job.node or ""),
         _text(_when(job.submitted_ms))]
        for job in jobs[:ROWS_MAX]
    )  # fmt: skip
    return _table(["job", "name", "state", "command", "node", "submitted"], rows, len(jobs), more)


def array_card(array: ArrayView) -> str:
    title = f"{_text(array.name)} {_code(array.id)}" if array.name else _code(array.id)
    cells = "".join(f"<td>{_state(state)} {count:,}</td>" for state, count in array.counts.items())
    return f"<div class='holdfast'><b>{title}</b> {array.items:,} items<table><tr>{cells}</tr></table></div>"


def node_card(node: NodeView) -> str:
    return node_table([node])


def node_table(nodes: Sequence[NodeView]) -> str:
    rows = (
        [_code(node.id), _text(node.name), _state(node.state) + (" draining" if node.draining else ""),
         _text(_share(node, "cpu_milli", 1_000)), _text(_share(node, "memory_mib", 1_024)),
         _text(", ".join(node.gpus)), str(len(node.attempts)), _text(node.cause)]
        for node in nodes[:ROWS_MAX]
    )  # fmt: skip
    return _table(["node", "name", "state", "cores free", "GiB free", "GPUs", "holds", "because"], rows, len(nodes))


def _share(node: NodeView, what: str, unit: int) -> str:
    return f"{node.free.get(what, 0) / unit:.3g} of {node.total.get(what, 0) / unit:.3g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], count: int, more: bool = False) -> str:
    top = "".join(f"<th style='text-align:left'>{_text(word)}</th>" for word in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    left = f"<p>and {count - ROWS_MAX} more</p>" if count > ROWS_MAX else "<p>and more</p>" if more else ""
    return f"<div class='holdfast'><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{left}</div>"


def _text(text: str) -> str:
    shown = clean(text)
    return escape(shown if len(shown) <= WORDS_MAX else shown[: WORDS_MAX - 1] + "…")


def _code(text: str) -> str:
    return f"<code>{_text(text)}</code>"


def _state(word: str) -> str:
    return f"<span style='color:{_COLOUR.get(word, '#57606a')}'>{_text(word)}</span>"


def _when(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1_000))
