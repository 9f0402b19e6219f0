"""The public HTTP types, version 1. Separate from the model, so that the API stays stable when internals change.
Those for files are in `wire/files.py`, those for errors in `wire/errors.py`: nodes use them too.

Which endpoint takes and returns which of them is stated by the table in `orchestrator/api/routes.py` and listed in
docs/reference/http-api.md.

Every call except /healthz needs `Authorization: Bearer <token>`: the admin token, or an access token, which has a role
(docs/reference/roles.md). Errors are ErrorView with a stable code. With `X-Holdfast-Owner: <name>` a network operator
acts for an owner, in the role of a user: submits as that owner and sees only that owner's jobs. Without it, everything
is visible, and the owner is `admin` or the name in the access token. A stream ends with `event: end`; one that ends
without it was cut off. Signed URLs need no token; if the network stores blobs in a folder, they are
`PUT, GET /blobs/{key}?…`.
"""

from typing import Any

import msgspec

from holdfast.wire.errors import FailureView


class InputRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input that the job reads as `inputs/<name>`: exactly one of manifest, url and job."""

    name: str
    manifest: str = ""
    url: str = ""
    job: str = ""
    """Id of an earlier job of the same owner: its result files."""
    sha256: str = ""
    bytes_max: int = 0


class JobRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    argv: list[str]
    name: str = ""
    env: dict[str, str] = {}
    cpu_milli: int = 1000
    memory_mib: int = 512
    disk_mib: int = 1024
    gpus: int = 0
    gpu_model: str = ""
    gpu_memory_mib: int = 0
    arch: str = ""
    workload: str = "batch"
    recovery: str | None = None
    """None: the workload's default."""
    priority: int = 5
    time_limit_ms: int | None = None
    queue_limit_ms: int | None = None
    attempts_max: int | None = None
    key: str | None = None
    """Idempotency key; the header takes precedence if both are given (single submit)."""
    gpu_driver_min: str = ""
    cuda_min: str = ""
    network: bool = False
    package: str = ""
    """Name of a manifest that was uploaded before (POST /v1/manifests)."""
    image: str = ""
    dockerfile: str = ""
    """Path in the package."""
    requirements: str = ""
    """Path in the package."""
    inputs: list[InputRequest] = []
    checkpoint_ms: int = 0


class ArrayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One job for each item. In `job.argv`, `{}` is replaced by the item and `{index}` by its index; the environment of
    each job has HOLDFAST_ITEM, HOLDFAST_INDEX and HOLDFAST_ITEMS."""

    job: JobRequest
    items: list[str]
    key: str | None = None


class AttemptView(msgspec.Struct, frozen=True):
    id: str
    node: str
    phase: str
    offered_ms: int
    started_ms: int | None
    ended_ms: int | None
    revoked: FailureView | None
    failure: FailureView | None
    purpose: str = "placed"
    """`placed`; `second`: beside a straggler; `move`: on a machine that a person chose."""
    straggling: str = ""
    """Why it is considered a straggler; empty: it is not."""
    straggle: str | None = None
    """The same as a code: `stalled`, `slow`, `unknown`."""
    revoke_cause: str | None = None
    """Why it was revoked, as a code (holdfast.model.causes.RevokeCause)."""


class FilesView(msgspec.Struct, frozen=True):
    """The result files of a job."""

    manifest: str
    files: int
    bytes: int
    received: bool = False
    """The owner confirmed that they arrived; the network may delete them."""


class CheckpointView(msgspec.Struct, frozen=True):
    manifest: str
    attempt: str
    parent: str | None
    bytes: int
    made_ms: int


class ProgressView(msgspec.Struct, frozen=True):
    """The progress of an attempt. `total` 0: unknown."""

    attempt: str
    stage: str
    done: int
    total: int
    cpu_ms: int
    memory_mib: int


class MoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: str
    """A node: its id, a prefix of it, or its name."""
    key: str | None = None
    """Idempotency key, if not in the header: requests with the same key are the same move."""


class MoveView(msgspec.Struct, frozen=True):
    """The last requested move."""

    to: str
    state: str
    """`waiting`, `saving`, `starting`, `done`, `failed`."""
    says: str = ""
    """Why it failed."""


class EstimateView(msgspec.Struct, frozen=True):
    """When a job will start and end: an interval of Unix ms, intended to be right four times out of five. None: it has
    started, or there is no estimate, and `says` explains why."""

    start: tuple[int, int] | None
    end: tuple[int, int] | None
    runs: int
    """Number of similar jobs that were observed."""
    says: str
    latest_ms: int | None = None
    """When its time limit ends it at the latest."""


class ScoreView(msgspec.Struct, frozen=True):
    """How often estimates of one kind were right."""

    right: int
    early: int
    """The event came before the interval."""
    late: int
    judged: int


class EstimatesView(msgspec.Struct, frozen=True):
    scores: dict[str, ScoreView]
    """`start` and `end`: predicted at submission; `end_running`: predicted when the program started."""


class ProbeView(msgspec.Struct, frozen=True):
    """The result of probing a node just now."""

    answered: bool
    round_trip_ms: int | None
    silent_ms: int | None
    """Since its last message of any kind; None: it is not connected."""


class CheckView(msgspec.Struct, frozen=True):
    """What would happen to a submission now."""

    verdict: str
    """`now`: it would start on `node`, which answers; `unhealthy`: it would be placed on `node`, which does not answer;
    `waits`: it would be queued; `never`: no machine could hold it; `refused`: it would be rejected; `unknown`: the
    orchestrator cannot decide anything now."""
    says: str
    at_ms: int
    code: str = ""
    """Of the error that a submission would get."""
    node: str | None = None
    name: str = ""
    """The node's name for people."""
    state: str = ""
    cost: dict[str, int] = {}
    """The placement cost of the node, in milliseconds, by reason."""
    free: dict[str, int] = {}
    """Free on the node, before the job is placed."""
    probe: ProbeView | None = None
    instead: str | None = None
    """If `node` does not answer: another node with room that does."""
    gates: dict[str, int] = {}
    """The number of nodes that each reason excludes."""
    nearest: str = ""
    """The node that comes closest, and what it lacks."""
    ahead: int = 0
    """Jobs that would be placed before it."""
    estimate: EstimateView | None = None
    scores: dict[str, ScoreView] = {}
    """How often estimates were right."""
    gate_codes: dict[str, int] = {}
    """`gates` by code (holdfast.model.causes.Gate)."""


