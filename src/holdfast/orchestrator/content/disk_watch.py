"""Watches the orchestrator's disk: holds the store's reserve, and has deleted what nobody needs when space is short.

Nothing that was promised is deleted early. Needs no commit, so it works while the store cannot write.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from holdfast.blobs.errors import BlobError
from holdfast.blobs.folder import short_of_space
from holdfast.orchestrator.api_error import Unavailable
from holdfast.state import StoreError
from holdfast.state.reserve import StoreReserve

LOOK_S = 2.0
"""Interval between looks, in seconds."""
NEAR = 2
"""Space is freed before uploads are refused: one that fails gives back what it took, and space seems to be there."""

FREED_LATER = (OSError, BlobError, StoreError, Unavailable)
"""Errors of one way to free space. The others are tried all the same."""

log = logging.getLogger("holdfast.disk_watch")


class DiskWatch:
    def __init__(self, data: Path, reserve: StoreReserve, clear: Mapping[str, Callable[[], Awaitable[int]]]) -> None:
        """`clear`: by its name, what deletes something that is not needed any more and returns how much that was; the
        first is tried first."""
        self._data = data
        self._reserve = reserve
        self._clear = clear

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        for what, clear in self._clear.items():
            try:
                if await asyncio.to_thread(short_of_space, self._data, NEAR) and (cleared := await clear()):
                    log.info("the disk is short of space: %d %s were deleted", cleared, what)
            except FREED_LATER as wrong:
                log.warning("no %s were deleted: %s", what, wrong)
        try:
            await asyncio.to_thread(self._reserve.hold)
        except OSError as wrong:
            log.warning("the reserve of the store cannot be held: %s", wrong)
