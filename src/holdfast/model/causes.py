"""Causes as codes: decisions and counters use the codes, and `model.cause_text` turns them into sentences.

Every enumeration has the member `unknown`. It stands for a sentence of an earlier release that is not on its list of
sentences, and for a code of a later release that this one does not have.
"""

from enum import StrEnum
from typing import Self


class Code(StrEnum):
    """Base of these enumerations. A value that is not a member is read as `unknown`."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        return cls["UNKNOWN"]


class WaitReason(Code):
    """What a job waits for."""

    ROOM = "room"
    """Room on any machine."""
    NODE_ROOM = "node_room"
    """Room on the machine that it was moved to."""
    RESERVED_ROOM = "reserved_room"
    """Room on a machine that takes nothing new until the job fits there."""
    LEASE = "lease"
    """Its lease to run out: its machine is away, and the job must not run twice."""
    CONFIRMATION = "confirmation"
    """Another machine to confirm a failure that is blamed on its owner."""
    BACKOFF = "backoff"
    """The pause after a failure."""
    MACHINE = "machine"
    """A machine to join: the network has none."""
    ANSWER = "answer"
    """The answer of its machine to the offer."""
    PREPARATION = "preparation"
    START = "start"
    PROGRAM = "program"
    """The end of its program."""
    RESULT = "result"
    """The delivery and the verification of its result."""
    MOVE_SAVE = "move_save"
    """Its state to be saved, before it starts on the machine that it moves to."""
    MOVE_START = "move_start"
    """An attempt to start on the machine that it moves to."""
    UNKNOWN = "unknown"


class Gate(Code):
    """What keeps a job from a machine."""

    SUSPECT = "suspect"
    QUARANTINED = "quarantined"
    LOST = "lost"
    GONE = "gone"
    DISCONNECTED = "disconnected"
    DRAINING = "draining"
    RESERVED = "reserved"
    """Held free for another job."""
    PROBATION_PROBES = "probation_probes"
    """On probation, and has not answered enough probes."""
    PROBATION_BUSY = "probation_busy"
    """On probation, and already holds the one attempt that it is allowed."""
    ATTEMPTS_MAX = "attempts_max"
    UNPROVEN = "unproven"
    """Has no record yet, so it gets few attempts at a time."""
    DOUBTED = "doubted"
    """The job failed there; another machine is to confirm that."""
    SAME_JOB = "same_job"
    """Holds an attempt of the same job."""
    EARLIER_ATTEMPT = "earlier_attempt"
    """An earlier attempt of the job has not left the machine yet."""
    NOT_CHOSEN = "not_chosen"
    """The job was moved to another machine."""
    KIND = "kind"
    """Its architecture, GPUs or features do not meet the job's need."""
    CPU = "cpu"
    MEMORY = "memory"
    DISK = "disk"
    GPUS = "gpus"
    HELD_BACK = "held_back"
    """None of the other gates applies, but other waiting jobs come first."""
    UNKNOWN = "unknown"


class StraggleKind(Code):
    """In which way an attempt straggles."""

    STALLED = "stalled"
    """Its body neither prints nor computes. Ends when the body makes progress."""
    SLOW = "slow"
    """It runs far longer than its peers took."""
    UNKNOWN = "unknown"


class NodeCause(Code):
    """What put a machine into its state."""

    JOINED = "joined"
    JOINED_AGAIN = "joined_again"
    CAME_BACK = "came_back"
    CAME_BACK_EARLY = "came_back_early"
    """Before its quarantine was over."""
    NOT_BACK = "not_back"
    """It did not dial in again after the orchestrator was away."""
    SILENT = "silent"
    LINK_BROKE = "link_broke"
    NO_PROBES = "no_probes"
    """It answers no probes."""
    FAULTS = "faults"
    SICK = "sick"
    """It reports itself sick."""
    STILL_SICK = "still_sick"
    QUARANTINE_OVER = "quarantine_over"
    PROVEN = "proven"
    NO_FAULT = "no_fault"
    """No fault during its probation."""
    RESTLESS = "restless"
    """It changes what it offers too often."""
    AWAY_TOO_LONG = "away_too_long"
    GOODBYE = "goodbye"
    UNKNOWN = "unknown"


class TakeoverCause(Code):
    """Why another machine takes over a job."""

    LOST = "lost"
    """Its machine is silent or cut off."""
    QUARANTINED = "quarantined"
    UNKNOWN = "unknown"


class RevokeCause(Code):
    """Why an attempt was revoked."""

    OTHER_WON = "other_won"
    TAINTED = "tainted"
    """It started from a checkpoint that is not believed any more."""
    """Another attempt delivered the result that counts."""
    JOB_ENDED = "job_ended"
    """The job ended without a result."""
    CANCELLED = "cancelled"
    POISON = "poison"
    MOVED = "moved"
    """The job runs on the machine that it was moved to."""
    MOVED_BEFORE_START = "moved_before_start"
    CAME_BACK = "came_back"
    """An earlier attempt turned out to be alive before this one had started."""
    UNHEALTHY = "unhealthy"
    """Its machine is quarantined, and another attempt runs."""
    AWAY_BEFORE_START = "away_before_start"
    """Its machine is away, and its body had not started."""
    AWAY_BEFORE_MOVE = "away_before_move"
    """As AWAY_BEFORE_START, for an attempt that a job was moving to."""
    OFFER_UNANSWERED = "offer_unanswered"
    PREPARE_TIMEOUT = "prepare_timeout"
    TIME_LIMIT = "time_limit"
    UPLOAD_TIMEOUT = "upload_timeout"
    LEASE_LOST = "lease_lost"
    DRAINED = "drained"
    OFFERS_LESS = "offers_less"
    """Its machine offers less than it did."""
    UNKNOWN = "unknown"


class PauseCause(Code):
    """Why a machine's own operator wants no new work for it."""

    OPERATOR = "operator"
    """Its operator paused it."""
    LEAVING = "leaving"
    """Its operator asked it to leave."""
    STATED = "stated"
    """The node gives a reason in its own words, for example that it is outside its hours."""
    UNKNOWN = "unknown"


class DrainChange(Code):
    """What changed about whether a machine is given work."""

    DRAINED = "drained"
    STILL_DRAINED = "still_drained"
    """One of the two operators withdrew the drain; the other still wants it."""
    UNDRAINED = "undrained"
    FORGOTTEN = "forgotten"
    """As UNDRAINED, for a machine that is gone."""
    UNKNOWN = "unknown"
