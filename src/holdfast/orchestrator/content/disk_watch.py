"""Watches the orchestrator's disk: holds the store's reserve, and has deleted what nobody needs when space is short.

Nothing that was promised is deleted early. Needs no commit, so it works while the store cannot write.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from holdfast.blobs.errors import BlobError
from holdfast.blobs.folder import short_of_space
from holdfast.state import StoreError
from holdfast.state.reserve import StoreReserve

LOOK_S = 2.0
"""Interval between looks, in seconds."""
NEAR = 2
"""Space is freed before uploads are refused: one that fails gives back what it took, and space seems to be there."""

log = logging.getLogger("holdfast.disk_watch")


class DiskWatch:
    def __init__(self, data: Path, reserve: StoreReserve, clear: Sequence[Callable[[], Awaitable[int]]]) -> None:
        """`clear`: each deletes what is not needed any more, and returns how much that was."""
        self._data = data
        self._reserve = reserve
        self._clear = clear

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except (OSError, BlobError, StoreError) as wrong:
                log.warning("no space was freed: %s", wrong)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        for clear in self._clear:
            if await asyncio.to_thread(short_of_space, self._data, NEAR):
                cleared = await clear()
                if cleared:
                    log.info("the disk is short of space: %d things that nobody needs were deleted", cleared)
        await asyncio.to_thread(self._reserve.hold)
