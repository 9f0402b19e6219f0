"""The events that the kernel takes. Every event is plain data, so that a run can be recorded and replayed."""

import msgspec

from holdfast.model import (
    AccessId,
    AccessToken,
    AttemptId,
    Instant,
    Job,
    JobId,
    JobSpec,
    JoinToken,
    Keep,
    NodeId,
    Owner,
    TokenId,
)
from holdfast.model.messages import Hello, Leaving, Offers, Pong, Report


class Event(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Base of all events."""


class Led(Event, frozen=True, gc=False):
    """This orchestrator leads from now on, with state rebuilt from the store. Always the first event."""

    epoch: int
    seed: int = 0
    """Used only when the store was empty."""
    ended: tuple[tuple[JobId, str], ...] = ()
    """Ended jobs that an earlier kernel of this process tried to submit again, with the hash of their specification."""
    wall_ms: int | None = None
    """The wall clock, for display."""


class Tick(Event, frozen=True, gc=False):
    """Time passed. `late_ms`: by how much the loop itself was late (frozen, suspended, swapping)."""

    late_ms: int = 0
    wall_ms: int | None = None
    """The wall clock, for display."""
    jobs_max: int = 0
    """Jobs whose deadlines are handled now; those of others are a millisecond later. 0: all."""


class Submitted(Event, frozen=True, gc=False):
    job: JobId
    owner: Owner
    spec: JobSpec
    spec_hash: str


class CancelAsked(Event, frozen=True, gc=False):
    job: JobId
    by: str = ""


class MoveAsked(Event, frozen=True, gc=False):
    """Run the job on this node, and stop it where it is once it runs there."""

    job: JobId
    node: NodeId
    by: str = ""
    key: str = ""


class NodeJoined(Event, frozen=True, gc=False):
    """A node opened a session and proved that it holds the private key of `hello.public_key`."""

    session: int
    """Unique over the life of this leader; a later one is larger."""
    hello: Hello
    address: str = ""
    """The network address that it dials from, as far as joins are limited by it; empty: not limited."""
    key_sha256: str = ""
    """Fingerprint of the key to which its id was bound when a node with this id was forgotten; empty: none was."""


class NodeSaid(Event, frozen=True, gc=False):
    session: int
    node: NodeId
    message: Report | Pong | Leaving | Offers


class NodeBroke(Event, frozen=True, gc=False):
    """The stream of a session ended without a goodbye."""

    session: int
    node: NodeId
    why: str


class DrainAsked(Event, frozen=True, gc=False):
    node: NodeId
    on: bool = True
    by: str = ""


class Verified(Event, frozen=True, gc=False):
    """The shell compared what was delivered with what the attempt declared."""

    attempt: AttemptId
    fence: int
    ok: bool
    detail: str = ""
    damaged: bool = False
    """The orchestrator's own copy is damaged: the node is not to blame."""


class Inspected(Event, frozen=True, gc=False):
    """The shell read again what an attempt was given, because its node said that it is damaged."""

    attempt: AttemptId
    fence: int
    damaged: tuple[str, ...] = ()
    """Hashes of the manifests that are damaged themselves or name damaged content; empty: all is sound."""


class DeliveryRefused(Event, frozen=True, gc=False):
    """An attempt's node sent something that breaks a rule which every node keeps. Its job is not to blame."""

    attempt: AttemptId
    fence: int
    detail: str


class Checkpointed(Event, frozen=True, gc=False):
    """An attempt's checkpoint folder was captured whole, and everything its manifest names is safe."""

    attempt: AttemptId
    fence: int
    manifest: str
    bytes: int


class ContentDelivered(Event, frozen=True, gc=False):
    """An attempt sent the content of a manifest, and all of it was verified and is safe."""

    attempt: AttemptId
    fence: int
    manifest: str


class FilesReceived(Event, frozen=True, gc=False):
    """The owner has the files of an ended job. The event carries the job, because ended jobs are not in memory."""

    job: Job


class OldJob(msgspec.Struct, frozen=True, gc=False):
    """An ended job, and what else is left of it."""

    job: Job
    keep: Keep | None = None
    """How long its files are kept; None: it has none."""
    group_ended_ms: Instant | None = Instant(0)
    """When the last item of its array ended; None: not all have; 0: it is in no array."""
    output: bool = False
    """Whether its output is still stored."""


class DeletionAsked(Event, frozen=True, gc=False):
    """The shell looked for the oldest ended jobs and journal entries. The event carries them, because they are not in
    memory."""

    jobs: tuple[OldJob, ...] = ()
    entry_seq: int = 0
    """The newest of the oldest journal entries; 0: none was looked at."""
    entry_ms: Instant = Instant(0)


class TokenMade(Event, frozen=True, gc=False):
    token: JoinToken


class TokenRevoked(Event, frozen=True, gc=False):
    token: TokenId


class AccessMade(Event, frozen=True, gc=False):
    token: AccessToken
    """Without its dates: the kernel's clock gives them."""
    ttl_ms: int


class AccessRevoked(Event, frozen=True, gc=False):
    token: AccessId
    by: str = ""
    """Name of the caller."""


class ExplainAsked(Event, frozen=True, gc=False):
    """A question. Like every event, it is answered after everything before it is committed."""

    job: JobId


class CheckAsked(Event, frozen=True, gc=False):
    """A question: what would happen to this job if it were submitted now? Changes nothing."""

    owner: Owner
    spec: JobSpec
    node: NodeId | None = None
    """Consider only this node."""
    without: tuple[NodeId, ...] = ()
    """Leave these nodes out."""


class EstimatesAsked(Event, frozen=True, gc=False):
    """A question: when will these jobs start and end, and how often was that right? Changes nothing."""

    jobs: tuple[JobId, ...] = ()


AnyEvent = (
    Led | Tick | Submitted | CancelAsked | MoveAsked | NodeJoined | NodeSaid | NodeBroke | DrainAsked
    | Verified | Inspected | DeliveryRefused | Checkpointed | ContentDelivered | FilesReceived | TokenMade
    | TokenRevoked | AccessMade | AccessRevoked | ExplainAsked | CheckAsked | EstimatesAsked | DeletionAsked
)  # fmt: skip
