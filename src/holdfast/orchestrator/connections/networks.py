"""Groups addresses by the party that holds them, so that limits count parties."""

from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address
from urllib.parse import unquote

IPV6_PREFIX = 64
"""The smallest network that is given to a customer: every host in it can take any of its addresses."""


@lru_cache(maxsize=4_096)
def network_of(address: str) -> str:
    """The party behind an address: an IPv4 address is one; of IPv6, a whole /64 is. Anything else stands for itself."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(IPv6Network((found, IPV6_PREFIX), strict=False))
    return str(found)


def peer_address(peer: str) -> tuple[str, int]:
    """Address and port of a peer as gRPC names it: `ipv4:10.0.0.7:51234`, `ipv6:%5B::1%5D:51234`. Port 0: none."""
    kind, _, rest = unquote(peer).partition(":")
    address, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return peer, 0
    return address.strip("[]"), int(port)
