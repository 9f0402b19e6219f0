"""The messages between an orchestrator and a node. The wire carries these, and the two cores exchange nothing else.

A node reports which attempts it holds; the orchestrator tells it which it should hold. Either side may
repeat a message, and a message may be lost with its stream: every message can be derived from state
again, and the receiver compares it with its own state.

    node -> orchestrator   Hello, Report, Pong, Leaving, Offers
    orchestrator -> node   Welcome, Refusal, Start, Go, Discard, Renewed, Save, Ping, Drained
"""

from enum import StrEnum

import msgspec

from holdfast.model.failure import Failure
from holdfast.model.ids import AttemptId, JobId, NodeId
from holdfast.model.job import JobSpec, Result
from holdfast.model.resources import JOBS, PLAIN, Hardware, Resources


class Message(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Base of all messages."""


class HeldPhase(StrEnum):
    """The phase that a node reports for an attempt it holds."""

    PREPARING = "preparing"
    READY = "ready"
    RUNNING = "running"
    UPLOADING = "uploading"
    FINISHED = "finished"
    """The body ended and all its logs are delivered: `result` or `failure` is set. Kept until discarded."""
    REFUSED = "refused"
    """The node declined before anything ran: `failure` says why. No penalty."""
    GONE = "gone"
    """Nothing of it is left on this node."""


class Progress(msgspec.Struct, frozen=True, gc=False):
    """How far an attempt is, for people and for finding stragglers. Never stored."""

    stage: str
    """`data`, `image`, `build`, `run`, `files` …"""
    done: int = 0
    total: int = 0
    """0: not known."""
    cpu_ms: int = 0
    """Processor time of the body so far."""
    memory_mib: int = 0
    printed: int = 0
    """Bytes of output of the body so far, both streams."""


class Held(msgspec.Struct, frozen=True, gc=False):
    attempt: AttemptId
    fence: int
    phase: HeldPhase
    result: Result | None = None
    failure: Failure | None = None
    progress: Progress | None = None


class Load(msgspec.Struct, frozen=True, gc=False):
    """How busy the machine is, with Holdfast and everything else on it."""

    cpu_permille: int = 0
    memory_used_mib: int = 0
    disk_free_mib: int = 0
    sick: str = ""
    """Empty, or what is wrong with the machine (disk failing, out of memory …) in words."""


# --- node -> orchestrator ---


class Hello(Message, frozen=True, gc=False):
    """The first message of a session, already authenticated by the shell against `public_key`."""

    node: NodeId
    instance: str
    """New at every start of the agent. Distinguishes a reconnect from a second machine with the same identity."""
    public_key: str
    version: str
    hardware: Hardware
    offered: Resources
    isolation: str
    token_id: str = ""
    token_sha256: str = ""
    name: str = ""
    site: str = ""
    features: tuple[str, ...] = (JOBS, PLAIN)
    held: tuple[Held, ...] = ()
    epoch_seen: int = 0


class Report(Message, frozen=True, gc=False):
    """The attempts that the node holds. `full`: all of them; otherwise those that changed since the last report."""

    seq: int
    """Grows within a session; an older report is dropped."""
    full: bool
    held: tuple[Held, ...]
    load: Load | None = None
    renew: tuple[AttemptId, ...] = ()
    """Leases to renew. The node counts the lease from the moment it sent this report."""


class Pong(Message, frozen=True, gc=False):
    nonce: int


class Leaving(Message, frozen=True, gc=False):
    """The operator asked this node to leave: it takes no new work, and may finish its attempts within the grace."""

    grace_ms: int
    done: bool = False
    """The node holds nothing any more and leaves now."""


class Offers(Message, frozen=True, gc=False):
    """The operator changed what this node offers, or paused it. Repeatable attempts that no longer fit are moved at
    once; a paused node may finish its attempts within the grace."""

    offered: Resources
    paused: bool = False
    grace_ms: int = 0
    why: str = ""
    """Why the node is paused, for people to read; empty: its operator paused it."""


# --- orchestrator -> node ---


class Welcome(Message, frozen=True, gc=False):
    node: NodeId
    epoch: int
    heartbeat_ms: int
    keepalive_ms: int
    lease_ms: int
    orphan_ms_max: int
    stop_grace_ms: int


class Refusal(Message, frozen=True, gc=False):
    """The orchestrator refuses the session. `final`: trying again unchanged does not help."""

    code: str
    says: str
    final: bool


class Command(Message, frozen=True, gc=False):
    """Base of messages that change a node. A node refuses an epoch lower than the highest it has seen."""

    epoch: int


class Start(Command, frozen=True, gc=False):
    attempt: AttemptId
    fence: int
    job: JobId
    spec: JobSpec
    time_limit_ms: int
    lease_ms: int = 0
    """Class `never`: prepare, report READY, wait for Go, and stop when the lease is not renewed. 0: no lease."""
    checkpoint: str = ""
    """Hash of the manifest to restore into the checkpoint folder first; empty: start from the beginning."""


class Go(Command, frozen=True, gc=False):
    """The body may start. The lease counts from when the node sent report `seq` (0: the Hello), which said READY."""

    attempt: AttemptId
    fence: int
    seq: int


class Discard(Command, frozen=True, gc=False):
    """Stop the attempt if it runs, delete everything of it, and report GONE."""

    attempt: AttemptId
    fence: int
    reason: str
    accepted: bool = False
    """True: its result was accepted and is stored safely."""


class Renewed(Command, frozen=True, gc=False):
    """The leases named in report `seq` are renewed."""

    seq: int
    attempts: tuple[AttemptId, ...]


class Save(Command, frozen=True, gc=False):
    """Capture the attempt's checkpoint folder now. A hint: nothing depends on it."""

    attempt: AttemptId
    fence: int


class Ping(Command, frozen=True, gc=False):
    nonce: int


class Drained(Command, frozen=True, gc=False):
    """The network's operator drains this node, or no longer does. Shown to the node's operator; it changes nothing on
    the node. A node that was just welcomed is not drained unless this message follows."""

    on: bool


FromNode = Hello | Report | Pong | Leaving | Offers
ToNode = Welcome | Refusal | Start | Go | Discard | Renewed | Ping | Save | Drained
