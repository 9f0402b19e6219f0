"""Writes a commit in the fastest way for each engine: one transaction checks the leader's row and writes all records.

Both writers return the epoch that leads and its holder, and have written the batch if and only if that is the given
epoch. Records go directly to the driver, without SQLAlchemy's conversion of each value, which took most of the
processor time of a commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from sqlalchemy import Connection, Engine, Table, UpdateBase
from sqlalchemy.dialects import sqlite

from holdfast.state import statements
from holdfast.state.records import TABLES, USUAL, Record
from holdfast.state.tables import notes

_encode = msgspec.json.Encoder().encode

Batch = Mapping[Table, Sequence[Record]]


class Lead(NamedTuple):
    epoch: int
    holder: str


class Writer(Protocol):
    def write(self, batch: Batch, epoch: int) -> Lead: ...

    def replace(self, batch: Batch, removals: Iterable[UpdateBase], epoch: int) -> Lead:
        """Write a batch, and delete in the same transaction what its rows replace."""
        ...


def writer_of(engine: Engine) -> Writer:
    return Sqlite(engine) if engine.dialect.name == "sqlite" else Postgres(engine)


class Sqlite:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        named = sqlite.dialect(paramstyle="named")
        self._puts = {table: str(statements.put(table).compile(dialect=named)) for table in (*TABLES, notes)}

    def write(self, batch: Batch, epoch: int) -> Lead:
        return self.replace(batch, (), epoch)

    def replace(self, batch: Batch, removals: Iterable[UpdateBase], epoch: int) -> Lead:
        with self._engine.begin() as transaction:
            lead = _lead(transaction)
            if lead.epoch == epoch:
                for table, records in batch.items():
                    transaction.exec_driver_sql(self._puts[table], records)
                for removal in removals:
                    transaction.execute(removal)
        return lead


class Postgres:
    def __init__(self, engine: Engine) -> None:
        # One statement is a transaction by itself: BEGIN and COMMIT would only add two round trips.
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._in_transaction = engine
        # Notes and rows that replace others are rare, and would make the statement of every batch longer.
        self._puts = {tables: statements.put_all(tables) for tables in (USUAL, TABLES, (notes,))}

    def write(self, batch: Batch, epoch: int) -> Lead:
        with self._engine.connect() as connection:
            return self._put(connection, (notes,) if notes in batch else USUAL, batch, epoch)

    def replace(self, batch: Batch, removals: Iterable[UpdateBase], epoch: int) -> Lead:
        with self._in_transaction.begin() as transaction:
            lead = self._put(transaction, TABLES, batch, epoch)
            if lead.epoch == epoch:
                for removal in removals:
                    transaction.execute(removal)
        return lead

    def _put(self, connection: Connection, tables: tuple[Table, ...], batch: Batch, epoch: int) -> Lead:
        sent: dict[str, Any] = {table.name: _encode(batch.get(table, ())).decode() for table in tables}
        return Lead(*connection.execute(self._puts[tables], {**sent, "epoch": epoch}).one())


def forget(engine: Engine, epoch: int, removals: Iterable[UpdateBase]) -> None:
    """Delete rows that are no longer read, if this epoch leads. Too rare to be part of every commit."""
    with engine.begin() as transaction:
        if _lead(transaction).epoch == epoch:
            for removal in removals:
                transaction.execute(removal)


def _lead(transaction: Connection) -> Lead:
    return Lead(*transaction.execute(statements.leader_held).one())
