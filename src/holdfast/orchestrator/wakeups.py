"""Wakes readers when something they watch may have changed. It carries no data: a woken reader reads again.

A reader clears its wakeup, reads, and only then waits, so a change between reading and waiting is never missed.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

JOURNAL = "journal"
"""Woken after each commit of a journal entry."""
NEWS = "news"
"""Like `JOURNAL`, but without a wakeup for an entry that only records that the orchestrator was late. A reader that
sends a request at every wakeup must not cause the next lateness."""


class Wakeup(asyncio.Event):
    """The wakeup of one reader."""

    async def woken(self, within_s: float) -> bool:
        """Wait for a wakeup. False: none came in time."""
        try:
            async with asyncio.timeout(within_s):
                await self.wait()
        except TimeoutError:
            return False
        return True

    woken_or_idle = woken


class Wakeups:
    """All bells. Used only in the event loop's thread."""

    def __init__(self) -> None:
        self._listening: dict[str, set[Wakeup]] = {}

    @contextmanager
    def listen(self, *topics: str) -> Iterator[Wakeup]:
        wakeup = Wakeup()
        for topic in topics:
            self._listening.setdefault(topic, set()).add(wakeup)
        try:
            yield wakeup
        finally:
            for topic in topics:
                listeners = self._listening[topic]
                listeners.discard(wakeup)
                if not listeners:
                    del self._listening[topic]

    def listened_for(self, topic: str) -> bool:
        return topic in self._listening

    def wake(self, topic: str) -> None:
        for wakeup in self._listening.get(topic, ()):
            wakeup.set()

    def wake_all(self) -> None:
        for listeners in self._listening.values():
            for wakeup in listeners:
                wakeup.set()
