"""`top`: the network at a glance, redrawn as it changes, until q or Ctrl-C.

Three threads: one follows the journal and signals each event, one fetches the state of the network, one draws it and
reads keys. The terminal is restored, whatever ends the command.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import connection_monitor
from holdfast.cli.flags import Json, TokenFile, Url, connect, connect_for_long

if TYPE_CHECKING:
    from holdfast.cli.render.top_frame import TopState
    from holdfast.client import Client
    from holdfast.wire.http import EventView, JobView

BUSY_PHASES = ("assigned", "preparing", "running", "uploading")
LISTED = 50
COLUMNS_MAX = 10_000
EVENTS_KEPT, EVENTS_ONCE = 60, 15
BEAT_S = 1.0
"""Seconds between two frames if nothing happens: ages and loads still change."""
GAP_S = 0.25
"""The least number of seconds between two frames."""
PATIENCE_S = 3.0
"""Seconds without an answer from the orchestrator before a frame says so."""

Once = Annotated[bool, typer.Option("--once", help="Print one frame and exit, as into a pipe.")]


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(once: Once = False, json: Json = False, url: Url = None, token_file: TokenFile = None) -> None:
    """Show the network live: machines, what runs, what waits.

    Shows the load and state of machines, the progress and estimated end of jobs, and the newest events. Redrawn as
    things change. End it with q or Ctrl-C.

    Examples:
      holdfast top
      holdfast top --once
      holdfast top --json
    """
    with connect_for_long(url, token_file) as client:
        if json or once or not sys.stdout.isatty():
            _once(client, json=json)
            return
        # The frames say themselves that the network does not answer.
        with connect(url, token_file, PATIENCE_S) as asked, connection_monitor.through(lambda text: None):
            _live(asked, JournalFollower(client))


def _once(client: "Client", *, json: bool) -> None:
    from holdfast.cli.render import jobs as render_jobs
    from holdfast.cli.render.top_frame import frame

    seen = look(client, list(client.events(tail=EVENTS_ONCE)))
    if json:
        render_jobs.print_json(seen)
        return
    out = render_jobs.console()
    # A pipe has no window: everything is shown.
    rows = out.size.height if sys.stdout.isatty() else 10_000
    width = out.size.width if sys.stdout.isatty() else _wished_columns() or out.size.width
    out.print(frame(seen, width, rows), width=width)


def _wished_columns() -> int:
    """The width for a pipe, from COLUMNS; 0 if it is not set, or not a number."""
    said = os.environ.get("COLUMNS", "")
    return min(int(said), COLUMNS_MAX) if said.isdecimal() and len(said) < 10 else 0


def look(client: "Client", events: "list[EventView]") -> "TopState":
    """Fetch the state of the network."""
    from holdfast.cli.render.estimate_text import now_ms
    from holdfast.cli.render.top_frame import TopState

    nodes = client.nodes.list()
    busy: list[JobView] = []
    more_running = False
    for phase in BUSY_PHASES:
        page = client.jobs.list(phase=phase, limit=LISTED)
        busy += page.jobs
        more_running |= page.next is not None
    queued = client.jobs.list(phase="queued", limit=LISTED)
    busy.sort(key=lambda job: (-job.submitted_ms, job.id))
    # A job whose phase changed between two requests is in two lists.
    running = list({job.id: job for job in busy}.values())
    waiting = [job for job in queued.jobs if job.id not in {one.id for one in running}]
    waiting.sort(key=lambda job: (_starts(job), job.submitted_ms, job.id))
    scores = client.estimates().scores
    more_queued = queued.next is not None
    return TopState(
        client.url, now_ms(), list(nodes), running, waiting, more_queued, events, scores, more_running=more_running
    )


def _starts(job: "JobView") -> float:
    """The sort key of waiting jobs: the earliest estimated start first."""
    return job.estimate.start[0] if job.estimate and job.estimate.start else float("inf")


# --- live ---


class JournalFollower:
    """Keeps the newest events, and sets `woken` at each."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._events: deque[EventView] = deque(maxlen=EVENTS_KEPT)
        self.woken = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        from holdfast.errors import HoldfastError

        while True:
            try:
                for event in self._client.events(follow=True, tail=EVENTS_KEPT):
                    self._events.append(event)
                    self.woken.set()
            except HoldfastError:
                # The frames say that the network does not answer; this tries again until the client is closed.
                threading.Event().wait(BEAT_S)
            except (RuntimeError, OSError):
                return  # the client was closed

    def newest(self) -> "list[EventView]":
        return list(self._events)


