"""Streams that a caller follows: the journal, and the output of a job. `streams.py` makes their content."""

from typing import Annotated

import msgspec

from holdfast.model import Entry
from holdfast.orchestrator.api import streams
from holdfast.orchestrator.api.call import ApiCall, EventStream
from holdfast.orchestrator.api.visibility import JournalFilter, seen_entry
from holdfast.orchestrator.api_error import ApiError, CursorExpired

TAIL_MAX = 1_000
_CHOICES = {"both": ("stdout", "stderr"), "stdout": ("stdout",), "stderr": ("stderr",)}


async def follow_events(
    call: ApiCall,
    after: int = 0,
    job: str | None = None,
    node: str | None = None,
    follow: bool = False,
    tail: Annotated[int, msgspec.Meta(ge=0, le=TAIL_MAX)] | None = None,
) -> EventStream:
    context = call.context
    queries = context.queries
    if tail is not None:
        after = max(after, await queries.ask(queries.store.last_seq) - tail)
    last = call.headers.get("last-event-id")
    if last is not None:
        if not last.isascii() or not last.isdigit() or len(last) > 18:
            raise ApiError("bad_cursor", "Last-Event-ID was not issued by this stream")
        after = int(last)
    oldest = await queries.oldest_cursor()
    if 0 < after < oldest:
        raise CursorExpired(oldest)
    job_id = (await call.job(job)).id if job else None
    node_id = (await call.node(node)).id if node else None
    readable = JournalFilter(call)

    async def shown(entry: Entry) -> Entry | None:
        return seen_entry(call.principal, entry) if await readable(entry) else None

    return EventStream(streams.events(context, max(0, after), job_id, node_id, follow, shown))


async def follow_logs(call: ApiCall, job: str, stream: str = "both", follow: bool = False) -> EventStream:
    chosen = _CHOICES.get(stream)
    if chosen is None:
        raise ApiError("bad_request", f"stream is {stream[:60]!r}; it can be stdout, stderr or both")
    cursor = streams.Cursor(call.header("last-event-id"))
    found = await call.job(job)
    return EventStream(streams.JobLog(call, found.id, chosen, cursor).follow(follow))
