"""Converts rows of the model to records of a table. Each row is encoded once. Knows no connection.

Records go to the driver unchanged, so text that people choose is made storable here.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from msgspec.structs import fields
from sqlalchemy import Column, Table

from holdfast.model.rows import BY_TYPE as ROW_TYPES
from holdfast.model.rows import RowType, encode
from holdfast.model.stored import StoredRow
from holdfast.state import tables
from holdfast.state.tables import Word, storable

Record = dict[str, Any]


def _value(row_type: RowType[Any], column: Column[Any]) -> str:
    """The expression that takes a column's value from a row."""
    path = row_type.path(column.name)
    kind = {field.name: field.type for field in fields(row_type.kind)}.get(path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"row.{path}.value"
    if not isinstance(column.type, Word) or column.primary_key:
        return f"row.{path}"
    return f"row.{path} or None" if column.nullable else f"storable(row.{path})"


def _recorder(row_type: RowType[Any], table: Table) -> Callable[[Any], Record]:
    """Returns the function that makes a record of a row. It is compiled once for each kind, as a dataclass compiles its
    `__init__`: it runs for every row of every commit, and a loop over the columns takes three times as long."""
    values = {c.name: _value(row_type, c) for c in table.columns if c.name != "doc"}
    if row_type.single:
        values["id"] = "1"
    source = ", ".join(f"{name!r}: {value}" for name, value in {**values, "doc": "encode(row)"}.items())
    return eval(f"lambda row: {{{source}}}", {"encode": encode, "storable": storable})


_RECORDERS = {kind: (table, _recorder(ROW_TYPES[kind], table)) for kind, table in tables.BY_TYPE.items()}

TABLES = tuple(tables.BY_TYPE.values())
"""The tables that a batch can write to."""
REPLACING = {tables.BY_TYPE[row.kind]: row.kind for row in ROW_TYPES.values() if row.replaces is not None}
"""The tables of rows that replace others, with their kinds."""
USUAL = tuple(table for table in TABLES if table not in REPLACING)
_APPENDED = {tables.BY_TYPE[row_type.kind] for row_type in ROW_TYPES.values() if row_type.appends}


def by_table(rows: Iterable[StoredRow]) -> dict[Table, list[Record]]:
    """The records of a batch, by table. Of several versions of one row, only the last is kept; entries have one
    version."""
    batch: dict[Table, list[Record]] = {}
    for row in rows:
        table, record = _RECORDERS[type(row)]
        batch.setdefault(table, []).append(record(row))
    return {
        table: records if table in _APPENDED else list({record["id"]: record for record in records}.values())
        for table, records in batch.items()
    }
