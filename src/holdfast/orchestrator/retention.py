"""Deletes ended jobs and journal entries that were kept for long enough. It decides nothing: it looks for the oldest,
asks the kernel, and acts on the answer.

A job goes last of all: after its files (`Keep`), after its output, and after all other items of its array. What the
kernel allows is committed first: the commit replaces a job by a row that keeps its idempotency key used, and only then
is anything of the journal deleted. A crash at any point leaves rows that the next round finds again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from holdfast.kernel.decision import Deletions
from holdfast.kernel.events import DeletionAsked, OldJob
from holdfast.model import Entry, Instant, Job, Keep, Settings
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.leader.core import TIGHT_JOBS_MAX
from holdfast.orchestrator.leader.loop import Leader
from holdfast.orchestrator.logs.log_retention import interval_s
from holdfast.state import StoreError

ROUND_S = 600.0
"""Interval between rounds, in seconds. What is kept for months need not go at once."""
PAUSE_S = 0.2
"""Between two commits of one round, in seconds, so that deleting never takes more than a part of the store's time."""
JOBS_AT_ONCE = 200
ENTRIES_AT_ONCE = 2_000
"""Rows that one step deletes. Both take some milliseconds."""

log = logging.getLogger("holdfast.retention")

Cursor = tuple[int, str]
START: Cursor = (-1, "")


class OldRows(Protocol):
    """The queries of `state.Store` that are needed here."""

    def ended_before(self, ended_ms: int, after: Cursor = START, limit: int = 200) -> list[Job]: ...
    def keeps_of(self, jobs: Iterable[str]) -> list[Keep]: ...
    def array_ended(self, array: str) -> int | None: ...
    def entries(
        self, after_seq: int = 0, job: str | None = None, node: str | None = None, limit: int = 1000
    ) -> list[Entry]: ...


def look(
    store: OldRows,
    has_output: Callable[[str], bool],
    settings: Settings,
    now_ms: int,
    after: Cursor = START,
    *,
    jobs_max: int = JOBS_AT_ONCE,
) -> tuple[DeletionAsked, Cursor | None]:
    """The next question to the kernel, and where the next page of jobs begins; None: this was the last."""
    jobs = store.ended_before(now_ms - settings.jobs_keep_ms, after, jobs_max)
    keeps = {keep.id: keep for keep in store.keeps_of(job.id for job in jobs)}
    arrays = {array: store.array_ended(array) for job in jobs if (array := job.spec.array)}
    old = tuple(
        OldJob(job, keeps.get(job.id), _ended(arrays.get(job.spec.array, 0)), has_output(job.id)) for job in jobs
    )
    # The newest entry stays: by it, a reader with an older cursor is told that entries were deleted.
    entries = store.entries(0, limit=ENTRIES_AT_ONCE + 1)[:-1]
    stale = [entry for entry in entries if entry.at_ms <= now_ms - settings.journal_keep_ms]
    asked = DeletionAsked(old, stale[-1].seq, stale[-1].at_ms) if stale else DeletionAsked(old)
    more = len(jobs) == jobs_max or len(stale) == ENTRIES_AT_ONCE
    last = (jobs[-1].submitted_ms, jobs[-1].id) if jobs else after
    return asked, last if more else None


def _ended(at_ms: int | None) -> Instant | None:
    return None if at_ms is None else Instant(at_ms)


class Retention:
    def __init__(self, leader: Leader, has_output: Callable[[str], bool]) -> None:
        self._leader = leader
        self._has_output = has_output
        self._alone = asyncio.Lock()

    async def run(self) -> None:
        settings = self._leader.settings
        while True:
            await asyncio.sleep(interval_s(ROUND_S, min(settings.jobs_keep_ms, settings.journal_keep_ms)))
            if self._leader.trouble:
                continue
            try:
                gone = await self.round()
                if gone:
                    log.info("%d jobs that ended long ago were deleted", gone)
            except (StoreError, Unavailable, OSError) as wrong:
                log.warning("not everything old was deleted: %s", getattr(wrong, "says", wrong))

    async def round(self) -> int:
        """Delete what may go. Returns the number of jobs that were deleted."""
        gone, after = 0, START
        async with self._alone:
            while after is not None:
                gone_now, after = await self._step(after)
                gone += gone_now
                await asyncio.sleep(PAUSE_S if after and not self._leader.core.tight else 0)
        return gone

    async def clear(self) -> int:
        """A round that does not wait for its time, because space is short. Returns what `round` does."""
        return 0 if self._leader.trouble else await self.round()

    async def _step(self, after: Cursor) -> tuple[int, Cursor | None]:
        leader = self._leader
        epoch, now_ms = leader.epoch, leader.now_ms()
        jobs_max = TIGHT_JOBS_MAX if leader.core.tight else JOBS_AT_ONCE
        asked, after_this = await asyncio.to_thread(
            look, leader.store, self._has_output, leader.settings, now_ms, after, jobs_max=jobs_max
        )
        if not asked.jobs and not asked.entry_seq:
            return 0, None
        answer = await leader.ask(asked)
        if not isinstance(answer, Deletions):
            return 0, None
        if answer.entry_seq:
            await leader.forget_entries(answer.entry_seq, epoch)
        return answer.jobs, after_this
