"""Follows an array on the screen: one bar over all items, and a line for each failure and takeover as it happens."""

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from holdfast.cli import connection_monitor
from holdfast.cli.render.progress_bars import Tally

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.wire.http import ArrayItem, ArrayView, EventView

ASK_S = 0.3
ASK_S_MAX = 10.0
ASK_SHARE = 4
"""A pause lasts this many times as long as the answer took, so an array of ten thousand is polled less often than one
of ten."""
NAMED_MAX = 20
"""How many failures and takeovers are shown one by one; further ones are only counted."""
WAITING = ("unsent", "queued", "assigned")
RUNNING = ("preparing", "running", "uploading")


def spoken_counts(counts: dict[str, int]) -> str:
    """`3 waiting, 2 running, 5 done, 1 failed`."""
    said = {
        "waiting": sum(counts.get(phase, 0) for phase in WAITING),
        "running": sum(counts.get(phase, 0) for phase in RUNNING),
        "done": counts.get("succeeded", 0),
        "failed": counts.get("failed", 0),
        "stopped": counts.get("cancelled", 0),
    }
    always = {"done"}
    return ", ".join(f"{number:,} {word}" for word, number in said.items() if number or word in always)


class ArrayWatch:
    """Shows an array until every item has ended."""

    def __init__(self, client: "Client", array: "ArrayView", texts: list[str]) -> None:
        """`texts`: the items as typed, if they are known."""
        self._client = client
        self._array = array
        self._texts = texts
        self._items = {item.job: item.index for item in array.jobs}
        self._takeovers: SimpleQueue[EventView] = SimpleQueue()
        self._failed: set[str] = set()
        self._told = 0
        self._listening = False

    def until_ended(self) -> "ArrayView":
        """May be called again after an interrupt: it continues where it was."""
        if not self._listening:
            self._listening = True
            threading.Thread(target=self._read, daemon=True).start()
        view = self._array
        goes_on = f"{view.id} goes on; still asking"
        with connection_monitor.through(meanwhile=goes_on), Tally(view.id) as tally:
            tally.say(f"{view.id}: {view.items:,} items")
            while True:
                self._show(view, tally)
                if view.ended:
                    return view
                asked = time.monotonic()
                view = self._client.arrays.get(self._array.id)
                self._pause(tally, min(ASK_S_MAX, max(ASK_S, ASK_SHARE * (time.monotonic() - asked))))

    def _show(self, view: "ArrayView", tally: Tally) -> None:
        self._items = {item.job: item.index for item in view.jobs}
        for item in view.jobs:
            if item.verdict == "failed" and item.job not in self._failed:
                self._failed.add(item.job)
                self._tell(tally, partial(self._failure, item))
        ended = sum(view.counts.get(verdict, 0) for verdict in ("succeeded", "failed", "cancelled"))
        tally.told(ended, view.items, spoken_counts(view.counts))

    def _pause(self, tally: Tally, seconds: float) -> None:
        """Wait, and show each takeover when it happens."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                event = self._takeovers.get(timeout=left)
            except Empty:
                return
            if event.job in self._items:
                self._tell(tally, partial(self._takeover, self._items[event.job], event.text))

    def _tell(self, tally: Tally, says: Callable[[], str]) -> None:
        """`says` may send a request; it is called only if its line is shown."""
        self._told += 1
        if self._told <= NAMED_MAX:
            tally.say(says())
        elif self._told == NAMED_MAX + 1:
            tally.say(f"further failures and takeovers are counted; holdfast jobs --array {self._array.id} lists them")

    def _failure(self, item: "ArrayItem") -> str:
        from holdfast.cli.render.jobs import failure_line

        failure = self._client.jobs.get(item.job).failure
        why = failure_line(failure) if failure else item.failure or "no reason was given"
        return f"item {self.named(item.index)} failed: {why}"

    def _takeover(self, index: int, text: str) -> str:
        return f"item {self.named(index)}: {text}"

    def named(self, index: int) -> str:
        """`3 (blue)`, or `3` if the text is not known."""
        from holdfast.cli.render.jobs import clean

        return f"{index} ({clean(self._texts[index])[:40]})" if index < len(self._texts) else str(index)

    def _read(self) -> None:
        """Collect the takeovers of all jobs; those of other jobs are dropped later."""
        from holdfast.errors import HoldfastError

        try:
            story = self._client.jobs.get(self._array.jobs[0].job).events
            after = story[0].seq - 1 if story else 0
            for event in self._client.events(follow=True, after=after):
                if event.kind == "job.takeover":
                    self._takeovers.put(event)
        except HoldfastError:
            return  # these events are optional; polling the array reports a network that does not answer
