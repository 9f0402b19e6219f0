"""The store: durable rows behind transactions. It decides nothing and knows nothing of what the rows mean.

Duties of the caller:

1. Write (`take_lead`, `commit`) from one thread at a time. Read from any thread at any time.
2. After `StoreFailed`, `EndedRowChanged` or `LeadershipLost` from a write, drop the state in memory, call `take_lead`
   (to lead again) and `load_live`. A batch whose commit failed may still be durable: an answer can be lost.
3. Number the entries upwards, and use each number once.
4. Change no job and no attempt that has ended or was deleted. A batch that does is refused whole
   (docs/decisions/0022).
5. Delete a job, a node or a token by writing the row that replaces it (`model.deleted`), and few of them at a time.

Reads see only committed state, even while a commit is in flight.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import Connection, Select, Table, UpdateBase
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from holdfast.model import (
    Attempt,
    DeletedJob,
    DeletedNode,
    DeletedToken,
    DurationHistory,
    Entry,
    Job,
    JoinToken,
    Keep,
    Meta,
    Node,
    WallTimes,
)
from holdfast.model.rows import BY_TYPE, Live, R, decode, encode, key_of
from holdfast.model.stored import StoredRow
from holdfast.state import migrate, statements, tables
from holdfast.state.engines import Engines, checkpoint, database_bytes, make_shrinkable, open_engines, shrink
from holdfast.state.errors import EndedRowChanged, LeadershipLost, StoreFailed
from holdfast.state.records import REPLACING, TABLES, by_table
from holdfast.state.writing import Batch, Lead, forget, writer_of

T = TypeVar("T")

NAMED_MAX = 5
"""Most ids that an error names."""
FORGET_EVERY = 2_000
"""After this many written rows of a kind, the rows that no rebuild would load are deleted. This bounds the table."""
SHRUNK_BYTES_MIN = 1 << 20
"""Less is left in the file: it will be used again soon."""
SHRUNK_PAGES_MAX = 2_048
"""Pages of the file that are given back at a time, 8 MiB: commits wait meanwhile."""


class Snapshot(msgspec.Struct, frozen=True):
    """All live rows at one moment. Kinds are sorted by key; kinds of which only the newest rows are kept, newest
    first."""

    by_kind: dict[type[StoredRow], tuple[StoredRow, ...]] = {}
    """Kinds without live rows are left out."""
    notes: dict[str, str] = {}
    """Notes that earlier leaders left, by subject."""

    @classmethod
    def holding(cls, rows: Iterable[StoredRow], notes: dict[str, str] | None = None) -> "Snapshot":
        """A snapshot of these rows, in the order given."""
        by_kind: dict[type[StoredRow], tuple[StoredRow, ...]] = {}
        for kind, found in groupby(rows, type):
            by_kind[kind] = (*by_kind.get(kind, ()), *found)
        return cls(by_kind, notes or {})

    def of(self, kind: type[R]) -> tuple[R, ...]:
        return cast(tuple[R, ...], self.by_kind.get(kind, ()))

    @property
    def rows(self) -> Iterator[StoredRow]:
        return chain.from_iterable(self.by_kind.values())

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.of(Job)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self.of(Attempt)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.of(Node)

    @property
    def tokens(self) -> tuple[JoinToken, ...]:
        return self.of(JoinToken)

    @property
    def paces(self) -> tuple[DurationHistory, ...]:
        return self.of(DurationHistory)

    @property
    def meta(self) -> Meta | None:
        """None: nothing has ever been committed."""
        return next(iter(self.of(Meta)), None)


class StoreSizes(msgspec.Struct, frozen=True):
    rows: dict[str, int]
    """By table."""
    bytes: int


class Store:
    def __init__(self, engines: Engines) -> None:
        """Called by `open`, which also migrates the schema."""
        self._engines = engines
        self._dialect = engines.writer.dialect.name
        self._where = engines.writer.url.render_as_string(hide_password=True)
        self._writer = writer_of(engines.writer)
        self._written: Counter[type[StoredRow]] = Counter()
        """Rows written since the oldest of their kind were last removed."""

    @classmethod
    def open(cls, url: str) -> "Store":
        """`sqlite:////absolute/path.db` or `postgresql+psycopg://…`; creates or migrates the schema."""
        store = cls(open_engines(url))
        with store._opening():
            migrate.to_head(store._engines.writer, store._where)
            make_shrinkable(store._engines.writer)
        return store

    @classmethod
    def open_as_it_is(cls, url: str) -> "Store":
        """For reading only: changes nothing, not even the schema. Raises StoreFailed if the schema is of another
        release."""
        store = cls(open_engines(url))
        with store._opening():
            migrate.need_head(store._engines.reader, store._where)
        return store

    @contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            self.close()
            raise self._failed("opened", error) from error
        except StoreFailed:
            self.close()
            raise

    def close(self) -> None:
        self._engines.dispose()

    # --- writing: one thread ---

    def take_lead(self, holder: str) -> int:
        """Take the lead. Returns the new epoch; from now on, commits under any earlier epoch are refused."""
        try:
            with self._engines.writer.begin() as transaction:
                return transaction.execute(statements.raise_epoch(holder)).scalar_one()
        except SQLAlchemyError as error:
            raise self._failed("written to", error) from error

    def skip_ahead(self, by: int, least: int, attempts: int) -> None:
        """Skip this many epochs, fences and entry numbers, at least to `least`, and this many numbers of attempts of
        every job, because a leader that is unknown to this store may have used them (`policy.restored`). No
        orchestrator may lead meanwhile."""
        try:
            with self._engines.writer.begin() as transaction:
                transaction.execute(statements.skip_epochs(by, least))
                doc = transaction.execute(statements.the_meta).scalar_one_or_none()
                if doc is not None:
                    meta = decode(Meta, doc)
                    transaction.execute(statements.replace_meta(encode(meta.skipping(by, least, attempts))))
                for job in _live_rows(transaction, Job):
                    transaction.execute(statements.replace_doc(tables.jobs, job.id, encode(job.skipping(attempts))))
        except SQLAlchemyError as error:
            raise self._failed("written to", error) from error

    def commit(self, rows: Iterable[StoredRow], epoch: int) -> None:
        """Write all of the rows durably, or none of them."""
        batch = by_table(rows)
        self._write(batch, epoch)
        for row_type in BY_TYPE.values():
            if row_type.newest is not None:
                self._written[row_type.kind] += len(batch.get(tables.BY_TYPE[row_type.kind], ()))
                if self._written[row_type.kind] >= FORGET_EVERY:
                    self._written[row_type.kind] = 0
                    self._forget_oldest(row_type.kind, epoch)

    def _forget_oldest(self, kind: type[StoredRow], epoch: int) -> None:
        """Removes more rows than were written since the last time, but not so many that a commit waits for long."""
        try:
            forget(self._engines.writer, epoch, statements.forget_oldest(BY_TYPE[kind], 2 * FORGET_EVERY))
        except SQLAlchemyError as error:
            raise self._failed("written to", error) from error

    def write_note(self, subject: str, text: str, epoch: int) -> None:
        """Write a note for the next leader, replacing the note on the same subject. Checks the epoch like any
        commit."""
        self._write({tables.notes: [{"id": subject, "doc": text}]}, epoch)

    def forget_entries(self, to_seq: int, epoch: int) -> None:
        """Delete the journal up to this entry, if this epoch leads. The caller bounds how many that are."""
        try:
            forget(self._engines.writer, epoch, [statements.forget_entries(to_seq)])
        except SQLAlchemyError as error:
            raise self._failed("written to", error) from error

    def checkpoint(self) -> None:
        """Move what is in SQLite's write-ahead log to its file, so that the log need not grow."""
        if self._dialect == "sqlite":
            checkpoint(self._engines.writer)

    def shrink(self) -> int:
        """Give space that holds no row back to the disk, as much as takes some milliseconds. Returns how many bytes
        that were; 0 for PostgreSQL, which does so by itself."""
        if self._dialect != "sqlite" or self.reusable_bytes() < SHRUNK_BYTES_MIN:
            return 0
        return shrink(self._engines.writer, SHRUNK_PAGES_MAX)

    def _write(self, batch: Batch, epoch: int) -> None:
        replacing = [table for table in batch if table in REPLACING]
        try:
            if replacing:
                lead = self._writer.replace(batch, self._removals(batch, replacing), epoch)
            else:
                lead = self._writer.write(batch, epoch)
        except IntegrityError as error:
            ended = self._ended_rows(batch)
            raise self._refused(ended) if ended else self._failed("written to", error) from error
        except SQLAlchemyError as error:
            raise self._failed("written to", error) from error
        if lead.epoch != epoch:
            raise self._lost(epoch, lead)

    def _removals(self, batch: Batch, replacing: list[Table]) -> list[UpdateBase]:
        ids = {table: [record["id"] for record in batch[table]] for table in replacing}
        return [
            removal
            for table in replacing
            for removal in statements.removals(REPLACING[table], ids[table], self._dialect)
        ]

    def _ended_rows(self, batch: Batch) -> tuple[StoredRow, ...]:
        """The rows that have ended or were deleted, and that the batch would change."""
        found: list[StoredRow] = [*self.deleted_jobs([record["id"] for record in batch.get(tables.jobs, ())])]
        for row_type in BY_TYPE.values():
            sent = {record["doc"] for record in batch.get(tables.BY_TYPE[row_type.kind], ())}
            if row_type.live is Live.UNENDED and sent:
                ids = [record["id"] for record in batch[tables.BY_TYPE[row_type.kind]]]
                docs = self._column(statements.ended_by_ids(tables.BY_TYPE[row_type.kind], ids, self._dialect))
                found += [decode(row_type.kind, doc) for doc in docs if doc not in sent]
        return tuple(found)

    # --- reading: any thread ---

    def load_live(self) -> Snapshot:
        """The state that a leader rebuilds from: jobs and attempts that have not ended, every node and every token.

        Nodes that are gone are included until they are deleted, and so are revoked tokens.
        """

        def ask() -> Snapshot:
            with self._engines.snapshot() as view:
                live = {kind: _live_rows(view, kind) for kind in BY_TYPE}
                notes = {row.id: row.doc for row in view.execute(statements.every_note)}
                return Snapshot({kind: rows for kind, rows in live.items() if rows}, notes)

        return self._read(ask)

    def meta(self) -> Meta | None:
        return self._one(Meta, statements.the_meta)

    def wall_times(self) -> WallTimes | None:
        return self._one(WallTimes, statements.the_wall_times)

    def job(self, id: str) -> Job | None:
        return self._one(Job, statements.by_id(tables.jobs, id))

    def jobs_by_ids(self, ids: Sequence[str]) -> list[Job]:
        """The jobs that exist among up to a few thousand ids, in no particular order."""
        return self._all(Job, statements.by_ids(tables.jobs, ids, self._dialect)) if ids else []

    def deleted_jobs(self, ids: Sequence[str]) -> list[DeletedJob]:
        """What is left of deleted jobs among up to a few thousand ids, in no particular order."""
        if not ids:
            return []
        return self._all(DeletedJob, statements.by_ids(tables.BY_TYPE[DeletedJob], ids, self._dialect))

    def deleted_node(self, id: str) -> DeletedNode | None:
        return self._one(DeletedNode, statements.by_id(tables.BY_TYPE[DeletedNode], id))

    def deleted_token(self, id: str) -> DeletedToken | None:
        return self._one(DeletedToken, statements.by_id(tables.BY_TYPE[DeletedToken], id))

    def ended_before(self, ended_ms: int, after: tuple[int, str] = (-1, ""), limit: int = 200) -> list[Job]:
        """Jobs that ended by then, in the order of their submission. `after`: (submitted_ms, id) of the last of the
        previous page."""
        return self._all(Job, statements.ended_before(ended_ms, after, limit))

    def array_ended(self, array: str) -> int | None:
        """When the last job of an array ended; None: some have not."""

        def ask() -> int | None:
            with self._engines.reader.connect() as connection:
                live, ended_ms = connection.execute(statements.array_ended(array)).one()
                return None if live else ended_ms

        return self._read(ask)

    def sizes(self) -> StoreSizes:
        """How many rows each table has, and how many bytes the database takes."""

        def ask() -> StoreSizes:
            with self._engines.snapshot() as view:
                rows = {table.name: view.execute(statements.count(table)).scalar_one() for table in TABLES}
                return StoreSizes(rows, database_bytes(view))

        return self._read(ask)

    def jobs(
        self, owner: str | None = None, phase: str | None = None, limit: int = 50, after: str | None = None
    ) -> list[Job]:
        """Newest first. `after`: id of the last job of the previous page; an unknown id gives an empty list."""
        before: tuple[int, str] | None = None
        if after is not None:
            submitted_ms = self._scalar(statements.submitted_at(after))
            if submitted_ms is None:
                return []
            before = (submitted_ms, after)
        return self._all(Job, statements.jobs_newest(owner, phase, limit, before))

    def job_ids_by_prefix(self, prefix: str, limit: int = 10, owner: str | None = None) -> list[str]:
        """`owner`: only jobs of this owner; None: of all owners."""
        question = statements.ids_by_prefix(tables.jobs, prefix, limit)
        return self._column(question if owner is None else question.where(tables.jobs.c.owner == owner))

    def jobs_by_name(self, owner: str, name: str, limit: int = 10, *, live: bool = False) -> list[Job]:
        """Newest first, at most `limit`. `live`: only jobs that have not ended. The empty name finds nothing."""
        return self._all(Job, statements.jobs_named(owner, name, limit, live=live))

    def live_named(self, owner: str, name: str, limit: int = 10) -> list[str]:
        """Ids of live jobs with this name, at most `limit`; an array is listed in place of its items."""
        return self._column(statements.live_named(owner, name, limit))

    def jobs_of_array(self, array: str) -> list[Job]:
        """All jobs that were ever submitted for an array, oldest first; an item may have several."""
        return self._all(Job, statements.jobs_of_array(array))

    def keep(self, job: str) -> Keep | None:
        """How long the files of an ended job are kept; None: the job has no files, or has not ended."""
        return self._one(Keep, statements.by_id(tables.keeps, job))

    def keeps(self, now_ms: int) -> list[Keep]:
        """Those that have not expired, in no particular order."""
        return self._all(Keep, statements.keeps_after(now_ms))

    def keeps_of(self, jobs: Iterable[str]) -> list[Keep]:
        """How long the files of these jobs are kept, for those that have files; in no particular order."""
        ids = list(jobs)
        return self._all(Keep, statements.by_ids(tables.keeps, ids, self._dialect)) if ids else []

    def attempts(self, job: str) -> list[Attempt]:
        """In the order in which they were made."""
        return self._all(Attempt, statements.attempts_of(job))

    def attempts_of_jobs(self, jobs: Sequence[str]) -> list[Attempt]:
        """Of up to a few thousand jobs, in the order in which they were made."""
        return self._all(Attempt, statements.attempts_of_jobs(jobs, self._dialect)) if jobs else []

    def node(self, id: str) -> Node | None:
        return self._one(Node, statements.by_id(tables.nodes, id))

    def nodes(self) -> list[Node]:
        """All nodes that are known, including those that are gone."""
        return self._all(Node, statements.every_node)

    def node_ids_by_prefix(self, prefix: str, limit: int = 10) -> list[str]:
        return self._column(statements.ids_by_prefix(tables.nodes, prefix, limit))

    def token(self, id: str) -> JoinToken | None:
        return self._one(JoinToken, statements.by_id(tables.tokens, id))

    def tokens(self) -> list[JoinToken]:
        """All tokens that are known, including revoked and expired ones."""
        return self._all(JoinToken, statements.every_token)

    def entries(
        self, after_seq: int = 0, job: str | None = None, node: str | None = None, limit: int = 1000
    ) -> list[Entry]:
        """The journal after `after_seq`, oldest first."""
        return self._all(Entry, statements.entries_after(after_seq, job, node, limit))

    def reusable_bytes(self) -> int:
        """Bytes of a SQLite file that hold no row and are used before the file grows; 0 for PostgreSQL."""
        if self._dialect != "sqlite":
            return 0

        def ask() -> int:
            with self._engines.reader.connect() as connection:
                pages = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
                return pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one()

        return self._read(ask)

    def last_seq(self) -> int:
        """The number of the newest entry; 0 if there is none."""
        return self._scalar(statements.last_entry) or 0

    def first_seq(self) -> int:
        """The number of the oldest entry; 0 if there is none."""
        return self._scalar(statements.first_entry) or 0

    # --- running a query ---

    def _one(self, kind: type[R], question: Select[str]) -> R | None:
        doc = self._scalar(question)
        return None if doc is None else decode(kind, doc)

    def _all(self, kind: type[R], question: Select[str]) -> list[R]:
        return [decode(kind, doc) for doc in self._column(question)]

    def _scalar(self, question: Select[Any]) -> Any:
        def ask() -> Any:
            with self._engines.reader.connect() as connection:
                return connection.execute(question).scalar_one_or_none()

        return self._read(ask)

    def _column(self, question: Select[str]) -> list[str]:
        def ask() -> list[str]:
            with self._engines.reader.connect() as connection:
                return list(connection.execute(question).scalars())

        return self._read(ask)

    def _read(self, ask: Callable[[], T]) -> T:
        """Run a query. Try once more if the connection is dead, as all are after a restart of the server."""
        try:
            try:
                return ask()
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                return ask()
        except SQLAlchemyError as error:
            raise self._failed("read", error) from error

    def _lost(self, epoch: int, lead: Lead) -> LeadershipLost:
        return LeadershipLost(
            f"epoch {epoch} no longer leads the store {self._where}: epoch {lead.epoch} does ({lead.holder})",
            hint="Nothing was written. Another orchestrator took over; this one must rebuild to lead again.",
        )

    def _refused(self, ended: tuple[StoredRow, ...]) -> EndedRowChanged:
        ids = ", ".join(str(key_of(row)) for row in ended[:NAMED_MAX])
        more = f" and {len(ended) - NAMED_MAX} more" if len(ended) > NAMED_MAX else ""
        return EndedRowChanged(
            f"the store {self._where} refused a commit that would change what has ended: {ids}{more}",
            ended,
            hint="Nothing was written. The orchestrator rebuilds its state; please report this.",
        )

    def _failed(self, what: str, error: SQLAlchemyError) -> StoreFailed:
        # The first line names the fault; the driver's further lines can quote a whole row.
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        why = (str(cause).splitlines() or [type(cause).__name__])[0]
        hint = (
            "Check that its disk has room and is healthy."
            if self._dialect == "sqlite"
            else "Check that the server is up and can be reached."
        )
        return StoreFailed(f"the store {self._where} could not be {what}: {why}", hint=hint)


def _live_rows(view: Connection, kind: type[R]) -> tuple[R, ...]:
    row_type = BY_TYPE[kind]
    found = [decode(kind, doc) for ask in statements.live_rows(row_type) for doc in view.execute(ask).scalars()]
    return tuple(sorted(found, key=key_of) if row_type.live is Live.UNENDED else found)
