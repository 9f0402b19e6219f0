"""What the kernel decides: row changes to commit, then messages to send, then an answer to the caller."""

import msgspec

from holdfast.model import AttemptId, Failure, Gate, JobId, NodeId, Owner, Result, Score, WaitReason
from holdfast.model.messages import Discard, Drained, Go, Ping, Refusal, Renewed, Save, Start, Welcome
from holdfast.model.stored import StoredRow

Row = StoredRow
"""A change is a whole row, new or replacing the one with its key (model.rows). Entries are only ever added."""


class ToSession(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Send this to the node behind a session, if the session is still open."""

    session: int
    node: NodeId
    message: Welcome | Refusal | Start | Go | Discard | Renewed | Ping | Save | Drained


class CloseSession(msgspec.Struct, frozen=True, gc=False, tag=True):
    """End a session from this side (replaced, refused, lost)."""

    session: int
    why: str


class Verify(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Compare what this attempt delivered with what it declared, and feed `Verified` back."""

    attempt: AttemptId
    fence: int
    result: Result
    owner: Owner = Owner("")
    """The owner of the files."""


class Inspect(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Read again what this attempt was given, because its node says that it is damaged, and feed `Inspected` back."""

    attempt: AttemptId
    fence: int
    owner: Owner
    manifests: tuple[str, ...]


Send = ToSession | CloseSession | Verify | Inspect


# --- answers ---


class Taken(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The job is submitted. `again`: this key was used before, with the same specification."""

    job: JobId
    again: bool = False


class Rejected(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The request cannot be carried out. `code` is stable; `says` is for a person."""

    code: str
    says: str
    failure: Failure | None = None


class Done(msgspec.Struct, frozen=True, gc=False, tag=True):
    says: str = ""


class Deletions(msgspec.Struct, frozen=True, gc=False, tag=True):
    """What may be deleted now: `jobs` were replaced in this commit, and the journal may go up to `entry_seq`."""

    jobs: int = 0
    entry_seq: int = 0
    """0: nothing of the journal."""


class Estimate(msgspec.Struct, frozen=True, gc=False, tag=True):
    """When a job is predicted to start and end (SPEC J15): Unix ms, from and to, right four times out of five. None: it
    has started, or there is no prediction."""

    start: tuple[int, int] | None
    end: tuple[int, int] | None
    runs: int
    """How many similar jobs the prediction is based on."""
    says: str
    """What the prediction is based on, or why there is none."""
    latest_ms: int | None = None
    """When its time limit ends it at the latest (Unix ms)."""
    wait_ms: int = 0
    """How long it is expected to wait for room; 0: there is room now."""


class Explanation(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Why a job is where it is (SPEC H6)."""

    job: JobId
    phase: str
    waiting_for: str
    until_ms: int | None
    """The deadline of the present state (Unix ms); `then` says what follows."""
    then: str
    attempts: tuple[str, ...]
    """One line for each live attempt."""
    gates: dict[str, int]
    """For a queued job: how many nodes each gate holds back."""
    nearest: str = ""
    """The node that comes closest to fitting, and what it lacks."""
    ahead: int = 0
    """Jobs that would be placed before it."""
    estimate: Estimate | None = None
    wait_reason: WaitReason | None = None
    """What `waiting_for` says, as a code."""
    gate_codes: dict[Gate, int] = {}
    """`gates` by code."""


class Checked(msgspec.Struct, frozen=True, gc=False, tag=True):
    """What would happen to a job if it were submitted now (SPEC H5). The question changes nothing."""

    verdict: str
    """`now`: it would be given to `node`; `waits`: it would be queued; `never`: no machine could hold it; `refused`: it
    would be rejected."""
    says: str
    code: str = ""
    """The code of the error that a submission would get."""
    node: NodeId | None = None
    label: str = ""
    state: str = ""
    cost: dict[str, int] = {}
    """The terms of the node's cost, in milliseconds. Their sum was the lowest of the nodes compared."""
    free: tuple[int, int, int, int] = (0, 0, 0, 0)
    """What is free on the node before the job is placed: cpu_milli, memory_mib, disk_mib, gpus."""
    gates: dict[str, int] = {}
    nearest: str = ""
    ahead: int = 0
    estimate: Estimate | None = None
    gate_codes: dict[Gate, int] = {}
    """`gates` by code."""


class Predicted(msgspec.Struct, frozen=True, gc=False, tag="Foretold"):
    """When jobs are predicted to start and end, and how often each sort of prediction was right so far."""

    estimates: dict[JobId, Estimate]
    scores: dict[str, Score]


Answer = Taken | Rejected | Done | Explanation | Checked | Predicted | Deletions


class Decision(msgspec.Struct, frozen=True, gc=False):
    changes: tuple[Row, ...] = ()
    sends: tuple[Send, ...] = ()
    answer: Answer | None = None
