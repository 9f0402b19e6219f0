"""Renders answers for people: tables, timelines, one-line verdicts. Sends no requests.

Text from nodes and jobs is cleaned before it reaches a terminal: a machine that nobody controls must not be able to
draw on a user's screen.
"""

import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cleaning import clean
from holdfast.cli.render import estimate_text
from holdfast.quantities import counted, spoken_bytes, spoken_cores, spoken_mib, spoken_ms
from holdfast.wire.errors import FailureView
from holdfast.wire.http import ArrayItem, EventView, ExplainView, JobView

WIDE = 240
"""Columns where there is no window: piped output is not cut."""
NARROW = 140
"""Columns below which tables show less."""
TINY = 70
"""Columns below which jobs are listed without a table."""
SHORT_ID = 13
"""Characters of an id that are shown in a narrow window. Commands accept the beginning of an id."""

STYLES = {
    "ready": "green", "succeeded": "green", "running": "cyan", "probation": "yellow", "suspect": "yellow",
    "quarantined": "red", "lost": "red", "failed": "red", "cancelled": "yellow", "queued": "yellow",
    "away": "yellow", "draining": "yellow", "drained": "yellow", "paused": "yellow", "full": "green",
}  # fmt: skip


class _Screen(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `cli.main`: rich would end the process as if something had failed."""
        raise BrokenPipeError


def console(*, err: bool = False) -> Console:
    file = sys.stderr if err else sys.stdout
    return _Screen(file=file, width=None if file.isatty() else WIDE, highlight=False, markup=False, emoji=False)


def print_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def styled(word: str) -> Text:
    return Text(clean(word), style=STYLES.get(word, ""))


def clock(at_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1000)) + f".{at_ms % 1000:03d}"


def ago(at_ms: int) -> str:
    return spoken_ms(max(0, round(time.time() * 1000) - at_ms))


def failure_line(failure: FailureView) -> str:
    detail = f" ({clean(failure.detail)})" if failure.detail else ""
    free = "" if failure.billable else ", not billed"
    return f"{failure.code}: {failure.says}{detail} [{failure.blame}'s{free}]"


def job_failure_line(job: JobView) -> str:
    """How the job failed, or how it failed as one machine says; empty: it did not."""
    if job.failure is None:
        return f"{failure_line(job.confirming)}, being confirmed on another machine" if job.confirming else ""
    marked = job.confirmation in ("unconfirmed", "taken")
    return failure_line(job.failure) + (", unconfirmed" if marked else "")


def verdict_line(job: JobView) -> str:
    """How it ended, in one line."""
    took = spoken_ms(max(0, (job.ended_ms or job.submitted_ms) - job.submitted_ms))
    tries = "1 attempt" if job.attempts_made == 1 else f"{job.attempts_made} attempts"
    if job.verdict == "succeeded":
        return f"{job.id} succeeded after {took}, {tries}; sha256 of its output {job.result_sha256}"
    if job.failure is not None:
        return f"{job.id} {job.verdict} after {took}, {tries}: {job_failure_line(job)}"
    return f"{job.id} {job.verdict} after {took}, {tries}"


def columns(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in names:
        table.add_column(column, overflow="fold", no_wrap=column in {"id", "job", "attempt"})
    return table


def jobs(listed: Sequence[JobView]) -> None:
    """One line a job, and one line for all items of an array."""
    if not listed:
        console().print("No jobs. Send one with: holdfast run -- echo hello")
        return
    wide = console().width >= NARROW
    if console().width < TINY:
        _jobs_briefly(listed)
        return
    table = columns("job", "name", "state", "node", "attempts" if wide else "tries", "age", "")
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for items in _folded(listed):
        table.add_row(*(_line(items[0], wide) if len(items) == 1 else _array_line(items)))
    console().print(table)


def _folded(listed: Sequence[JobView]) -> list[list[JobView]]:
    """The jobs in their order, with all listed items of an array in the place of its first."""
    groups: dict[str, list[JobView]] = {}
    for job in listed:
        groups.setdefault(job.array or job.id, []).append(job)
    return list(groups.values())


def _line(job: JobView, wide: bool) -> list[str | Text]:
    why = "; ".join(filter(None, (failure_briefly(job) or clean(job.waiting), estimate_text.short(job.estimate))))
    node = clean(job.node or "") if wide else clean(job.node or "")[:SHORT_ID]
    return [
        job.id, _title(job), styled(job.verdict or job.phase), node, str(job.attempts_made), ago(job.submitted_ms), why,
    ]  # fmt: skip


def _array_line(items: Sequence[JobView]) -> list[str | Text]:
    first = items[0]
    states = Counter(job.verdict or job.phase for job in items)
    worst = next((state for state in ("failed", "cancelled", "running", "queued") if state in states), first.phase)
    how = ", ".join(f"{count} {state}" for state, count in states.most_common())
    failed = Counter(filter(None, map(failure_briefly, items)))
    why = "; ".join([how, *(f"{says} ({count})" for says, count in failed.most_common(2))])
    title = f"{clean(first.name or ' '.join(first.argv))[:24]}[{counted(len(items), 'item')}]"
    tries = str(sum(job.attempts_made for job in items))
    return [first.array, title, styled(worst), "", tries, ago(first.submitted_ms), why]


def failure_briefly(job: JobView) -> str:
    """How it failed, in a few words; empty: it did not."""
    failure = job.failure or job.confirming
    if failure is None:
        return ""
    if failure.signal:
        says = f"signal {failure.signal} ({_signal_name(failure.signal)})"
    elif failure.exit_code is not None:
        says = f"exit {failure.exit_code}"
    else:
        says = failure.code.replace("_", " ")
    if job.failure is None:
        return f"{says}, being confirmed"
    return says + (", unconfirmed" if job.confirmation in ("unconfirmed", "taken") else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _jobs_briefly(listed: Sequence[JobView]) -> None:
    """For very narrow windows: one line for each job, with a shortened id."""
    out = console()
    for job in listed:
        line = f"{job.id[:SHORT_ID]} {(job.verdict or job.phase)[:9]:<9} {ago(job.submitted_ms):>7} {_title(job)}"
        out.print(Text(line[: max(1, out.width)]))


def _title(job: JobView) -> str:
    """The job's name or command, with its index if it is an item of an array."""
    which = f"[{job.item}]" if job.array else ""
    return clean(job.name or " ".join(job.argv))[: 32 - len(which)] + which


def job(view: JobView) -> None:
    out = console()
    out.print(Text.assemble((view.id, "bold"), " ", styled(view.verdict or view.phase), " ", clean(view.name)))
    facts = {
        "command": clean(" ".join(view.argv)),
        "owner": clean(view.owner),
        "class": view.recovery,
        "priority": str(view.priority),
        "node": clean(view.node or ""),
        "waiting for": clean(view.waiting),
        "estimate": clean(estimate_text.line(view.estimate)) if view.estimate else "",
        "moved": _moved(view),
        "failure": job_failure_line(view),
        "result": f"sha256 {view.result_sha256}, {view.result_bytes} bytes" if view.result_sha256 else "",
        "files": _files(view),
        "checkpoint": _checkpoint(view),
        "exit code": "" if view.exit_code is None else str(view.exit_code),
    }
    for name, value in facts.items():
        if value:
            out.print(f"  {name:<12} {value}")
    if view.attempts:
        table = columns("attempt", "node", "phase", "started", "ended", "")
        for attempt in view.attempts:
            why = attempt.failure or attempt.revoked
            started = clock(attempt.started_ms) if attempt.started_ms else ""
            ended = clock(attempt.ended_ms) if attempt.ended_ms else ""
            table.add_row(
                attempt.id,
                clean(attempt.node) if out.width >= NARROW else clean(attempt.node)[:SHORT_ID],
                attempt.phase,
                started,
                ended,
                failure_line(why) if why else f"straggling: {attempt.straggling}" if attempt.straggling else "",
            )
        out.print(table)
    for happened in view.events:
        event(happened)


def array(items: list[ArrayItem], texts: list[str], details: dict[str, JobView]) -> None:
    """Items of an array, one per row. `texts`: the items as typed, if known; `details`: the jobs that failed."""
    table = columns("index", *(["item"] if texts else []), "job", "state", "")
    for item in items:
        text = [clean(texts[item.index])[:40] if item.index < len(texts) else ""] if texts else []
        failure = details[item.job].failure if item.job in details else None
        why = failure_line(failure) if failure else item.failure or ""
        table.add_row(str(item.index), *text, item.job, styled(item.verdict or item.phase), why)
    console().print(table)


def move_line(view: JobView) -> str:
    """The state of a move, in one line."""
    move = view.move
    if move is None:
        return f"{view.id} stays where it is"
    words = {
        "waiting": f"waits for room on {move.to}",
        "saving": f"saves its state, then starts on {move.to}",
        "starting": f"starts on {move.to}; until it runs there it goes on where it is",
        "done": f"is on {move.to}",
        "failed": f"could not be moved to {move.to}: {move.says}",
    }
    return f"{view.id} {clean(words.get(move.state, move.state))}"


def _moved(view: JobView) -> str:
    if view.move is None:
        return ""
    why = f": {clean(view.move.says)}" if view.move.says else ""
    return f"to {clean(view.move.to)}, {view.move.state}{why}"


def _files(view: JobView) -> str:
    if view.files is None:
        return ""
    where = "fetched" if view.files.received else f"get them with: holdfast results {view.id}"
    return f"{counted(view.files.files, 'file')}, {spoken_bytes(view.files.bytes)}; {where}"


def _checkpoint(view: JobView) -> str:
    saved = view.checkpoint
    return f"{spoken_bytes(saved.bytes)} of {clean(saved.attempt)}, {ago(saved.made_ms)} ago" if saved else ""


def explanation(view: ExplainView) -> None:
    out = console()
    out.print(f"{view.job} is {view.phase}" + (f", waiting for {clean(view.waiting_for)}" if view.waiting_for else ""))
    if view.until_ms:
        left = view.until_ms - round(time.time() * 1000)
        out.print(f"  at most until {clock(view.until_ms)} (in {spoken_ms(max(0, left))}), then: {clean(view.then)}")
    if view.ahead:
        out.print(f"  {view.ahead} job(s) would be placed before it")
    if view.estimate is not None:
        out.print(f"  estimate: {clean(estimate_text.line(view.estimate))}")
    for gate, held_back in sorted(view.gates.items()):
        out.print(f"  gate {gate}: holds back {held_back} node(s)")
    if view.nearest:
        out.print(f"  nearest miss: {clean(view.nearest)}")
    for line in view.attempts:
        out.print(f"  {clean(line)}")


def amounts_line(amounts: dict[str, int]) -> str:
    cores, memory, disk = (amounts.get(k, 0) for k in ("cpu_milli", "memory_mib", "disk_mib"))
    gpus = amounts.get("gpus", 0)
    return f"{spoken_cores(cores)} cores, {spoken_mib(memory)} memory, {spoken_mib(disk)} disk, {gpus} GPUs"


def event(happened: EventView) -> None:
    """One line; in a narrow window, the text wraps within its column."""
    line = Table.grid(padding=(0, 2))
    line.add_column(style="dim", no_wrap=True)
    line.add_column(min_width=19, no_wrap=True)
    line.add_column(overflow="fold")
    line.add_row(clock(happened.at_ms), clean(happened.kind), clean(happened.text))
    console().print(line)
