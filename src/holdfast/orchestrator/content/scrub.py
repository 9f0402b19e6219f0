"""Reads all stored content again, slowly, and compares it with its name: damage is found before somebody needs the
content. Only the leader does it.
"""

import asyncio
import logging
import random

from holdfast.blobs.errors import BlobError
from holdfast.blobs.keys import OWNED, Stored
from holdfast.blobs.store import BlobStore
from holdfast.boottime import boottime_ms
from holdfast.orchestrator.content.damage import DamageRecord
from holdfast.orchestrator.leader.loop import Leader
from holdfast.orchestrator.metrics import Metrics
from holdfast.wire.http import Finding

REST_S = 3600.0
"""Pause between two rounds, and before the first one."""
AGAIN_S = 30.0
"""Pause after content that could not be read."""

log = logging.getLogger("holdfast.scrub")


class Scrubber:
    def __init__(
        self, store: BlobStore, record: DamageRecord, leader: Leader, metrics: Metrics, bytes_per_s: int
    ) -> None:
        self._store = store
        self._record = record
        self._leader = leader
        self._metrics = metrics
        self._bytes_per_s = bytes_per_s
        self._place = (0, 0)
        """Of the round in progress: blobs done, and all."""
        self._ended_ms: int | None = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(REST_S)
            try:
                await self.round()
            except BlobError as wrong:
                log.warning("the stored content cannot be listed: %s", wrong)

    async def round(self) -> None:
        """Read everything once. A round starts anywhere, so that restarts do not favour what is listed first."""
        found: list[Stored] = []
        async for batch in self._store.list(OWNED):
            found += batch
        first = random.randrange(len(found)) if found else 0
        for done, stored in enumerate(found[first:] + found[:first]):
            self._place = done, len(found)
            try:
                if not self._leader.trouble:
                    await self._store.scrub(stored.key)
            except BlobError as wrong:
                log.warning("%s cannot be read now: %s", stored.key, wrong)
                await asyncio.sleep(AGAIN_S)
            self._metrics.scrubbed_bytes.inc(stored.size)
            self._metrics.scrubbed_blobs.inc()
            await asyncio.sleep(stored.size / self._bytes_per_s)
        self._place = len(found), len(found)
        self._ended_ms = boottime_ms()
        self._metrics.scrub_rounds.inc()

    def finding(self) -> Finding:
        """For `holdfast doctor`."""
        done, total = self._place
        ended = self._ended_ms
        last = "no round has ended yet" if ended is None else f"last round {(boottime_ms() - ended) // 60_000} min ago"
        says = f"{self._record.total} blobs found damaged since the start; {done} of {total} read again, {last}"
        return Finding("content is sound", self._record.total == 0, says)
