"""Opens connections, and holds everything that differs between SQLite and PostgreSQL. Knows no table.

There are two engines per database. The *writer* has one connection; its transactions exclude those of any other
writer from their first statement on (SQLite) or from locking the leader's row on (PostgreSQL). The *reader* has
several connections; each statement runs by itself unless a snapshot is requested. Readers never wait for the writer.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from holdfast.state.errors import StoreFailed

BUSY_MS = 5_000
"""How long a SQLite writer waits for another process's transaction. Transactions here take milliseconds."""

STALLED_WRITER_MS = 4_000
"""PostgreSQL ends a transaction that is idle for this long. A leader that freezes between the epoch check and its
commit holds the lock on the leader's row, and a successor must get it well within the 10 s of SPEC A9."""

STATEMENT_MS = 30_000
"""Time limit of a statement. Statements here take less than a second; a slower one waits for something that will not
happen."""

LOG_BYTES_MAX = 16 << 20
"""Size to which SQLite's write-ahead log is cut after a large commit."""

READERS = 16
"""Connections of the reader."""


class Engines(NamedTuple):
    writer: Engine
    reader: Engine

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A connection of the reader on which all statements see the same committed state."""
        with self.reader.connect() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN")
            else:
                connection.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                yield connection
            finally:
                if not connection.invalidated:
                    connection.exec_driver_sql("ROLLBACK")

    def dispose(self) -> None:
        self.reader.dispose()
        self.writer.dispose()


def database_bytes(connection: Connection) -> int:
    """How large the database is on its disk. SQLite reuses what was deleted; its file shrinks only by `shrink`."""
    if connection.dialect.name == "sqlite":
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one()
    return connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one()


def make_shrinkable(writer: Engine) -> None:
    """Let the file of a SQLite database shrink, which one of an earlier release cannot. That copies it once, if the
    disk has space for a copy and its journal; otherwise it stays as it is."""
    path = writer.url.database
    if writer.dialect.name != "sqlite" or not path:
        return
    with _without_transaction(writer) as connection:
        disk = os.statvfs(path)
        if _pragma(connection, "auto_vacuum") or disk.f_bavail * disk.f_frsize < 3 * os.stat(path).st_size:
            return
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("VACUUM")


def checkpoint(writer: Engine) -> None:
    """Move what is in SQLite's write-ahead log to its file, so that the log is written from its beginning again. Waits
    for no reader."""
    with _without_transaction(writer) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def shrink(writer: Engine, pages_max: int) -> int:
    """Give up to `pages_max` pages that hold no row back to the disk. Returns how many bytes that were. SQLite only."""
    with _without_transaction(writer) as connection:
        unused = _pragma(connection, "freelist_count")
        if unused:
            # `execute` would run it for one page only: each page is a step without a result.
            connection.executescript(f"PRAGMA incremental_vacuum({pages_max})")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return (unused - _pragma(connection, "freelist_count")) * _pragma(connection, "page_size")


def _pragma(connection: Any, name: str) -> int:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


@contextmanager
def _without_transaction(writer: Engine) -> Iterator[Any]:
    """The driver's connection: what is run here must not be inside a transaction."""
    connection = writer.raw_connection()
    try:
        yield connection.driver_connection
    except sqlite3.Error as error:
        raise StoreFailed(f"the store's file cannot be made smaller: {error}") from error
    finally:
        connection.close()


def open_engines(url: str) -> Engines:
    """Connects nothing yet. A SQLite file is created, readable by its owner only."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreFailed(
            "the address of the store cannot be read",
            hint="Give sqlite:////absolute/path.db or postgresql+psycopg://user@host/database.",
        ) from error
    if parsed.get_backend_name() == "sqlite" and parsed.database and os.path.isabs(parsed.database):
        return _sqlite(parsed, parsed.database)
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        return _postgresql(parsed.set(drivername="postgresql+psycopg"))
    raise StoreFailed(
        f"a store at {parsed.render_as_string(hide_password=True)} is not supported",
        hint="Give sqlite:////absolute/path.db or postgresql+psycopg://user@host/database.",
    )


def _engine(url: URL, *, connections: int, **more: Any) -> Engine:
    # Parameters hold whole rows, and rows hold people's environment variables: never show them in an error or a log.
    return create_engine(
        url,
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=10,
        hide_parameters=True,
        **more,
    )


# --- SQLite ---


def _sqlite(url: URL, path: str) -> Engines:
    try:
        # The journal files take their mode from the database file.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreFailed(
            f"the store's file {path} cannot be opened: {error.strerror}",
            hint="Check that its folder exists and that this user may write there.",
        ) from error
    driver = {
        "check_same_thread": False,
        "isolation_level": None,
    }  # None: the driver begins no transactions
    writer = _engine(url, connections=1, connect_args=driver)
    reader = _engine(url, connections=READERS, connect_args=driver)
    event.listen(writer, "connect", _prepare_sqlite_writer)
    event.listen(writer, "begin", _begin_immediate)
    event.listen(reader, "connect", _prepare_sqlite_reader)
    return Engines(writer, reader)


def _prepare_sqlite_writer(connection: Any, _record: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # of a new file
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA journal_size_limit={LOG_BYTES_MAX}")
    # FULL, not NORMAL: a power cut must not take back a commit that somebody was told of.
    connection.execute("PRAGMA synchronous=FULL")


def _prepare_sqlite_reader(connection: Any, _record: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    connection.execute("PRAGMA query_only=ON")


def _begin_immediate(connection: Connection) -> None:
    # IMMEDIATE takes the write lock now, so the epoch that is read next cannot change before the commit.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


# --- PostgreSQL ---


def _postgresql(url: URL) -> Engines:
    session = {
        "synchronous_commit": "on",  # whatever the server's default is: an acknowledged commit survives a crash
        "idle_in_transaction_session_timeout": STALLED_WRITER_MS,
        "statement_timeout": STATEMENT_MS,
        "tcp_user_timeout": 2 * STALLED_WRITER_MS,
    }
    connect_args = {
        "connect_timeout": 5,
        # After the operator's own options (a search path, for example): libpq takes one string, and the last one wins.
        "options": " ".join(
            [str(url.query.get("options", "")), *(f"-c {name}={value}" for name, value in session.items())]
        ).strip(),
        # A machine that vanished sends no reset: without keepalives a commit would wait for hours.
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 2 * STALLED_WRITER_MS,
    }
    writer = _engine(url, connections=1, connect_args=connect_args)
    reader = _engine(url, connections=READERS, isolation_level="AUTOCOMMIT", connect_args=connect_args)
    for engine in (writer, reader):
        # Before all other listeners: SQLAlchemy's own already reads text, which SQL_ASCII returns as bytes.
        event.listen(engine, "connect", _refuse_other_encodings, insert=True)
    return Engines(writer, reader)


def _refuse_other_encodings(connection: Any, _record: Any) -> None:
    """Names and texts may be in any script. A database that cannot store them would fail in the middle of work."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreFailed(
            f"the database {connection.info.dbname} has the encoding {encoding}, and the store needs UTF8",
            hint="Create one with that encoding: createdb -E UTF8 -T template0 NAME.",
        )
