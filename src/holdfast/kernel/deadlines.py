"""When something is due, on the patience clock. An entry is a hint: what fires is checked against its row.

Each subject has at most one entry, its earliest. A deadline that moved to later keeps the early entry; when that one
comes up, the row says "later" and it is entered anew. So moving a deadline costs nothing, which matters for nodes heard
every second. What has ended is taken out at once.

Everything due in the same millisecond lies in one slot, and only the slots are kept in order: many deadlines set
in one moment cost one place in the heap, and setting one does not get dearer with the number of those set before.
"""

from heapq import heapify, heappop, heappush
from typing import Literal

from holdfast.model import Instant

Subject = Literal["attempt", "job", "node", "drain", "silence", "lease", "ping", "reserve"]
Key = tuple[Subject, str]
SWEEP_MIN = 1_024


class Deadlines:
    def __init__(self) -> None:
        self._due: dict[Key, Instant] = {}
        self._slots: dict[Instant, dict[Key, None]] = {}
        """Never empty ones."""
        self._times: list[Instant] = []
        """A heap of the slots' times; those whose slot is gone are passed over."""
        self._ripe: list[Key] = []
        """What is left of the slot that is firing, last first: sorted once, however many fall due together."""
        self._ripe_ms = Instant(0)

    def __len__(self) -> int:
        return len(self._due)

    def add(self, due: Instant, subject: Subject, id: str) -> None:
        """Look at the subject at `due`, or earlier if that was asked for before."""
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
        """Nothing will ever be due there."""
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
        """What is due at this moment of the patience clock, once; what is due together comes in the order of names."""
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
