"""Rows of a kind of which only the newest are kept in memory, and which of them is evicted next."""

from itertools import takewhile
from typing import Any

from holdfast.kernel.decision import Row
from holdfast.model.rows import BY_TYPE


class NewestRows:
    """The newest rows of one kind, by (seq, id), within the bounds of `model.rows`."""

    def __init__(self, kind: type[Row], rows: dict[Any, Any]) -> None:
        self._kind, self._rows = kind, rows
        self._met: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        """The same rows, the longest not written first; those with the prefix apart."""

    def load(self, row: Any) -> None:
        """The store keeps and loads the same ones: the newest by (seq, id), so a rebuild knows what was known here."""
        newest = BY_TYPE[self._kind].newest
        assert newest is not None
        prefixed: bool = row.id.startswith(newest.prefix)
        met = self._met[1 if prefixed else 0]
        met.pop(row.id, None)
        met[row.id] = self._rows[row.id] = row
        if len(met) > (newest.prefixed_most if prefixed else newest.most):
            seq = next(iter(met.values())).seq
            oldest = min(old.id for old in takewhile(lambda old: old.seq == seq, met.values()))
            del met[oldest], self._rows[oldest]
