"""What is known of nodes and attempts beyond their rows, and the object by which placement knows a node."""

import msgspec

from holdfast.kernel.placement import Seat
from holdfast.model import AttemptId, Instant, NodeState
from holdfast.model.messages import Load
from holdfast.policy.suspicion import Rhythm


class Presence(msgspec.Struct, gc=False):
    """What is known of a node beyond its row. Ephemeral."""

    session: int | None = None
    instance: str = ""
    heard_ms: Instant = Instant(0)
    """On the patience clock."""
    watched_ms: Instant = Instant(0)
    """When it last got work while it held none. Silence is counted from then at the earliest."""
    rhythm: Rhythm = Rhythm()
    seq: int = 0
    load: Load = Load()
    pings: int = 0
    """Probes answered in this probation."""
    nonce: int = 0
    answered: int = 0
    """The latest probe that was answered. On a slow link an answer may arrive after the next probe is sent."""
    late_at_join_ms: int = 0
    excused_ms: Instant | None = None
    """When its sessions began to end without a report. This is excused for a limited time only."""
    contested_ms: Instant | None = None
    """When another machine claimed the same identity and the connected one was pinged."""
    unrest_since_ms: Instant = Instant(0)
    unrest: int = 0
    """Sessions and changes of its offer since then (kernel.joining)."""
    grace_until_ms: Instant = Instant(0)
    """While it is disconnected through no fault of its own, it is not suspected before this moment."""


class Member(Seat, gc=False, eq=False):
    """A node with everything derived from its row and its reports: one object, for the reason given in `Seat`."""

    state: NodeState = NodeState.GONE
    label: str = ""
    """Its name and id, for display."""
    held: tuple[AttemptId, ...] = ()
    """Live attempts that occupy it."""
    width: int = 0
    """Attempts that its record allows at once."""
    doubted: int = 0
    """Failures that it blames on owners and that are not confirmed yet. They count as held."""
    presence: Presence = msgspec.field(default_factory=Presence)
    idle: Seat | None = None
    """Its seat in `World.could`: what it could hold if it were idle."""


class Claim(msgspec.Struct, gc=False):
    """State of an attempt between messages. Ephemeral, and created only when there is something to keep."""

    sent_ms: Instant = Instant(0)
    """When the last command about it was sent, on the patience clock."""
    verifying: bool = False
    lease_from_ms: Instant | None = None
    refused: bool = False
    """The journal already says why its result does not count."""
