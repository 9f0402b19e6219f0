"""Limits how fast machines join and how often one node may change, so that identities and journal entries are not free.

What is counted here is ephemeral: a new leader counts from zero.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.model import Facts, Instant, NodeId
from holdfast.model.messages import Hello, Refusal

if TYPE_CHECKING:
    from holdfast.kernel.world import Presence, World

REFUSALS_MS = 3_600_000
"""Refusals of one identity are journalled once in this time, with the number of those before."""
REFUSALS_NOTED_MAX = 60
"""Refusals of all identities together that are journalled in this time. All are counted in the metrics."""


class Joins(Struct):
    """The new machines of the present window."""

    since_ms: Instant = Instant(0)
    total: int = 0
    by_token: dict[str, int] = {}  # msgspec gives every instance its own
    by_address: dict[str, int] = {}


class Refusals(Struct):
    """The refusals of known identities in the present window."""

    since_ms: Instant = Instant(0)
    noted: dict[NodeId, int] = {}
    """Identities that the journal names in this window, each with its refusals since."""


class JoinLimits:
    """State of this module, kept by the world."""

    def __init__(self) -> None:
        self.joins = Joins()
        self.refusals = Refusals()


def limit_refusal(w: "World", hello: Hello, address: str) -> Refusal | None:
    """Why this new machine may not join now; None: it may."""
    s, joins = w.settings, _window(w)
    if joins.total >= s.joins_max:
        return _later("too many machines joined this network")
    if hello.token_id and joins.by_token.get(hello.token_id, 0) >= s.joins_per_token_max:
        return _later("too many machines joined with this token")
    if address and joins.by_address.get(address, 0) >= s.joins_per_address_max:
        return _later("too many machines joined from this address")
    return None


def joined(w: "World", hello: Hello, address: str) -> None:
    """A new machine joined."""
    joins = _window(w)
    joins.total += 1
    for counts, key in ((joins.by_token, hello.token_id), (joins.by_address, address)):
        if key:
            counts[key] = counts.get(key, 0) + 1


def _window(w: "World") -> Joins:
    limits = w.limits
    if not limits.joins.total or w.patience - limits.joins.since_ms >= w.settings.joins_ms:
        limits.joins = Joins(w.patience)
    return limits.joins


def _later(what: str) -> Refusal:
    return Refusal("join_limit", f"{what} within a short time; this one is taken later", final=False)


def unrest(w: "World", presence: "Presence") -> bool:
    """Count a session or a change of one node. True: it is one too many for this window."""
    s = w.settings
    if w.patience - presence.unrest_since_ms >= s.unrest_ms:
        presence.unrest_since_ms, presence.unrest = w.patience, 0
    presence.unrest += 1
    return presence.unrest > s.unrest_max


def note_refusal(w: "World", node: NodeId, refusal: Refusal) -> None:
    """A stranger claimed a known identity. Whoever repeats that fills no journal."""
    limits = w.limits
    if not limits.refusals.noted or w.patience - limits.refusals.since_ms >= REFUSALS_MS:
        limits.refusals = Refusals(w.patience)
    noted = limits.refusals.noted
    if node in noted:
        noted[node] += 1
    elif len(noted) < REFUSALS_NOTED_MAX:
        noted[node] = 0
        w.note("node.refused", Facts(label=node, refusal=refusal.code, detail=refusal.says), node=node)
