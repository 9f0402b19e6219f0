"""The display of the demo: a live picture on a terminal, plain lines elsewhere. Starts nothing."""

import re
import sys
import threading
import time
from collections import deque

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.client import Client
from holdfast.errors import HoldfastError
from holdfast.wire.http import EventView

STYLES = {
    "ready": "green",
    "probation": "green",
    "suspect": "bold yellow",
    "lost": "red",
    "quarantined": "red",
}
LINES = 18
UNTOLD = {"job.preparing", "job.running"}
"""Events that the attempt's own event already covers."""


class Screen:
    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 140)
        self._start = time.time()
        self._lines: deque[Text] = deque(maxlen=LINES)
        self._names: dict[str, str] = {}
        self._nodes: list[tuple[str, str, str]] = []
        self._title = ""
        self._progress = (0, 1, "")
        self._events: list[EventView] = []
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._closed = False

    # --- messages ---

    def intro(self, text: str) -> None:
        self._console.print(Panel.fit(text) if self._console.is_terminal else text)
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._picture, console=self._console, refresh_per_second=8, transient=False
            )
            self._live.start()

    def chapter(self, title: str) -> None:
        self._title = title
        self._progress = (0, 1, "")
        self.say(f"=== {title} ===", style="bold cyan")

    def say(self, text: str, style: str = "", at_ms: int | None = None) -> None:
        since = (at_ms / 1000 if at_ms else time.time()) - self._start
        line = Text.assemble((f"{since:6.2f} s  ", "dim"), (text, style))
        with self._lock:
            self._lines.append(line)
        if self._live is None:
            self._console.print(line, soft_wrap=True)
            sys.stdout.flush()

    def progress(self, done: int, steps: int, attempt: str) -> None:
        self._progress = (done, steps, attempt)
        if self._live is None and done % 4 == 0:
            self.say(f"     progress: step {done} of {steps} (attempt {attempt.rpartition('.')[2]})", style="dim")

    def table(self, rows: list[tuple[str, str]]) -> None:
        table = Table(box=None, show_header=False, pad_edge=False)
        for name, value in rows:
            table.add_row(Text(name, style="bold"), Text(value))
        self._console.print()
        self._console.print(table, soft_wrap=True)

    def verdict(self, text: str, good: bool) -> None:
        self._console.print()
        self._console.print(Text(text, style="bold green" if good else "bold red"), soft_wrap=True)

    # --- the journal ---

    def follow(self, client: Client, names: dict[str, str]) -> None:
        """Show new journal entries of the network, with the names of the nodes."""
        self._names = names
        seen = max((event.seq for event in client.events()), default=0)
        threading.Thread(target=self._read_events, args=(client, seen), daemon=True).start()
        threading.Thread(target=self._read_nodes, args=(client,), daemon=True).start()

    def _read_events(self, client: Client, after: int) -> None:
        try:
            for event in client.events(follow=True, after=after):
                self._events.append(event)
                if event.kind in UNTOLD:
                    continue
                style = "yellow" if event.kind.startswith("node.") else "magenta" if "revoke" in event.kind else ""
                self.say(self._plain(event), style=style, at_ms=event.at_ms)
        except (HoldfastError, RuntimeError) as error:
            if not self._closed:
                self.say(f"(the journal could not be followed: {error})")

    def _read_nodes(self, client: Client) -> None:
        while not self._closed:
            try:
                self._nodes = [(n.name, n.state, ", ".join(n.attempts)) for n in client.nodes.list()]
            except (HoldfastError, RuntimeError):
                return
            time.sleep(0.15)

    def _plain(self, event: EventView) -> str:
        """The event as text, with names for ids."""
        text = event.text
        for node, name in self._names.items():
            text = text.replace(f"{name} ({node})", name).replace(node, name)
        text = re.sub(r"(attempt )?att_\w+\.(\d+)", r"attempt \2", text)
        if event.kind == "job.ended":
            return f"the job ended: {text}"
        about = self._names.get(event.node or "", "")
        if not about or about in text:
            return text
        attempt = f"attempt {event.attempt.rpartition('.')[2]} on " if event.attempt else ""
        return f"{attempt}{about}: {text}"

    def first_ms(self, kind: str, after_ms: int) -> int | None:
        """When the first event of this kind after a given time occurred."""
        return next((e.at_ms for e in self._events if e.kind == kind and e.at_ms >= after_ms), None)

    def has_shown_end(self, job: str) -> bool:
        return any(e.job == job and e.kind == "job.ended" for e in self._events)

    # --- the layout ---

    def _picture(self) -> Group:
        nodes = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("node", "state", "holds"):
            nodes.add_column(column)
        for name, state, holds in self._nodes:
            nodes.add_row(name, Text(state, style=STYLES.get(state, "")), holds)
        done, steps, attempt = self._progress
        bar = Table.grid(padding=(0, 1))
        bar.add_row("job", ProgressBar(total=steps, completed=done, width=40), f"step {done} of {steps}  {attempt}")
        with self._lock:
            lines = list(self._lines)
        return Group(Text(self._title, style="bold"), nodes, bar, Text(), *lines)

    def close(self) -> None:
        self._closed = True
        if self._live is not None:
            self._live.stop()
            self._live = None
