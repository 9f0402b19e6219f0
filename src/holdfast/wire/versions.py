"""Negotiates the protocol version, and decides which releases work together and which side is too old.

The orchestrator offers a range, the node takes the highest version that both know. Nothing here reads a message.
"""

import re

from holdfast.model.messages import Refusal

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""Incremented when a message changes its meaning; new optional fields do not count."""


def choose(theirs_min: int, theirs_max: int, own_min: int = PROTOCOL_MIN, own_max: int = PROTOCOL_MAX) -> int:
    """The highest version in both ranges; 0 if there is none."""
    best = min(theirs_max, own_max)
    return best if best >= max(theirs_min, own_min, 1) else 0


def refusal(
    node_min: int, node_max: int, node_version: str, own_min: int = PROTOCOL_MIN, own_max: int = PROTOCOL_MAX
) -> Refusal:
    """The refusal for a node that has no protocol version in common with the orchestrator."""
    ranges = f"the node ({node_version or 'unnamed version'}) speaks protocol {node_min} to {node_max}, "
    ranges += f"the orchestrator {own_min} to {own_max}"
    if node_max < own_min:
        return Refusal("version", f"{ranges}: upgrade the node", final=True)
    return Refusal("version", f"{ranges}: upgrade the orchestrator", final=True)


_is_release = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})([.+-].*)?").fullmatch

MINORS_APART_MAX = 1
"""A network is upgraded machine by machine: meanwhile two consecutive releases work together."""


def skewed(node_version: str, own_version: str) -> Refusal | None:
    """The refusal for a node of another release, or None if the two work together.

    They do if they have the same major version and their minor versions differ by at most one. A node that names no
    release (for example another implementation of the protocol) is judged by its protocol version alone.
    """
    node, own = _is_release(node_version), _is_release(own_version)
    if node is None or own is None:
        return None
    their_major, their_minor, our_major, our_minor = (int(number) for number in (*node.groups()[:2], *own.groups()[:2]))
    if their_major == our_major and abs(their_minor - our_minor) <= MINORS_APART_MAX:
        return None
    apart = f"the node runs Holdfast {node_version} and the orchestrator {own_version}; "
    if their_major != our_major:
        apart += "releases of different major versions do not work together: "
    else:
        apart += "only releases that follow each other work together: "
    if (their_major, their_minor) < (our_major, our_minor):
        return Refusal("version", f"{apart}upgrade the node to {our_major}.{our_minor}", final=True)
    step = f", by way of {our_major}.{our_minor + 1}" if their_major == our_major else ""
    cure = f"upgrade the orchestrator to {their_major}.{their_minor}{step}, or install {our_major}.{our_minor}"
    return Refusal("version", f"{apart}{cure} on the node", final=True)
