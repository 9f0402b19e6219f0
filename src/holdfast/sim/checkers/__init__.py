"""The invariants that every simulated world must satisfy, one file for each."""

from holdfast.sim.checkers.acknowledged_kept import AcknowledgedKept
from holdfast.sim.checkers.backoff_lengthens import BackoffLengthens
from holdfast.sim.checkers.begun_first import BegunFirst
from holdfast.sim.checkers.blame_is_confirmed import BlameIsConfirmed
from holdfast.sim.checkers.blameless_freeze import BlamelessFreeze
from holdfast.sim.checkers.changes_on_record import ChangesOnRecord
from holdfast.sim.checkers.check_predicts import CheckPredicts
from holdfast.sim.checkers.checkpoints_forward import CheckpointsForward
from holdfast.sim.checkers.commit_before_word import CommitBeforeWord
from holdfast.sim.checkers.cut_is_no_poison import CutIsNoPoison
from holdfast.sim.checkers.epoch_never_back import EpochNeverBack
from holdfast.sim.checkers.every_state_bounded import EveryStateBounded
from holdfast.sim.checkers.extra_attempts_are_few import ExtraAttemptsAreFew
from holdfast.sim.checkers.held_free import HeldFree
from holdfast.sim.checkers.honest_verdict import HonestVerdict
from holdfast.sim.checkers.journal_unbroken import JournalUnbroken
from holdfast.sim.checkers.leader_ticks import LeaderTicks
from holdfast.sim.checkers.liars_are_undone import LiarsAreUndone
from holdfast.sim.checkers.limits_kept import LimitsKept
from holdfast.sim.checkers.moves_make_first import MovesMakeFirst
from holdfast.sim.checkers.never_needs_go import NeverNeedsGo
from holdfast.sim.checkers.never_outlives_lease import NeverOutlivesLease
from holdfast.sim.checkers.never_runs_once import NeverRunsOnce
from holdfast.sim.checkers.nothing_left import NothingLeft
from holdfast.sim.checkers.one_gpu_one_body import OneGpuOneBody
from holdfast.sim.checkers.one_result import OneResult
from holdfast.sim.checkers.placement_gates import PlacementGates
from holdfast.sim.checkers.priority_first import PriorityFirst
from holdfast.sim.checkers.probation_first import ProbationFirst
from holdfast.sim.checkers.quarantine_capped import QuarantineCapped
from holdfast.sim.checkers.quarantine_lengthens import QuarantineLengthens
from holdfast.sim.checkers.queues_bounded import QueuesBounded
from holdfast.sim.checkers.rebuild_equals_memory import RebuildEqualsMemory
from holdfast.sim.checkers.rejoining_is_judged import RejoiningIsJudged
from holdfast.sim.checkers.restored_blames_nobody import RestoredBlamesNobody
from holdfast.sim.checkers.revoked_counts_nothing import RevokedCountsNothing
from holdfast.sim.checkers.revoked_stays_out import RevokedStaysOut
from holdfast.sim.checkers.served_time import ServedTime
from holdfast.sim.checkers.sessions_are_current import SessionsAreCurrent
from holdfast.sim.checkers.settled_in_time import SettledInTime
from holdfast.sim.checkers.sick_stays_out import SickStaysOut
from holdfast.sim.checkers.strikes_are_earned import StrikesAreEarned
from holdfast.sim.checkers.terminal_stays import TerminalStays
from holdfast.sim.checkers.tries_bounded import TriesBounded
from holdfast.sim.checkers.within_offer import WithinOffer
from holdfast.sim.watch import Rule

RULES: tuple[type[Rule], ...] = (
    AcknowledgedKept, BackoffLengthens, BegunFirst, BlameIsConfirmed, BlamelessFreeze, ChangesOnRecord, CheckPredicts,
    CheckpointsForward, CommitBeforeWord, CutIsNoPoison, EpochNeverBack, EveryStateBounded, HeldFree, HonestVerdict,
    JournalUnbroken, LeaderTicks, LiarsAreUndone, LimitsKept, MovesMakeFirst, NeverNeedsGo, NeverOutlivesLease,
    NeverRunsOnce,
    NothingLeft, OneGpuOneBody, OneResult, PlacementGates, PriorityFirst, ProbationFirst, QuarantineCapped,
    QuarantineLengthens, QueuesBounded, RebuildEqualsMemory, RejoiningIsJudged, RestoredBlamesNobody,
    RevokedCountsNothing, RevokedStaysOut,
    ExtraAttemptsAreFew, ServedTime, SessionsAreCurrent, SettledInTime, SickStaysOut, StrikesAreEarned, TerminalStays,
    TriesBounded, WithinOffer,
)  # fmt: skip
