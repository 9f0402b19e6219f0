"""Server-sent events: the journal, and the output of a job. A reader resumes either from the id of its last event.

    id: <cursor to resume from>
    data: <EventView or LogLine>

`event: end` means that nothing follows; a stream that ends without it was cut, and its reader resumes. A comment
every few seconds shows that the stream is alive. With follow=false a stream ends at the newest event.

A job's output is one merged stream: each attempt's stdout and stderr as they were delivered, in the order of the
attempts, and between them the events of the platform (stream `platform`), an attempt's end after its last output.
"""

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model import Attempt, Blame, Confirmation, Entry, Job, Verdict
from holdfast.orchestrator.api.views import event_view
from holdfast.orchestrator.api.visibility import seen_entry
from holdfast.orchestrator.api_error import ApiError
from holdfast.orchestrator.wakeups import JOURNAL
from holdfast.wire.http import LogLine

if TYPE_CHECKING:
    from holdfast.orchestrator.api.call import ApiCall
    from holdfast.orchestrator.api.context import ApiContext

ALIVE_S = 10.0
"""Interval between comments that show that a stream is alive, in seconds."""
PAGE = 500
LOG_READ_BYTES = 64 * 1024
_BEFORE_OUTPUT = frozenset({"job.assigned", "attempt.go", "attempt.running"})
"""Events of an attempt that come before its output; all its other events come after."""


def sse(data: Any, id: str) -> bytes:
    return b"id: " + id.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


END = b"event: end\ndata: {}\n\n"
ALIVE = b": alive\n\n"


async def events(
    context: "ApiContext",
    after: int,
    job: str | None,
    node: str | None,
    follow: bool,
    shown: Callable[[Entry], Awaitable[Entry | None]],
) -> AsyncGenerator[bytes, None]:
    """The journal after entry `after`. `shown`: the entry as this reader may see it; None: it may
    not."""
    yield ALIVE
    with context.wakeups.listen(JOURNAL) as wakeup:
        while not context.stopping():
            wakeup.clear()
            if after and after < await context.queries.oldest_cursor():
                return  # cut: the reader was too slow, and is told so when it resumes
            page = await context.queries.entries(after, job, node, PAGE)
            for entry in page:
                after = entry.seq
                if (seen := await shown(entry)) is not None:
                    yield sse(event_view(seen, context.dated), str(entry.seq))
            if len(page) == PAGE:
                continue
            if not follow:
                yield END
                return
            if not await wakeup.woken_or_idle(ALIVE_S):
                yield ALIVE


