"""When something is due, on the patience clock. Entries are hints: what fires is checked against its row.

A deadline that moved leaves its old entry behind; when that one comes up, the row says "later" and a new
entry is made. So moving a deadline costs nothing, which matters for nodes heard every second.
"""

from heapq import heappop, heappush
from typing import Literal

from holdfast.model import Instant

Subject = Literal["attempt", "offer", "job", "node", "drain", "silence", "lease", "ping"]


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[Instant, Subject, str]] = []

    def add(self, due: Instant, subject: Subject, id: str) -> None:
        heappush(self._heap, (due, subject, id))

    def first(self) -> Instant | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, patience: Instant) -> tuple[Instant, Subject, str] | None:
        if self._heap and self._heap[0][0] <= patience:
            return heappop(self._heap)
        return None
