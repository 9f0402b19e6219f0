"""The schema. A record has the columns that queries search by, and `doc`: the whole row of the model as JSON.

A new field with a default needs no migration; only a new column to search by does. `doc` is text and not a
JSON type: no query searches inside it, and PostgreSQL's JSON type refuses some valid JSON.
Every change here needs a file in migrations/versions/; a test compares the two on both engines.

A kind of row that is found only by its key needs no table here: it gets a plain one with `id` and `doc`.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from holdfast.model.rows import ROWS, RowType
from holdfast.model.stored import StoredRow

metadata = MetaData()


def storable(word: str) -> str:
    """Replaces characters that cannot be stored: PostgreSQL cannot store NUL, and neither engine an unpaired surrogate.

    People choose names and type ids; such a character must not make a lookup or the commit of a whole batch fail. The
    `doc` still has the original text.
    """
    if word.isascii() and "\0" not in word:
        return word
    return word.replace("\0", "\ufffd").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Word(TypeDecorator[str]):
    """Text that queries search by. Ordered by code point on both engines, so that sorting equals Python's."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        return postgresql.TEXT(collation="C") if dialect.name == "postgresql" else Text()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


RowNumber = BigInteger().with_variant(Integer(), "sqlite")
"""On SQLite, only `INTEGER PRIMARY KEY` makes the column the rowid; it still holds 64 bits there."""

leader = Table(
    "leader",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="leader_is_one"), primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
)
"""One row, inserted by the first migration. The process that last raised `epoch` leads; every commit checks it."""

jobs = Table(
    "jobs",
    metadata,
    Column("id", Word, primary_key=True),
    Column("owner", Word, nullable=False),
    Column("name", Word, nullable=False),
    Column("phase", Word, nullable=False),
    Column("submitted_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    Column("doc", Text, nullable=False),
    Column("array_id", Word),
)
_job_live = text("phase <> 'ended'")
Index("jobs_newest", jobs.c.submitted_ms, jobs.c.id)
Index("jobs_of_owner", jobs.c.owner, jobs.c.submitted_ms, jobs.c.id)
Index(
    "jobs_named",
    jobs.c.owner,
    jobs.c.name,
    jobs.c.submitted_ms,
    jobs.c.id,
    sqlite_where=text("name <> ''"),
    postgresql_where=text("name <> ''"),
)
Index("jobs_live", jobs.c.submitted_ms, jobs.c.id, sqlite_where=_job_live, postgresql_where=_job_live)
Index(
    "jobs_live_of_owner",
    jobs.c.owner,
    jobs.c.submitted_ms,
    jobs.c.id,
    sqlite_where=_job_live,
    postgresql_where=_job_live,
)

_job_item = text("array_id IS NOT NULL")
Index("jobs_of_array", jobs.c.array_id, jobs.c.submitted_ms, sqlite_where=_job_item, postgresql_where=_job_item)

attempts = Table(
    "attempts",
    metadata,
    Column("id", Word, primary_key=True),
    Column("job", Word, nullable=False),
    Column("node", Word, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("phase", Word, nullable=False),
    Column("offered_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    Column("doc", Text, nullable=False),
)
_attempt_live = text("phase <> 'ended'")
Index("attempts_of_job", attempts.c.job, attempts.c.fence)
Index("attempts_live", attempts.c.id, sqlite_where=_attempt_live, postgresql_where=_attempt_live)

nodes = Table(
    "nodes",
    metadata,
    Column("id", Word, primary_key=True),
    Column("name", Word, nullable=False),
    Column("state", Word, nullable=False),
    Column("joined_ms", BigInteger, nullable=False),
    Column("doc", Text, nullable=False),
)

keeps = Table(
    "keeps",
    metadata,
    Column("id", Word, primary_key=True),
    Column("until_ms", BigInteger, nullable=False),
    Column("doc", Text, nullable=False),
)
Index("keeps_until", keeps.c.until_ms)

paces = Table(
    "paces",
    metadata,
    Column("id", Word, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("doc", Text, nullable=False),
)
Index("paces_newest", paces.c.seq)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Word, primary_key=True),
    Column("revoked", Boolean, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("doc", Text, nullable=False),
)

access_tokens = Table(
    "access_tokens",
    metadata,
    Column("id", Word, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("doc", Text, nullable=False),
)
Index("access_tokens_newest", access_tokens.c.seq)

entries = Table(
    "entries",
    metadata,
    Column("seq", RowNumber, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", Word, nullable=False),
    Column("job", Word),
    Column("attempt", Word),
    Column("node", Word),
    Column("doc", Text, nullable=False),
)
_of_job = text("job IS NOT NULL")
_of_node = text("node IS NOT NULL")
Index("entries_of_job", entries.c.job, entries.c.seq, sqlite_where=_of_job, postgresql_where=_of_job)
Index("entries_of_node", entries.c.node, entries.c.seq, sqlite_where=_of_node, postgresql_where=_of_node)

notes = Table(
    "notes",
    metadata,
    Column("id", Word, primary_key=True),
    Column("doc", Text, nullable=False),
)
"""Notes from one leader to the next, by subject. Not part of any batch."""

meta = Table(
    "meta",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="meta_is_one"), primary_key=True, autoincrement=False),
    Column("doc", Text, nullable=False),
)

wall_times = Table(
    "wall_times",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="wall_times_is_one"), primary_key=True, autoincrement=False),
    Column("doc", Text, nullable=False),
)


# --- rows and their tables ---

_NOT_ROWS = {"leader", "notes"}
"""Tables that hold no rows of the registry."""


def _table_of(row_type: RowType[Any]) -> Table:
    table = metadata.tables.get(row_type.table)
    if table is None:
        return Table(
            row_type.table, metadata, Column("id", Word, primary_key=True), Column("doc", Text, nullable=False)
        )
    fields = {*row_type.kind.__struct_fields__, *(("id",) if row_type.single else ())}
    for column in table.columns:
        if column.name != "doc" and row_type.path(column.name).partition(".")[0] not in fields:
            raise TypeError(f"{row_type.kind.__name__} has no field for the column {column}")
    return table


def _checked() -> dict[type[StoredRow], Table]:
    """Every row of the registry has a table, and every table a row."""
    found = {row_type.kind: _table_of(row_type) for row_type in ROWS}
    spare = metadata.tables.keys() - {table.name for table in found.values()} - _NOT_ROWS
    if spare:
        raise TypeError(f"no row of model.rows is kept in the tables {sorted(spare)}")
    if len(set(found.values())) < len(found):
        raise TypeError("two rows of model.rows are kept in one table")
    return found


BY_TYPE = _checked()
"""The table of each kind of row."""
