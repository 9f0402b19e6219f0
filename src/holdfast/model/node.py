"""Nodes (machines that joined), and the tokens that let them join."""

from enum import StrEnum

from holdfast.model.causes import NodeCause, PauseCause
from holdfast.model.ids import NodeId, TokenId
from holdfast.model.resources import JOBS, PLAIN, Hardware, Resources
from holdfast.model.stored import StoredRow
from holdfast.model.time import Instant


class NodeState(StrEnum):
    """A node's standing with the orchestrator. Only `ready` and `probation` may be given work."""

    READY = "ready"
    SUSPECT = "suspect"
    """Its stream broke or it fell silent. No work; its repeatable work is taken over."""
    QUARANTINED = "quarantined"
    """It misbehaves or reports itself sick. No work until its quarantine is over, then probation."""
    PROBATION = "probation"
    """Back on trial: it answers probes first, then gets one attempt at a time."""
    LOST = "lost"
    """Suspect for so long that its attempts are written off."""
    GONE = "gone"
    """It said goodbye, or was removed. It may join again."""


class Node(StoredRow, frozen=True, gc=False, omit_defaults=True):
    id: NodeId
    public_key: str
    """Ed25519, hex. The first key that joined under this id keeps it."""
    version: str
    hardware: Hardware
    joined_ms: Instant
    state: NodeState = NodeState.PROBATION
    state_since_ms: Instant = Instant(0)
    state_until_ms: Instant = Instant(0)
    """Deadline of the state, on the patience clock; 0 where the state has none (ready, gone)."""
    cause: str = ""
    """What put it into this state."""
    draining: bool = False
    drain_until_ms: Instant = Instant(0)
    offered: Resources = Resources()
    """What it lets the network use."""
    isolation: str = "bubblewrap"
    """How its jobs are confined; every listing points out `none`."""
    name: str = ""
    site: str = ""
    """Failure domain."""
    strikes: int = 0
    """Points of its own faults among its last ten ends, since it last proved itself; determines the length of a
    quarantine."""
    probation_wins: int = 0
    quarantined_until_ms: Instant = Instant(0)
    """End of its last quarantine, on the patience clock. Leaving or breaking the link does not shorten it."""
    leaving: bool = False
    """Draining because its own operator paused it or asked it to leave. A node that joins again repeats the request."""
    features: tuple[str, ...] = (JOBS, PLAIN)
    """What it is able and willing to do, sorted (see model.resources)."""
    drained: bool = False
    """Draining because the network's operator drained it. Only they can undo it; its own operator cannot."""
    leaving_why: str = ""
    """Why its own operator paused it or asked it to leave, for people to read."""
    cause_code: NodeCause | None = None
    """What put it into this state; `cause` says it in words."""
    pause_cause: PauseCause | None = None
    """Why it is `leaving`; `leaving_why` says it in words."""
    operator: str = ""
    """Who made the join token that it first joined with; empty: nobody with a name, or it needed none."""

    @property
    def drained_by_network(self) -> bool:
        return self.drained or (self.draining and not self.leaving)  # rows of 0.1 have no `drained`


class NodeRecord(StoredRow, frozen=True, gc=False, omit_defaults=True):
    """How the last attempts on a node ended (policy.record). Kept apart from `Node`, because it changes with every
    attempt."""

    id: NodeId
    ends: str = ""
    """One mark for each of the last ends, oldest first."""
    good: int = 0
    """Ends that nobody doubts, since the last one that was refuted; not counted beyond what makes a difference."""


class JoinToken(StoredRow, frozen=True, gc=False, omit_defaults=True):
    """Lets a node join. Only the hash of its secret is kept."""

    id: TokenId
    secret_sha256: str
    made_ms: Instant
    expires_ms: Instant
    uses_left: int
    """-1: unlimited."""
    revoked: bool = False
    note: str = ""
    made_by: str = ""
    """Name of the caller that made it; empty: the admin token, or release 0.1."""
    access: str = ""
    """Id of the access token it was made with. It is revoked with that token."""