class Looking:
    """Fetches the state again and again, in its own thread: a network that does not answer must not delay the keys."""

    def __init__(self, client: "Client", journal: JournalFollower) -> None:
        from holdfast.cli.render.estimate_text import now_ms
        from holdfast.cli.render.top_frame import TopState

        self._client = client
        self._journal = journal
        self._seen = TopState(client.url, now_ms(), [], [], [], False, [], {})
        self._answered_s = time.monotonic()
        self._trouble = ""
        self.looked = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        from holdfast.errors import HoldfastError

        while True:
            self._journal.woken.clear()
            try:
                self._seen = look(self._client, self._journal.newest())
                self._trouble, self._answered_s = "", time.monotonic()
            except HoldfastError as trouble:
                self._trouble = f"{trouble.says} [{trouble.code}]"
            except (RuntimeError, OSError):
                return  # the client was closed
            self.looked.set()
            threading.Event().wait(GAP_S)
            self._journal.woken.wait(BEAT_S - GAP_S)

    def newest(self) -> "TopState":
        """The current state; if the network does not answer, the last one, with the reason."""
        import msgspec

        from holdfast.cli.render.estimate_text import now_ms
        from holdfast.quantities import spoken_ms

        silent_s = time.monotonic() - self._answered_s
        trouble = self._trouble
        if not trouble and silent_s > PATIENCE_S:
            trouble = f"{self._client.url} has not answered for {spoken_ms(round(silent_s * 1000))}"
        if not trouble:
            return self._seen
        return msgspec.structs.replace(self._seen, at_ms=now_ms(), trouble=trouble)


def _live(client: "Client", journal: JournalFollower) -> None:
    from rich.live import Live

    from holdfast.cli.render import jobs as render_jobs

    out = render_jobs.console()
    looking = Looking(client, journal)
    with keys() as pressed, Live(console=out, screen=True, auto_refresh=False, transient=True) as screen:
        drawn_s = time.monotonic()
        try:
            while pressed(GAP_S / 2) not in ("q", "Q"):
                if looking.looked.is_set() or time.monotonic() - drawn_s >= BEAT_S:
                    looking.looked.clear()
                    drawn_s = time.monotonic()
                    screen.update(_drawn(looking.newest(), out.size.width, out.size.height), refresh=True)
        except KeyboardInterrupt:
            return


def _drawn(seen: "TopState", width: int, height: int) -> Any:
    from rich.console import Group
    from rich.text import Text

    from holdfast.cli.render import estimate_text
    from holdfast.cli.render.top_frame import frame

    keys_line = Text(f"q quits · estimates: {estimate_text.scores(seen.scores)}", style="dim", no_wrap=True)
    keys_line.truncate(width, overflow="ellipsis")
    return Group(frame(seen, width, height), keys_line)


def _nobody_types(seconds: float) -> str:
    threading.Event().wait(seconds)
    return ""


@contextmanager
def keys() -> "Iterator[Callable[[float], str]]":
    """Reads single keys while it is open. Yields a function that waits for a key; empty if none was pressed.

    Without a terminal (a pipe, a test), it only waits. Ctrl-C stays an interrupt."""
    import select

    try:
        descriptor = sys.stdin.fileno()
        typed = os.isatty(descriptor)
    except (OSError, ValueError):
        descriptor, typed = -1, False
    if not typed:
        yield _nobody_types
        return
    import termios
    import tty

    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1).decode("ascii", "replace") if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
