"""The rules that every simulated world must keep, one to a file."""

from holdfast.sim.checkers.acknowledged_kept import AcknowledgedKept
from holdfast.sim.checkers.begun_first import BegunFirst
from holdfast.sim.checkers.blameless_freeze import BlamelessFreeze
from holdfast.sim.checkers.check_foretells import CheckForetells
from holdfast.sim.checkers.commit_before_word import CommitBeforeWord
from holdfast.sim.checkers.epoch_never_back import EpochNeverBack
from holdfast.sim.checkers.every_state_bounded import EveryStateBounded
from holdfast.sim.checkers.held_free import HeldFree
from holdfast.sim.checkers.honest_verdict import HonestVerdict
from holdfast.sim.checkers.limits_kept import LimitsKept
from holdfast.sim.checkers.moves_make_first import MovesMakeFirst
from holdfast.sim.checkers.never_needs_go import NeverNeedsGo
from holdfast.sim.checkers.never_outlives_lease import NeverOutlivesLease
from holdfast.sim.checkers.never_runs_once import NeverRunsOnce
from holdfast.sim.checkers.nothing_left import NothingLeft
from holdfast.sim.checkers.one_result import OneResult
from holdfast.sim.checkers.placement_gates import PlacementGates
from holdfast.sim.checkers.probation_first import ProbationFirst
from holdfast.sim.checkers.quarantine_capped import QuarantineCapped
from holdfast.sim.checkers.rebuild_equals_memory import RebuildEqualsMemory
from holdfast.sim.checkers.revoked_stays_out import RevokedStaysOut
from holdfast.sim.checkers.seconds_are_few import SecondsAreFew
from holdfast.sim.checkers.settled_in_time import SettledInTime
from holdfast.sim.checkers.terminal_stays import TerminalStays
from holdfast.sim.checkers.tries_bounded import TriesBounded
from holdfast.sim.checkers.within_offer import WithinOffer
from holdfast.sim.watch import Rule

RULES: tuple[type[Rule], ...] = (
    AcknowledgedKept, BegunFirst, BlamelessFreeze, CheckForetells, CommitBeforeWord, EpochNeverBack, EveryStateBounded,
    HeldFree, HonestVerdict, LimitsKept, MovesMakeFirst, NeverNeedsGo, NeverOutlivesLease, NeverRunsOnce, NothingLeft,
    OneResult, PlacementGates, ProbationFirst, QuarantineCapped, RebuildEqualsMemory, RevokedStaysOut, SecondsAreFew,
    SettledInTime, TerminalStays, TriesBounded, WithinOffer,
)  # fmt: skip
