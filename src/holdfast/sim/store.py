"""The simulated store: durable rows, an epoch that every transaction checks, and a disk that can fail.

The logs that nodes deliver are on the same disk. The disk can be full or slow, refuse writes now and then, lose the
answer to a completed commit, or return something else than was written.
"""

from collections.abc import Callable, Hashable, Iterable
from random import Random
from typing import NamedTuple

from holdfast.kernel.decision import Row
from holdfast.model import Attempt, AttemptId, DeletedJob, DeletedNode, Entry, Job, Meta
from holdfast.model.rows import BY_TYPE, counterpart_key, is_live, row_key


class SimStoreFailed(Exception):
    """The transaction was not confirmed. `overtaken`: because another process leads. `durable`: it was committed, and
    only the answer was lost. `ended`: it was refused, because it would change these rows."""

    def __init__(self, says: str, overtaken: bool = False, durable: bool = False, ended: tuple[Row, ...] = ()) -> None:
        super().__init__(says)
        self.ended = ended
        self.says = says
        self.overtaken = overtaken
        self.durable = durable


class StoreCopy(NamedTuple):
    """A copy of the store at one moment."""

    rows: dict[tuple[str, Hashable], Row]
    journal: list[tuple[int, Entry]]
    epoch: int
    delivered: dict[AttemptId, tuple[str, int]]
    sealed: set[AttemptId]


class SimStore:
    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random(0)
        self.rows: dict[tuple[str, Hashable], Row] = {}
        self.journal: list[tuple[int, Entry]] = []
        """With the world's time at which each entry became durable."""
        self.epoch = 0
        self.full = False
        self.logs_full = False
        """Whether the logs' disk is full; if only `full` is set, the logs have a disk of their own."""
        self.stall_ms = 0
        """Additional duration of a commit while the store's disk is slow."""
        self.flaky = 0.0
        """How often a write is refused or a read fails, without any effect."""
        self.forgetful = 0.0
        """How often the answer to a commit is lost."""
        self.rot = 0.0
        """How often a delivered log is damaged on the disk."""
        self.rotted: Callable[[AttemptId], None] = lambda attempt: None
        """Called when a log was damaged."""
        self.skipped = False
        """Whether journal numbers were skipped by a restore, and no entry was written since."""
        self.delivered: dict[AttemptId, tuple[str, int]] = {}
        """Acknowledged logs: digest and size of an attempt's stdout."""
        self._sealed: set[AttemptId] = set()

    def _may_fail(self) -> None:
        if self.full:
            raise SimStoreFailed("the disk under the store is full")
        if self.flaky and self._random.random() < self.flaky:
            raise SimStoreFailed("input/output error")

    def take_lead(self) -> int:
        self._may_fail()
        self.epoch += 1
        return self.epoch

    def write(self, rows: Iterable[Row], epoch: int, at: int) -> None:
        """Atomic. Every transaction checks the epoch, even one that writes no row."""
        if epoch != self.epoch:
            raise SimStoreFailed(f"epoch {epoch} was overtaken by epoch {self.epoch}", overtaken=True)
        self._may_fail()
        rows = list(rows)
        before = [(self.rows.get(row_key(row)), row) for row in rows if not isinstance(row, Entry)]
        ended = tuple(known for known, row in before if known is not None and not known.live and known != row)
        deleted = (self.rows.get(("deleted_job", row.id)) for row in rows if isinstance(row, Job))
        ended += tuple(known for known in deleted if known is not None)
        if ended:
            raise SimStoreFailed(f"a commit would change what has ended: {ended}", ended=ended)
        for row in rows:
            if isinstance(row, Entry):
                self.journal.append((at, row))
            else:
                self.rows[row_key(row)] = row
                self._remove(row)
        if self.forgetful and self._random.random() < self.forgetful:
            raise SimStoreFailed("the store did not answer", durable=True)

    def _remove(self, row: Row) -> None:
        """Delete what the row replaces."""
        if BY_TYPE[type(row)].replaces is not None and (replaced := counterpart_key(row)) is not None:
            self.rows.pop(replaced, None)
        if isinstance(row, DeletedNode):
            self.rows.pop(("record", row.id), None)
        if isinstance(row, DeletedJob):
            gone = [key for key, one in self.rows.items() if isinstance(one, Attempt) and one.job == row.id]
            for key in (*gone, ("keep", row.id)):
                self.rows.pop(key, None)

    def forget_entries(self, to_seq: int) -> None:
        self.journal = [one for one in self.journal if one[1].seq > to_seq]

    def live(self) -> list[Row]:
        """What a leader loads: everything that has not ended."""
        return [row for row in self.rows.values() if is_live(row)]

    def skip_ahead(self, by: int, least: int, attempts: int) -> None:
        """As a store restored from a backup does: no number is issued twice."""
        self.epoch = max(self.epoch + by, least)
        meta = self.rows.get(("meta", 0))
        if isinstance(meta, Meta):
            self.rows["meta", 0] = meta.skipping(by, least, attempts)
            self.skipped = True
        for key, row in self.rows.items():
            if isinstance(row, Job) and row.live:
                self.rows[key] = row.skipping(attempts)

    # --- backups ---

    def backup(self) -> "StoreCopy":
        return StoreCopy(dict(self.rows), list(self.journal), self.epoch, dict(self.delivered), set(self._sealed))

    def restore(self, backup: "StoreCopy", with_logs: bool) -> None:
        """What happened since is not known any more. Without logs, those of the lost orchestrator are kept."""
        self.rows, self.journal, self.epoch = dict(backup.rows), list(backup.journal), backup.epoch
        if with_logs:
            self.delivered, self._sealed = dict(backup.delivered), set(backup.sealed)

    # --- logs ---

    def deliver(self, attempt: AttemptId, sha256: str, size: int) -> bool:
        """Store an attempt's log. False: it was not stored, and its node sends it again."""
        if self.delivered.get(attempt) == (sha256, size):
            return True
        if self.logs_full or attempt in self._sealed or (self.flaky and self._random.random() < self.flaky):
            return False
        self.delivered[attempt] = (sha256, size)
        if self.rot and self._random.random() < self.rot:
            self.delivered[attempt] = ("0" * 64, size)
            self.rotted(attempt)
        return True

    def sealed(self, attempt: AttemptId) -> tuple[str, int] | None:
        """The log that was delivered; from now on nothing is added to it."""
        if self.flaky and self._random.random() < self.flaky:
            raise SimStoreFailed("input/output error")
        self._sealed.add(attempt)
        return self.delivered.get(attempt)
