"""Jobs and their attempts: what a person asked for, and each try at it."""

from enum import StrEnum

import msgspec

from holdfast.model.causes import RevokeCause, StraggleKind, WaitReason
from holdfast.model.failure import Failure
from holdfast.model.ids import ArrayId, AttemptId, JobId, NodeId, Owner
from holdfast.model.resources import Need, Resources
from holdfast.model.stored import StoredRow
from holdfast.model.time import DAY_MS, Instant


class Recovery(StrEnum):
    """What may be done when an attempt is lost (SPEC J8)."""

    RESTART = "restart"
    """Run it again from the start; two attempts may run at once."""
    RESUME = "resume"
    """Run it again from its last checkpoint; two attempts may run at once."""
    NEVER = "never"
    """Not safe to repeat: at most one attempt's body ever starts."""


class Workload(StrEnum):
    BATCH = "batch"
    TRAINING = "training"
    INFERENCE = "inference"
    SERVICE = "service"


DEFAULT_RECOVERY: dict[Workload, Recovery] = {
    Workload.BATCH: Recovery.RESTART,
    Workload.TRAINING: Recovery.RESUME,
    Workload.INFERENCE: Recovery.RESTART,
    Workload.SERVICE: Recovery.RESTART,
}


class JobPhase(StrEnum):
    """Where a job stands, as its owner sees it (SPEC J3). Only `ended` is terminal."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    PREPARING = "preparing"
    RUNNING = "running"
    UPLOADING = "uploading"
    ENDED = "ended"


class Verdict(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TIME_LIMIT_MS_MAX = 30 * DAY_MS
"""The longest a job may ask to run: nodes refuse more, so the front door does as well."""


CHECKPOINT_MS_MIN = 1_000
"""More often and a job does little else than being saved."""


class Input(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Something a job reads: `inputs/<name>` in its folder. Either a manifest of its owner, or an address."""

    name: str
    manifest: str = ""
    """Hash of the manifest that holds it."""
    url: str = ""
    """`http(s)://…` or `s3://bucket/key`."""
    sha256: str = ""
    """What the content behind the address must be; empty: whatever is there, and its hash is recorded."""
    bytes_max: int = 0
    """Of an address; 0: the job's disk."""


class JobSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What was asked for. Never changes after submission."""

    argv: tuple[str, ...]
    name: str = ""
    env: dict[str, str] = {}
    need: Need = Need()
    workload: Workload = Workload.BATCH
    recovery: Recovery = Recovery.RESTART
    priority: int = 5
    """0 (last) to 9 (first)."""
    time_limit_ms: int | None = None
    """None: the network's `run_ms_max`."""
    queue_limit_ms: int | None = None
    """How long it may wait for a machine. None: the network's `queue_ms_max`."""
    attempts_max: int | None = None
    """None: the network's `attempts_max`."""
    package: str = ""
    """Hash of the manifest of the folder it runs in; empty: an empty folder."""
    image: str = ""
    """Container image, best by digest. Empty: no container, or built from `dockerfile`."""
    dockerfile: str = ""
    """Path in the package."""
    requirements: str = ""
    """Path in the package of a Python requirements file."""
    inputs: tuple[Input, ...] = ()
    checkpoint_ms: int = 0
    """How often its checkpoint folder is captured; 0: it has none."""
    array: ArrayId = ArrayId("")
    """Of the array it is an item of; empty: it stands alone."""
    item: int = 0
    """Its place there, from 0."""
    items: int = 0
    """How many items the array has."""


