"""The two kinds of keys in a store, made and parsed. Knows no store.

    incoming/<uploader>/<sha256>                      written through signed URLs: untrusted until verified
    owned/<owner hash>/<first two hex>/<sha256>       verified, named by its content, written by the orchestrator only

An uploader is an attempt's id or `client-<owner hash>`. Content is shared within one owner and never between two:
knowing a hash gives no access to another owner's data.
"""

import re
from hashlib import sha256

import msgspec

from holdfast.blobs.errors import LinkRefused

INCOMING = "incoming/"
OWNED = "owned/"

_SHA = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"[0-9a-f]{32}")
_UPLOADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Incoming(msgspec.Struct, frozen=True):
    uploader: str
    sha: str


class Owned(msgspec.Struct, frozen=True):
    owner: str
    """A hash: see `owner_hash`."""
    sha: str


class Stored(msgspec.Struct, frozen=True):
    key: str
    size: int
    modified_ms: int
    """By the store's own clock."""


def sha_of(data: bytes | bytearray | memoryview) -> str:
    """The name of these bytes: their SHA-256."""
    return sha256(data).hexdigest()


def is_sha(text: str) -> bool:
    return _SHA.fullmatch(text) is not None


def owner_hash(owner: str) -> str:
    """An owner's part of a key: 128 bits, so that unusual characters in a name do not get into keys."""
    return sha256(b"holdfast owner\0" + owner.encode()).hexdigest()[:32]


def client_uploader(owner: str) -> str:
    """The uploader id of an owner's own programs."""
    return f"client-{owner_hash(owner)}"


def incoming_key(uploader: str, sha: str) -> str:
    if not _UPLOADER.fullmatch(uploader) or not is_sha(sha):
        raise LinkRefused(f"{uploader!r} and {sha[:80]!r} do not make a valid key")
    return f"{INCOMING}{uploader}/{sha}"


def owned_key(owner: str, sha: str) -> str:
    """`owner` is already hashed."""
    if not _OWNER.fullmatch(owner) or not is_sha(sha):
        raise LinkRefused(f"{owner!r} and {sha[:80]!r} do not make a valid key")
    return f"{OWNED}{owner}/{sha[:2]}/{sha}"


def parse_key(key: str) -> Incoming | Owned | None:
    """Parse a key; None if it is not one that these functions would make."""
    parts = key.split("/")
    if len(parts) == 3 and parts[0] == "incoming" and _UPLOADER.fullmatch(parts[1]) and is_sha(parts[2]):
        return Incoming(parts[1], parts[2])
    if len(parts) == 4 and parts[0] == "owned" and _OWNER.fullmatch(parts[1]) and is_sha(parts[3]):
        return Owned(parts[1], parts[3]) if parts[2] == parts[3][:2] else None
    return None
