"""The orchestrator's relational state: SQLite or PostgreSQL behind one `Store`. Nobody else imports it.

tables.py      the schema as it is now
migrations/    how a database gets there (Alembic; run by `Store.open`)
statements.py  every statement that is ever sent
records.py     rows of the model to records of a table, and back
engines.py     what differs between SQLite and PostgreSQL: connections, locks, durability
writing.py     a commit, as each of the two does it best
store.py       `Store`: the transactions
"""

from holdfast.state.errors import LeadershipLost, StoreError, StoreFailed
from holdfast.state.store import Snapshot, Store

__all__ = ["LeadershipLost", "Snapshot", "Store", "StoreError", "StoreFailed"]
