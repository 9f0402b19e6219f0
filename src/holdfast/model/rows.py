"""The registry of stored rows: every kind of row, its key, its table, its codec, and which of them a leader loads.

Committing, loading, the kernel's digest, the store, the record of decisions and the simulator read this list and keep
none of their own. A new kind of row is its struct, its migration and one line in `ROWS`. Knows no database.
"""

from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.model.access import AccessToken
from holdfast.model.deleted import DeletedJob, DeletedNode, DeletedToken
from holdfast.model.job import Attempt, DurationHistory, Job, Keep
from holdfast.model.journal import Entry, Meta, WallTimes
from holdfast.model.node import JoinToken, Node, NodeRecord
from holdfast.model.old_sentences import with_codes
from holdfast.model.stored import StoredRow

R = TypeVar("R", bound=StoredRow)

COMMAND = "command_"
"""Prefix of the ids of duration histories whose kind is only a command."""

NO_PREFIX = "-"
"""No id begins with this: all rows of the kind are counted together."""

_encode = msgspec.json.Encoder().encode


class Live(Enum):
    """Which rows of a kind a leader loads when it rebuilds."""

    ALL = "all"
    UNENDED = "unended"
    """Rows whose `live` is true; in the table, rows whose `phase` is not `ended`."""
    NEWEST = "newest"
    """The newest rows by (seq, id), as many as `RowType.newest` allows. The others are deleted later."""
    NONE = "none"
    """No rows: they are written, and read only by queries."""


class Newest(msgspec.Struct, frozen=True):
    """How many rows of a kind are kept. Rows whose id begins with `prefix` are counted separately."""

    most: int
    prefix: str
    prefixed_most: int


class RowType(msgspec.Struct, Generic[R], frozen=True):
    kind: type[R]
    name: str
    """The first part of a row's key in memory: `("job", id)`."""
    table: str
    key: str = "id"
    """The field that identifies a row; empty where there is only one row."""
    columns: dict[str, str] = {}
    """Columns that are not named after their field: column to path, as in `spec.name`."""
    live: Live = Live.ALL
    newest: Newest | None = None
    appends: bool = False
    """Rows are only added: a commit that uses a key twice fails."""
    replaces: type[StoredRow] | None = None
    """A commit of such a row deletes the row of this kind with the same key, and what belongs to that row alone."""

    @property
    def single(self) -> bool:
        return not self.key

    def path(self, column: str) -> str:
        """The field, or path of fields, whose value a column holds."""
        return self.columns.get(column, column)


ROWS: tuple[RowType[Any], ...] = (
    RowType(Meta, "meta", "meta", key=""),
    RowType(WallTimes, "wall", "wall_times", key=""),
    RowType(Node, "node", "nodes"),
    RowType(NodeRecord, "record", "node_records"),
    RowType(JoinToken, "token", "tokens"),
    RowType(AccessToken, "access", "access_tokens", live=Live.NEWEST, newest=Newest(2_000, NO_PREFIX, 0)),
    RowType(DurationHistory, "pace", "paces", live=Live.NEWEST, newest=Newest(20_000, COMMAND, 5_000)),
    RowType(
        kind=Job, name="job", table="jobs", live=Live.UNENDED, columns={"name": "spec.name", "array_id": "spec.array"}
    ),
    RowType(Attempt, "attempt", "attempts", live=Live.UNENDED),
    RowType(Entry, "entry", "entries", key="seq", live=Live.NONE, appends=True),
    RowType(Keep, "keep", "keeps", live=Live.NONE),
    RowType(DeletedJob, "deleted_job", "deleted_jobs", live=Live.NONE, replaces=Job),
    RowType(DeletedNode, "deleted_node", "deleted_nodes", live=Live.NONE, replaces=Node),
    RowType(DeletedToken, "deleted_token", "deleted_tokens", live=Live.NONE, replaces=JoinToken),
)
"""In the order in which a rebuild loads them. Duration histories of a command alone are counted separately: a parameter
sweep makes one for every value that it tries, and must not evict the names and arrays by which stragglers are found."""

BY_TYPE: dict[type[StoredRow], RowType[Any]] = {row.kind: row for row in ROWS}


def _key_getter(row_type: RowType[Any]) -> Callable[[Any], Hashable]:
    return (lambda _: 0) if row_type.single else attrgetter(row_type.key)


_KEYS: dict[type[StoredRow], tuple[str, Callable[[Any], Hashable]]] = {
    row.kind: (row.name, _key_getter(row)) for row in ROWS
}
_DECODERS: dict[type[StoredRow], msgspec.json.Decoder[Any]] = {row.kind: msgspec.json.Decoder(row.kind) for row in ROWS}


def row_type(kind: type[R]) -> RowType[R]:
    return BY_TYPE[kind]


def row_key(row: StoredRow) -> tuple[str, Hashable]:
    """Identifies a row among rows of all kinds."""
    name, key = _KEYS[type(row)]
    return name, key(row)


def key_of(row: StoredRow) -> Any:
    """Identifies a row among the rows of its kind."""
    return _KEYS[type(row)][1](row)


_COUNTERPARTS: dict[type[StoredRow], str] = {
    **{row.kind: BY_TYPE[row.replaces].name for row in ROWS if row.replaces is not None},
    **{row.replaces: row.name for row in ROWS if row.replaces is not None},
}


def counterpart_key(row: StoredRow) -> tuple[str, Hashable] | None:
    """The key of the row that this one replaces, or that would replace it; None: its kind has no such row."""
    name = _COUNTERPARTS.get(type(row))
    return None if name is None else (name, key_of(row))


def is_live(row: StoredRow) -> bool:
    """Whether a leader loads this row. For `NEWEST` kinds, only the store and the kernel know the evicted rows."""
    return BY_TYPE[type(row)].live is not Live.NONE and row.live


def encode(row: StoredRow) -> str:
    """JSON, because people can read it; it costs a quarter of a microsecond per row more than MessagePack."""
    return _encode(row).decode()


def decode(kind: type[R], doc: str | bytes) -> R:
    """The row, with the codes that release 0.1 did not write."""
    return with_codes(_DECODERS[kind].decode(doc))


def age(row: Any) -> tuple[int, str]:
    """The order in which rows of a `NEWEST` kind are evicted. Several rows may be written in one step with the same
    `seq`, so `seq` alone does not order them."""
    return row.seq, row.id


def in_load_order(rows: Iterable[StoredRow]) -> list[StoredRow]:
    """The rows that a leader loads, in the order of `ROWS`; within a kind in the order given, or the oldest first where
    only the newest are kept."""
    by_kind: dict[type[StoredRow], list[StoredRow]] = {row.kind: [] for row in ROWS}
    for row in filter(is_live, rows):
        by_kind[type(row)].append(row)
    for kind, found in by_kind.items():
        if BY_TYPE[kind].newest is not None:
            found.sort(key=age)
    return [row for found in by_kind.values() for row in found]
