"""What can happen to the kernel. Every event is plain data, so that a run can be recorded and replayed."""

import msgspec

from holdfast.model import AttemptId, JobId, JobSpec, JoinToken, NodeId, Owner, TokenId
from holdfast.model.messages import Hello, Leaving, Pong, Report


class Event(msgspec.Struct, frozen=True, tag=True):
    """Base of all events."""


class Led(Event, frozen=True):
    """This orchestrator leads from now on, with state rebuilt from the store. Always the first event."""

    epoch: int
    seed: int = 0
    """Used only when the store was empty."""


class Tick(Event, frozen=True):
    """Time passed. `late_ms`: by how much the loop itself was late (frozen, suspended, swapping)."""

    late_ms: int = 0


class Submitted(Event, frozen=True):
    job: JobId
    owner: Owner
    spec: JobSpec
    spec_hash: str


class CancelAsked(Event, frozen=True):
    job: JobId
    by: str = ""


class NodeJoined(Event, frozen=True):
    """A node opened a session and proved that it holds the private key of `hello.public_key`."""

    session: int
    """Unique over the life of this leader; a later one is larger."""
    hello: Hello


class NodeSaid(Event, frozen=True):
    session: int
    node: NodeId
    message: Report | Pong | Leaving


class NodeBroke(Event, frozen=True):
    """The stream of a session ended without a goodbye."""

    session: int
    node: NodeId
    why: str


class DrainAsked(Event, frozen=True):
    node: NodeId
    on: bool = True
    by: str = ""


class Verified(Event, frozen=True):
    """The shell compared what was delivered with what the attempt declared."""

    attempt: AttemptId
    fence: int
    ok: bool
    detail: str = ""


class TokenMade(Event, frozen=True):
    token: JoinToken


class TokenRevoked(Event, frozen=True):
    token: TokenId


class ExplainAsked(Event, frozen=True):
    """A question. Answered like everything else after the commit of what came before it."""

    job: JobId


AnyEvent = (
    Led | Tick | Submitted | CancelAsked | NodeJoined | NodeSaid | NodeBroke | DrainAsked
    | Verified | TokenMade | TokenRevoked | ExplainAsked
)  # fmt: skip
