"""The orchestrator's relational state: SQLite or PostgreSQL behind one `Store`.

tables.py      the schema as it is now
migrations/    how a database gets there (Alembic; run by `Store.open`)
statements.py  every statement that is sent
records.py     converts rows of the model to records of a table
engines.py     what differs between SQLite and PostgreSQL: connections, locks, durability
writing.py     a commit, done differently on each engine
store.py       `Store`: the transactions
"""

from holdfast.state.errors import EndedRowChanged, LeadershipLost, StoreError, StoreFailed
from holdfast.state.store import Snapshot, Store, StoreSizes

__all__ = ["EndedRowChanged", "LeadershipLost", "Snapshot", "Store", "StoreError", "StoreFailed", "StoreSizes"]
