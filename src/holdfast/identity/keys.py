"""A node's identity: its id, and the Ed25519 key, generated at its first start, that proves it.

The first key that joins with an id keeps it, so a copied id without the key is refused.
"""

import uuid
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from holdfast.errors import Misconfigured
from holdfast.identity import private_files
from holdfast.model import NodeId


def node_id(text: str) -> NodeId:
    """`node_<32 hex>`, from a UUID in any usual notation (`PNODE_UUID`) or from an id as it is shown."""
    plain = text.strip().removeprefix("node_")
    try:
        return NodeId("node_" + uuid.UUID(plain).hex)
    except ValueError:
        raise Misconfigured(
            f"{text[:80]!r} is not a UUID",
            hint="Give PNODE_UUID as 32 hex digits, with or without dashes, or leave it out: one is made.",
            code="bad_uuid",
        ) from None


class NodeKey:
    """The private key of a node. Never printed."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public_hex = private.public_key().public_bytes_raw().hex()

    @staticmethod
    def make() -> "NodeKey":
        return NodeKey(Ed25519PrivateKey.generate())

    @staticmethod
    def load_or_make(path: Path) -> "NodeKey":
        """The key in the file, mode 0600; generated at the first start."""
        content = private_files.make_once(path, "node key", lambda: NodeKey.make()._pem())
        try:
            private = load_pem_private_key(content, password=None)
        except (ValueError, TypeError):
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise Misconfigured(
                f"the node key {path} holds no Ed25519 key",
                hint="Restore it from a copy; or delete it and let the node join again under a new UUID.",
                code="bad_key",
            )
        return NodeKey(private)

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)

    def _pem(self) -> bytes:
        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def __repr__(self) -> str:
        return f"NodeKey({self.public_hex[:16]}…)"


def verify(public_hex: str, message: bytes, signature: bytes) -> bool:
    """Whether the holder of this public key signed the message. False for anything malformed."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_hex)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
