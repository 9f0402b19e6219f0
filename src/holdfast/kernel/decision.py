"""What the kernel decides: row changes to commit, then things to send, then an answer to whoever asked."""

import msgspec

from holdfast.model import AttemptId, Failure, Gate, JobId, NodeId, Owner, Result, Score, WaitReason
from holdfast.model.messages import Discard, Drained, Go, Ping, Refusal, Renewed, Save, Start, Welcome
from holdfast.model.stored import StoredRow

Row = StoredRow
"""A change is a whole row, new or replacing the one with its key (model.rows). Entries are only ever added."""


class ToSession(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Say this to the node behind a session, if the session still stands."""

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
    """Whose files they are."""


Send = ToSession | CloseSession | Verify


# --- answers ---


class Taken(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The submission stands. `again`: this key was used before, with the same specification."""

    job: JobId
    again: bool = False


class Rejected(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Asked for something that cannot be done. `code` is stable; `says` is for a person."""

    code: str
    says: str
    failure: Failure | None = None


class Done(msgspec.Struct, frozen=True, gc=False, tag=True):
    says: str = ""


class Estimate(msgspec.Struct, frozen=True, gc=False, tag=True):
    """When a job will start and end, as far as can be foretold (SPEC J15): Unix ms, from and to, right four times of
    five. None: it has started, or nobody knows."""

    start: tuple[int, int] | None
    end: tuple[int, int] | None
    runs: int
    """How many like it were seen."""
    says: str
    """From what it was foretold, or why it was not."""
    latest_ms: int | None = None
    """When its time limit ends it at the latest."""
    wait_ms: int = 0
    """How long it is expected to wait for room; 0: there is some."""


class Explanation(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Why a job is where it is (SPEC H6)."""

    job: JobId
    phase: str
    waiting_for: str
    until_ms: int | None
    """When the present state ends by its deadline (Unix ms), and then:"""
    then: str
    attempts: tuple[str, ...]
    """One line for each live attempt."""
    gates: dict[str, int]
    """For a queued job: how many nodes each gate holds back."""
    nearest: str = ""
    """The node that misses by least, and by what."""
    ahead: int = 0
    """Jobs that would be placed before it."""
    estimate: Estimate | None = None
    wait_reason: WaitReason | None = None
    """What `waiting_for` says, as a code."""
    gate_codes: dict[Gate, int] = {}
    """`gates` by code."""


class Checked(msgspec.Struct, frozen=True, gc=False, tag=True):
    """What would become of a job that were submitted now (SPEC H5). Nothing was changed by asking."""

    verdict: str
    """`now`: it would be given to `node`; `waits`: it would be queued; `never`: no machine could hold it; `refused`: it
    would not be taken."""
    says: str
    code: str = ""
    """Of the error that a submission would meet."""
    node: NodeId | None = None
    label: str = ""
    state: str = ""
    cost: dict[str, int] = {}
    """What speaks against the node, in milliseconds, by reason; their sum was the least of those compared."""
    free: tuple[int, int, int, int] = (0, 0, 0, 0)
    """On the node before the job comes: cpu_milli, memory_mib, disk_mib, gpus."""
    gates: dict[str, int] = {}
    nearest: str = ""
    ahead: int = 0
    estimate: Estimate | None = None
    gate_codes: dict[Gate, int] = {}
    """`gates` by code."""


class Predicted(msgspec.Struct, frozen=True, gc=False, tag="Foretold"):
    """When jobs will start and end, and how often that was right so far, by sort."""

    estimates: dict[JobId, Estimate]
    scores: dict[str, Score]


Answer = Taken | Rejected | Done | Explanation | Checked | Predicted


class Decision(msgspec.Struct, frozen=True, gc=False):
    changes: tuple[Row, ...] = ()
    sends: tuple[Send, ...] = ()
    answer: Answer | None = None
