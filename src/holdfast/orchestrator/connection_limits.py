"""Limits on connections and requests, for all listeners of an orchestrator. Numbers only: nothing here opens a
connection.

A stranger is a connection that has not shown a valid token, key or signature. `0` means no limit.
"""

from collections.abc import Iterable
from typing import Self

import msgspec

from holdfast.errors import Misconfigured

KIB = 1024
HTTP_SHARE, NODES_SHARE = (1, 4), (3, 8)
"""Shares of the process's descriptors for each HTTP listener and for the node port. An eighth is left for files."""


class ConnectionLimits(msgspec.Struct, frozen=True):
    """Each number is `0` (no limit) or positive."""

    # connections to the people's and the files' address, each
    connections_max: int = 4_000
    """Connections to one HTTP address. Lowered to a quarter of the process's descriptors."""
    connections_per_address_max: int = 2_000
    """Authenticated connections of one address (IPv6: one /64). A whole site may stand behind
    it, but it cannot take all places."""
    strangers_max: int = 1_024
    """Strangers' connections. Beyond this, the largest group loses its oldest one. Lowered to half of the
    connections."""
    strangers_per_address_max: int = 256
    """Strangers' connections of one address. Beyond this, it loses its oldest one, so a new caller still gets in.
    Lowered to half of the strangers."""

    # connections to the node port
    node_connections_max: int = 25_000
    """A full network and those that dial in. Lowered to three eighths of the process's descriptors."""
    node_strangers_max: int = 10_000
    """Connections without a session: a whole fleet may come back at once. Lowered to half of the connections."""
    node_strangers_per_address_max: int = 5_000
    """Of one address: a whole site may come back at once. Lowered to half of the strangers."""

    # requests
    head_ms_max: int = 10_000
    """From the connection, or the first byte of a later request, to the end of its headers. TLS included."""
    head_bytes_max: int = 32 * KIB
    """Request line and headers."""
    headers_max: int = 100
    """Number of headers; clients send about ten."""
    body_bytes_per_second_min: int = KIB
    """A body that arrives more slowly over ten seconds is given up. A quarter of the slowest line worth using."""
    bodies_bytes_max: int = 256 * KIB * KIB
    """Bodies that are being read into memory, all together, by their declared lengths."""

    def fitted(self, descriptors: int) -> Self:
        """These limits on a process that may have this many open files."""
        http = _lower(self.connections_max, descriptors * HTTP_SHARE[0] // HTTP_SHARE[1])
        nodes = _lower(self.node_connections_max, descriptors * NODES_SHARE[0] // NODES_SHARE[1])
        strangers = _lower(self.strangers_max, http // 2)
        node_strangers = _lower(self.node_strangers_max, nodes // 2)
        return msgspec.structs.replace(
            self,
            connections_max=http,
            connections_per_address_max=_lower(self.connections_per_address_max, http // 2),
            strangers_max=strangers,
            strangers_per_address_max=_lower(self.strangers_per_address_max, strangers // 2),
            node_connections_max=nodes,
            node_strangers_max=node_strangers,
            node_strangers_per_address_max=_lower(self.node_strangers_per_address_max, node_strangers // 2),
        )


def read_limits(words: tuple[str, ...], others: Iterable[str] = ()) -> tuple[ConnectionLimits, dict[str, int]]:
    """From `NAME=NUMBER` each; those that are among `others` are returned beside. Raises Misconfigured."""
    names = {field.name for field in msgspec.structs.fields(ConnectionLimits)}
    beside = set(others)
    chosen: dict[str, int] = {}
    for word in words:
        name, _, number = word.partition("=")
        if name not in names | beside:
            every = ", ".join(sorted(names | beside))
            raise Misconfigured(f"there is no limit {name[:80]!r}", hint=f"There are {every}.")
        if not (number.isascii() and number.isdigit() and len(number) <= 12):
            raise Misconfigured(f"{number[:80]!r} is no limit", hint=f"Write {name}=NUMBER; 0 is no limit.")
        chosen[name] = int(number)
    limits = ConnectionLimits(**{name: number for name, number in chosen.items() if name in names})
    return limits, {name: number for name, number in chosen.items() if name in beside}


def _lower(limit: int, bound: int) -> int:
    """The smaller one. No limit stays none."""
    return min(limit, bound) if limit and bound else limit
