"""Which protocol two sides speak with each other, and which of them is too old when there is none.

The orchestrator offers a range, the node takes the highest version both know. Nothing here reads a message.
"""

from holdfast.model.messages import Refusal

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""Raised when a message changes its meaning; new optional fields do not count."""


def choose(theirs_min: int, theirs_max: int, own_min: int = PROTOCOL_MIN, own_max: int = PROTOCOL_MAX) -> int:
    """The highest version in both ranges; 0 if there is none."""
    best = min(theirs_max, own_max)
    return best if best >= max(theirs_min, own_min, 1) else 0


def refusal(
    node_min: int, node_max: int, node_version: str, own_min: int = PROTOCOL_MIN, own_max: int = PROTOCOL_MAX
) -> Refusal:
    """What an orchestrator answers to a node with which it has no protocol in common."""
    ranges = f"the node ({node_version or 'unnamed version'}) speaks protocol {node_min} to {node_max}, "
    ranges += f"the orchestrator {own_min} to {own_max}"
    if node_max < own_min:
        return Refusal("version", f"{ranges}: upgrade the node", final=True)
    return Refusal("version", f"{ranges}: upgrade the orchestrator", final=True)
