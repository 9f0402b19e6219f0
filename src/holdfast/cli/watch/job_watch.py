"""Follows one job on the screen: its output, a line for each event, and one live line with its status.

Without a terminal there is no live line; everything else is the same, in plain lines.
"""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli import connection_monitor, error_output
from holdfast.cli.render.job_timeline import JobTimeline
from holdfast.cli.render.log_printer import LogPrinter
from holdfast.cli.render.progress_bars import LINE_EVERY_S, Speed
from holdfast.quantities import spoken_ms

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.wire.http import EventView, ExplainView, JobView, LogLine

ASK_S = 0.5
"""Seconds between two polls of a job that does not run yet, or no longer. A running job shows its output."""
ASK_RUNNING_S = 5.0
EXPLAIN_EVERY_S = 10.0
"""Seconds between two questions about what a queued job waits for: the answer costs more than its state."""
SAID_AFTER_S = 2.0
"""Seconds that a job waits before a line says so: most jobs start sooner."""
REPEAT_S, REPEAT_S_MAX = 60.0, 600.0
STAGES = {
    ("preparing", "data"): "fetching its inputs",
    ("preparing", "image"): "pulling its image",
    ("preparing", "build"): "building its environment",
    ("uploading", "files"): "sending its results",
}
"""By phase of the attempt and stage within it. The stage of an earlier phase is not shown."""


class Happened(NamedTuple):
    """An entry of the journal, with the name of its machine."""

    event: "EventView"
    node: str


class JobWatch:
    """Shows a job until it has ended: its output and events, and its state in a status line.

    After an interrupt, `until_ended` may be called again: it continues where it was.
    """

    def __init__(self, client: "Client", job: "JobView", *, aside: bool = False) -> None:
        self._client = client
        self._job = job.id
        self._news: SimpleQueue[LogLine | Happened | JobView | ExplainView | None] = SimpleQueue()
        self._ended: list[BaseException | None] = []
        """Set when nothing more will come, to the error or None. Not in the queue, where an interrupt may lose it."""
        self._printer = LogPrinter(aside=aside)
        self._status = StatusLine(job.name or job.id)
        self._stages = Stages()
        self._waits = Waits()
        self._waiting_for = ""
        self._timeline = JobTimeline(job.recovery)
        self._journal = PlatformEntries(client, job.id)
        self._view = job
        self._stage = ""
        self._over = threading.Event()
        self._screen = threading.RLock()
        """Held while writing to the screen: messages about a silent network come from another thread."""
        self._started = False

    @property
    def confirming(self) -> bool:
        """Whether the job has failed, and another machine only confirms that."""
        return self._timeline.confirming

    def until_ended(self) -> "JobView":
        if not self._started:
            self._started = True
            threading.Thread(target=self._read, daemon=True).start()
            threading.Thread(target=self._ask, daemon=True).start()
        with connection_monitor.through(self._told_aside, f"{self._job} goes on; still asking"):
            return self._watched()

    def _watched(self) -> "JobView":
        try:
            while True:
                news = None
                with suppress(Empty):
                    news = self._news.get(timeout=0.2)
                if news is not None:
                    self._show(news)
                elif self._ended and self._news.empty():
                    self._over.set()
                    if self._ended[0] is not None:
                        raise self._ended[0]
                    return self._client.jobs.wait(self._job, check=False)
                else:
                    self._draw()
        finally:
            self._status.erase()
            self._printer.end_line()

    def _told_aside(self, text: str) -> None:
        with self._screen:
            self._status.erase()
            self._printer.platform(text)

    def _show(self, news: "LogLine | Happened | JobView | ExplainView") -> None:
        with self._screen:
            self._shown(news)

    def _shown(self, news: "LogLine | Happened | JobView | ExplainView") -> None:
        from holdfast.wire.http import ExplainView, LogLine

        if isinstance(news, LogLine):
            self._status.erase()
            self._printer.put(news)
        elif isinstance(news, Happened):
            if text := self._timeline.told(news.event, news.node):
                self._status.erase()
                self._printer.platform(text)
        elif isinstance(news, ExplainView):
            self._waiting_for = waiting_text(news)
        else:
            self._view = news
            self._stage = self._stages.told(news)
            if self._stage and not self._status.live and self._stages.due():
                self._printer.platform(self._stage)
            standing = "" if self._stage or news.phase in ("running", "ended") else self._standing()
            if self._waits.due(standing) and not self._status.live:
                self._printer.platform(standing)
        self._draw()

    def _draw(self) -> None:
        standing = self._stage or self._standing(), foreseen(self._view, _now_ms())
        if silence := connection_monitor.silent_s():
            # The last known state may be out of date.
            standing = f"no answer for {spoken_ms(round(silence * 1000))}", "it goes on"
        with self._screen:
            self._status.say(" · ".join(filter(None, standing)))
            self._status.draw(self._printer.at_line_start)

    def _standing(self) -> str:
        """`running on bee`, with its last checkpoint; or what it waits for."""
        tale, phase = self._timeline, self._view.phase
        if tale.running and phase != "uploading":
            kept = f" · checkpoint {tale.saved.number}" if tale.saved else ""
            return f"running on {tale.node}{kept}"
        if phase == "queued":
            return f"waiting: {self._waiting_for or self._view.waiting or 'a machine'}"
        if phase == "uploading":
            return "its result is on its way"
        return f"getting ready on {tale.node}" if tale.node else "waiting for a machine"

    def _read(self) -> None:
        try:
            for line in self._client.jobs.logs(self._job, follow=True, pieces=True):
                happened = self._journal.entry(line) if line.stream == "platform" else None
                self._news.put(happened or line)
            self._ended.append(None)
        except BaseException as error:
            self._ended.append(error)
        self._news.put(None)

    def _ask(self) -> None:
        from holdfast.errors import HoldfastError

        pause = ASK_S
        explain_at = time.monotonic() + SAID_AFTER_S / 2
        while not self._over.wait(pause):
            try:
                view = self._client.jobs.get(self._job)
                if view.phase == "queued" and time.monotonic() >= explain_at:
                    explain_at = time.monotonic() + EXPLAIN_EVERY_S
                    self._news.put(self._client.jobs.explain(self._job))
            except HoldfastError:
                # These polls are optional; the log reports a network that does not answer.
                continue
            pause = ASK_RUNNING_S if view.phase == "running" else ASK_S
            self._news.put(view)


