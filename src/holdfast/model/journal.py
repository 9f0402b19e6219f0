"""The journal: every transition that a person may ask about, in one ordered sequence (SPEC H4, J3)."""

from bisect import bisect_right
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from holdfast.model.access import Role
from holdfast.model.causes import DrainChange, Gate, NodeCause, RevokeCause, StraggleKind, TakeoverCause, WaitReason
from holdfast.model.failure import FailureCode
from holdfast.model.ids import AttemptId, JobId, NodeId
from holdfast.model.job import Confirmation, MoveState, Verdict
from holdfast.model.resources import Resources
from holdfast.model.stored import StoredRow
from holdfast.model.time import Instant


class Facts(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The values in the sentence of an entry. Which fields are set depends on the code (`model.cause_text`).

    Flat, so that a release that does not know a field ignores it."""

    wait: WaitReason | None = None
    straggle: StraggleKind | None = None
    node_cause: NodeCause | None = None
    takeover: TakeoverCause | None = None
    revoke: RevokeCause | None = None
    drain: DrainChange | None = None
    failure: FailureCode | None = None
    fault: FailureCode | None = None
    """The last fault of a machine that was quarantined for its faults."""
    verdict: Verdict | None = None
    confirmation: Confirmation | None = None
    move: MoveState | None = None
    gate: Gate | None = None
    """What keeps a job from most machines."""
    role: Role | None = None
    refusal: str = ""
    """Code with which a session was refused."""
    label: str = ""
    """What people call the machine; the id of an access token."""
    attempt: str = ""
    """Another attempt that the sentence names."""
    by: str = ""
    """Who requested it."""
    detail: str = ""
    """Text from outside: from a node, a connection or an operator. No decision depends on it."""
    count: int = 0
    ms: int = 0
    limit_ms: int = 0
    median_ms: int = 0
    bytes: int = 0
    nodes: tuple[str, ...] = ()
    room: Resources | None = None


WALL_TOLERANCE_MS = 1_000
"""How far a date that is shown may differ from the wall clock, in milliseconds."""
WALL_OFFSETS_MAX = 512
"""How many changes of the wall clock are remembered: the row is written at once, and stays below 32 KiB."""


class WallTimes(StoredRow, frozen=True, gc=False):
    """The wall clock's readings in terms of served time, so that served time can be shown as a date: one row.

    Only for display: no decision depends on it (docs/decisions/0028)."""

    offsets: tuple[tuple[int, int], ...] = ()
    """From this served time on, the wall clock shows this much more; the oldest first. Before the first: no
    difference, because the releases that had no such row counted by the wall clock."""

    @property
    def offset_ms(self) -> int:
        """The present difference."""
        return self.offsets[-1][1] if self.offsets else 0

    def wall_ms(self, served_ms: int) -> int:
        """What the wall clock showed at that served time, or will show if nobody sets it."""
        found = bisect_right(self.offsets, served_ms, key=lambda offset: offset[0])
        return served_ms + (self.offsets[found - 1][1] if found else 0)

    def differs(self, served_ms: int, wall_ms: int) -> bool:
        """Whether dates would be shown wrong by more than the tolerance."""
        return abs(wall_ms - served_ms - self.offset_ms) > WALL_TOLERANCE_MS

    def followed(self, served_ms: int, wall_ms: int) -> "WallTimes":
        """With a new difference from now on. If there are too many, the smallest change is forgotten."""
        earlier = [offset for offset in self.offsets if offset[0] < served_ms]
        offsets = [*earlier, (served_ms, wall_ms - served_ms)]
        if len(offsets) > WALL_OFFSETS_MAX:
            changes = [abs(later - before) for (_, before), (_, later) in pairwise(offsets)]
            # The newest is kept, also if it changes least: dates from now on must be right.
            del offsets[1 + changes[:-1].index(min(changes[:-1]))]
        return WallTimes(tuple(offsets))


class Entry(StoredRow, frozen=True, gc=False):
    """One thing that happened. `seq` orders all entries of a network; an event stream resumes from it."""

    seq: int
    at_ms: Instant
    kind: str
    """`job.queued`, `job.assigned`, `attempt.revoked`, `node.suspect` …; listed in docs/states.md."""
    text: str
    """The sentence that `model.cause_text` makes of `kind` and `facts`."""
    job: JobId | None = None
    attempt: AttemptId | None = None
    node: NodeId | None = None
    facts: Facts | None = None
    """None: an entry of release 0.1 whose text is not listed in `model.old_sentences`."""


class Meta(StoredRow, frozen=True, gc=False):
    """The orchestrator's own counters: one row."""

    epoch: int = 0
    """Grows with every change of leader; commands carry it."""
    entry_seq: int = 0
    fence: int = 0
    draws: int = 0
    """Number of random numbers drawn so far: the generator is counter-based."""
    seed: int = 0
    late_ms: int = 0
    """Lateness: how far all deadlines were moved because the orchestrator itself was late or away."""
    now_ms: Instant = Instant(0)
    """Served time of the last change. While an orchestrator leads, it is stored at least every minute
    (docs/decisions/0028)."""
    numbers_skipped: int = 0
    """By how much the numbers of the attempts of a new job skip ahead: a leader whose state was lost may have known a
    job with the same key (`Job.numbers_skipped`)."""

    restored_fence: int = 0
    """Attempts with this fence or a lower one were made before a backup that this state was restored from. What
    happened to them since that backup was made is not known."""

    def skipping(self, by: int, least: int, attempts: int) -> "Meta":
        """With counters that skip ahead by so much, and to `least`: epochs are counted by the store itself."""
        return replace(
            self,
            restored_fence=self.fence,
            fence=max(self.fence + by, least),
            entry_seq=max(self.entry_seq + by, least),
            numbers_skipped=self.numbers_skipped + attempts,
        )
