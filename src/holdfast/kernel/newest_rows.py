"""Keeps only the newest rows of a kind in memory and evicts the oldest."""

from itertools import takewhile
from typing import Any

from holdfast.kernel.decision import Row
from holdfast.model.rows import BY_TYPE


class NewestRows:
    """The newest rows of one kind, by (seq, id), within the bounds of `model.rows`."""

    def __init__(self, kind: type[Row], rows: dict[Any, Any]) -> None:
        self._kind, self._rows = kind, rows
        self._met: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        """The same rows, least recently written first: those without the prefix, and those with it."""

    def load(self, row: Any) -> None:
        """Add a row and evict the oldest if there are too many. The store keeps the same rows for a rebuild."""
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
