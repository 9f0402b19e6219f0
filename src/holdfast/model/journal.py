"""The journal: every transition that a person may ask about, in one ordered sequence (SPEC H4, J3)."""

import msgspec

from holdfast.model.ids import AttemptId, JobId, NodeId
from holdfast.model.time import Instant


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened. `seq` orders all entries of a network and resumes an event stream."""

    seq: int
    at_ms: Instant
    kind: str
    """`job.queued`, `job.assigned`, `attempt.revoked`, `node.suspect` …; listed in docs/states.md."""
    text: str
    job: JobId | None = None
    attempt: AttemptId | None = None
    node: NodeId | None = None


class Meta(msgspec.Struct, frozen=True, gc=False):
    """The orchestrator's own counters: one row."""

    epoch: int = 0
    """Grows with every leader; commands carry it."""
    entry_seq: int = 0
    fence: int = 0
    draws: int = 0
    """How many random numbers were drawn: the generator is counter-based."""
    seed: int = 0
    late_ms: int = 0
    """By how much all deadlines were moved because the orchestrator itself was late or away."""
    now_ms: Instant = Instant(0)
    """Kernel time of the last change."""
