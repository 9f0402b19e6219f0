"""The events that a node core handles, and the actions that it returns to its caller. Plain data; decides nothing.

The production agent and the simulator both use these types. Times are CLOCK_BOOTTIME in milliseconds, so
that a lease also runs out while the machine is suspended.
"""

import msgspec

from holdfast.model import AttemptId, Failure, Input, Instant, Resources
from holdfast.model.messages import (
    Discard,
    Drained,
    Go,
    Leaving,
    Load,
    Offers,
    Ping,
    Pong,
    Progress,
    Renewed,
    Report,
    Save,
    Start,
    Welcome,
)
from holdfast.node.core.attempt_lifecycle import BodyOutcome, Phase
from holdfast.node.core.order import Order


class ShimStatus(msgspec.Struct, frozen=True):
    """What a shim reports of its attempt. `stdout_sha256` and the sizes are final once `phase` is `ended`."""

    phase: Phase
    outcome: BodyOutcome | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_sha256: str = ""
    go: bool = False
    """The shim was told to go."""
    cpu_ms: int = 0
    memory_mib: int = 0
    """Processor time that the body has used, and memory that it uses now; 0: not known."""


# --- events ---


class NodeEventBase(msgspec.Struct, frozen=True, tag=True):
    """Base of the events of a node core."""


class Recovered(NodeEventBase, frozen=True):
    """An attempt was found on disk when the agent started. Comes before the first `Connected`; `ShimDied` follows if
    the shim is dead and left no outcome."""

    order: Order
    status: ShimStatus | None = None


class Connected(NodeEventBase, frozen=True):
    """A session is open. Messages of an earlier session may be lost."""

    welcome: Welcome


class Disconnected(NodeEventBase, frozen=True):
    pass


class CommandReceived(NodeEventBase, frozen=True):
    """The orchestrator sent this in the open session. May be late, repeated or out of order."""

    command: Start | Go | Discard | Renewed | Ping | Save | Drained


class ShimSaid(NodeEventBase, frozen=True):
    attempt: AttemptId
    status: ShimStatus


class ShimDied(NodeEventBase, frozen=True):
    """The shim is dead without a final status, and so is everything it started: the agent made sure of that."""

    attempt: AttemptId
    why: str


class SpawnFailed(NodeEventBase, frozen=True):
    """No shim could be started, and nothing runs."""

    attempt: AttemptId
    failure: Failure


class DeliveredFiles(msgspec.Struct, frozen=True):
    """The files of a body, as delivered."""

    manifest: str = ""
    """Empty: the body made no files."""
    count: int = 0
    bytes: int = 0


class Delivered(NodeEventBase, frozen=True):
    """The body has ended, every byte of its logs is acknowledged, and its files are stored by the network."""

    attempt: AttemptId
    files: DeliveredFiles = DeliveredFiles()


class Undeliverable(NodeEventBase, frozen=True):
    """The body has ended, but what it made cannot be delivered, now or later."""

    attempt: AttemptId
    failure: Failure


class Progressed(NodeEventBase, frozen=True):
    """An attempt made progress. Sent with the next report, never in a report of its own."""

    attempt: AttemptId
    progress: Progress


class Removed(NodeEventBase, frozen=True):
    """No process and no file of this attempt is left."""

    attempt: AttemptId


class LoadMeasured(NodeEventBase, frozen=True):
    load: Load


class LeaveAsked(NodeEventBase, frozen=True):
    """The operator asks this node to leave. A repeated request may shorten the grace, but not lengthen it."""

    grace_ms: int


class OfferAsked(NodeEventBase, frozen=True):
    """The operator changes what this node offers, or pauses it. None: unchanged."""

    offered: Resources | None = None
    paused: bool | None = None
    grace_ms: int = 60_000
    why: str = ""
    """Why the node is paused, for people to read; empty: the operator paused it."""


class NodeTick(NodeEventBase, frozen=True):
    """Time has passed. Due at `NodeCore.next_due()`; an earlier one does no harm."""


NodeEvent = (
    Recovered | Connected | Disconnected | CommandReceived | ShimSaid | ShimDied | SpawnFailed | Delivered
    | Undeliverable | Progressed | Removed | LoadMeasured | LeaveAsked | OfferAsked | NodeTick
)  # fmt: skip


# --- actions ---


class Action(msgspec.Struct, frozen=True, tag=True):
    """Base of the actions of a node core."""


class Say(Action, frozen=True):
    """Send this in the open session; drop it if the session ends first."""

    message: Report | Pong | Leaving | Offers


class AttemptInputs(msgspec.Struct, frozen=True):
    """What the agent must prepare before the body starts, and how often it captures checkpoints."""

    package: str = ""
    inputs: tuple[Input, ...] = ()
    image: str = ""
    dockerfile: str = ""
    requirements: str = ""
    checkpoint: str = ""
    """Manifest to restore first."""
    checkpoint_ms: int = 0

    @staticmethod
    def of(start: Start) -> "AttemptInputs":
        spec = start.spec
        return AttemptInputs(
            spec.package,
            spec.inputs,
            spec.image,
            spec.dockerfile,
            spec.requirements,
            start.checkpoint,
            spec.checkpoint_ms,
        )


class Spawn(Action, frozen=True):
    """Prepare what the body needs, then start a shim. Requested once per attempt; answered by `ShimSaid` or
    `SpawnFailed`."""

    order: Order
    attempt_inputs: AttemptInputs = AttemptInputs()


class Tell(Action, frozen=True):
    """Send a command to the shim, if it can be reached; go and stop are repeated until they take effect."""

    attempt: AttemptId
    do: str
    """`go`, `lease` (until `at_ms`), `contact` (at `at_ms`) or `stop` (because of `reason`)."""
    at_ms: Instant = Instant(0)
    reason: str = ""


class CaptureCheckpoint(Action, frozen=True):
    """Capture the attempt's checkpoint folder now, because the job is about to move."""

    attempt: AttemptId


class Remove(Action, frozen=True):
    """The body has ended: delete everything of the attempt, then apply `Removed`. Requested once."""

    attempt: AttemptId


class RememberEpoch(Action, frozen=True):
    """Make this durable before carrying out the next action."""

    epoch: int


class HangUp(Action, frozen=True):
    """The orchestrator of this session has lost the lead, or welcomed another node: end the session and dial again."""

    why: str


NodeAction = Say | Spawn | Tell | CaptureCheckpoint | Remove | RememberEpoch | HangUp
