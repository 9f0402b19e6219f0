"""The store of the virtual world: rows that survive, an epoch that every transaction checks, a disk that can fail."""

from collections.abc import Hashable, Iterable

from holdfast.kernel.commit import row_key
from holdfast.kernel.decision import Row
from holdfast.model import Attempt, AttemptId, Entry, Job


class StoreFailed(Exception):
    """The transaction did not happen. `overtaken`: because somebody else leads."""

    def __init__(self, says: str, overtaken: bool = False) -> None:
        super().__init__(says)
        self.says = says
        self.overtaken = overtaken


class Store:
    def __init__(self) -> None:
        self.rows: dict[tuple[str, Hashable], Row] = {}
        self.journal: list[tuple[int, Entry]] = []
        """With the world's time at which each entry became durable."""
        self.epoch = 0
        self.full = False
        self.stall_ms = 0
        """How much longer a commit takes while the disk under the store is slow."""
        self.delivered: dict[AttemptId, tuple[str, int]] = {}
        """Logs that were acknowledged: digest and size of an attempt's stdout."""

    def take_lead(self) -> int:
        if self.full:
            raise StoreFailed("the disk under the store is full")
        self.epoch += 1
        return self.epoch

    def write(self, rows: Iterable[Row], epoch: int, at: int) -> None:
        """All of it or nothing. Every transaction asks for the epoch, also one that writes no row."""
        if epoch != self.epoch:
            raise StoreFailed(f"epoch {epoch} was overtaken by epoch {self.epoch}", overtaken=True)
        if self.full:
            raise StoreFailed("the disk under the store is full")
        for row in rows:
            if isinstance(row, Entry):
                self.journal.append((at, row))
            else:
                self.rows[row_key(row)] = row

    def live(self) -> list[Row]:
        """What a leader loads: everything that has not ended."""
        return [row for row in self.rows.values() if not isinstance(row, Job | Attempt) or row.live]