def foreseen(job: "JobView", now_ms: int) -> str:
    """When the job may start or end, if the network has an estimate: `done in 40.0 s to 2 min`."""
    if job.estimate is None:
        return ""
    word, span = ("done", job.estimate.end) if job.estimate.end else ("starts", job.estimate.start)
    if span is None or span[1] <= now_ms:
        return ""
    early, late = (max(0, at_ms - now_ms) for at_ms in span)
    return (
        f"{word} within {spoken_ms(late)}"
        if early < late // 10
        else f"{word} in {spoken_ms(early)} to {spoken_ms(late)}"
    )


def _now_ms() -> int:
    return round(time.time() * 1000)


class PlatformEntries:
    """Finds the journal entries behind the platform's lines in a job's log, with the names of their machines."""

    def __init__(self, client: "Client", job: str) -> None:
        self._client = client
        self._job = job
        self._entries: dict[int, EventView] = {}
        self._read_to = 0
        self._names: dict[str, str] = {}

    def entry(self, line: "LogLine") -> Happened | None:
        """None if there is no entry, or it cannot be fetched now; then the line itself is shown."""
        from holdfast.errors import HoldfastError

        try:
            if line.offset > self._read_to:
                for event in self._client.events(job=self._job, after=max(self._read_to, line.offset - 1)):
                    self._entries[event.seq] = event
                    self._read_to = event.seq
            event = self._entries.pop(line.offset, None)
            if event is None or (event.attempt or "", event.at_ms) != (line.attempt, line.at_ms):
                return None  # a separate line that follows that entry
            return Happened(event, self._name(event.node))
        except HoldfastError:
            return None

    def _name(self, node: str | None) -> str:
        if node is None:
            return "a machine"
        if node not in self._names:
            self._names[node] = self._client.nodes.get(node).title
        return self._names[node]


class Stages:
    """Describes what an attempt does before and after its body runs."""

    def __init__(self) -> None:
        self._at: tuple[str, str] = ("", "")
        self._pace = Speed()
        self._line_at = time.monotonic() + LINE_EVERY_S

    def told(self, job: "JobView") -> str:
        """The stage of the newest attempt; empty if there is none to show."""
        phases = {attempt.id: attempt.phase for attempt in job.attempts}
        known = [(p, words) for p in job.progress if (words := STAGES.get((phases.get(p.attempt, ""), p.stage)))]
        if not known:
            return ""
        newest, words = known[-1]
        if self._at != (newest.attempt, newest.stage):
            self._at = (newest.attempt, newest.stage)
            self._pace = Speed()
        if newest.stage == "build":  # counted in steps, not in bytes
            return f"{words}: step {newest.done} of {newest.total}" if newest.total else words
        amount = self._pace.told(newest.done, newest.total)
        return f"{words}: {amount}" if amount else words

    def due(self) -> bool:
        """Whether a line about it is due where there is no status line."""
        if time.monotonic() < self._line_at:
            return False
        self._line_at = time.monotonic() + LINE_EVERY_S
        return True


def waiting_text(view: "ExplainView") -> str:
    """What a queued job waits for."""
    if view.wait_reason == "machine":
        return "no machine has joined yet; `holdfast token new` says how one joins"
    return "; ".join(filter(None, (view.waiting_for, view.nearest)))


class Waits:
    """Decides when a line about what a job waits for is due where there is no status line: soon, when it changes, and
    then ever more rarely."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._text = ""
        self._since = clock()
        self._said = ""
        self._again_at = 0.0
        self._pause_s = REPEAT_S

    def due(self, text: str) -> bool:
        """`text`: what it waits for now; empty: nothing."""
        now = self._clock()
        if not text:
            self._text = self._said = ""
            self._pause_s = REPEAT_S
            return False
        if not self._text:
            self._since = now
        self._text = text
        if now - self._since < SAID_AFTER_S or (text == self._said and now < self._again_at):
            return False
        self._pause_s = REPEAT_S if text != self._said else min(REPEAT_S_MAX, self._pause_s * 2)
        self._said, self._again_at = text, now + self._pause_s
        return True


class StatusLine:
    """One line at the bottom of a terminal; nothing where there is no terminal."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._since = time.monotonic()
        self._text = ""
        self._shown = False
        self.live = error_output.live(sys.stderr)

    def say(self, text: str) -> None:
        self._text = text

    def erase(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False

    def draw(self, at_line_start: bool) -> None:
        if not self.live or not at_line_start:
            return
        import shutil

        from holdfast.cli.render.jobs import clean

        passed = spoken_ms(round((time.monotonic() - self._since) * 1000))
        line = clean(f"{self._job[:24]} · {passed} · {self._text}")[: shutil.get_terminal_size().columns - 1]
        # Dim alone is hard to read on many screens.
        begin, end = ("\x1b[36m", "\x1b[0m") if error_output.coloured(sys.stderr) else ("", "")
        sys.stderr.write(f"\r\x1b[K{begin}{line}{end}")
        sys.stderr.flush()
        self._shown = True
