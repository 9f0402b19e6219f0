"""A cache of blobs in a folder of limited size; evicts the least recently used.

Every read is hashed, so a damaged file counts as missing. Used from several threads of one process; knows no network.
"""

import contextlib
import os
import secrets
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import cast

from holdfast.blobs.errors import BlobMissing, Mismatch
from holdfast.blobs.keys import is_sha
from holdfast.blobs.verified import VerifiedBytes, verify
from holdfast.durable import atomic_write

_TEMPORARY = ".new-"


class BlobCache:
    def __init__(self, folder: Path, bytes_max: int, bytes_free_min: int = 0) -> None:
        """Blobs that an earlier process left there are used again, in the order of their last use. `bytes_free_min`:
        how much of the disk it leaves free, whatever its size."""
        self._folder = folder
        self._bytes_max = bytes_max
        self._bytes_free_min = bytes_free_min
        self._lock = Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Least recently used first."""
        self._total = 0
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found: list[tuple[int, str, int]] = []
        with os.scandir(folder) as listing:
            for entry in listing:
                if entry.name.startswith(_TEMPORARY):
                    os.unlink(entry.path)
                elif is_sha(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, entry.name, status.st_size))
        for _, sha, size in sorted(found):
            self._sizes[sha] = size
            self._total += size
        with self._lock:
            self._shrink()

    @property
    def total_bytes(self) -> int:
        return self._total

    def get(self, sha: str) -> bytes | bytearray | None:
        """The blob, or None if it is not here or is damaged."""
        found = self.find(sha)
        return None if found is None else cast(bytes, found.data)

    def find(self, sha: str) -> VerifiedBytes | None:
        with self._lock:
            if sha not in self._sizes:
                return None
            self._sizes.move_to_end(sha)
        path = self._folder / sha
        try:
            data = path.read_bytes()
            found = verify(sha, len(data), data)
            os.utime(path)
            return found
        except (OSError, Mismatch):
            pass  # counts as missing
        self.drop(sha)
        return None

    def read(self, sha: str) -> bytes | bytearray:
        """The blob, as a source for uploads."""
        data = self.get(sha)
        if data is None:
            raise BlobMissing(f"blob {sha} is not in the cache any more")
        return data

    def __contains__(self, sha: str) -> bool:
        """Whether it is in the cache; only `get` checks that it is undamaged."""
        return sha in self._sizes

    def put(self, sha: str, data: bytes | bytearray | memoryview) -> None:
        """Store a blob, whose hash the caller has checked. A failed write is ignored: the cache is only an
        optimisation."""
        if len(data) > self._bytes_max or sha in self._sizes or self._short_of_space(len(data)):
            return
        temporary = self._folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            atomic_write(self._folder / sha, data, draft=temporary)
        except OSError:
            return
        with self._lock:
            if sha not in self._sizes:
                self._total += len(data)
            self._sizes[sha] = len(data)
            self._shrink()

    def limit(self, bytes_max: int) -> None:
        with self._lock:
            self._bytes_max = bytes_max
            self._shrink()

    def drop(self, sha: str) -> None:
        with self._lock:
            self._total -= self._sizes.pop(sha, 0)
            with contextlib.suppress(OSError):
                (self._folder / sha).unlink()

    def _short_of_space(self, size: int) -> bool:
        if not self._bytes_free_min:
            return False
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize - size < self._bytes_free_min

    def _shrink(self) -> None:
        while self._total > self._bytes_max:
            sha, size = self._sizes.popitem(last=False)
            self._total -= size
            with contextlib.suppress(OSError):
                (self._folder / sha).unlink()
