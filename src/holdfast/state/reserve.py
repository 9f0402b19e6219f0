"""Space on the store's disk that only the store may use: a file that is given up when a commit finds no space.

    free space       who still writes
    below 15 %       no uploads of files (blobs/folder.py)
    below 10 %       no logs (orchestrator/logs/log_files.py); nodes keep them
    below 5 %        no new jobs, tokens, machines or moves: `low`
    none             the reserve is given up, and the store goes on in its space: what runs can end, and the garbage
                     collector can note what it deletes

Once there is space again, the reserve is held again. For a store on another machine there is none.
"""

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from holdfast.passing import once_more

RESERVE_BYTES = 64 << 20
RESERVE_SHARE = 20
"""The reserve takes at most one part in this many of a small disk."""
LOW_BYTES = 256 << 20
LOW_SHARE = 20
WRITTEN_TIMES = 2
"""A new row is in the write-ahead log and in the store's file at the same time."""

log = logging.getLogger("holdfast.reserve")


class StoreReserve:
    def __init__(self, store: Path | None, reusable: Callable[[], int] = lambda: 0) -> None:
        """`store`: its file; None: it is not on a disk of this machine. `reusable`: bytes in it that hold no row."""
        self._folder = store.parent if store is not None else None
        self._file = store.with_name(store.name + ".reserve") if store is not None else None
        self._reusable = reusable

    def hold(self) -> bool:
        """Take the space of the reserve, if there is enough for others too. Returns whether it is held."""
        if self._folder is None or self._file is None:
            return False
        free, total = _space(self._folder)
        size = min(RESERVE_BYTES, total // RESERVE_SHARE)
        if self._file.exists() and self._file.stat().st_size >= size:
            return True
        if free < size + 2 * _low_bytes(total):
            return False
        file = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
        finally:
            os.close(file)
        return True

    def release(self) -> bool:
        """A commit failed: give up the reserve if the disk is full. Returns whether there is space now."""
        if self._folder is None or self._file is None:
            return False
        free, total = _space(self._folder)
        if free >= _low_bytes(total):
            return False
        with contextlib.suppress(FileNotFoundError):
            self._file.unlink()
            log.error("the disk of the store is full: its reserve is given up, so that it can go on")
            return True
        return False

    def short(self) -> bool:
        """Whether large commits may fail for lack of space, also those that only replace rows or delete them."""
        if self._folder is None:
            return False
        free, total = _space(self._folder)
        return free < _low_bytes(total)

    def low(self, growth: int = 0) -> str:
        """Why nothing new of this size is taken; empty while there is enough space. Space inside the store counts."""
        if self._folder is None:
            return ""
        free, total = _space(self._folder)
        least = _low_bytes(total) + WRITTEN_TIMES * growth
        if free >= least or free + self._reusable() >= least:
            return ""
        return f"{free >> 20} MiB are left on its disk; what runs may end, and nothing new is taken"


def _low_bytes(total: int) -> int:
    return min(LOW_BYTES, total // LOW_SHARE)


def _space(folder: Path) -> tuple[int, int]:
    disk = once_more(os.statvfs, folder)
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