async def while_allowed(
    pieces: AsyncGenerator[bytes, None], allowed: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """The stream, cut off once its reader's token is no longer valid. A reader that resumes is then refused."""
    try:
        async for piece in pieces:
            if not allowed():
                return
            yield piece
    finally:
        await pieces.aclose()


class Cursor:
    """The position of a reader in a job's output: `<entry>|<attempt>:<stdout>:<stderr>,…`, as in an event's id."""

    def __init__(self, text: str = "") -> None:
        self.entry = 0
        self.offsets: dict[int, dict[str, int]] = {}
        if not text:
            return
        try:
            entry, _, rest = text.partition("|")
            self.entry = int(entry)
            for part in filter(None, rest.split(",")):
                number, stdout, stderr = (int(field) for field in part.split(":"))
                self.offsets[number] = {"stdout": stdout, "stderr": stderr}
            numbers = [self.entry, *(v for o in self.offsets.values() for v in o.values())]
            if not all(0 <= number < 2**62 for number in numbers) or len(text) > 4096:
                raise ValueError
        except ValueError:
            raise ApiError("bad_cursor", "Last-Event-ID was not issued by this stream") from None

    def of(self, number: int) -> dict[str, int]:
        return self.offsets.setdefault(number, {"stdout": 0, "stderr": 0})

    def __str__(self) -> str:
        parts = (f"{n}:{o['stdout']}:{o['stderr']}" for n, o in sorted(self.offsets.items()))
        return f"{self.entry}|{','.join(parts)}"


class JobLog:
    """One reader of one job's output."""

    def __init__(self, call: "ApiCall", job: str, streams: tuple[str, ...], cursor: Cursor) -> None:
        self._context = call.context
        self._queries = call.context.queries
        self._job = job
        self._streams = streams
        self._cursor = cursor
        self._reader = call.principal

    async def follow(self, follow: bool) -> AsyncGenerator[bytes, None]:
        yield ALIVE
        with self._context.wakeups.listen(self._job) as wakeup:
            while not self._context.stopping():
                wakeup.clear()
                # Read the state first, then the output: if the job has ended, its output is complete when it is read.
                job, attempts, entries = await self._queries.ask(self._story)
                attempts = with_output(job, attempts)
                for entry in entries:
                    if entry.attempt is not None and entry.kind not in _BEFORE_OUTPUT:
                        async for piece in self._output([a for a in attempts if a.id == entry.attempt]):
                            yield piece
                    elif entry.kind == "job.ended":
                        async for piece in self._output(attempts):
                            yield piece
                    self._cursor.entry = entry.seq
                    text, at_ms = seen_entry(self._reader, entry).text, self._context.dated(entry.at_ms)
                    yield sse(LogLine(entry.attempt or "", "platform", entry.seq, text, at_ms), str(self._cursor))
                async for piece in self._output(attempts):
                    yield piece
                if len(entries) == PAGE:
                    continue
                if job is None or not job.live or not follow:
                    if job is not None and (gone := await self._gone(job)):
                        now_ms = self._context.time.wall_ms()
                        yield sse(LogLine("", "platform", self._cursor.entry, gone, now_ms), str(self._cursor))
                    yield END
                    return
                if not await wakeup.woken_or_idle(ALIVE_S):
                    yield ALIVE

    async def _gone(self, job: Job) -> str:
        context = self._context
        return await self._queries.ask(context.log_retention.gone, job, context.leader.served_ms())

    def _story(self) -> tuple[Job | None, list[Attempt], list[Entry]]:
        store = self._queries.store
        job = store.job(self._job)
        return job, store.attempts(self._job), store.entries(self._cursor.entry, self._job, None, PAGE)

    async def _output(self, attempts: list[Attempt]) -> AsyncGenerator[bytes, None]:
        """The unread output of these attempts, in order."""
        for attempt in attempts:
            for stream in self._streams:
                async for piece in self._stream(attempt, stream):
                    yield piece

    async def _stream(self, attempt: Attempt, stream: str) -> AsyncGenerator[bytes, None]:
        at = self._cursor.of(_number(attempt))
        while True:
            raw = await self._queries.ask(self._context.logs.read, attempt.id, stream, at[stream], LOG_READ_BYTES)
            text, size = whole_text(raw, final=not attempt.live and len(raw) < LOG_READ_BYTES)
            if not size:
                return
            offset = at[stream]
            at[stream] = offset + size
            exact = "" if text.encode() == raw[:size] else base64.b64encode(raw[:size]).decode()
            yield sse(LogLine(attempt.id, stream, offset, text, raw=exact), str(self._cursor))
            if size == len(raw) < LOG_READ_BYTES:
                return
            await self._context.time.sleep(0)


def with_output(job: Job | None, attempts: list[Attempt]) -> list[Attempt]:
    """The attempts whose output is shown. Once a failure was confirmed or refuted by another machine, that is what the
    other machine printed, and not what the doubted one did."""
    if job is None or job.live:
        return attempts
    blaming = [a for a in attempts if a.failure is not None and a.failure.meaning.blame is Blame.USER]
    if job.confirmation is Confirmation.CONFIRMED:
        del blaming[-1:]
    elif job.verdict is not Verdict.SUCCEEDED:
        return attempts
    return [a for a in attempts if a not in blaming]


def _number(attempt: Attempt) -> int:
    return int(attempt.id.rpartition(".")[2])


def whole_text(raw: bytes, final: bool) -> tuple[str, int]:
    """The complete characters in the bytes, and how many bytes they take. Bytes that are not UTF-8 are shown as �.

    The last character may be cut off; it is left for the next read, unless `final` says that nothing follows.
    """
    size = len(raw)
    if not final:
        for back in range(1, min(4, size) + 1):
            lead = raw[-back]
            if lead & 0xC0 == 0x80:
                continue
            need = 2 if lead & 0xE0 == 0xC0 else 3 if lead & 0xF0 == 0xE0 else 4 if lead & 0xF8 == 0xF0 else 1
            if need > back:
                size -= back
            break
    return raw[:size].decode("utf-8", "replace"), size
