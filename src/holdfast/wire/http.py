"""The public HTTP types, version 1. Apart from the model, so that the API can stay when the inside moves.

    POST   /v1/jobs                 JobRequest -> JobView            header Idempotency-Key optional
    POST   /v1/jobs/batch           list[JobRequest] -> list[JobView | ErrorView]   up to 1,000
    GET    /v1/jobs                 ?owner=&phase=&limit=&after=     -> JobList (newest first)
    GET    /v1/jobs/{id}            -> JobView                       a unique prefix of an id is enough
    GET    /v1/jobs/{id}/explain    -> kernel explanation (ExplainView)
    POST   /v1/check                ?node=  JobRequest -> CheckView  what a submission would meet now; nothing is stored
    POST   /v1/check/watch          ?node=  JobRequest -> SSE of CheckView, when something changes and every second
    GET    /v1/estimates            -> EstimatesView                 how often estimates were right
    POST   /v1/jobs/{id}/stop       -> JobView
    POST   /v1/arrays               ArrayRequest -> ArrayView        one job per item; Idempotency-Key as above
    GET    /v1/arrays/{id}          -> ArrayView
    POST   /v1/arrays/{id}/stop     -> ArrayView
    POST   /v1/arrays/{id}/retry    -> ArrayView                     run the items again that did not succeed
    POST   /v1/jobs/{id}/received   -> JobView                       the files it made have arrived
    POST   /v1/jobs/{id}/rerun      -> JobView                       the same again; header Idempotency-Key
    GET    /v1/jobs/{id}/output/{attempt}/{stdout|stderr}  ?offset= -> bytes, up to 1 MiB; empty at the end
    GET    /v1/jobs/{id}/logs       ?stream=stdout|stderr|both&follow= -> SSE of LogLine; Last-Event-ID resumes
    POST   /v1/blobs/missing        BlobsRequest -> Missing          which of these must be sent
    POST   /v1/blobs/links          BlobsRequest -> Urls             where to
    POST   /v1/manifests            TakeRequest -> ManifestView      take over what was sent
    GET    /v1/manifests/{name}     -> bytes
    POST   /v1/manifests/{name}/links  LinksRequest -> Urls          where to fetch its blobs
    PUT, GET /blobs/{key}?…         the signed addresses of a network that keeps blobs in a folder; no token
    GET    /v1/nodes                -> list[NodeView]
    GET    /v1/nodes/{id}           -> NodeView with recent journal
    POST   /v1/nodes/{id}/drain     ?on=true|false -> NodeView
    GET    /v1/events               ?after=&tail=&job=&node=&follow=  -> SSE of EventView; Last-Event-ID resumes;
                                                                     tail: from so many before the newest on
    POST   /v1/tokens               TokenRequest -> TokenView        the only time the token itself is shown;
                                                                     header Idempotency-Key optional
    GET    /v1/tokens               -> list[JoinTokenView], newest first
    DELETE /v1/tokens/{id}
    GET    /v1/doctor               -> DoctorView: rebuild equals memory, store reachable …
    GET    /healthz, /metrics

Every call but /healthz needs `Authorization: Bearer <token>`. Errors are ErrorView with a stable code. With
`X-Holdfast-Owner: <name>` the admin acts for an owner: submits as them and sees only their jobs; without it, the
owner is `admin` and everything is seen. A stream closes with `event: end`; one that ends without it was cut.
"""

import msgspec


class InputRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something the job reads as `inputs/<name>`: exactly one of manifest, url and job."""

    name: str
    manifest: str = ""
    url: str = ""
    job: str = ""
    """Id of an earlier job of the same owner: the files it made."""
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
    """Idempotency key; the header wins where both are given (single submit)."""
    gpu_driver_min: str = ""
    cuda_min: str = ""
    network: bool = False
    package: str = ""
    """Name of a manifest that was delivered before (POST /v1/manifests)."""
    image: str = ""
    dockerfile: str = ""
    """Path in the package."""
    requirements: str = ""
    """Path in the package."""
    inputs: list[InputRequest] = []
    checkpoint_ms: int = 0


class ArrayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One job for each item. In `job.argv`, `{}` stands for the item and `{index}` for its place; the environment of
    each has HOLDFAST_ITEM, HOLDFAST_INDEX and HOLDFAST_ITEMS."""

    job: JobRequest
    items: list[str]
    key: str | None = None


class FailureView(msgspec.Struct, frozen=True):
    code: str
    says: str
    detail: str
    blame: str
    retryable: bool
    billable: bool
    exit_code: int | None = None
    signal: int | None = None


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
    """`placed`; `second`: beside one that straggles; `move`: on a machine that a person chose."""
    straggling: str = ""
    """Why it looks as if it got nowhere; empty: it does not."""


class FilesView(msgspec.Struct, frozen=True):
    """The files a job made."""

    manifest: str
    files: int
    bytes: int
    received: bool = False
    """Its owner said that they arrived; the network may forget them."""


class CheckpointView(msgspec.Struct, frozen=True):
    manifest: str
    attempt: str
    parent: str | None
    bytes: int
    made_ms: int


class ProgressView(msgspec.Struct, frozen=True):
    """How far an attempt is. `total` 0: not known."""

    attempt: str
    stage: str
    done: int
    total: int
    cpu_ms: int
    memory_mib: int


class MoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: str
    """A node: its id, the first letters of it, or its name."""
    key: str | None = None
    """Idempotency key, if not in the header: the same key is the same move."""


class MoveView(msgspec.Struct, frozen=True):
    """The last move that was asked for."""

    to: str
    state: str
    """`waiting`, `saving`, `starting`, `done`, `failed`."""
    says: str = ""
    """Why it failed."""


