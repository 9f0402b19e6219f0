"""Shows progress: a bar with bytes, speed and time left on a terminal, a plain line now and then elsewhere.

Shows the numbers that it is given, and knows nothing about the transfer itself.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.cli import connection_monitor, error_output
from holdfast.quantities import spoken_bytes, spoken_ms

if TYPE_CHECKING:
    from rich.progress import TaskID

    from holdfast.blobs.transfer import TransferProgress

LINE_EVERY_S = 5.0
"""Seconds between two lines if there is no terminal: often enough to show progress, rarely enough for a log."""


class Speed:
    """Computes speed and time left from occasional progress reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: tuple[float, int] | None = None

    def told(self, done: int, total: int) -> str:
        """`12.0 MiB of 45.0 MiB (27 %), 5.1 MiB/s, 7.0 s left`, as far as it is known."""
        now = self._clock()
        if self._since is None or done < self._since[1]:
            self._since = (now, done)
        passed, moved = now - self._since[0], done - self._since[1]
        if not total:
            return spoken_bytes(done) if done else ""
        text = f"{spoken_bytes(done)} of {spoken_bytes(total)} ({100 * done // total} %)"
        if passed <= 0 or moved <= 0:
            return text
        left_ms = round((total - done) / (moved / passed) * 1000)
        return f"{text}, {spoken_bytes(moved / passed)}/s, {spoken_ms(left_ms)} left"


class _Screen:
    """What progress is drawn on: a bar of rich on a terminal; elsewhere, a plain line now and then."""

    def __init__(self, live: bool | None, clock: Callable[[], float]) -> None:
        self._live = error_output.live(sys.stderr) if live is None else live
        self._clock = clock
        self._line_at = clock() + LINE_EVERY_S
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._voice = connection_monitor.through(self.say)
        self._voice.__enter__()
        if self._live:
            from rich.progress import BarColumn, Progress, TextColumn

            from holdfast.cli.render.jobs import console

            columns = TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[words]}")
            self._bars = Progress(*columns, console=console(err=True), transient=True)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._voice.__exit__(None, None, None)
        if self._live:
            self._bars.stop()

    def _draw(self, doing: str, words: str, done: int, total: int | None) -> None:
        if self._task is None:
            self._task = self._bars.add_task(doing, total=total, words=words)
        self._bars.update(self._task, description=doing, total=total, completed=done, words=words)

    def _line_due(self) -> bool:
        if self._clock() < self._line_at:
            return False
        self._line_at = self._clock() + LINE_EVERY_S
        return True

    def say(self, text: str) -> None:
        """A line that stays, above the bar."""
        from holdfast.cli.render.jobs import clean

        if self._live:
            self._bars.console.print(f"-- {clean(text)}", style="dim", soft_wrap=True)
        else:
            sys.stderr.write(f"-- {clean(text)}\n")
            sys.stderr.flush()


class Tally(_Screen):
    """Counts things that are done: `with Tally("arr_1") as tally: tally.told(3, 10, "1 running, 3 done")`."""

    def __init__(self, what: str, *, live: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(live, clock)
        self._what = what
        self._last = ""

    def told(self, done: int, total: int, words: str) -> None:
        if self._live:
            self._draw(self._what, words, done, total)
        elif words != self._last and self._line_due():
            self._last = words
            self.say(f"{self._what}: {words}")


class Bar(_Screen):
    """One transfer: `with Bar("sending", "train/") as bar: content.send(..., told=bar.told, read=bar.read)`."""

    def __init__(
        self, verb: str, what: str, *, live: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(live, clock)
        self._verb = verb
        self._what = what
        self._pace = Speed(clock)
        self._lock = Lock()
        self._read = 0

    def read(self, count: int) -> None:
        """`count` more bytes were read and hashed, before anything is sent. Called from any thread."""
        with self._lock:
            self._read += count
            self._show(f"reading {self._what}", spoken_bytes(self._read), self._read, None)

    def told(self, progress: "TransferProgress") -> None:
        done, total = progress.bytes_done, progress.bytes_total
        with self._lock:
            self._show(f"{self._verb} {self._what}", self._pace.told(done, total), done, total)

    def _show(self, doing: str, amount: str, done: int, total: int | None) -> None:
        if self._live:
            self._draw(doing, amount, done, total)
        elif self._line_due():
            self.say(f"{doing}: {amount}")


@contextmanager
def counted(doing: str, total: int, unit: str, *, shown: bool = True) -> Iterator[Callable[[], None]]:
    """A bar on a terminal for things that are counted, erased when they are done; elsewhere nothing."""
    if not shown or not error_output.live(sys.stderr):
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from holdfast.cli.render.jobs import console

    columns = TextColumn(doing), BarColumn(40), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn()
    # Output that is redirected to a file must go there, and not onto the screen.
    lines = sys.stdout.isatty()
    with Progress(*columns, console=console(err=True), transient=True, redirect_stdout=lines) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)
