"""What an earlier look at a folder learned, so that unchanged files need not be read again. Pure; kept as bytes.

A file is taken as unchanged if size, times, inode and device are the same, and if its last change lies well before the
look: clocks of file systems are coarse, and a write in the same tick would leave no trace. An index is a short cut, not
evidence: whatever is sent is hashed again as it is read.
"""

from typing import Self

import msgspec

from holdfast.blobs.beneath import Seen
from holdfast.blobs.manifest import Blob, content_name

SETTLED_NS = 2_000_000_000
"""Longer than the coarsest clock of a file system."""
SETTLED_HERE_NS = 50_000_000
"""Longer than a tick of this kernel: for folders on a local disk."""


class Known(msgspec.Struct, frozen=True, array_like=True, gc=False):
    seen: Seen
    shas: tuple[str, ...]
    """Of the whole file if it is small, of each chunk if not."""


class Index(msgspec.Struct, frozen=True):
    taken_ns: int = 0
    """When the look began."""
    files: dict[str, Known] = {}
    packs: dict[str, Blob] = {}
    """By `pack_key`."""
    settled_ns: int = SETTLED_NS

    def shas(self, path: str, seen: Seen) -> tuple[str, ...] | None:
        """The hashes of a file that is still as it was; None if it must be read."""
        known = self.files.get(path)
        if known is None or known.seen != seen or seen.ctime_ns > self.taken_ns - self.settled_ns:
            return None
        return known.shas

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """An index that cannot be read is an empty one: everything is read anew."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.DecodeError:
            return cls()


def pack_key(shas: list[str]) -> str:
    """What an index knows a pack by: the hashes of its files."""
    return content_name([*shas, ""])
