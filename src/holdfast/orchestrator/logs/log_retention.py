"""Lets go of what jobs printed, once they have ended long enough ago; and tells a reader who comes too late.

The time counts from when the end was first seen here, and only while an orchestrator leads: on the patience clock,
which stands still while nobody serves. Whoever could not ask, because there was nobody to ask, loses nothing by it; and
a wall clock that jumps ahead deletes nothing. What somebody is reading stays until they have read it.
"""

import asyncio
import logging
from collections.abc import Callable

from holdfast.model import Job
from holdfast.orchestrator.leader.clock import wall_ms
from holdfast.orchestrator.logs.log_files import LogStore
from holdfast.orchestrator.wakeups import Wakeups
from holdfast.state import Store, StoreError

CLEAR_S = 3600.0
"""Hours do not matter in a month."""
ASKED_AT_ONCE = 500

log = logging.getLogger("holdfast.shelf")


class LogRetention:
    def __init__(self, logs: LogStore, store: Store, wakeups: Wakeups, keep_ms: int) -> None:
        self._logs = logs
        self._store = store
        self._wakeups = wakeups
        self._keep_ms = keep_ms

    async def run(self, leads: Callable[[], bool]) -> None:
        while True:
            await asyncio.sleep(CLEAR_S)
            if not leads():
                continue
            try:
                cleared = await self.clear()
                if cleared:
                    log.info("the output of %d jobs that ended long ago was deleted", cleared)
            except (OSError, StoreError) as wrong:
                log.warning("no output was deleted: %s", wrong)

    async def clear(self) -> int:
        """One round; of how many jobs the output was deleted."""
        doomed = await asyncio.to_thread(self._look)
        cleared = 0
        for job in doomed:
            if not self._wakeups.listened_for(job):
                await asyncio.get_running_loop().run_in_executor(self._logs.writer, self._logs.delete, job)
                cleared += 1
        return cleared

    def gone(self, job: Job) -> str:
        """What to tell a reader of this job's output if it is no longer there; empty while it is."""
        if job.ended_ms is None or wall_ms() - job.ended_ms < self._keep_ms or self._logs.has(job.id):
            return ""
        days = self._keep_ms / 86_400_000
        return f"what it printed is gone: output is kept for {days:g} days after a job's end"

    def _look(self) -> list[str]:
        """Jobs whose output has been kept for long enough. Those seen ended for the first time are marked."""
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
                    self._logs.mark(job, now_ms)
        return doomed
