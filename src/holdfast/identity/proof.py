"""The exact bytes that a node signs to prove its identity, in one session with one orchestrator.

    message = "holdfast node proof v1"          22 bytes of ASCII
            ‖ field(nonce)                      as in the orchestrator's Challenge
            ‖ field(node id)                    ASCII
            ‖ field(instance)                   ASCII
            ‖ field(channel)                    SHA-256 of the orchestrator's certificate in lower-case hex,
                                                or "plain" where there is no TLS
    field(x) = length of x as 4 bytes, big endian ‖ x

The nonce makes a recorded answer useless; the channel prevents an orchestrator from replaying the answer to another
one. Nothing here does I/O.
"""

import secrets

from holdfast.identity import keys
from holdfast.model import NodeId

CONTEXT = b"holdfast node proof v1"
PLAIN = "plain"
NONCE_BYTES = 32


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def proof_bytes(nonce: bytes, node: NodeId, instance: str, pin: str) -> bytes:
    """`pin`: the orchestrator certificate's SHA-256 in hex; empty without TLS."""
    fields = (nonce, node.encode(), instance.encode(), (pin or PLAIN).encode())
    return CONTEXT + b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def prove(key: keys.NodeKey, nonce: bytes, node: NodeId, instance: str, pin: str) -> bytes:
    return key.sign(proof_bytes(nonce, node, instance, pin))


def proven(public_hex: str, signature: bytes, nonce: bytes, node: NodeId, instance: str, pin: str) -> bool:
    """Whether the node signed this challenge, on this channel, with the key it names."""
    return keys.verify(public_hex, proof_bytes(nonce, node, instance, pin), signature)
