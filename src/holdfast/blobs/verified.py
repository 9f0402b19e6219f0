"""The one way from hostile bytes to content: they have the size and hash that name them, or they are a Mismatch."""

import msgspec

from holdfast.blobs.errors import Mismatch
from holdfast.blobs.keys import sha_of


class Verified(msgspec.Struct, frozen=True):
    """Bytes whose hash was compared. Only `verify` makes it, so that who gets one need not hash again.

    They may be lent: whoever gets them in a call has them until the call returns, and copies what it wants to keep.
    """

    sha: str
    data: bytes | bytearray | memoryview


def verify(sha: str, size: int, data: bytes | bytearray | memoryview) -> Verified:
    if len(data) != size:
        raise Mismatch(f"blob {sha} came with {len(data)} bytes instead of {size}")
    if sha_of(data) != sha:
        raise Mismatch(f"the bytes that came for blob {sha} do not have that hash")
    return Verified(sha, data)
