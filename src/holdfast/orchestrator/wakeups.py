"""Wakes readers when something they watch may have changed. It carries no news: whoever is woken reads again.

A reader clears its bell, reads, and only then waits, so a change between reading and waiting is never missed.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

JOURNAL = "journal"
"""Rung whenever a journal entry was committed."""
NEWS = "news"
"""The same, but not for an entry that only says that the orchestrator was late: whoever asks it something each time
this rings must not be what makes it late the next time."""


class Bell(asyncio.Event):
    """One reader's."""

    async def rung(self, within_s: float) -> bool:
        """False: nothing rang in time."""
        try:
            async with asyncio.timeout(within_s):
                await self.wait()
        except TimeoutError:
            return False
        return True

    rung_or_idle = rung


class Wakeups:
    """Belongs to the event loop's thread."""

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
