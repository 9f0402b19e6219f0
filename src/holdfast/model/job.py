"""Jobs as submitted, and their attempts."""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.model.causes import RevokeCause, StraggleKind, WaitReason
from holdfast.model.failure import Failure
from holdfast.model.ids import ArrayId, AttemptId, JobId, NodeId, Owner, attempt_id
from holdfast.model.resources import Need, Resources
from holdfast.model.stored import StoredRow
from holdfast.model.time import DAY_MS, Instant


class Recovery(StrEnum):
    """What may happen when an attempt is lost (SPEC J8)."""

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
"""The largest time limit of a job. Nodes refuse more, so the API does too."""


CHECKPOINT_MS_MIN = 1_000
"""The shortest checkpoint interval. A job that is captured more often does little else."""


class Input(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Something a job reads: `inputs/<name>` in its folder. Either a manifest of its owner, or a URL."""

    name: str
    manifest: str = ""
    """Hash of the manifest."""
    url: str = ""
    """`http(s)://…` or `s3://bucket/key`."""
    sha256: str = ""
    """The required hash of the content at the URL; empty: any content is accepted, and its hash is recorded."""
    bytes_max: int = 0
    """Size limit of the content at a URL; 0: the job's disk."""


class JobSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A job as submitted. Never changes after submission."""

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
    """How long the job may wait for a machine. None: the network's `queue_ms_max`."""
    attempts_max: int | None = None
    """None: the network's `attempts_max`."""
    package: str = ""
    """Hash of the manifest of the folder that the job runs in; empty: an empty folder."""
    image: str = ""
    """Container image, preferably by digest. Empty: no container, or an image built from `dockerfile`."""
    dockerfile: str = ""
    """Path in the package."""
    requirements: str = ""
    """Path in the package of a Python requirements file."""
    inputs: tuple[Input, ...] = ()
    checkpoint_ms: int = 0
    """Interval between captures of the checkpoint folder; 0: the job has none."""
    array: ArrayId = ArrayId("")
    """The array that the job is an item of; empty: none."""
    item: int = 0
    """Index of the item in the array, from 0."""
    items: int = 0
    """Number of items in the array."""


class Result(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What an attempt that exited with 0 declares. Verified before it is accepted."""

    stdout_sha256: str
    stdout_bytes: int
    stderr_bytes: int = 0
    exit_code: int = 0
    manifest: str = ""
    """Hash of the manifest of the files that the attempt made; empty: none."""
    files: int = 0
    files_bytes: int = 0


class Confirmation(StrEnum):
    """Why a failure that is blamed on the job's owner counts (docs/decisions/0031)."""

    CONFIRMED = "confirmed"
    """Another machine blamed the owner as well."""
    RECORD = "record"
    """The machine blames owners no more often than others do."""
    UNCONFIRMED = "unconfirmed"
    """The job may not be repeated, has no attempt left, or no other machine could take it."""
    TAKEN = "taken"
    """The owner did not wait for the confirmation."""


class PendingVerdict(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A failure that a machine blames on the job's owner, until another machine confirms or refutes it."""

    failure: Failure
    attempt: AttemptId
    node: NodeId
    excused: bool = False
    """The machine was away before it said so. It gets no strike if it was wrong."""


class Checkpoint(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A saved state of a job: what one attempt wrote to its checkpoint folder, captured whole."""

    manifest: str
    attempt: AttemptId
    """The attempt that wrote it."""
    parent: AttemptId | None
    """The attempt whose checkpoint that attempt started from; None: it started from the beginning."""
    depth: int
    """Number of captures from the job's beginning to this one."""
    bytes: int
    made_ms: Instant
    node: NodeId = NodeId("")
    """The machine of that attempt: its author. Empty: saved under a release that did not record it."""
    ancestor: "Checkpoint | None" = None
    """The checkpoint that the attempt started from, with its own ancestors; their number is limited."""

    @property
    def line(self) -> "tuple[Checkpoint, ...]":
        """This one and its ancestors, newest first."""
        return (self, *(self.ancestor.line if self.ancestor is not None else ()))


class MoveState(StrEnum):
    """State of a move to a chosen machine (docs/decisions/0013)."""

    WAITING = "waiting"
    """The job has not started. It is placed on the chosen machine and on no other, once there is room."""
    SAVING = "saving"
    """The node that runs the job is asked for a checkpoint first."""
    STARTING = "starting"
    """An attempt is being prepared on the chosen machine; the job keeps running where it was."""
    DONE = "done"
    FAILED = "failed"
    """The job keeps running where it was, or may be placed anywhere."""


class Move(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A person's request to run a job on a certain machine. The last such request stays with the job."""

    to: NodeId
    state: MoveState
    key: str = ""
    """Idempotency key of the request: a repeated request changes nothing."""
    says: str = ""
    """Why it failed."""
    asked_ms: Instant = Instant(0)
    """On the patience clock."""
    save_until_ms: Instant = Instant(0)
    """`saving`: when the job starts there even without a newer checkpoint, on the patience clock."""

    @property
    def under_way(self) -> bool:
        return self.state not in (MoveState.DONE, MoveState.FAILED)


class Promise(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The estimates given for a job, kept until they can be judged. Intervals are in Unix ms, from and to."""

    wait_ms: int = 0
    """The expected wait for room; 0: there was room at once."""
    start: tuple[int, int] | None = None
    """When the body starts, as estimated at submission; None: no estimate."""
    end: tuple[int, int] | None = None
    """When the job ends, as estimated at submission."""
    end_running: tuple[int, int] | None = None
    """When the job ends, as estimated when its body started."""
    started: bool = False
    """A body of the job has started. The estimated start is judged only once."""


class Job(StoredRow, frozen=True, gc=False, omit_defaults=True):
    id: JobId
    owner: Owner
    spec: JobSpec
    spec_hash: str
    submitted_ms: Instant
    phase: JobPhase = JobPhase.QUEUED
    waiting: str = ""
    """What the job is waiting for, in words; empty while an attempt makes progress."""
    queue_until_ms: Instant = Instant(0)
    """Deadline of `queued`, on the patience clock (see kernel.deadlines)."""
    not_before_ms: Instant = Instant(0)
    """Back-off: no new attempt starts before this moment on the patience clock."""
    attempts_made: int = 0
    numbers_skipped: tuple[tuple[int, int], ...] = ()
    """(count, by): after so many attempts their numbers skip ahead, because a leader whose state was lost may have used
    the next ones. Set where a backup is restored."""
    tries: int = 0
    """Attempts made since one last ran for at least `lasting_ms`; bounded, unlike `attempts_made`."""
    tried_ms: Instant = Instant(0)
    """When the last attempt was made."""
    reserved: NodeId | None = None
    """A node that takes nothing new until this job fits there (see kernel.reservation)."""
    failures: int = 0
    """Attempts that ended in a failure that counts towards `attempts_max`."""
    avoid: tuple[NodeId, ...] = ()
    """Nodes on which an attempt failed. Placement prefers others."""
    felled: tuple[NodeId, ...] = ()
    """Nodes that went down with this job's body running (see kernel.health)."""
    checkpoint: Checkpoint | None = None
    """The checkpoint that the next attempt starts from."""
    extra_attempts: int = msgspec.field(default=0, name="seconds")
    """Attempts made beside a straggling one over the job's whole life; bounded."""
    move: Move | None = None
    moves: int = 0
    """How often a person moved the job; bounded."""
    promise: Promise | None = None
    """The estimates given for the job, if they are to be judged (kernel.estimates)."""
    accepted: AttemptId | None = None
    result: Result | None = None
    verdict: Verdict | None = None
    failure: Failure | None = None
    ended_ms: Instant | None = None
    wait_reason: WaitReason | None = None
    """What the job is waiting for; `waiting` says it in words."""
    pending_verdict: PendingVerdict | None = None
    """The failure that is being confirmed on another machine."""
    confirmation: Confirmation | None = None
    """Set at the end if the owner is blamed: why that counts."""

    @property
    def live(self) -> bool:
        return self.phase is not JobPhase.ENDED

    def nth_attempt(self, count: int) -> AttemptId:
        """The id of its attempt with this count: the first has 1. Its number may be higher (`numbers_skipped`)."""
        return attempt_id(self.id, count + sum(by for after, by in self.numbers_skipped if count > after))

    def skipping(self, by: int) -> "Job":
        """With attempts whose numbers skip ahead from now on."""
        return replace(self, numbers_skipped=(*self.numbers_skipped, (self.attempts_made, by)))

    @property
    def pinned(self) -> NodeId | None:
        """The only node on which the job may be placed; None: any."""
        return self.move.to if self.move is not None and self.move.state is MoveState.WAITING else None


class Score(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How often estimates of one kind were right."""

    right: int = 0
    early: int = 0
    """Events that came before the estimated interval."""
    late: int = 0
    stretch_permille: int = 1000
    """The factor by which the next interval is widened, so that four out of five are right (policy.estimates)."""


class DurationHistory(StoredRow, frozen=True, gc=False, omit_defaults=True):
    """How long recent jobs of one kind took: the items of an array, an owner's jobs with one name or one command, or
    all jobs of the network."""

    id: str
    seq: int
    """Grows with every change to any of these rows. The newest rows are kept in memory."""
    took_ms: tuple[int, ...]
    """Durations of the last jobs that succeeded, oldest first."""
    readied_ms: tuple[int, ...] = ()
    """Time from the offer to the start of the body, for the last jobs that started."""
    waits_permille: tuple[int, ...] = ()
    """For the whole network: how long the last jobs waited for room, in thousandths of the estimate."""
    scores: dict[str, Score] = {}  # noqa: RUF012  # msgspec gives every row its own
    """For the whole network: how often estimates were right, by kind of estimate."""


class Keep(StoredRow, frozen=True, gc=False, omit_defaults=True):
    """The files of an ended job, and how long they are kept. Not held in memory."""

    id: JobId
    owner: Owner
    manifests: tuple[str, ...]
    """Hashes of the manifests of what the job was given and what it made."""
    until_ms: Instant
    received: bool = False
    """Its owner has received them."""


class AttemptPhase(StrEnum):
    OFFERED = "offered"
    """Sent to a node, which has not answered yet."""
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
    """The job needed an attempt."""
    SECOND = "second"
    """Runs beside a straggling attempt; the first result wins."""
    CONFIRM = "confirm"
    """Confirms or refutes that the job failed by its owner's fault. Never billed."""
    MOVE = "move"
    """A person chose its machine. When its body runs, the other attempts are no longer needed."""

    @property
    def in_turn(self) -> bool:
        """Whether the job needed the attempt and waited for it in the queue."""
        return self in (Purpose.PLACED, Purpose.CONFIRM)


class Attempt(StoredRow, frozen=True, gc=False, omit_defaults=True):
    """One try at running a job on one node. Its fence belongs to it alone and is revoked once and for ever."""

    id: AttemptId
    job: JobId
    node: NodeId
    fence: int
    """Unique over the life of the network; a report with another fence is refused."""
    offered_ms: Instant
    owner: Owner = Owner("")
    holds: Resources = Resources()
    """The resources that it occupies on its node until it has ended."""
    phase: AttemptPhase = AttemptPhase.OFFERED
    phase_until_ms: Instant = Instant(0)
    """Deadline of the phase, on the patience clock."""
    go: bool = False
    """Class `never`: the body was allowed to start."""
    started_ms: Instant | None = None
    """When the body was first seen running."""
    resumed: Checkpoint | None = None
    """The checkpoint that it was started from."""
    captures: int = 0
    """Checkpoints taken from it so far."""
    saved_ms: Instant | None = None
    """When it last saved a new checkpoint that became the job's."""
    delivered: tuple[str, ...] = ()
    """Hashes of the last manifests whose content it sent and that were accepted. A result may name only these."""
    tainted: bool = False
    """Its machine delivered something false since it was made: nothing that it saves is kept."""
    purpose: Purpose = Purpose.PLACED
    straggling: str = ""
    """Why it counts as a straggler, in words; empty: it does not."""
    revoked: Failure | None = None
    """Set once. From then on, no report of this attempt is accepted."""
    result: Result | None = None
    """Declared, not yet accepted."""
    failure: Failure | None = None
    ended_ms: Instant | None = None
    straggle: StraggleKind | None = None
    """In which way it straggles; `straggling` says it in words."""
    revoke_cause: RevokeCause | None = None
    """Why it was revoked; `revoked` says it in words."""

    @property
    def live(self) -> bool:
        return self.phase is not AttemptPhase.ENDED

    @property
    def may_win(self) -> bool:
        return self.revoked is None and self.phase is not AttemptPhase.ENDED
