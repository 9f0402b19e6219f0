"""Builds every statement that is sent to the database. Executes nothing.

The condition of a partial index, such as `phase <> 'ended'`, is written literally in a statement: both planners use
the index only if they can see that the query implies its condition.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    ARRAY,
    CTE,
    JSON,
    ColumnElement,
    Select,
    Table,
    Text,
    UpdateBase,
    any_,
    bindparam,
    case,
    cast,
    column,
    delete,
    exists,
    func,
    literal,
    literal_column,
    not_,
    null,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from holdfast.model import DeletedJob, DeletedNode, NodeRecord
from holdfast.model.rows import ROWS, Live, Newest, RowType
from holdfast.model.stored import StoredRow
from holdfast.state.tables import (
    BY_TYPE,
    attempts,
    entries,
    jobs,
    keeps,
    leader,
    meta,
    nodes,
    notes,
    storable,
    tokens,
    wall_times,
)

BIGGEST = 2**63 - 1
"""The largest integer that both engines can compare. Larger numbers in a query are reduced to it."""

deleted_jobs = BY_TYPE[DeletedJob]
_ENDED = literal_column("'ended'")
_LIVE_JOB = jobs.c.phase != _ENDED
_APPENDED = {BY_TYPE[row_type.kind] for row_type in ROWS if row_type.appends}
_ENDING = {BY_TYPE[row_type.kind] for row_type in ROWS if row_type.live is Live.UNENDED}


# --- writing ---


def raise_epoch(holder: str) -> UpdateBase:
    return (
        update(leader).where(leader.c.id == 1).values(epoch=leader.c.epoch + 1, holder=holder).returning(leader.c.epoch)
    )


def skip_epochs(by: int, least: int) -> UpdateBase:
    skipped = leader.c.epoch + by
    return update(leader).where(leader.c.id == 1).values(epoch=case((skipped < least, least), else_=skipped))


def replace_doc(table: Table, id: str, doc: str) -> UpdateBase:
    return update(table).where(table.c.id == id).values(doc=doc)


def replace_meta(doc: str) -> UpdateBase:
    return update(meta).where(meta.c.id == 1).values(doc=doc)


leader_held: Select[int, str] = select(leader.c.epoch, leader.c.holder).where(leader.c.id == 1).with_for_update()
"""The row lock makes a later `raise_epoch` wait for this commit; on SQLite the transaction itself does that."""


def put(table: Table) -> sqlite.Insert:
    """SQLite: inserts one record, or replaces the record with the same key."""
    sent = {name: bindparam(name, type_=c.type) for name, c in table.columns.items()}
    return _or_replace(table, sqlite.insert(table).values(_unless_deleted(table, sent)))


def _unless_deleted(table: Table, sent: Mapping[str, ColumnElement[Any]]) -> dict[str, ColumnElement[Any]]:
    """The values of a record. A job that was deleted cannot be written again: its phase would be NULL, which the column
    does not allow, so the whole batch fails, as for a job that has ended."""
    if table is not jobs:
        return dict(sent)
    deleted = exists().where(deleted_jobs.c.id == sent["id"])
    return {**sent, "phase": case((deleted, null()), else_=sent["phase"])}


def put_all(batch: Iterable[Table]) -> Select[int, str]:
    """PostgreSQL: a whole commit in one statement, and so in one round trip and one transaction.

    The records of each table are one parameter, a JSON array named after the table: one parameter per value would cost
    the client ten times as much processor time. The records are written only if `epoch` leads; the statement returns
    the epoch that leads and its holder. The leader's row is locked before anything is written, because every record is
    joined with it.
    """
    held = leader_held.cte("held")
    puts: list[CTE] = []
    for table in batch:
        names = table.columns.keys()
        sent = func.json_to_recordset(cast(bindparam(table.name, type_=Text), JSON)).table_valued(
            *(column(c.name, c.type) for c in table.columns)
        )
        sent = sent.render_derived(name=f"sent_{table.name}", with_types=True)
        values = _unless_deleted(table, {name: sent.c[name] for name in names})
        records = select(*values.values()).join_from(sent, held, held.c.epoch == bindparam("epoch"))
        written = _or_replace(table, postgresql.insert(table)).from_select(names, records)
        puts.append(written.cte(f"put_{table.name}"))
    return select(held.c.epoch, held.c.holder).add_cte(*puts)


_New = TypeVar("_New", sqlite.Insert, postgresql.Insert)


def _or_replace(table: Table, new: _New) -> _New:
    """Entries are only added: a number that is used twice fails. A record that has ended never changes: another version
    would set its phase to NULL, which the column does not allow, so the whole batch fails. A condition on the update
    would skip that record and write the others."""
    if table in _APPENDED:
        return new
    keys = table.primary_key.columns.keys()
    values: dict[str, Any] = {c.name: new.excluded[c.name] for c in table.columns if c.name not in keys}
    if table in _ENDING:
        changes = (table.c.phase == _ENDED) & (table.c.doc != new.excluded["doc"])
        values["phase"] = case((changes, null()), else_=new.excluded["phase"])
    return new.on_conflict_do_update(index_elements=keys, set_=values)


# --- loading live rows ---

the_meta: Select[str] = select(meta.c.doc)
the_wall_times: Select[str] = select(wall_times.c.doc)


def live_rows(row_type: RowType[Any]) -> list[Select[str]]:
    """The rows of a kind that a leader loads, in the order of their keys; for `NEWEST` kinds, the newest first."""
    table = BY_TYPE[row_type.kind]
    if row_type.newest is not None:
        newest = row_type.newest
        return [
            _newest_of(table, table.c.doc, newest, prefixed=False).limit(newest.most),
            _newest_of(table, table.c.doc, newest, prefixed=True).limit(newest.prefixed_most),
        ]
    match row_type.live:
        case Live.NONE:
            return []
        case Live.UNENDED:
            return [_in_order(select(table.c.doc).where(table.c.phase != _ENDED), table)]
        case _:
            return [_in_order(select(table.c.doc), table)]


def _in_order(question: Select[str], table: Table) -> Select[str]:
    """Jobs are sorted in the order of their index: sorted by id, SQLite would scan all jobs that ever ended."""
    return question.order_by(*((jobs.c.submitted_ms, jobs.c.id) if table is jobs else table.primary_key.columns))


def forget_oldest(row_type: RowType[Any], limit: int) -> list[UpdateBase]:
    """Remove rows that `live_rows` would not load, at most `limit` per statement."""
    newest, table = row_type.newest, BY_TYPE[row_type.kind]
    if newest is None:
        return []
    kept = ((True, newest.prefixed_most), (False, newest.most))
    old = [_newest_of(table, table.c.id, newest, prefixed=prefixed).offset(most) for prefixed, most in kept]
    return [delete(table).where(table.c.id.in_(ids.limit(limit))) for ids in old]


def _newest_of(table: Table, what: ColumnElement[str], newest: Newest, *, prefixed: bool) -> Select[str]:
    """Newest first: the reverse of the order in which the kernel evicts them. Several rows may have the same number."""
    begins = (table.c.id >= newest.prefix) & (table.c.id < newest.prefix + "\U0010ffff")
    return select(what).where(begins if prefixed else not_(begins)).order_by(table.c.seq.desc(), table.c.id.desc())


# --- deleting ---


def removals(kind: type[StoredRow], ids: Sequence[str], dialect: str) -> list[UpdateBase]:
    """Delete the rows that rows of this kind with these ids replace, and what belongs to them alone."""
    if kind is DeletedJob:
        columns = (jobs.c.id, attempts.c.job, keeps.c.id)
    elif kind is DeletedNode:
        columns = (nodes.c.id, BY_TYPE[NodeRecord].c.id)
    else:
        columns = (tokens.c.id,)
    return [delete(column.table).where(_one_of(column, ids, dialect)) for column in columns]


def forget_entries(to_seq: int) -> UpdateBase:
    return delete(entries).where(entries.c.seq <= _bounded(to_seq))


every_note: Select[str, str] = select(notes.c.id, notes.c.doc)


# --- queries ---


def jobs_of_array(array: str) -> Select[str]:
    return select(jobs.c.doc).where(jobs.c.array_id == array).order_by(jobs.c.submitted_ms)


def keeps_after(now_ms: int) -> Select[str]:
    return select(keeps.c.doc).where(keeps.c.until_ms > now_ms)


def by_id(table: Table, key: str) -> Select[str]:
    return select(table.c.doc).where(table.c.id == key)


def by_ids(table: Table, ids: Sequence[str], dialect: str) -> Select[str]:
    return select(table.c.doc).where(_one_of(table.c.id, ids, dialect))


def ended_before(ended_ms: int, after: tuple[int, str], limit: int) -> Select[str]:
    """Ended jobs in the order of their submission, `after` (submitted_ms, id) of the last one. No job ends before it is
    submitted, so later ones need no look."""
    return (
        select(jobs.c.doc)
        .where(tuple_(jobs.c.submitted_ms, jobs.c.id) > after, jobs.c.submitted_ms <= _bounded(ended_ms))
        .where(jobs.c.phase == _ENDED, jobs.c.ended_ms <= _bounded(ended_ms))
        .order_by(jobs.c.submitted_ms, jobs.c.id)
        .limit(_bounded(limit))
    )


def array_ended(array: str) -> Select[int, int | None]:
    """How many jobs of an array are live, and when the last of the others ended."""
    live = func.count(case((_LIVE_JOB, 1)))
    return select(live, func.max(jobs.c.ended_ms)).where(jobs.c.array_id == array)


def ended_by_ids(table: Table, ids: Sequence[str], dialect: str) -> Select[str]:
    """Those of the records that have ended."""
    return select(table.c.doc).where(_one_of(table.c.id, ids, dialect), table.c.phase == _ENDED)


def _one_of(column: ColumnElement[str], ids: Sequence[str], dialect: str) -> ColumnElement[bool]:
    """The ids are one parameter: a statement with one parameter per id would be compiled anew for every query."""
    words = [storable(id) for id in ids]
    if dialect == "postgresql":
        return column == any_(literal(words, ARRAY(Text)))
    wanted = func.json_each(json.dumps(words)).table_valued("value")
    return column.in_(select(wanted.c.value))


def ids_by_prefix(table: Table, prefix: str, limit: int) -> Select[str]:
    """A range, not LIKE: what a person typed is not a pattern, and a range uses the primary key."""
    return (
        select(table.c.id)
        .where(table.c.id >= prefix, table.c.id < prefix + "\U0010ffff")
        .order_by(table.c.id)
        .limit(_bounded(limit))
    )


def submitted_at(job: str) -> Select[int]:
    return select(jobs.c.submitted_ms).where(jobs.c.id == job)


def jobs_newest(owner: str | None, phase: str | None, limit: int, before: tuple[int, str] | None) -> Select[str]:
    """`before`: (submitted_ms, id) of the last job of the previous page."""
    statement = _newest_first(select(jobs.c.doc)).limit(_bounded(limit))
    if owner is not None:
        statement = statement.where(jobs.c.owner == owner)
    if phase is not None:
        statement = statement.where(jobs.c.phase == phase)
        if phase != "ended":
            statement = statement.where(_LIVE_JOB)
    if before is not None:
        statement = statement.where(tuple_(jobs.c.submitted_ms, jobs.c.id) < before)
    return statement


def jobs_named(owner: str, name: str, limit: int, *, live: bool = False) -> Select[str]:
    named: list[ColumnElement[bool]] = [
        jobs.c.name != literal_column("''"),
        jobs.c.owner == owner,
        jobs.c.name == name,
    ]
    if live:
        named.append(_LIVE_JOB)
    return _newest_first(select(jobs.c.doc).where(*named)).limit(_bounded(limit))


def live_named(owner: str, name: str, limit: int) -> Select[str]:
    """Ids of live jobs; an array gives one id, however many of its items are live."""
    bearer = func.coalesce(jobs.c.array_id, jobs.c.id)
    named = (jobs.c.name != literal_column("''"), jobs.c.owner == owner, jobs.c.name == name)
    found = select(bearer).where(*named, _LIVE_JOB)
    return found.distinct().order_by(bearer).limit(_bounded(limit))


def _newest_first(statement: Select[str]) -> Select[str]:
    return statement.order_by(jobs.c.submitted_ms.desc(), jobs.c.id.desc())


def attempts_of(job: str) -> Select[str]:
    """In the order in which they were made: sorted by fence, because as text the id of attempt 10 comes before that of
    2."""
    return select(attempts.c.doc).where(attempts.c.job == job).order_by(attempts.c.fence)


def attempts_of_jobs(ids: Sequence[str], dialect: str) -> Select[str]:
    return select(attempts.c.doc).where(_one_of(attempts.c.job, ids, dialect)).order_by(attempts.c.fence)


every_node: Select[str] = select(nodes.c.doc).order_by(nodes.c.id)
every_token: Select[str] = select(tokens.c.doc).order_by(tokens.c.id)


def entries_after(seq: int, job: str | None, node: str | None, limit: int) -> Select[str]:
    statement = (
        select(entries.c.doc).where(entries.c.seq > _bounded(seq)).order_by(entries.c.seq).limit(_bounded(limit))
    )
    if job is not None:
        statement = statement.where(entries.c.job == job)
    if node is not None:
        statement = statement.where(entries.c.node == node)
    return statement


last_entry: Select[int | None] = select(func.max(entries.c.seq))
first_entry: Select[int | None] = select(func.min(entries.c.seq))


def count(table: Table) -> Select[int]:
    return select(func.count()).select_from(table)


def _bounded(number: int) -> int:
    return max(0, min(number, BIGGEST))
