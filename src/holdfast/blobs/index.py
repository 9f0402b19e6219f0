"""The result of an earlier scan of a folder, so that unchanged files need not be read again. Pure; stored as bytes.

A file counts as unchanged if size, times, inode and device are the same, and if its last change was well before the
scan: file system clocks are coarse, and a write within the same tick would leave no trace. An index only saves time:
everything that is sent is hashed again as it is read.
"""

from typing import Self

import msgspec

from holdfast.blobs.beneath import FileStat
from holdfast.blobs.manifest import Blob, content_name

SETTLED_NS = 2_000_000_000
"""Longer than a tick of the coarsest file system clock."""
SETTLED_HERE_NS = 50_000_000
"""Longer than a tick of this kernel: for folders on a local disk."""


class Known(msgspec.Struct, frozen=True, array_like=True, gc=False):
    seen: FileStat
    shas: tuple[str, ...]
    """Of the whole file if it is small, otherwise of each chunk."""


class BlobIndex(msgspec.Struct, frozen=True):
    taken_ns: int = 0
    """When the scan began."""
    files: dict[str, Known] = {}
    packs: dict[str, Blob] = {}
    """By `pack_key`."""
    settled_ns: int = SETTLED_NS

    def shas(self, path: str, seen: FileStat) -> tuple[str, ...] | None:
        """The hashes of a file that is unchanged; None if it must be read."""
        known = self.files.get(path)
        if known is None or known.seen != seen or seen.ctime_ns > self.taken_ns - self.settled_ns:
            return None
        return known.shas

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """An unreadable index counts as empty: everything is read again."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.DecodeError:
            return cls()


def pack_key(shas: list[str]) -> str:
    """The key of a pack in an index: the hashes of its files."""
    return content_name([*shas, ""])
