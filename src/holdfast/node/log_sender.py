"""Sends the logs of attempts to the orchestrator, in order and to the last byte (SPEC J4). Decides nothing.

Only a file that is gone or ends early is shorter than reported. An error of a read says nothing about the length of the
file: the read is tried again, for as long as the attempt may upload.

At most one piece per attempt and stream is in flight: then an acknowledgement below what was sent always means a gap,
never a delay. In a new session the orchestrator is asked how far each log is durable, so no position has to be stored
here. Knows files and pieces; the link transports them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

from holdfast.model import AttemptId
from holdfast.tasks import TaskScope
from holdfast.wire.convert import LogDurable, LogPiece
from holdfast.wire.limits import LOG_DATA_BYTES_MAX

STREAMS = ("stdout", "stderr")
SILENT_S_MAX = 90.0
"""If a piece is not acknowledged for this long, the orchestrator is considered gone. Longer than an orchestrator may be
frozen without consequences."""
AGAIN_S = 0.5
"""Delay before a piece that did not become durable is sent again, and before a failed read is tried again; the latter
doubles with each failure in a row, up to `READ_DOUBLINGS_MAX` times."""
READ_DOUBLINGS_MAX = 4

log = logging.getLogger("holdfast.node")


class SilentOrchestrator(Exception):
    """The orchestrator accepts logs but acknowledges nothing."""


class _Tail(msgspec.Struct):
    """One log file and how far it has been delivered."""

    path: Path
    fence: int
    size: int = 0
    durable: int | None = None
    """None: not known yet in this session."""
    sent_at: float | None = None
    """When the piece in flight was sent; None: none is in flight."""
    refused: bool = False
    read_failures: int = 0
    """Failed reads in a row."""

    @property
    def delivered(self) -> bool:
        return self.refused or self.size == 0 or (self.durable is not None and self.durable >= self.size)


Key = tuple[AttemptId, str]


class Courier:
    def __init__(self, delivered: Callable[[AttemptId], None]) -> None:
        """`delivered` is called once for each attempt whose logs are final and completely durable."""
        self._delivered = delivered
        self._tails: dict[Key, _Tail] = {}
        self._final: set[AttemptId] = set()
        self._told: set[AttemptId] = set()
        self._stir: dict[Key, None] = {}
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()

    def follow(self, attempt: AttemptId, fence: int, folder: Path, fresh: bool) -> None:
        """`fresh`: nothing of it can have been delivered yet, so the orchestrator need not be asked."""
        for stream in STREAMS:
            self._tails[attempt, stream] = _Tail(folder / f"{stream}.log", fence, durable=0 if fresh else None)

    def grew(self, attempt: AttemptId, sizes: dict[str, int], final: bool) -> None:
        """The files have these sizes; `final`: they will not grow any more."""
        for stream, size in sizes.items():
            tail = self._tails.get((attempt, stream))
            if tail is not None and size > tail.size:
                tail.size = size
                self._look_at((attempt, stream))
        if final:
            self._final.add(attempt)
            self._check(attempt)

    def forget(self, attempt: AttemptId) -> None:
        for stream in STREAMS:
            self._tails.pop((attempt, stream), None)
        self._final.discard(attempt)
        self._told.discard(attempt)

    def is_delivered(self, attempt: AttemptId) -> bool:
        """Whether all known logs of the attempt are durable."""
        tails = [self._tails.get((attempt, stream)) for stream in STREAMS]
        return all(tail is None or tail.delivered for tail in tails)

    async def until_delivered(self, attempt: AttemptId) -> None:
        while not self.is_delivered(attempt):
            self._moved.clear()
            await self._moved.wait()

    # --- one session ---

    async def carry(self, send: Callable[[LogPiece], Awaitable[None]], acks: AsyncIterator[LogDurable]) -> None:
        """Deliver over one stream until it ends. Raises SilentOrchestrator if nothing is acknowledged for too long."""
        for key, tail in self._tails.items():
            tail.durable, tail.sent_at = None, None
            self._look_at(key)
        async with TaskScope() as tasks:
            sending = tasks.start("send logs", self._send_all(send))
            hearing = tasks.start("read acknowledgements of logs", self._hear_all(acks))
            done, _ = await asyncio.wait((sending, hearing), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _send_all(self, send: Callable[[LogPiece], Awaitable[None]]) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            try:
                async with asyncio.timeout(SILENT_S_MAX / 10):
                    await self._wake.wait()
            except TimeoutError:
                oldest = min((t.sent_at for t in self._tails.values() if t.sent_at is not None), default=None)
                if oldest is not None and clock() - oldest > SILENT_S_MAX:
                    raise SilentOrchestrator(f"no log was acknowledged for {SILENT_S_MAX:.0f} s") from None
                continue
            self._wake.clear()
            stir, self._stir = self._stir, {}
            for key in stir:
                piece = self._next_piece(key)
                if piece is not None:
                    self._tails[key].sent_at = clock()
                    await send(piece)

    def _next_piece(self, key: Key) -> LogPiece | None:
        tail = self._tails.get(key)
        if tail is None or tail.sent_at is not None or tail.delivered:
            return None
        attempt, stream = key
        if tail.durable is None:
            return LogPiece(attempt, tail.fence, stream, 0, b"")
        try:
            with tail.path.open("rb") as file:
                file.seek(tail.durable)
                data = file.read(min(LOG_DATA_BYTES_MAX, tail.size - tail.durable))
        except FileNotFoundError:
            log.warning("%s of %s is gone", stream, attempt)
            data = b""
        except OSError as wrong:
            self._read_later(key, tail, wrong)
            return None
        tail.read_failures = 0
        if not data:
            # The file is shorter than reported: deliver what there is.
            tail.size = tail.durable
            self._check(attempt)
            return None
        return LogPiece(attempt, tail.fence, stream, tail.durable, data)

    def _read_later(self, key: Key, tail: _Tail, wrong: OSError) -> None:
        """The file could not be opened or read. Most such errors pass: too many open files, no memory, a busy disk."""
        if not tail.read_failures:
            log.warning("%s of %s cannot be read, trying again: %s", key[1], key[0], wrong)
        wait_s = AGAIN_S * 2 ** min(tail.read_failures, READ_DOUBLINGS_MAX)
        tail.read_failures += 1
        asyncio.get_running_loop().call_later(wait_s, self._look_at, key)

    async def _hear_all(self, acks: AsyncIterator[LogDurable]) -> None:
        loop = asyncio.get_running_loop()
        async for ack in acks:
            key = (ack.attempt, ack.stream)
            tail = self._tails.get(key)
            if tail is None:
                continue
            before, tail.durable, tail.sent_at = tail.durable, ack.durable_offset, None
            if ack.refused:
                log.info("logs of %s are not wanted: %s", ack.attempt, ack.refused)
                tail.refused = True
            if before is not None and ack.durable_offset <= before and not tail.delivered:
                loop.call_later(AGAIN_S, self._look_at, key)
            else:
                self._look_at(key)
            self._check(ack.attempt)

    def _look_at(self, key: Key) -> None:
        self._stir[key] = None
        self._wake.set()

    def _check(self, attempt: AttemptId) -> None:
        self._moved.set()
        if attempt in self._final and attempt not in self._told and self.is_delivered(attempt):
            self._told.add(attempt)
            self._delivered(attempt)
