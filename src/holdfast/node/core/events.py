"""What can happen to a node core, and what it asks its shell to do. Plain data; decides nothing.

The production agent and the simulator both speak this vocabulary. Times are CLOCK_BOOTTIME in
milliseconds: a suspended machine must not think that its lease lives.
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
    """What a shim says of its attempt. `stdout_sha256` and the sizes are final once `phase` is `ended`."""

    phase: Phase
    outcome: BodyOutcome | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_sha256: str = ""
    go: bool = False
    """The shim was told to go."""
    cpu_ms: int = 0
    memory_mib: int = 0
    """What the body has used and uses now; 0 where that cannot be known."""


# --- events ---


class NodeEventBase(msgspec.Struct, frozen=True, tag=True):
    """Base of everything that can happen to a node core."""


class Recovered(NodeEventBase, frozen=True):
    """Found on disk when the agent started. Comes before the first `Connected`; `ShimDied` follows where the
    shim is dead and left no outcome."""

    order: Order
    status: ShimStatus | None = None


class Connected(NodeEventBase, frozen=True):
    """A session stands. Everything said in an earlier one may be lost."""

    welcome: Welcome


class Disconnected(NodeEventBase, frozen=True):
    pass


class CommandReceived(NodeEventBase, frozen=True):
    """The orchestrator said this in the session that stands. May be late, repeated or out of order."""

    command: Start | Go | Discard | Renewed | Ping | Save | Drained


class ShimSaid(NodeEventBase, frozen=True):
    attempt: AttemptId
    status: ShimStatus


class ShimDied(NodeEventBase, frozen=True):
    """The shim is gone without a final status, and so is everything it had started: the shell saw to that."""

    attempt: AttemptId
    why: str


class SpawnFailed(NodeEventBase, frozen=True):
    """No shim could be started, and nothing runs."""

    attempt: AttemptId
    failure: Failure


class DeliveredFiles(msgspec.Struct, frozen=True):
    """What a body made, as it was delivered."""

    manifest: str = ""
    """Empty: it made none."""
    count: int = 0
    bytes: int = 0


class Delivered(NodeEventBase, frozen=True):
    """The body has ended, every byte of its logs is acknowledged, and its files are safe with the network."""

    attempt: AttemptId
    files: DeliveredFiles = DeliveredFiles()


class Undeliverable(NodeEventBase, frozen=True):
    """The body has ended, but what it made cannot be delivered, now or later."""

    attempt: AttemptId
    failure: Failure


class Progressed(NodeEventBase, frozen=True):
    """An attempt came further. Told with the next report, never for its own sake."""

    attempt: AttemptId
    progress: Progress


class Removed(NodeEventBase, frozen=True):
    """No process and no file of this attempt is left."""

    attempt: AttemptId


class LoadMeasured(NodeEventBase, frozen=True):
    load: Load


class LeaveAsked(NodeEventBase, frozen=True):
    """The operator wants this node to go. A second one may shorten the grace, never lengthen it."""

    grace_ms: int


class OfferAsked(NodeEventBase, frozen=True):
    """The operator changes what this node offers, or pauses it. None: as it was."""

    offered: Resources | None = None
    paused: bool | None = None
    grace_ms: int = 60_000
    why: str = ""
    """If paused: by what, for people to read; empty: by the operator."""


class NodeTick(NodeEventBase, frozen=True):
    """Time passed. Due at `NodeCore.next_due()`; earlier does no harm."""


NodeEvent = (
    Recovered | Connected | Disconnected | CommandReceived | ShimSaid | ShimDied | SpawnFailed | Delivered
    | Undeliverable | Progressed | Removed | LoadMeasured | LeaveAsked | OfferAsked | NodeTick
)  # fmt: skip


# --- actions ---


class Action(msgspec.Struct, frozen=True, tag=True):
    """Base of everything a node core asks for."""


class Say(Action, frozen=True):
    """Send this in the session that stands; drop it if the session ends first."""

    message: Report | Pong | Leaving | Offers


class AttemptInputs(msgspec.Struct, frozen=True):
    """What an attempt needs around it before its body can start, and what is kept of it: for the shell alone."""

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
    """Get ready what the body needs, then start a shim. Asked once for an attempt; answered by `ShimSaid` or
    `SpawnFailed`."""

    order: Order
    attempt_inputs: AttemptInputs = AttemptInputs()


class Tell(Action, frozen=True):
    """Tell the shim, if it can be reached; what matters is told again until it took effect."""

    attempt: AttemptId
    do: str
    """`go`, `lease` (until `at_ms`), `contact` (at `at_ms`) or `stop` (because of `reason`)."""
    at_ms: Instant = Instant(0)
    reason: str = ""


class CaptureCheckpoint(Action, frozen=True):
    """Capture the attempt's checkpoint folder now: its node is about to be emptied."""

    attempt: AttemptId


class Remove(Action, frozen=True):
    """The body has ended: delete what is left of the attempt, then say `Removed`. Asked once."""

    attempt: AttemptId


class RememberEpoch(Action, frozen=True):
    """Make this durable before acting on what follows in the list."""

    epoch: int


class HangUp(Action, frozen=True):
    """This session is led by somebody who lost the lead: end it and dial again."""

    why: str


NodeAction = Say | Spawn | Tell | CaptureCheckpoint | Remove | RememberEpoch | HangUp