class EventView(msgspec.Struct, frozen=True):
    seq: int
    at_ms: int
    kind: str
    text: str
    """The sentence made of `kind` and `facts`, for people. Programs read the other two."""
    job: str | None = None
    attempt: str | None = None
    node: str | None = None
    facts: dict[str, Any] | None = None
    """What happened as data: codes, amounts, names (holdfast.model.journal.Facts). None: an entry of 0.1 that says
    it in words only."""


class JobView(msgspec.Struct, frozen=True):
    id: str
    name: str
    owner: str
    argv: list[str]
    phase: str
    waiting: str
    recovery: str
    priority: int
    submitted_ms: int
    ended_ms: int | None
    verdict: str | None
    failure: FailureView | None
    result_sha256: str | None
    result_bytes: int | None
    exit_code: int | None
    attempts_made: int
    node: str | None = None
    """Where it runs, or where its accepted attempt ran; of a job without one that has ended, where its last attempt
    ran."""
    attempts: list[AttemptView] = []
    events: list[EventView] = []
    again: bool = False
    """Whether this submission repeated an earlier one with the same key."""
    files: FilesView | None = None
    checkpoint: CheckpointView | None = None
    progress: list[ProgressView] = []
    """Of the attempts in progress; not stored."""
    accepted: str | None = None
    """The attempt whose result was accepted."""
    move: MoveView | None = None
    estimate: EstimateView | None = None
    """Of a job that has not ended, if it was requested alone or in a list."""
    array: str = ""
    """The array that it is an item of; empty: none."""
    item: int = 0
    """Its index there."""
    wait_reason: str | None = None
    """`waiting` as a code (holdfast.model.causes.WaitReason)."""
    confirming: FailureView | None = None
    """How it failed as one machine says, which another machine confirms now."""
    confirmation: str | None = None
    """Of a failure with its owner's blame: why that counts (holdfast.model.Confirmation)."""


class ArrayItem(msgspec.Struct, frozen=True):
    index: int
    job: str
    """The newest job that was submitted for this item."""
    phase: str
    verdict: str | None = None
    failure: str | None = None
    """Its code."""
    manifest: str = ""
    """Of its result files."""


class ArrayView(msgspec.Struct, frozen=True):
    id: str
    name: str
    owner: str
    items: int
    counts: dict[str, int]
    """By phase, ended ones by verdict; `unsent`: not submitted yet."""
    ended: bool
    submitted_ms: int
    jobs: list[ArrayItem]


