"""Decides which addresses are on the public internet, and which a job must not have a node connect to. Pure: it is told
the machine's own addresses.

The one list for inputs by URL, image registries, image builds and the routes of jobs' networks. It is ours, and not
Python's `is_global`: that one calls a cloud's metadata service and the embedded form of a private address public, and
changes with the Python version. The sources are the IANA registries of special-purpose addresses for IPv4 and IPv6
(RFC 6890), and what cloud providers document.

An address in doubt is not public. IPv6 is an allow list: 2000::/3 without its special purposes. The tunnels 6to4 and
Teredo carry an IPv4 address inside, and depend on relays that may stand anywhere: none of them is public.
"""

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_IPV4 = {
    "0.0.0.0/8": "this host",
    "10.0.0.0/8": "a private network",
    "100.100.100.200/32": "a cloud's metadata service",
    "100.64.0.0/10": "a provider's shared network",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "a cloud's metadata service",
    "169.254.0.0/16": "link-local, and clouds' metadata services",
    "172.16.0.0/12": "a private network",
    "192.0.0.0/24": "reserved for protocols, and a cloud's metadata service",
    "192.0.2.0/24": "for documentation",
    "192.88.99.0/24": "a relay of 6to4",
    "192.168.0.0/16": "a private network",
    "198.18.0.0/15": "for benchmarks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
_IPV6 = {
    "::/128": "this host",
    "::1/128": "loopback",
    "64:ff9b:1::/48": "a translator's private network",
    "100::/64": "for discarding",
    "2001::/32": "a tunnel (Teredo)",
    "2001::/23": "reserved for protocols",
    "2001:db8::/32": "for documentation",
    "2002::/16": "a tunnel (6to4)",
    "3fff::/20": "for documentation",
    "5f00::/16": "segment identifiers",
    "fc00::/7": "a private network, and clouds' metadata services",
    "fe80::/10": "link-local",
    "fec0::/10": "a private network",
    "ff00::/8": "multicast",
    # Everything beside 2000::/3.
    "::/3": "reserved",
    "4000::/2": "reserved",
    "8000::/1": "reserved",
}
_MAPPED = IPv6Network("::ffff:0:0/96")
_TRANSLATED = IPv6Network("64:ff9b::/96")
_EMBEDDING = (_MAPPED, _TRANSLATED)
"""Prefixes whose last 32 bits are the IPv4 address that is really connected to."""

_IPV4_NETWORKS = [(IPv4Network(text), what) for text, what in _IPV4.items()]
_IPV6_NETWORKS = [(IPv6Network(text), what) for text, what in _IPV6.items()]

IPV4_NON_PUBLIC = tuple(_IPV4)
"""As networks, for routes."""


def non_public(address: str, own: Collection[str] = ()) -> str:
    """What kind of non-public address it is, for a person; empty if it is public. `own`: the machine's own addresses.
    Text that is no address is not public."""
    try:
        known = embedded(_parsed(address))
        mine = {embedded(_parsed(text)) for text in own}
    except ValueError:
        return "not an address"
    if isinstance(known, IPv4Address):
        found = [what for network, what in _IPV4_NETWORKS if known in network]
    else:
        found = [what for network, what in _IPV6_NETWORKS if known in network]
    if found:
        return found[0]
    return "the machine's own address" if known in mine else ""


def embedded(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The address that a connection to this one reaches: the IPv4 address inside, or the address itself."""
    if isinstance(address, IPv6Address) and any(address in network for network in _EMBEDDING):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _parsed(text: str) -> IPv4Address | IPv6Address:
    """Without its zone, which names an interface of this machine."""
    return ip_address(text.partition("%")[0])
