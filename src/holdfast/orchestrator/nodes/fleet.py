"""Keeps what listings show about nodes beside the store: the attempts that each holds, by the last commits, and which
nodes are connected and how busy, by their sessions.

It takes only committed rows. No decision depends on it.
"""

from collections.abc import Iterable

from holdfast.boottime import boottime_ms
from holdfast.kernel.commit import CommitBatch
from holdfast.model import Attempt, Job
from holdfast.model.messages import Load, Progress, Report


class Fleet:
    def __init__(self) -> None:
        self._live: dict[str, Attempt] = {}
        self._held: dict[str, dict[str, Attempt]] = {}
        self._loads: dict[str, Load] = {}
        self._connected: dict[str, int] = {}
        self._heard: dict[str, int] = {}
        """When each connected node last sent anything, by the clock that continues while the machine is suspended."""
        self._progress: dict[str, Progress] = {}
        """By attempt, as of its node's last report."""

    def rebuilt(self, attempts: Iterable[Attempt]) -> None:
        self._held.clear()
        self._live.clear()
        for attempt in attempts:
            self._put(attempt)

    def committed(self, batch: CommitBatch) -> None:
        for row in batch.rows.values():
            if isinstance(row, Attempt):
                self._put(row)

    def _put(self, attempt: Attempt) -> None:
        if attempt.live:
            self._live[attempt.id] = attempt
            self._held.setdefault(attempt.node, {})[attempt.id] = attempt
            return
        self._live.pop(attempt.id, None)
        self._progress.pop(attempt.id, None)
        held = self._held.get(attempt.node)
        if held is not None:
            held.pop(attempt.id, None)
            if not held:
                del self._held[attempt.node]

    def attempts_of(self, job: Job) -> list[Attempt]:
        """The live attempts of a job, oldest first."""
        ids = (job.nth_attempt(count) for count in range(1, job.attempts_made + 1))
        return [found for id in ids if (found := self._live.get(id)) is not None]

    def held_by(self, node: str) -> list[Attempt]:
        return sorted(self._held.get(node, {}).values(), key=lambda attempt: attempt.fence)

    # --- sessions ---

    def connected(self, node: str, session: int) -> None:
        self._connected[node] = session
        self._heard[node] = boottime_ms()

    def left(self, node: str, session: int) -> None:
        """Only the current session can leave: a replaced session may end after its successor began."""
        if self._connected.get(node) == session:
            del self._connected[node]
            self._loads.pop(node, None)
            self._heard.pop(node, None)

    def heard(self, node: str) -> None:
        """Something arrived from the node."""
        if node in self._connected:
            self._heard[node] = boottime_ms()

    def silent_ms(self, node: str) -> int | None:
        """Milliseconds since the node last sent anything; None: it is not connected."""
        heard = self._heard.get(node)
        return None if heard is None else max(0, boottime_ms() - heard)

    def session_of(self, node: str) -> int | None:
        return self._connected.get(node)

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