class JobList(msgspec.Struct, frozen=True):
    jobs: list[JobView]
    next: str | None = None
    """Pass as `after` for the next page."""


class ExplainView(msgspec.Struct, frozen=True):
    job: str
    phase: str
    waiting_for: str
    until_ms: int | None
    then: str
    attempts: list[str]
    gates: dict[str, int]
    nearest: str
    ahead: int
    estimate: EstimateView | None = None
    wait_reason: str | None = None
    """What `waiting_for` says, as a code (holdfast.model.causes.WaitReason)."""
    gate_codes: dict[str, int] = {}
    """`gates` by code (holdfast.model.causes.Gate)."""


class NodeView(msgspec.Struct, frozen=True):
    id: str
    name: str
    state: str
    cause: str
    draining: bool
    connected: bool
    isolation: str
    version: str
    arch: str
    cpu_model: str
    hostname: str
    site: str
    total: dict[str, int]
    """cpu_milli, memory_mib, disk_mib, gpus."""
    free: dict[str, int]
    """Of what it offers to the network."""
    gpus: list[str]
    attempts: list[str]
    """Ids of the attempts it holds, as far as the caller may see them."""
    load: dict[str, int]
    joined_ms: int
    state_since_ms: int
    events: list[EventView] = []
    silent_ms: int | None = None
    """Since its last message; None: it is not connected."""
    offered: dict[str, int] = {}
    """What it lets the network use."""
    drained: bool = False
    """Draining because the network's operator requested it: its own operator cannot end that."""
    draining_because: str = ""
    """Who drains it, for people; empty: it is not draining."""
    cause_code: str | None = None
    """`cause` as a code (holdfast.model.causes.NodeCause)."""
    pause_cause: str | None = None
    """Why the node itself accepts no new work, as a code (holdfast.model.causes.PauseCause); None: it does."""
    holds: int = 0
    """Number of attempts it holds, whoever they belong to."""
    operator: str = ""
    """The operator that made the join token that it joined with."""

    @property
    def title(self) -> str:
        """What people call it: its name, or else its host's."""
        return self.name or self.hostname or self.id


class LogLine(msgspec.Struct, frozen=True):
    """A piece of output, or a message of the platform (stream `platform`)."""

    attempt: str
    stream: str
    offset: int
    text: str
    at_ms: int = 0
    raw: str = ""
    """The bytes in base64 if they are not UTF-8: `text` has � in their place."""


# --- content: see holdfast.blobs for blobs and manifests ---


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ttl_ms: int = 86_400_000
    uses: int = 1
    """How many machines may join with it; -1: any number."""
    note: str = ""


class TokenView(msgspec.Struct, frozen=True):
    id: str
    token: str
    expires_ms: int
    """The date at which it expires, if an orchestrator leads all the time until then and nobody sets its clock."""
    uses_left: int
    left_ms: int | None = None
    """What is left of its lifetime, which passes only while an orchestrator leads. None: from a release that counted
    it by its wall clock."""


class JoinTokenView(msgspec.Struct, frozen=True):
    """A join token in a listing: nobody can join with this information."""

    id: str
    state: str
    """`good`, `used up`, `expired` or `revoked`."""
    made_ms: int
    expires_ms: int
    uses_left: int
    """-1: any number."""
    note: str = ""
    left_ms: int | None = None
    """As in `TokenView`."""
    made_by: str = ""
    """The operator that made it."""


class AccessRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str
    """`user`, `node-operator` or `network-operator` (holdfast.model.access.Role)."""
    owner: str = ""
    """The owner whose jobs a user has, or the operator whose nodes a node operator has; both need it."""
    ttl_ms: int = 2_592_000_000
    note: str = ""


class AccessView(msgspec.Struct, frozen=True):
    """A new access token."""

    id: str
    token: str
    role: str
    owner: str
    left_ms: int
    """For how long it is valid."""


class AccessTokenView(msgspec.Struct, frozen=True):
    """An access token in a listing: nobody can call with this information."""

    id: str
    state: str
    """`good`, `expired` or `revoked`."""
    role: str
    owner: str
    """Empty: a network operator without a name of its own."""
    age_ms: int
    left_ms: int
    """For how long it is valid; 0: it is not."""
    note: str = ""
    made_by: str = ""


class Finding(msgspec.Struct, frozen=True):
    name: str
    ok: bool
    says: str


class DoctorView(msgspec.Struct, frozen=True):
    ok: bool
    findings: list[Finding]
