"""The errors of the store, as its operator sees them. Knows nothing of SQL.

StoreError
├── StoreFailed      store_failed       74    the database did not do it: disk full, connection lost
├── EndedRowChanged  internal           70    a row that has ended would change; nothing of the batch was written
└── LeadershipLost   leadership_lost    75    another orchestrator leads; nothing of the batch was written
"""

from holdfast.errors import HoldfastError
from holdfast.model.stored import StoredRow


class StoreError(HoldfastError):
    """An operation of the store failed. A process that was committing no longer leads and must rebuild."""


class StoreFailed(StoreError):
    """A batch whose commit raised this may or may not be durable (an answer can be lost), but is never durable in
    part."""

    code = "store_failed"
    exit_code = 74


class EndedRowChanged(StoreError):
    """The batch was refused: what has ended never changes. `rows`: what the store has under the keys in question."""

    def __init__(self, says: str, rows: tuple[StoredRow, ...], *, hint: str = "") -> None:
        super().__init__(says, hint=hint)
        self.rows = rows


class LeadershipLost(StoreError):
    code = "leadership_lost"
    exit_code = 75