class EstimateView(msgspec.Struct, frozen=True):
    """When a job will start and end: Unix ms, from and to, meant to be right four times of five. None: it has started,
    or nobody knows, and `says` tells why."""

    start: tuple[int, int] | None
    end: tuple[int, int] | None
    runs: int
    """How many like it were seen."""
    says: str
    latest_ms: int | None = None
    """When its time limit ends it at the latest."""


class ScoreView(msgspec.Struct, frozen=True):
    """How often estimates of one sort were right."""

    right: int
    early: int
    """It came before the interval."""
    late: int
    judged: int


class EstimatesView(msgspec.Struct, frozen=True):
    scores: dict[str, ScoreView]
    """`start` and `end`: foretold at submission; `end_running`: foretold when the program started."""


class ProbeView(msgspec.Struct, frozen=True):
    """A node that was asked just now whether it is there."""

    answered: bool
    round_trip_ms: int | None
    silent_ms: int | None
    """Since its last word of any kind; None: it is not connected."""


class CheckView(msgspec.Struct, frozen=True):
    """What a submission would meet now."""

    verdict: str
    """`now`: it would start on `node`, which answers; `unhealthy`: it would be given to `node`, which does not answer;
    `waits`: it would be queued; `never`: no machine could hold it; `refused`: it would not be taken; `unknown`: the
    orchestrator cannot decide anything now."""
    says: str
    at_ms: int
    code: str = ""
    """Of the error that a submission would meet."""
    node: str | None = None
    name: str = ""
    """What people call the node."""
    state: str = ""
    cost: dict[str, int] = {}
    """What speaks against the node, in milliseconds, by reason."""
    free: dict[str, int] = {}
    """On the node, before the job comes."""
    probe: ProbeView | None = None
    instead: str | None = None
    """If `node` does not answer: another one with room that does."""
    gates: dict[str, int] = {}
    """How many nodes each reason holds back."""
    nearest: str = ""
    """The node that misses by least, and by what."""
    ahead: int = 0
    """Jobs that would be placed before it."""
    estimate: EstimateView | None = None
    scores: dict[str, ScoreView] = {}
    """How often estimates were right."""


class EventView(msgspec.Struct, frozen=True):
    seq: int
    at_ms: int
    kind: str
    text: str
    job: str | None = None
    attempt: str | None = None
    node: str | None = None


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
    """Where it runs, or ran to its accepted end."""
    attempts: list[AttemptView] = []
    events: list[EventView] = []
    again: bool = False
    """This submission repeated an earlier one with the same key."""
    files: FilesView | None = None
    checkpoint: CheckpointView | None = None
    progress: list[ProgressView] = []
    """Of the attempts that are under way; not kept."""
    accepted: str | None = None
    """The attempt whose result counts."""
    move: MoveView | None = None
    estimate: EstimateView | None = None
    """Of a job that has not ended, where it was asked for alone or in a list."""
    array: str = ""
    """The array that it is an item of; empty: it stands alone."""
    item: int = 0
    """Its place there."""


class ArrayItem(msgspec.Struct, frozen=True):
    index: int
    job: str
    """The newest that was submitted for this item."""
    phase: str
    verdict: str | None = None
    failure: str | None = None
    """Its code."""
    manifest: str = ""
    """Of the files it made."""


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
    """Ids of what it holds."""
    load: dict[str, int]
    joined_ms: int
    state_since_ms: int
    events: list[EventView] = []
    silent_ms: int | None = None
    """Since its last word; None: it is not connected."""
    offered: dict[str, int] = {}
    """What it lets the network use."""
    drained: bool = False
    """Draining because the network's operator said so: its own cannot end that."""
    draining_because: str = ""
    """By whom it is given nothing new, in words; empty: it is not draining."""


class LogLine(msgspec.Struct, frozen=True):
    """A piece of output, or something the platform saw (stream `platform`)."""

    attempt: str
    stream: str
    offset: int
    text: str
    at_ms: int = 0


# --- content: see holdfast.blobs for what blobs and manifests are ---


class BlobRef(msgspec.Struct, frozen=True, array_like=True):
    sha256: str
    size: int


class BlobsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most 4,096 at a time."""

    blobs: list[BlobRef]


class Missing(msgspec.Struct, frozen=True):
    missing: list[str]
    """Hashes of those that must be sent."""


class Urls(msgspec.Struct, frozen=True):
    """Signed addresses, one for each blob that was asked for. Without a host: of the door that answered."""

    urls: dict[str, str]


class LinksRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    blobs: list[str]


class TakeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    manifest: str
    """Its name. It was sent like any blob, and so was all that it names."""


class ManifestView(msgspec.Struct, frozen=True):
    name: str
    files: int
    bytes: int
    missing: list[str] = []
    """Blobs that did not arrive whole. While there are any, nothing is taken over."""


class SavedView(msgspec.Struct, frozen=True):
    says: str = ""
    """Empty: it stands. Else why another one does."""


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ttl_ms: int = 86_400_000
    uses: int = -1
    note: str = ""


class TokenView(msgspec.Struct, frozen=True):
    id: str
    token: str
    expires_ms: int
    uses_left: int


class JoinTokenView(msgspec.Struct, frozen=True):
    """A join token as it is listed: nobody can join with what stands here."""

    id: str
    state: str
    """`good`, `used up`, `expired` or `revoked`."""
    made_ms: int
    expires_ms: int
    uses_left: int
    """-1: any number."""
    note: str = ""


class Finding(msgspec.Struct, frozen=True):
    name: str
    ok: bool
    says: str


class DoctorView(msgspec.Struct, frozen=True):
    ok: bool
    findings: list[Finding]


class ErrorView(msgspec.Struct, frozen=True):
    """What happened, to what, why, what to do; and a code that does not change."""

    code: str
    says: str
    hint: str = ""
    failure: FailureView | None = None
