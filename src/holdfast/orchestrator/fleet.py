"""What the last commits say about nodes: which attempts each holds. And what sessions say: who is connected, how busy.

The store answers what happened; this answers what a listing of nodes shows beside it. Only committed rows get in.
Nothing is decided from it.
"""

from collections.abc import Iterable

from holdfast.kernel.commit import Batch
from holdfast.model import Attempt
from holdfast.model.messages import Load, Progress, Report


class Fleet:
    def __init__(self) -> None:
        self._held: dict[str, dict[str, Attempt]] = {}
        self._loads: dict[str, Load] = {}
        self._connected: dict[str, int] = {}
        self._progress: dict[str, Progress] = {}
        """By attempt; as old as its node's last report."""

    def rebuilt(self, attempts: Iterable[Attempt]) -> None:
        self._held.clear()
        for attempt in attempts:
            self._put(attempt)

    def committed(self, batch: Batch) -> None:
        for row in batch.rows.values():
            if isinstance(row, Attempt):
                self._put(row)

    def _put(self, attempt: Attempt) -> None:
        if attempt.live:
            self._held.setdefault(attempt.node, {})[attempt.id] = attempt
            return
        self._progress.pop(attempt.id, None)
        held = self._held.get(attempt.node)
        if held is not None:
            held.pop(attempt.id, None)
            if not held:
                del self._held[attempt.node]

    def held_by(self, node: str) -> list[Attempt]:
        return sorted(self._held.get(node, {}).values(), key=lambda attempt: attempt.fence)

    # --- sessions ---

    def connected(self, node: str, session: int) -> None:
        self._connected[node] = session

    def left(self, node: str, session: int) -> None:
        """Only the session that stands can leave: a replaced one ends later than its successor begins."""
        if self._connected.get(node) == session:
            del self._connected[node]
            self._loads.pop(node, None)

    def said(self, node: str, report: Report) -> None:
        if report.load is not None:
            self._loads[node] = report.load
        ours = self._held.get(node, {})
        for held in report.held:
            if held.progress is not None and held.attempt in ours:
                self._progress[held.attempt] = held.progress

    def progress_of(self, attempt: str) -> Progress | None:
        return self._progress.get(attempt)

    def is_connected(self, node: str) -> bool:
        return node in self._connected

    def load_of(self, node: str) -> Load | None:
        return self._loads.get(node)
