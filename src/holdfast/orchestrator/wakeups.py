"""Wakes readers when something they watch may have changed. It carries no data: a woken reader reads again.

A reader clears its bell, reads, and only then waits, so a change between reading and waiting is never missed.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

JOURNAL = "journal"
"""Rung after each commit of a journal entry."""
NEWS = "news"
"""Like `JOURNAL`, but not rung for an entry that only records that the orchestrator was late. A reader that sends a
request at every ring must not cause the next lateness."""


class Bell(asyncio.Event):
    """The bell of one reader."""

    async def rung(self, within_s: float) -> bool:
        """Wait for a ring. False: none came in time."""
        try:
            async with asyncio.timeout(within_s):
                await self.wait()
        except TimeoutError:
            return False
        return True

    rung_or_idle = rung


class Wakeups:
    """All bells. Used only in the event loop's thread."""

    def __init__(self) -> None:
        self._listening: dict[str, set[Bell]] = {}

    @contextmanager
    def listen(self, *topics: str) -> Iterator[Bell]:
        bell = Bell()
        for topic in topics:
            self._listening.setdefault(topic, set()).add(bell)
        try:
            yield bell
        finally:
            for topic in topics:
                listeners = self._listening[topic]
                listeners.discard(bell)
                if not listeners:
                    del self._listening[topic]

    def listened_for(self, topic: str) -> bool:
        return topic in self._listening

    def ring(self, topic: str) -> None:
        for bell in self._listening.get(topic, ()):
            bell.set()

    def ring_all(self) -> None:
        for listeners in self._listening.values():
            for bell in listeners:
                bell.set()
