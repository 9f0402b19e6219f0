"""The only way from untrusted bytes to content: bytes that do not have the given size and hash raise Mismatch."""

import msgspec

from holdfast.blobs.errors import Mismatch
from holdfast.blobs.keys import sha_of


class VerifiedBytes(msgspec.Struct, frozen=True):
    """Bytes whose hash was compared. Only `verify` creates it, so that receivers need not hash again.

    They may be in a reusable buffer: they are valid until the call that receives them returns, so copy what is kept.
    """

    sha: str
    data: bytes | bytearray | memoryview


def verify(sha: str, size: int, data: bytes | bytearray | memoryview) -> VerifiedBytes:
    if len(data) != size:
        raise Mismatch(f"blob {sha} has {len(data)} bytes instead of {size}")
    if sha_of(data) != sha:
        raise Mismatch(f"the bytes for blob {sha} do not have that hash")
    return VerifiedBytes(sha, data)
