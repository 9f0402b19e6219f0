"""Deadlines on the patience clock. An entry is a hint: when it fires, the row is checked.

Each subject has at most one entry, its earliest. When a deadline moves to a later time, the early entry stays; when it
fires, the row gives the later time, and a new entry is added. So postponing a deadline costs nothing, which matters for
nodes that report every second. The entry of a subject that has ended is removed at once.

All entries due in the same millisecond share one slot, and only the slots are kept in order: many deadlines set for one
moment take one place in the heap, and adding one does not get slower with the number of those added before.
"""

from heapq import heapify, heappop, heappush
from typing import Literal

from holdfast.model import Instant

Subject = Literal["attempt", "job", "node", "drain", "silence", "lease", "ping", "reserve", "forget", "token"]
Key = tuple[Subject, str]
SWEEP_MIN = 1_024


class Deadlines:
    def __init__(self) -> None:
        self._due: dict[Key, Instant] = {}
        self._slots: dict[Instant, dict[Key, None]] = {}
        """No slot is empty."""
        self._times: list[Instant] = []
        """A heap of the slots' times. Times whose slot is gone are skipped."""
        self._ripe: list[Key] = []
        """The rest of the slot that is firing, last first. It is sorted once, however many entries it has."""
        self._ripe_ms = Instant(0)

    def __len__(self) -> int:
        return len(self._due)

    def add(self, due: Instant, subject: Subject, id: str) -> None:
        """Fire for the subject at `due`, or earlier if it has an earlier entry."""
        key = (subject, id)
        known = self._due.get(key)
        if known is not None:
            if due >= known:
                return
            self._take(key, known)
        self._due[key] = due
        slot = self._slots.get(due)
        if slot is None:
            self._slots[due] = {key: None}
            heappush(self._times, due)
        else:
            slot[key] = None

    def drop(self, subject: Subject, id: str) -> None:
        """Remove the subject's entry."""
        key = (subject, id)
        due = self._due.pop(key, None)
        if due is not None:
            self._take(key, due)

    def _take(self, key: Key, due: Instant) -> None:
        slot = self._slots[due]
        del slot[key]
        if not slot:
            del self._slots[due]
            if len(self._times) > 2 * len(self._slots) + SWEEP_MIN:
                self._times = list(self._slots)
                heapify(self._times)

    def first(self) -> Instant | None:
        times = self._times
        while times and times[0] not in self._slots:
            heappop(times)
        return times[0] if times else None

    def pop_due(self, patience: Instant) -> Key | None:
        """Remove and return an entry that is due at `patience`, or None. Entries due together come in key order."""
        while True:
            while self._ripe:
                key = self._ripe.pop()
                if self._due.get(key) == self._ripe_ms:
                    del self._due[key]
                    self._take(key, self._ripe_ms)
                    return key
            first = self.first()
            if first is None or first > patience:
                return None
            self._ripe, self._ripe_ms = sorted(self._slots[first], reverse=True), first
