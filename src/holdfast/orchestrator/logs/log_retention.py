"""Deletes the output of jobs that ended long enough ago, and tells a reader when output has been deleted.

The time counts from when the end was first seen here, on the patience clock, which stands still while no orchestrator
leads or it is late. So an outage does not shorten the time in which output can be read, and a wall clock that is set
deletes nothing. Output that is being read is not deleted until the reader is done.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from holdfast.model import Job
from holdfast.orchestrator.logs.log_files import LogStore
from holdfast.orchestrator.wakeups import Wakeups
from holdfast.state import Store, StoreError

CLEAR_S = 3600.0
"""Interval between rounds, in seconds. Output is kept for weeks, so an hour does not matter."""
ASKED_AT_ONCE = 500
"""Jobs per query to the store."""

log = logging.getLogger("holdfast.log_retention")


def interval_s(longest_s: float, keep_ms: int) -> float:
    """The interval between two rounds that delete what was kept for so long, in seconds."""
    return max(1.0, min(longest_s, keep_ms / 4000))


class LogRetention:
    def __init__(self, logs: LogStore, store: Store, wakeups: Wakeups, keep_ms: int) -> None:
        self._logs = logs
        self._store = store
        self._wakeups = wakeups
        self._keep_ms = keep_ms

    async def run(self, leads: Callable[[], bool]) -> None:
        while True:
            await asyncio.sleep(interval_s(CLEAR_S, self._keep_ms))
            if not leads():
                continue
            try:
                cleared = await self.clear()
                if cleared:
                    log.info("the output of %d jobs that ended long ago was deleted", cleared)
            except (OSError, StoreError) as wrong:
                log.warning("no output was deleted: %s", wrong)

    async def clear(self) -> int:
        """Run one round. Returns the number of jobs whose output was deleted."""
        doomed = await asyncio.to_thread(self._look)
        cleared = 0
        for job in doomed:
            if not self._wakeups.listened_for(job):
                await asyncio.get_running_loop().run_in_executor(self._logs.writer, self._logs.delete, job)
                cleared += 1
        return cleared

    def gone(self, job: Job, served_ms: int) -> str:
        """The message for a reader if the job's output has been deleted; empty if it has not."""
        if job.ended_ms is None or served_ms - job.ended_ms < self._keep_ms or self._logs.has(job.id):
            return ""
        days = self._keep_ms / 86_400_000
        return f"what it printed is gone: output is kept for {days:g} days after a job's end"

    def _look(self) -> list[str]:
        """Jobs whose output has been kept for long enough. Marks jobs that are seen to have ended for the first
        time."""
        meta = self._store.meta()
        if meta is None:
            return []
        now_ms = meta.now_ms - meta.late_ms
        doomed: list[str] = []
        unmarked: list[str] = []
        for job in self._logs.jobs():
            ended_ms = self._logs.marked(job)
            if ended_ms is None:
                unmarked.append(job)
            elif now_ms - ended_ms >= self._keep_ms:
                doomed.append(job)
        for first in range(0, len(unmarked), ASKED_AT_ONCE):
            some = unmarked[first : first + ASKED_AT_ONCE]
            live = {job.id for job in self._store.jobs_by_ids(some) if job.live}
            for job in some:
                if job not in live:
                    with contextlib.suppress(OSError):  # a full disk takes no mark; a later round writes it
                        self._logs.mark(job, now_ms)
        return doomed
