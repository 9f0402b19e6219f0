"""Every statement that is ever sent to the database, built from the tables. Nothing here executes anything.

Text such as `phase <> 'ended'` stands literally in a statement where a partial index does: both planners use
the index only if they can see that the question implies its condition.
"""

from collections.abc import Sequence

from sqlalchemy import (
    ColumnElement,
    Insert,
    Select,
    Table,
    UpdateBase,
    func,
    insert,
    literal_column,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from holdfast.state.tables import attempts, entries, jobs, leader, meta, nodes, tokens

BIGGEST = 2**63 - 1
"""The largest integer either engine compares with; a larger one in a question is as good as this."""

_ENDED = literal_column("'ended'")
_LIVE_JOB = jobs.c.phase != _ENDED


# --- writing ---


def raise_epoch(holder: str) -> UpdateBase:
    return (
        update(leader).where(leader.c.id == 1).values(epoch=leader.c.epoch + 1, holder=holder).returning(leader.c.epoch)
    )


leader_held: Select[int, str] = select(leader.c.epoch, leader.c.holder).where(leader.c.id == 1).with_for_update()
"""The lock makes a later `raise_epoch` wait for this commit; on SQLite the transaction itself does."""


def put(table: Table, dialect: str) -> Insert:
    """New, or replacing the record with its key. Entries are only ever added: a number used twice fails."""
    if table is entries:
        return insert(table)
    new = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    keys = table.primary_key.columns.keys()
    return new.on_conflict_do_update(
        index_elements=keys, set_={c.name: new.excluded[c.name] for c in table.columns if c.name not in keys}
    )


# --- loading what is alive ---

# Jobs come in the order of their index: asked for by id, SQLite would walk through all that ever ended.
live_jobs: Select[str] = select(jobs.c.doc).where(_LIVE_JOB).order_by(jobs.c.submitted_ms, jobs.c.id)
live_attempts: Select[str] = select(attempts.c.doc).where(attempts.c.phase != _ENDED).order_by(attempts.c.id)
the_meta: Select[str] = select(meta.c.doc)


# --- questions ---


def by_id(table: Table, key: str) -> Select[str]:
    return select(table.c.doc).where(table.c.id == key)


def jobs_by_ids(ids: Sequence[str]) -> Select[str]:
    return select(jobs.c.doc).where(jobs.c.id.in_(ids))


def ids_by_prefix(table: Table, prefix: str, limit: int) -> Select[str]:
    """A range, not LIKE: what a person typed is no pattern, and a range uses the primary key."""
    return (
        select(table.c.id)
        .where(table.c.id >= prefix, table.c.id < prefix + "\U0010ffff")
        .order_by(table.c.id)
        .limit(_bounded(limit))
    )


def submitted_at(job: str) -> Select[int]:
    return select(jobs.c.submitted_ms).where(jobs.c.id == job)


def jobs_newest(owner: str | None, phase: str | None, limit: int, before: tuple[int, str] | None) -> Select[str]:
    """`before`: (submitted_ms, id) of the last job already seen."""
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


def jobs_named(owner: str, name: str, limit: int) -> Select[str]:
    named: list[ColumnElement[bool]] = [
        jobs.c.name != literal_column("''"),
        jobs.c.owner == owner,
        jobs.c.name == name,
    ]
    return _newest_first(select(jobs.c.doc).where(*named)).limit(_bounded(limit))


def _newest_first(statement: Select[str]) -> Select[str]:
    return statement.order_by(jobs.c.submitted_ms.desc(), jobs.c.id.desc())


def attempts_of(job: str) -> Select[str]:
    """In the order in which they were made: fences grow, while the text of an id puts 10 before 2."""
    return select(attempts.c.doc).where(attempts.c.job == job).order_by(attempts.c.fence)


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


def _bounded(number: int) -> int:
    return max(0, min(number, BIGGEST))
