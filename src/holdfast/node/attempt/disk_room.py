"""Reserves disk space for attempts: for everything that this machine keeps for a job, before the job is prepared.

A job with disk D has a file system for D, with its tables; its output, at most D again or 1 MiB for each stream; and
some small files. An attempt for which the machine has no room is refused, which costs nobody anything (SPEC N4, N5). So
no job that keeps within its limits fills the disk.
"""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from holdfast.node import linux
from holdfast.node.core.order import Order
from holdfast.node.health import DISK_FREE_MIB_MIN
from holdfast.node.runtimes import scratch

MIB = 1 << 20
BESIDE_BYTES = 1 * MIB
"""Order, status and the like."""
FREE_BYTES_MIN = (DISK_FREE_MIB_MIN + 16) * MIB
"""Attempts leave this much of the disk free: a machine with a little less counts as sick."""
CACHES_FREE_BYTES_MIN = 2 * FREE_BYTES_MIN
"""Caches leave more: they must not keep attempts out."""
OUTPUT = ("stdout.log", "stderr.log")


def footprint_bytes(order: Order) -> int:
    """The most that an attempt takes of the machine's disk."""
    return scratch.room_for(order.resources.get("disk_mib", 0)) + len(OUTPUT) * order.log_bytes_max + BESIDE_BYTES


def free_bytes(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


class DiskRoom:
    """May be used by several threads."""

    def __init__(self, attempts: Path, free: Callable[[Path], int] = free_bytes) -> None:
        """`attempts`: the folder of the folders of all attempts."""
        self._attempts = attempts
        self._free = free
        self._lock = Lock()
        self._promised: dict[str, int] = {}

    def take(self, order: Order) -> int:
        """Promise the attempt its space. Returns 0, or how many bytes are lacking. Its folder exists, and the promise
        lasts for as long as it does. Blocking."""
        with self._lock:
            self._promised = {name: size for name, size in self._promised.items() if (self._attempts / name).exists()}
            lacking = footprint_bytes(order) + FREE_BYTES_MIN - self._free(self._attempts) + self._outstanding()
            if lacking > 0:
                return lacking
            self._promised[order.attempt] = footprint_bytes(order)
            return 0

    def adopt(self, order: Order) -> None:
        """Count an attempt that an earlier agent prepared."""
        with self._lock:
            self._promised[order.attempt] = footprint_bytes(order)

    def _outstanding(self) -> int:
        """What attempts were promised and have not taken yet."""
        return sum(max(0, size - taken_bytes(self._attempts / name)) for name, size in self._promised.items())


def taken_bytes(folder: Path) -> int:
    """What an attempt has of the machine's disk: files that it wrote, and space that is reserved for it."""
    if (folder / scratch.IMAGE).exists():
        return sum(_allocated(folder / name) for name in (scratch.IMAGE, *OUTPUT))
    return scratch.measured_mib(str(folder)) * MIB


def _allocated(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_blocks * 512
    return 0


def reserve_output(folder: Path, bytes_max: int) -> None:
    """Reserve space for what the body prints. Raises OSError if there is not enough. Blocking."""
    for name in OUTPUT:
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            linux.reserve(file, bytes_max, keep_size=True)
        except OSError as wrong:
            if wrong.errno != errno.EOPNOTSUPP:
                raise
        finally:
            os.close(file)
