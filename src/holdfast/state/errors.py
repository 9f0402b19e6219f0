"""What can go wrong with the store, in the words its operator reads. Knows nothing of SQL.

StoreError
├── StoreFailed      store_failed       74    the database did not do it: disk full, connection lost
└── LeadershipLost   leadership_lost    75    another orchestrator leads; nothing of the batch was written
"""

from holdfast.errors import HoldfastError


class StoreError(HoldfastError):
    """The store did not do what was asked. Whoever was committing leads no longer and rebuilds."""


class StoreFailed(StoreError):
    """A batch whose commit raised this may be durable or not (an answer can be lost), but never in part."""

    code = "store_failed"
    exit_code = 74


class LeadershipLost(StoreError):
    code = "leadership_lost"
    exit_code = 75
