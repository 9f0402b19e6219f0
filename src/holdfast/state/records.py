"""Rows of the model to records of a table, and back. Each row is encoded once. Knows no connection.

JSON, because people can read it; measured against MessagePack it costs a quarter of a microsecond a row. Records go to
the driver as they are: words that people choose are made storable here.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Table

from holdfast.kernel.decision import Row
from holdfast.model import Attempt, Entry, Job, JoinToken, Keep, Meta, Node, Pace
from holdfast.state import tables
from holdfast.state.tables import storable

Record = dict[str, Any]

_encode = msgspec.json.Encoder().encode


def _job(row: Job) -> Record:
    return {
        "id": row.id,
        "owner": storable(row.owner),
        "name": storable(row.spec.name),
        "phase": row.phase.value,
        "submitted_ms": row.submitted_ms,
        "ended_ms": row.ended_ms,
        "array_id": row.spec.array or None,
        "doc": _encode(row).decode(),
    }


def _attempt(row: Attempt) -> Record:
    return {
        "id": row.id,
        "job": row.job,
        "node": row.node,
        "fence": row.fence,
        "phase": row.phase.value,
        "offered_ms": row.offered_ms,
        "ended_ms": row.ended_ms,
        "doc": _encode(row).decode(),
    }


def _node(row: Node) -> Record:
    return {
        "id": row.id,
        "name": storable(row.name),
        "state": row.state.value,
        "joined_ms": row.joined_ms,
        "doc": _encode(row).decode(),
    }


def _token(row: JoinToken) -> Record:
    return {"id": row.id, "revoked": row.revoked, "expires_ms": row.expires_ms, "doc": _encode(row).decode()}


def _keep(row: Keep) -> Record:
    return {"id": row.id, "until_ms": row.until_ms, "doc": _encode(row).decode()}


def _pace(row: Pace) -> Record:
    return {"id": row.id, "seq": row.seq, "doc": _encode(row).decode()}


def _entry(row: Entry) -> Record:
    return {
        "seq": row.seq,
        "at_ms": row.at_ms,
        "kind": row.kind,
        "job": row.job,
        "attempt": row.attempt,
        "node": row.node,
        "doc": _encode(row).decode(),
    }


def _meta(row: Meta) -> Record:
    return {"id": 1, "doc": _encode(row).decode()}


_SHELVES: dict[type, tuple[Table, Callable[[Any], Record]]] = {
    Job: (tables.jobs, _job),
    Attempt: (tables.attempts, _attempt),
    Node: (tables.nodes, _node),
    JoinToken: (tables.tokens, _token),
    Keep: (tables.keeps, _keep),
    Pace: (tables.paces, _pace),
    Entry: (tables.entries, _entry),
    Meta: (tables.meta, _meta),
}


TABLES = tuple(table for table, _ in _SHELVES.values())
"""What a batch can hold."""


def by_table(rows: Iterable[Row]) -> dict[Table, list[Record]]:
    """The records of a batch, by table. Of several versions of one row the last stands; entries have only one."""
    batch: dict[Table, list[Record]] = {}
    for row in rows:
        table, record = _SHELVES[type(row)]
        batch.setdefault(table, []).append(record(row))
    return {
        table: records if table is tables.entries else list({record["id"]: record for record in records}.values())
        for table, records in batch.items()
    }


RowT = TypeVar("RowT", Job, Attempt, Node, JoinToken, Entry, Meta, Keep, Pace)

_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {kind: msgspec.json.Decoder(kind) for kind in _SHELVES}


def row_of(kind: type[RowT], doc: str) -> RowT:
    return _DECODERS[kind].decode(doc)