class Result(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What an attempt that exited with 0 declares. Verified before it is accepted."""

    stdout_sha256: str
    stdout_bytes: int
    stderr_bytes: int = 0
    exit_code: int = 0
    manifest: str = ""
    """Hash of the manifest of the files it made; empty: it made none."""
    files: int = 0
    files_bytes: int = 0


class Checkpoint(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A saved state of a job: what one attempt wrote to its checkpoint folder, captured whole."""

    manifest: str
    attempt: AttemptId
    """Who wrote it."""
    parent: AttemptId | None
    """Whose checkpoint that attempt had started from; None: from the beginning."""
    depth: int
    """How many captures lie between the job's beginning and this one."""
    bytes: int
    made_ms: Instant


class MoveState(StrEnum):
    """How a move to a chosen machine stands (docs/decisions/0013)."""

    WAITING = "waiting"
    """The job has not started: it is placed there and nowhere else, once there is room."""
    SAVING = "saving"
    """Where it runs it is asked for a checkpoint first."""
    STARTING = "starting"
    """An attempt is made ready there; the job goes on where it was."""
    DONE = "done"
    FAILED = "failed"
    """It goes on where it was, or anywhere."""


class Move(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A person asked for a job to run on a certain machine. The last such request stays with the job."""

    to: NodeId
    state: MoveState
    key: str = ""
    """Of the request: sent again, it changes nothing."""
    says: str = ""
    """Why it failed."""
    asked_ms: Instant = Instant(0)
    """On the patience clock."""
    save_until_ms: Instant = Instant(0)
    """`saving`: when it starts there without a newer checkpoint, on the patience clock."""

    @property
    def under_way(self) -> bool:
        return self.state not in (MoveState.DONE, MoveState.FAILED)


class Promise(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What was foretold of a job, kept until it is known whether it was right. Moments are Unix ms, from and to."""

    wait_ms: int = 0
    """How long it was expected to wait for room; 0: it found some at once."""
    start: tuple[int, int] | None = None
    """When its body would start, foretold when it was submitted; None: nobody knew."""
    end: tuple[int, int] | None = None
    """When it would end, foretold when it was submitted."""
    end_running: tuple[int, int] | None = None
    """When it would end, foretold when its body started."""
    started: bool = False
    """A body of it has started: the start is judged once."""


class Job(StoredRow, frozen=True, gc=False, omit_defaults=True):
    id: JobId
    owner: Owner
    spec: JobSpec
    spec_hash: str
    submitted_ms: Instant
    phase: JobPhase = JobPhase.QUEUED
    waiting: str = ""
    """What it is waiting for, in words; empty while an attempt makes progress."""
    queue_until_ms: Instant = Instant(0)
    """Deadline of `queued`, on the patience clock (see kernel.deadlines)."""
    not_before_ms: Instant = Instant(0)
    """Back-off: no new attempt before this moment of the patience clock."""
    attempts_made: int = 0
    tries: int = 0
    """Attempts made since one last ran for long (`lasting_ms`); bounded, unlike `attempts_made`."""
    tried_ms: Instant = Instant(0)
    """When the last attempt was made."""
    reserved: NodeId | None = None
    """A node that takes nothing new until this job fits there (see kernel.reservation)."""
    failures: int = 0
    """Attempts that ended in a failure that counts towards `attempts_max`."""
    avoid: tuple[NodeId, ...] = ()
    """Nodes on which an attempt failed: others come first."""
    felled: tuple[NodeId, ...] = ()
    """Nodes that went down with this job's body running (see kernel.health)."""
    checkpoint: Checkpoint | None = None
    """Where the next attempt goes on from."""
    extra_attempts: int = msgspec.field(default=0, name="seconds")
    """Attempts made beside a straggling one; bounded, for the job's whole life."""
    move: Move | None = None
    moves: int = 0
    """How often a person moved it; bounded."""
    promise: Promise | None = None
    """What was foretold of it, where that is to be judged (kernel.estimates)."""
    accepted: AttemptId | None = None
    result: Result | None = None
    verdict: Verdict | None = None
    failure: Failure | None = None
    ended_ms: Instant | None = None
    wait_reason: WaitReason | None = None
    """What it is waiting for; `waiting` says the same in words."""

    @property
    def live(self) -> bool:
        return self.phase is not JobPhase.ENDED

    @property
    def pinned(self) -> NodeId | None:
        """The only node on which it may be placed."""
        return self.move.to if self.move is not None and self.move.state is MoveState.WAITING else None


class Score(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How often estimates of one sort were right."""

    right: int = 0
    early: int = 0
    """It came before the interval that was foretold."""
    late: int = 0
    stretch_permille: int = 1000
    """What the next interval is stretched by, so that four of five are right (policy.estimates)."""


class DurationHistory(StoredRow, frozen=True, gc=False, omit_defaults=True):
    """How long jobs of one kind took lately: the items of an array, an owner's jobs of one name or one command, or all
    jobs of the network."""

    id: str
    seq: int
    """Grows with every change of any of these rows: the newest ones are in memory."""
    took_ms: tuple[int, ...]
    """Of the last that succeeded, oldest first."""
    readied_ms: tuple[int, ...] = ()
    """From the offer to the start of the body, of the last that started."""
    waits_permille: tuple[int, ...] = ()
    """Of the whole network: how long the last ones waited for room, in thousandths of what was foretold."""
    scores: dict[str, Score] = {}  # noqa: RUF012  # msgspec gives every row its own
    """Of the whole network: how often estimates were right, by sort."""


class Keep(StoredRow, frozen=True, gc=False, omit_defaults=True):
    """The files of an ended job, and how long they are kept for it. Not in memory."""

    id: JobId
    owner: Owner
    manifests: tuple[str, ...]
    """Hashes: what it was given and what it made."""
    until_ms: Instant
    received: bool = False
    """Its owner has them."""


class AttemptPhase(StrEnum):
    OFFERED = "offered"
    """Sent to a node; nothing heard yet."""
    PREPARING = "preparing"
    READY = "ready"
    """Class `never` only: prepared, waiting for the go."""
    RUNNING = "running"
    UPLOADING = "uploading"
    """The body has ended; logs and result are on their way, or being verified."""
    ENDED = "ended"


class Purpose(StrEnum):
    """Why an attempt was made (docs/decisions/0013)."""

    PLACED = "placed"
    """The job needed one."""
    SECOND = "second"
    """Beside one that straggles: the first result wins."""
    MOVE = "move"
    """A person chose its machine: when its body runs, the others are not needed."""


class Attempt(StoredRow, frozen=True, gc=False, omit_defaults=True):
    """One try at a job on one node. Its fence is its own and is revoked once and for ever."""

    id: AttemptId
    job: JobId
    node: NodeId
    fence: int
    """Unique over the life of the network; a report that carries another one is refused."""
    offered_ms: Instant
    owner: Owner = Owner("")
    holds: Resources = Resources()
    """What it occupies on its node until it has ended."""
    phase: AttemptPhase = AttemptPhase.OFFERED
    phase_until_ms: Instant = Instant(0)
    """Deadline of the phase, on the patience clock."""
    go: bool = False
    """Class `never`: the body was allowed to start."""
    started_ms: Instant | None = None
    """When the body was first seen running."""
    resumed: Checkpoint | None = None
    """What it was told to start from."""
    captures: int = 0
    """Checkpoints taken from it so far."""
    saved_ms: Instant | None = None
    """When it last saved something new that the job goes on from."""
    purpose: Purpose = Purpose.PLACED
    straggling: str = ""
    """Why it looks as if it got nowhere, in words; empty: it does not."""
    revoked: Failure | None = None
    """Set once. From then on nothing this attempt says can be accepted."""
    result: Result | None = None
    """Declared, not yet accepted."""
    failure: Failure | None = None
    ended_ms: Instant | None = None
    straggle: StraggleKind | None = None
    """How it gets nowhere; `straggling` says it in words."""
    revoke_cause: RevokeCause | None = None
    """Why it was revoked; `revoked` has it in words."""

    @property
    def live(self) -> bool:
        return self.phase is not AttemptPhase.ENDED

    @property
    def may_win(self) -> bool:
        return self.revoked is None and self.phase is not AttemptPhase.ENDED
