"""What an orchestrator and a node say to each other. The wire carries these; the two cores speak only these.

A node reports what it holds; the orchestrator tells it what it should hold. Either side may repeat
itself, and a message may be lost with the stream that carried it: everything said is derivable again
from state, and the receiver compares it with what it has.

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
    """Base of everything said."""


class HeldPhase(StrEnum):
    """What a node says of an attempt it holds."""

    PREPARING = "preparing"
    READY = "ready"
    RUNNING = "running"
    UPLOADING = "uploading"
    FINISHED = "finished"
    """The body ended and all its logs are delivered: `result` or `failure` is set. Kept until discarded."""
    REFUSED = "refused"
    """Declined before anything ran: `failure` says why. No penalty."""
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
    """How busy the machine is, all causes together."""

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
    """New at every start of the agent: tells a reconnect from a second machine with the same identity."""
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
    """What the node holds. `full`: everything; otherwise only what changed since the last report."""

    seq: int
    """Grows within a session; an older one is dropped."""
    full: bool
    held: tuple[Held, ...]
    load: Load | None = None
    renew: tuple[AttemptId, ...] = ()
    """Leases to renew. The node counts the lease from the moment it sent this report."""


class Pong(Message, frozen=True, gc=False):
    nonce: int


class Leaving(Message, frozen=True, gc=False):
    """The operator asked this node to go: give it nothing new, let it finish within the grace."""

    grace_ms: int
    done: bool = False
    """Nothing is held any more: goodbye."""


class Offers(Message, frozen=True, gc=False):
    """The operator changed what this node offers, or paused it. What no longer fits is moved within the grace."""

    offered: Resources
    paused: bool = False
    grace_ms: int = 0
    why: str = ""
    """If paused: by what, for people to read; empty: by its operator."""


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
    """The session is not wanted. `final`: trying again as you are will not help."""

    code: str
    says: str
    final: bool


class Command(Message, frozen=True, gc=False):
    """Base of what changes a node. A node refuses an epoch lower than the highest it has seen."""

    epoch: int


class Start(Command, frozen=True, gc=False):
    attempt: AttemptId
    fence: int
    job: JobId
    spec: JobSpec
    time_limit_ms: int
    lease_ms: int = 0
    """Class `never`: prepare, say READY, wait for Go, and stop when the lease is not renewed. 0: no lease."""
    checkpoint: str = ""
    """Hash of the manifest to restore into the checkpoint folder first; empty: start from the beginning."""


class Go(Command, frozen=True, gc=False):
    """The body may start. The lease counts from the sending of report `seq` (0: the Hello), which said READY."""

    attempt: AttemptId
    fence: int
    seq: int


class Discard(Command, frozen=True, gc=False):
    """Stop it if it runs, forget it, leave nothing behind, and say GONE."""

    attempt: AttemptId
    fence: int
    reason: str
    accepted: bool = False
    """True: its result is the one that counts, and is safe."""


class Renewed(Command, frozen=True, gc=False):
    """The leases asked for in report `seq` hold."""

    seq: int
    attempts: tuple[AttemptId, ...]


class Save(Command, frozen=True, gc=False):
    """Capture the attempt's checkpoint folder now. A hint: nothing waits for it."""

    attempt: AttemptId
    fence: int


class Ping(Command, frozen=True, gc=False):
    nonce: int


class Drained(Command, frozen=True, gc=False):
    """The network's operator drains this node, or no longer does. For its owner to see: it changes nothing there. Not
    said of a node that was just welcomed: it is not drained."""

    on: bool


FromNode = Hello | Report | Pong | Leaving | Offers
ToNode = Welcome | Refusal | Start | Go | Discard | Renewed | Ping | Save | Drained
