"""Writes logs from the bulk streams to disk: gathers pieces, writes and syncs them together, then acknowledges them.

One writer serves all nodes, so the cost of a sync is shared; limits per stream and in all bound the memory. The
session, or else the store, decides whether a node may deliver an attempt's logs.
"""

import asyncio
import logging

from holdfast.model import job_of
from holdfast.orchestrator.logs.log_files import LogRefused, LogStore
from holdfast.orchestrator.metrics import Metrics
from holdfast.orchestrator.nodes.sessions import Session
from holdfast.orchestrator.wakeups import Wakeups
from holdfast.state import Store
from holdfast.wire.convert import LogDurable, LogPiece

log = logging.getLogger("holdfast.logs")

PIECES_PER_SYNC_MAX = 256
PIECES_WAITING_MAX = 1_024
"""Limit for all nodes together: at most 256 MiB wait for the disk, however slow it is."""


class LogIntake:
    def __init__(self, logs: LogStore, wakeups: Wakeups, metrics: Metrics) -> None:
        self._logs = logs
        self._wakeups = wakeups
        self._metrics = metrics
        self._queue: asyncio.Queue[tuple[LogPiece, asyncio.Future[LogDurable]]] = asyncio.Queue(PIECES_WAITING_MAX)

    async def put(self, piece: LogPiece) -> "asyncio.Future[LogDurable]":
        """Store a piece, once the queue has room for it. The future's result is what is durable; its exception is the
        disk's error."""
        future: asyncio.Future[LogDurable] = asyncio.get_running_loop().create_future()
        await self._queue.put((piece, future))
        return future

    async def run(self) -> None:
        running = asyncio.get_running_loop()
        while True:
            taken = [await self._queue.get()]
            while not self._queue.empty() and len(taken) < PIECES_PER_SYNC_MAX:
                taken.append(self._queue.get_nowait())
            try:
                outcomes = await running.run_in_executor(
                    self._logs.writer, self._logs.append, [piece for piece, _ in taken]
                )
            except OSError as cause:
                log.error("logs cannot be written: %s", cause)
                for _, future in taken:
                    if not future.done():
                        future.set_exception(OSError(*cause.args))
                continue
            for (piece, future), outcome in zip(taken, outcomes, strict=True):
                self._settle(piece, future, outcome)

    def _settle(self, piece: LogPiece, future: "asyncio.Future[LogDurable]", outcome: int | LogRefused) -> None:
        if isinstance(outcome, LogRefused):
            answer = LogDurable(piece.attempt, piece.stream, 0, str(outcome))
        else:
            answer = LogDurable(piece.attempt, piece.stream, outcome)
            self._metrics.log_bytes.inc(len(piece.data))
            self._wakeups.wake(job_of(piece.attempt))
        if not future.done():
            future.set_result(answer)


def why_unwanted(store: Store, session: Session, piece: LogPiece) -> str:
    """Why this piece is refused; empty if the session's node holds this attempt under this fence. Queries the store, so
    it runs in a thread."""
    for attempt in store.attempts(job_of(piece.attempt)):
        if attempt.id != piece.attempt:
            continue
        if attempt.node != session.node or attempt.fence != piece.fence:
            return f"{piece.attempt} is not held by this node under fence {piece.fence}"
        return "" if attempt.live else f"{piece.attempt} has ended"
    return f"{piece.attempt} is not known"
