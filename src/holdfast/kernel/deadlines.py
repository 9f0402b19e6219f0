"""When something is due, on the patience clock. An entry is a hint: what fires is checked against its row.

Each subject has at most one entry that counts, its earliest. A deadline that moved to later keeps the early entry; when
that one comes up, the row says "later" and it is entered anew. So moving a deadline costs nothing, which matters for
nodes heard every second. Entries of what has ended are dropped and swept out when they outnumber the rest.
"""

from heapq import heapify, heappop, heappush
from typing import Literal

from holdfast.model import Instant

Subject = Literal["attempt", "offer", "job", "node", "drain", "silence", "lease", "ping"]
SWEEP_MIN = 1_024


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[Instant, Subject, str]] = []
        self._due: dict[tuple[Subject, str], Instant] = {}

    def __len__(self) -> int:
        return len(self._due)

    def add(self, due: Instant, subject: Subject, id: str) -> None:
        """Look at the subject at `due`, or earlier if that was asked for before."""
        known = self._due.get((subject, id))
        if known is None or due < known:
            self._due[(subject, id)] = due
            heappush(self._heap, (due, subject, id))

    def drop(self, subject: Subject, id: str) -> None:
        """Nothing will ever be due there."""
        if self._due.pop((subject, id), None) is not None and len(self._heap) > 2 * len(self._due) + SWEEP_MIN:
            self._heap = [entry for entry in self._heap if self._due.get((entry[1], entry[2])) == entry[0]]
            heapify(self._heap)

    def first(self) -> Instant | None:
        heap = self._heap
        while heap and self._due.get((heap[0][1], heap[0][2])) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, patience: Instant) -> tuple[Subject, str] | None:
        """What is due at this moment of the patience clock, once."""
        first = self.first()
        if first is None or first > patience:
            return None
        _, subject, id = heappop(self._heap)
        del self._due[(subject, id)]
        return subject, id
