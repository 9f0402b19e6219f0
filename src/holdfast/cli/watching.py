"""Follows one job on the screen: its output, what the platform saw, how far it is, in the order in which it happens."""

import sys
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from holdfast.cli.bars import LINE_EVERY_S, Pace
from holdfast.cli.following import Printer

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.wire.http import JobView, LogLine

ASK_S = 0.5
"""How often it is asked how far a job is that does not run yet, or no longer. Its output tells of one that does."""
ASK_RUNNING_S = 5.0
STAGES = {
    ("preparing", "data"): "fetching what it reads",
    ("preparing", "image"): "pulling its image",
    ("preparing", "build"): "building what it runs in",
    ("uploading", "files"): "sending what it made",
}
"""By the phase of the attempt and its stage there: what was last said of a phase that is over tells nothing."""


class Watch:
    """Until the job has ended: output to the screen, the newest of what happens to it in a status line."""

    def __init__(self, client: "Client", job: "JobView", *, aside: bool = False) -> None:
        self._client = client
        self._job = job.id
        self._news: SimpleQueue[LogLine | JobView | BaseException | None] = SimpleQueue()
        self._printer = Printer(aside=aside)
        self._status = StatusLine(job.id)
        self._stages = Stages()
        self._over = threading.Event()

    def until_ended(self) -> "JobView":
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._ask, daemon=True).start()
        self._status.say("sent")
        try:
            while True:
                try:
                    news = self._news.get(timeout=0.2)
                except Empty:
                    self._status.draw(self._printer.at_line_start)
                    continue
                if news is None:
                    return self._client.jobs.wait(self._job, check=False)
                if isinstance(news, BaseException):
                    raise news
                self._show(news)
        finally:
            self._over.set()
            self._status.erase()

    def _show(self, news: "LogLine | JobView") -> None:
        from holdfast.wire.http import LogLine

        if isinstance(news, LogLine):
            self._status.erase()
            self._printer.put(news)
            if news.stream == "platform":
                self._status.say(news.text)
        elif text := self._stages.told(news):
            self._status.say(text)
            if not self._status.live and self._stages.due():
                self._printer.platform(text)
        self._status.draw(self._printer.at_line_start)

    def _read(self) -> None:
        try:
            for line in self._client.jobs.logs(self._job, follow=True):
                self._news.put(line)
            self._news.put(None)
        except BaseException as error:
            self._news.put(error)

    def _ask(self) -> None:
        from holdfast.errors import HoldfastError

        pause = ASK_S
        while not self._over.wait(pause):
            try:
                view = self._client.jobs.get(self._job)
            except HoldfastError:
                # Only what is nice to know is asked here; the log says it if nobody answers any more.
                continue
            pause = ASK_RUNNING_S if view.phase == "running" else ASK_S
            self._news.put(view)


class Stages:
    """What an attempt does before and after its body runs, in words with numbers."""

    def __init__(self) -> None:
        self._at: tuple[str, str] = ("", "")
        self._pace = Pace()
        self._line_at = time.monotonic() + LINE_EVERY_S

    def told(self, job: "JobView") -> str:
        """The newest attempt's; empty where there is nothing to tell."""
        phases = {attempt.id: attempt.phase for attempt in job.attempts}
        known = [(p, words) for p in job.progress if (words := STAGES.get((phases.get(p.attempt, ""), p.stage)))]
        if not known:
            return ""
        newest, words = known[-1]
        if self._at != (newest.attempt, newest.stage):
            self._at = (newest.attempt, newest.stage)
            self._pace = Pace()
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


class StatusLine:
    """One line at the bottom of a terminal; nothing where there is no terminal."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._since = time.monotonic()
        self._text = ""
        self._shown = False
        self.live = sys.stderr.isatty()

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

        from holdfast.cli.show import clean

        line = f"{self._job}  {time.monotonic() - self._since:5.1f} s  {clean(self._text)}"
        sys.stderr.write("\r\x1b[K\x1b[2m" + line[: shutil.get_terminal_size().columns - 1] + "\x1b[0m")
        sys.stderr.flush()
        self._shown = True
