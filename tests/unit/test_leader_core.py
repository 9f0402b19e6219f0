"""The leader core by itself: its states, its clock, when it ticks, whom it refuses, and whose turn it is."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.kernel.commit import CommitBatch
from holdfast.kernel.decision import Decision, Taken
from holdfast.kernel.events import AnyEvent, ExplainAsked, Led, NodeBroke, Submitted, Tick
from holdfast.kernel.kernel import IDLE_CLOCK_MS, Kernel
from holdfast.model import (
    DAY_MS,
    Entry,
    Instant,
    Job,
    JobId,
    JobPhase,
    JobSpec,
    Meta,
    NodeId,
    Owner,
    Settings,
    WallTimes,
    job_id,
)
from holdfast.model.journal import WALL_TOLERANCE_MS
from holdfast.orchestrator.leader import core as core_module
from holdfast.orchestrator.leader.core import LeaderClock, LeaderCore, LeadState, Moment
from holdfast.orchestrator.leader.dedupe import SubmissionQueue

SETTINGS = Settings.test()
TOLERANCE_MS, PULSE_MS = 250, 125


class ToldKernel(Kernel):
    """A real kernel that remembers what it was told and when, with deadlines as a test says, and which can break."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.told: list[tuple[AnyEvent, int]] = []
        self.due: int | None = None
        self.lives = False
        self.breaks_on: type | None = None
        self.after_deciding = False

    def next_due(self) -> Instant | None:
        return None if self.due is None else Instant(self.due)

    @property
    def at_stake(self) -> bool:
        return self.lives

    @property
    def changing(self) -> bool:
        return self.after_deciding

    def apply(self, event: AnyEvent, now: Instant) -> Decision:
        self.told.append((event, now))
        if self.breaks_on is not None and isinstance(event, self.breaks_on):
            raise ZeroDivisionError(type(event).__name__)
        return super().apply(event, now)

    def ticks(self) -> list[int]:
        """The lateness of every tick that it was told of."""
        return [event.late_ms for event, _ in self.told if isinstance(event, Tick)]


class Lead:
    """A core that leads, and the clocks of its machine."""

    def __init__(self, core: LeaderCore | None = None) -> None:
        self.core = core or LeaderCore(SETTINGS)
        self.boot_ms, self.wall_ms, self.crowded = 1_000, 1_000_000, False
        self.kernel = ToldKernel(SETTINGS)

    @property
    def at(self) -> Moment:
        return Moment(self.boot_ms, self.wall_ms, self.crowded)

    def pass_ms(self, duration: int) -> "Lead":
        self.boot_ms += duration
        self.wall_ms += duration
        return self

    def take(self, epoch: int = 1, last_ms: int = 0) -> CommitBatch:
        self.core.take(epoch, self.kernel, last_ms, 7, self.at)
        batch = self.core.next_batch(self.at)
        assert batch is not None
        return batch

    def leads(self) -> "Lead":
        self.core.committed(self.take(), self.at)
        self.kernel.told.clear()
        self.pulse()
        return self

    def pulse(self) -> None:
        self.core.pulse(self.at)
        self.core.pulsed(self.at)

    def offer(self, key: str = "work", ticket: Hashable = None) -> Any:
        return self.core.offer(submitted(key), self.at, ticket)

    def commit(self) -> CommitBatch:
        batch = self.core.next_batch(self.at)
        assert batch is not None
        return self.core.committed(batch, self.at)


def submitted(key: str) -> Submitted:
    return Submitted(job_id("ann", key), Owner("ann"), JobSpec(("x",)), f"{key:0>64}")


# --- taking and losing the lead ---


@pytest.mark.spec("J14")
def test_nobody_is_served_before_the_lead_is_durable() -> None:
    lead = Lead()
    lead.kernel.lives = True
    assert lead.core.state is LeadState.AWAY and lead.core.refusal() == "store_unavailable"
    assert lead.core.epoch == lead.core.behind_commit == 0 and not lead.core.held_up(lead.at)
    # When the store gave an epoch and a kernel was loaded, then the first batch says who leads, and nothing else
    batch = lead.take(epoch=3)
    assert lead.core.state is LeadState.TAKING and lead.core.refusal() == "store_unavailable"
    assert lead.core.epoch == 3 and [type(event) for event, _ in lead.kernel.told] == [Led]
    assert lead.core.next_pulse_ms(lead.at) is None and lead.core.pulse(lead.at) is None
    with pytest.raises(AssertionError):
        lead.offer()
    # And once that is durable, requests are taken
    lead.core.committed(batch, lead.at)
    assert lead.core.leads and lead.core.refusal() == "" and lead.core.next_pulse_ms(lead.at) == 0


@pytest.mark.spec("J14")
def test_with_the_lead_everything_is_forgotten_that_is_not_durable() -> None:
    lead = Lead().leads()
    lead.offer("durable")
    lead.commit()
    lead.offer("in flight")
    in_flight = lead.core.next_batch(lead.at)
    lead.offer("gathering")
    # When the lead is lost
    lead.core.drop()
    assert lead.core.kernel is None and not lead.core.committing and lead.core.behind_commit == 0
    assert lead.core.next_batch(lead.at) is None and not lead.core.at_rest
    # Then a batch of it can no longer be called durable, and the next lead has nothing of it
    assert in_flight is not None
    with pytest.raises(AssertionError):
        lead.core.committed(in_flight, lead.at)
    lead.kernel = ToldKernel(SETTINGS)
    first = lead.take(epoch=2)
    assert {key[0] for key in first.rows} == {"meta", "entry"} and lead.core.epoch == 2


@pytest.mark.spec("J14")
def test_a_lead_that_is_taken_anew_has_nothing_in_flight_and_nothing_waiting() -> None:
    lead = Lead().leads()
    lead.offer("in flight")
    assert lead.core.next_batch(lead.at) is not None
    lead.offer("gathering")
    lead.kernel = ToldKernel(SETTINGS)
    lead.core.take(2, lead.kernel, 0, 7, lead.at)
    assert not lead.core.committing and lead.core.behind_commit == 0


@pytest.mark.spec("J14")
def test_the_lead_is_tried_for_less_and_less_often_until_it_is_had() -> None:
    core = LeaderCore(SETTINGS)
    assert [core.retry_ms() for _ in range(8)] == [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]
    lead = Lead(core)
    batch = lead.take()
    assert core.retry_ms() == 2_000  # it was taken, but not durably
    core.committed(batch, lead.at)
    assert core.retry_ms() == 50


@pytest.mark.spec("J5", "J14")
def test_the_time_without_a_leader_and_that_of_the_first_commit_are_charged_to_nobody() -> None:
    lead = Lead()
    lead.wall_ms = 5_000_000
    batch = lead.take(last_ms=3_000_000)
    lead.pass_ms(60_000)  # the first commit takes a minute
    lead.core.committed(batch, lead.at)
    assert lead.core.now(lead.at) == 3_060_000
    lead.offer()
    assert lead.kernel.ticks() == []


@pytest.mark.spec("J14")
def test_a_kernel_that_breaks_ends_the_lead() -> None:
    lead = Lead().leads()
    lead.offer("kept", ticket="kept")
    in_flight = lead.core.next_batch(lead.at)
    assert in_flight is not None
    lead.offer("lost")
    lead.kernel.breaks_on = NodeBroke
    broke = lead.core.offer(NodeBroke(1, NodeId("node_1"), "gone"), lead.at)
    assert isinstance(broke.failed, ZeroDivisionError) and lead.core.state is LeadState.BROKEN
    # Then nothing is taken any more, what was being written may become durable, and what came after it must not
    assert lead.core.refusal() == "store_unavailable" and not lead.core.leads
    assert [ticket for ticket, _ in lead.core.committed(in_flight, lead.at).answers] == ["kept"]
    assert lead.core.state is LeadState.BROKEN and lead.core.next_batch(lead.at) is None
    lead.kernel.lives = True
    assert lead.core.pulse(lead.at) is None and lead.core.next_pulse_ms(lead.at) is None


@pytest.mark.spec("J14")
@pytest.mark.parametrize(("decided", "state"), [(False, LeadState.LEADING), (True, LeadState.BROKEN)])
def test_a_question_that_fails_costs_only_its_answer(decided: bool, state: LeadState) -> None:
    lead = Lead().leads()
    lead.kernel.breaks_on, lead.kernel.after_deciding = ExplainAsked, decided
    asked = lead.core.offer(ExplainAsked(job_id("ann", "x")), lead.at, "ticket")
    assert isinstance(asked.failed, ZeroDivisionError) and lead.core.state is state
    assert lead.core.behind_commit == (0 if decided else 1)


@pytest.mark.spec("J14", "J5")
def test_a_kernel_that_breaks_on_lateness_is_not_told_what_came_after() -> None:
    lead = Lead().leads()
    lead.kernel.breaks_on = Tick
    asked = lead.pass_ms(30_000).core.offer(ExplainAsked(job_id("ann", "x")), lead.at)
    assert asked.late_ms and isinstance(asked.failed, ZeroDivisionError) and lead.core.state is LeadState.BROKEN
    assert [type(event) for event, _ in lead.kernel.told] == [Tick]


# --- overload ---


@pytest.mark.spec("J13")
def test_too_many_behind_one_commit_are_refused_until_it_is_taken_up() -> None:
    lead = Lead(LeaderCore(SETTINGS, events_max=3)).leads()
    for number in range(3):
        assert lead.core.refusal() == "" and lead.core.has_room
        lead.offer(str(number))
    assert lead.core.refusal() == "busy" and not lead.core.has_room and lead.core.behind_commit == 3
    # When what waits goes to the store, then there is room for as many behind it
    batch = lead.core.next_batch(lead.at)
    assert batch is not None and batch.events == 3 and lead.core.refusal() == ""
    for number in range(3, 6):
        lead.offer(str(number))
    assert lead.core.refusal() == "busy"
    # And while it is being written, nobody else makes room
    assert lead.core.next_batch(lead.at) is None and lead.core.refusal() == "busy"
    lead.core.committed(batch, lead.at)
    assert lead.core.next_batch(lead.at) is not None and lead.core.refusal() == ""


@pytest.mark.spec("J13")
def test_what_changes_nothing_does_not_add_up_to_an_overload() -> None:
    lead = Lead(LeaderCore(SETTINGS, events_max=2)).leads()
    for _ in range(10):
        lead.core.offer(NodeBroke(9, NodeId("node_9"), "unknown"), lead.at)
        assert lead.core.next_batch(lead.at) is None
        assert lead.core.refusal() == ""


@pytest.mark.spec("J14")
def test_a_core_is_at_rest_when_everything_is_durable() -> None:
    lead = Lead().leads()
    assert lead.core.at_rest
    lead.offer()
    assert not lead.core.at_rest
    batch = lead.core.next_batch(lead.at)
    assert batch is not None and lead.core.committing and not lead.core.at_rest
    lead.core.committed(batch, lead.at)
    assert lead.core.at_rest and not lead.core.committing


# --- ticks ---


@pytest.mark.spec("J5", "H2")
def test_while_a_job_lives_the_clock_is_kept_on_record() -> None:
    """Given a job that lives and nothing due for long, when the loop only pulses, then the time is in the store again
    and again: so much is charged to nobody if this process is lost, and no more."""
    core = LeaderCore(SETTINGS)
    lead = Lead(core)
    kernel = Kernel(SETTINGS)
    core.take(1, kernel, 0, 7, lead.at)
    lead.commit()
    lead.offer()
    lead.commit()
    kept: list[int] = []
    for _ in range(100):
        wait_ms = core.next_pulse_ms(lead.at)
        assert wait_ms is not None and wait_ms <= core.pulse_ms
        lead.pass_ms(max(1, wait_ms)).pulse()
        if (batch := core.next_batch(lead.at)) is not None:
            core.committed(batch, lead.at)
            kept += [row.now_ms for row in batch.rows.values() if isinstance(row, Meta)]
    assert len(kept) > 2 and kept[-1] - kept[0] > 5_000


@pytest.mark.spec("J5")
@pytest.mark.parametrize("lives", [False, True])
def test_a_pulse_ticks_if_a_job_lives_or_something_is_due(lives: bool) -> None:
    lead = Lead().leads()
    lead.kernel.lives = lives
    lead.pass_ms(PULSE_MS).pulse()
    assert lead.kernel.ticks() == ([0] if lives else [])
    lead.kernel.lives, lead.kernel.due = False, lead.core.now(lead.at) + 1
    lead.pulse()
    assert len(lead.kernel.ticks()) == lives
    lead.pass_ms(1).pulse()
    assert len(lead.kernel.ticks()) == lives + 1


@pytest.mark.spec("J1", "J14")
def test_an_idle_leader_keeps_served_time_on_record() -> None:
    lead = Lead().leads()
    since_ms = lead.kernel.rows()[0].now_ms  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(since_ms, int)
    for last_ms in range(since_ms + PULSE_MS, since_ms + IDLE_CLOCK_MS, PULSE_MS):
        lead.pass_ms(PULSE_MS).pulse()
        assert lead.kernel.ticks() == [] and lead.core.now(lead.at) == last_ms
    lead.pass_ms(PULSE_MS).pulse()
    assert lead.kernel.ticks() == [0]
    batch = lead.core.next_batch(lead.at)
    assert batch is not None
    stored = batch.rows["meta", 0]
    assert isinstance(stored, Meta) and stored.now_ms == lead.core.now(lead.at) == since_ms + IDLE_CLOCK_MS


@pytest.mark.spec("H2", "J1")
@pytest.mark.parametrize("by_ms", [-31 * DAY_MS, -WALL_TOLERANCE_MS - 1, WALL_TOLERANCE_MS + 1, 3650 * DAY_MS])
def test_a_wall_clock_that_is_set_is_told_once_for_display_and_moves_no_time(by_ms: int) -> None:
    lead = Lead().leads()
    before = lead.core.now(lead.at)
    lead.wall_ms += by_ms
    lead.pulse()
    lead.pulse()
    assert [event for event, _ in lead.kernel.told if isinstance(event, Tick)] == [Tick(wall_ms=lead.wall_ms)]
    batch = lead.core.next_batch(lead.at)
    assert batch is not None and batch.rows["wall", 0] == WallTimes(((before, by_ms),))
    assert lead.core.now(lead.at) == before


@pytest.mark.spec("H2")
def test_a_wall_clock_that_differs_little_or_at_a_bad_moment_is_not_told() -> None:
    lead = Lead().leads()
    lead.wall_ms += WALL_TOLERANCE_MS
    lead.pulse()
    assert lead.kernel.ticks() == []
    lead.wall_ms += DAY_MS
    lead.crowded = True  # nodes still wait for their handshake
    lead.pulse()
    assert lead.kernel.ticks() == []


@pytest.mark.spec("J5")
def test_the_next_pulse_comes_as_promised_or_when_something_is_due() -> None:
    lead = Lead().leads()
    core, kernel = lead.core, lead.kernel
    assert core.pulse_ms == PULSE_MS and core.next_pulse_ms(lead.at) == PULSE_MS
    assert core.next_pulse_ms(lead.pass_ms(25).at) == 100
    kernel.due = core.now(lead.at) + 40
    assert core.next_pulse_ms(lead.at) == 40
    kernel.due = core.now(lead.at) + 4_000
    assert core.next_pulse_ms(lead.at) == 100
    kernel.due = core.now(lead.at) - 1  # and one that stays due cannot spin the loop
    assert core.next_pulse_ms(lead.at) == core_module.TICK_GAP_MS
    assert core.next_pulse_ms(lead.pass_ms(600).at) == 0


@pytest.mark.spec("J5")
def test_the_pulse_follows_the_tolerance_within_bounds() -> None:
    pulses = {ms: LeaderCore(replace(SETTINGS, late_tolerance_ms=ms)).pulse_ms for ms in (2, 100, 500, 60_000)}
    assert pulses == {2: 20, 100: 50, 500: 200, 60_000: 200}
    assert LeaderCore(SETTINGS, pulse_ms=10_000).pulse_ms == 10_000


@pytest.mark.spec("J5")
def test_a_loop_that_pulses_as_promised_is_never_late() -> None:
    lead = Lead().leads()
    lead.kernel.lives = True
    for _ in range(20):
        lead.pass_ms(PULSE_MS).pulse()
    assert lead.kernel.ticks() == [0] * 20


# --- lateness ---


@pytest.mark.spec("J5", "H2")
def test_lateness_is_told_before_what_comes_after_it() -> None:
    lead = Lead().leads()
    offered = lead.pass_ms(30_000).offer()
    assert offered.late_ms == 30_000 - PULSE_MS
    assert [type(event) for event, _ in lead.kernel.told] == [Tick, Submitted]
    assert lead.kernel.ticks() == [offered.late_ms]
    # And a pulse after a freeze tells of it though nothing lives and nothing is due
    lead.pass_ms(30_000).pulse()
    assert lead.kernel.ticks()[1:] == [30_000 - PULSE_MS, 0]


@pytest.mark.spec("J5")
def test_while_a_commit_is_overdue_no_deadline_runs_out() -> None:
    lead = Lead().leads()
    lead.offer()
    batch = lead.core.next_batch(lead.at)
    assert batch is not None
    lead.kernel.told.clear()
    lead.kernel.due, lead.kernel.lives = lead.core.now(lead.at) + 1_000, True
    assert not lead.core.held_up(lead.pass_ms(TOLERANCE_MS).at)
    told = 0
    for _ in range(100):
        lead.pass_ms(100).pulse()
        told = sum(lead.kernel.ticks())
        assert lead.core.held_up(lead.at)
        # what is due is not waited for: nothing may come of it now
        assert lead.core.next_pulse_ms(lead.at) == PULSE_MS
    assert 9_000 < told <= 10_000 + TOLERANCE_MS
    # and there was no tick but with lateness, which moves every deadline before anything is judged
    ticks = lead.kernel.ticks()
    assert all(ticks[0::2]) and not any(ticks[1::2])
    lead.core.committed(batch, lead.at)
    assert not lead.core.held_up(lead.at)


@pytest.mark.spec("J5", "J14")
def test_nodes_that_wait_at_the_door_of_a_new_leader_make_time_stand_still_for_a_while() -> None:
    lead = Lead().leads()
    assert not lead.core.held_up(lead.at)
    lead.crowded = True
    lead.pass_ms(core_module.CROWD_MS_MAX - 1)
    assert lead.core.held_up(lead.at)
    assert not lead.core.held_up(lead.pass_ms(1).at)


class Watches:
    """A boot-time clock and a wall clock that a test sets."""

    def __init__(self) -> None:
        self.boot, self.wall = 1_000, 1_000_000

    @property
    def at(self) -> Moment:
        return Moment(self.boot, self.wall)

    def pass_ms(self, duration: int) -> None:
        self.boot += duration
        self.wall += duration

    def clock(self, last_ms: int = 0) -> LeaderClock:
        return LeaderClock(TOLERANCE_MS, PULSE_MS, last_ms, self.at)


@pytest.mark.spec("J5")
def test_time_beyond_the_promise_is_lateness_and_is_told_once() -> None:
    watches = Watches()
    clock = watches.clock()
    watches.pass_ms(100)
    assert clock.look(watches.at) == (1_000_100, 0)
    # When nothing looked at the clock for half a minute
    watches.pass_ms(30_000)
    assert clock.late(watches.at)
    now, late = clock.look(watches.at)
    # Then the first look finds all of it but what was promised, and the second nothing
    assert now == 1_030_100 and late == 30_100 - PULSE_MS
    assert not clock.late(watches.at) and clock.look(watches.at) == (1_030_100, 0)
    # And from then on the promise counts anew
    watches.pass_ms(PULSE_MS + TOLERANCE_MS)
    assert not clock.late(watches.at)
    watches.pass_ms(1)
    assert clock.late(watches.at)


@pytest.mark.spec("J5")
def test_many_small_delays_are_found_even_if_somebody_always_looks() -> None:
    # Given a loop so busy with events that its pulse never runs
    watches = Watches()
    clock = watches.clock()
    told = 0
    for _ in range(1_000):
        watches.pass_ms(10)
        told += clock.look(watches.at)[1]
    # Then most of the time is told as lateness, though no single gap was long
    assert 6_000 < told <= 10_000


@pytest.mark.spec("J5")
def test_a_pulse_that_comes_within_the_tolerance_is_not_late() -> None:
    watches = Watches()
    clock = watches.clock()
    for _ in range(100):
        watches.pass_ms(PULSE_MS + TOLERANCE_MS)
        assert not clock.late(watches.at) and clock.look(watches.at)[1] == 0
        clock.kept(watches.at)
    watches.pass_ms(PULSE_MS + TOLERANCE_MS + 1)
    assert clock.late(watches.at) and clock.look(watches.at)[1] == TOLERANCE_MS + 1


@pytest.mark.spec("J5")
def test_a_freeze_and_a_jump_together_are_only_a_freeze() -> None:
    watches = Watches()
    clock = watches.clock()
    watches.pass_ms(10_000)
    watches.wall += 5_000_000
    assert clock.look(watches.at) == (1_010_000, 10_000 - PULSE_MS)
    assert clock.look(watches.at) == (1_010_000, 0)
    watches.pass_ms(PULSE_MS + TOLERANCE_MS)
    assert not clock.late(watches.at)
    watches.pass_ms(1)
    assert clock.late(watches.at)


@pytest.mark.spec("J5")
def test_a_boot_time_that_runs_back_does_not_move_kernel_time() -> None:
    """No kernel does that; one reading may be older than another."""
    watches = Watches()
    clock = watches.clock()
    older = watches.at
    watches.pass_ms(50)
    assert clock.now(watches.at) == 1_000_050
    assert clock.now(older) == 1_000_050 and clock.now(watches.at) == 1_000_050


@pytest.mark.spec("J5")
def test_a_stalled_commit_keeps_no_promise() -> None:
    watches = Watches()
    clock = watches.clock()
    watches.pass_ms(PULSE_MS + TOLERANCE_MS + 1)
    assert clock.look(watches.at, stalled=True)[1] == TOLERANCE_MS + 1
    # From then on all time is lateness, told whenever it is more than the tolerance
    for _ in range(100):
        watches.pass_ms(TOLERANCE_MS + 1)
        assert clock.look(watches.at, stalled=True)[1] == TOLERANCE_MS + 1


@pytest.mark.spec("J5", "H2")
@given(st.lists(st.tuples(st.sampled_from(["look", "kept", "set", "back"]), st.integers(0, 5_000)), max_size=60))
def test_lateness_and_kept_promises_account_for_all_time(steps: list[tuple[str, int]]) -> None:
    """Whatever happens: served time advances by exactly what passed, however the wall clock is set. No more lateness
    is told than that. What is not told lies within a pulse and a tolerance for each look."""
    watches = Watches()
    clock = watches.clock()
    before, told, looks = clock.now(watches.at), 0, 1
    began = before
    for what, by_ms in steps:
        if what in ("set", "back"):
            watches.wall += by_ms * (100_000 if what == "set" else -100_000)
            continue
        watches.pass_ms(by_ms)
        expected = clock.late(watches.at)
        now, late_ms = clock.look(watches.at)
        assert now == before + by_ms and (late_ms > 0) == expected
        before, told, looks = now, told + late_ms, looks + 1
        if what == "kept":
            clock.kept(watches.at)
    assert told <= before - began
    assert before - began - told <= looks * (PULSE_MS + TOLERANCE_MS)


# --- whose turn it is ---

A, B, C = (JobId(f"job_{letter}") for letter in "abc")


@pytest.mark.spec("J3")
def test_of_submissions_under_one_key_one_is_decided_at_a_time_in_their_order() -> None:
    queue = SubmissionQueue()
    assert queue.enter(1, {A})
    assert not queue.enter(2, {A}) and not queue.enter(3, {A})
    assert queue.enter(4, {B})  # which holds up no other
    assert queue.leave(4) == []
    assert queue.leave(1) == [2]
    assert queue.leave(2) == [3]
    assert queue.leave(3) == [] and len(queue) == 0
    assert queue.enter(3, {A})


@pytest.mark.spec("J3")
def test_who_no_longer_waits_gives_way_and_takes_no_turn() -> None:
    queue = SubmissionQueue()
    queue.enter(1, {A})
    queue.enter(2, {A, B})
    queue.enter(3, {B})
    assert queue.leave(2) == [3]  # cancelled while it waited
    assert queue.leave(2) == [] and queue.leave("unknown") == []
    assert queue.leave(1) == []
    with pytest.raises(AssertionError):
        queue.enter(3, {C})


@pytest.mark.spec("J3")
def test_a_batch_is_not_overtaken_by_those_who_want_only_a_part_of_it() -> None:
    queue = SubmissionQueue()
    queue.enter(1, {A})
    assert not queue.enter("batch", {A, B})
    assert not queue.enter(2, {B})
    assert queue.leave(1) == ["batch"]
    assert queue.leave("batch") == [2]


@dataclass
class Model:
    """Who has a turn, as seen from outside."""

    queue: SubmissionQueue
    wanted: dict[int, frozenset[JobId]]
    turns: set[int]


steps = st.lists(
    st.one_of(
        st.frozensets(st.sampled_from([A, B, C]), min_size=1),
        st.integers(0, 8),
    ),
    max_size=60,
)


@pytest.mark.spec("J3")
@settings(max_examples=300)
@given(steps)
def test_no_two_have_a_turn_for_one_job_and_everybody_gets_one(story: list[frozenset[JobId] | int]) -> None:
    model = Model(SubmissionQueue(), {}, set())

    def given_turns(tickets: list[Hashable]) -> None:
        for ticket in tickets:
            assert isinstance(ticket, int) and ticket in model.wanted and ticket not in model.turns
            model.turns.add(ticket)

    def leave(ticket: int) -> None:
        model.wanted.pop(ticket, None)
        model.turns.discard(ticket)
        given_turns(model.queue.leave(ticket))

    def exclusive() -> None:
        busy = [job for ticket in model.turns for job in model.wanted[ticket]]
        assert len(busy) == len(set(busy))
        # and whoever is first for all of its jobs has its turn: nobody waits for nothing
        before: set[JobId] = set()
        for ticket, jobs in model.wanted.items():
            assert ticket in model.turns or not before.isdisjoint(jobs)
            before |= jobs

    for number, step in enumerate(story):
        if isinstance(step, int):
            waiting = sorted(model.wanted)
            if waiting:
                leave(waiting[step % len(waiting)])
        else:
            model.wanted[number] = step
            if model.queue.enter(number, step):
                model.turns.add(number)
        exclusive()
    while model.wanted:
        assert model.turns
        leave(min(model.turns))
    assert len(model.queue) == 0


# --- any order of calls ---


def _take(lead: Lead) -> None:
    lead.kernel = ToldKernel(SETTINGS)
    lead.core.take(lead.core.epoch + 1, lead.kernel, 0, 7, lead.at)


@pytest.mark.spec("J14", "J5")
@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "drop", "offer", "batch", "commit", "pulse"]), st.integers(0, 2_000)),
        max_size=80,
    )
)
def test_in_any_order_one_batch_is_in_flight_and_only_what_is_durable_is_released(story: list[tuple[str, int]]) -> None:
    lead = Lead(LeaderCore(SETTINGS, events_max=4))
    core = lead.core
    in_flight: CommitBatch | None = None
    epochs: list[int] = []
    for number, (what, by_ms) in enumerate(story):
        lead.pass_ms(by_ms)
        match what:
            case "take":
                _take(lead)
                in_flight = None
                epochs.append(core.epoch)
            case "drop":
                core.drop()
                in_flight = None
            case "offer" if not core.refusal():
                before = core.behind_commit
                lead.offer(str(number), ticket=number)
                assert core.behind_commit == before + 1 <= core.events_max
            case "batch":
                batch = core.next_batch(lead.at)
                assert batch is None or in_flight is None
                in_flight = batch or in_flight
            case "commit" if in_flight is not None:
                assert core.committed(in_flight, lead.at) is in_flight
                lines = [row.seq for row in in_flight.rows.values() if isinstance(row, Entry)]
                assert lines == sorted(lines)
                in_flight = None
            case "pulse":
                lead.pulse()
            case _:
                continue
        assert core.committing == (in_flight is not None)
        assert (core.kernel is None) == (core.state is LeadState.AWAY)
        assert (core.next_pulse_ms(lead.at) is None) == (not core.leads)
    assert epochs == sorted(set(epochs))
    times = [now for _, now in lead.kernel.told]
    assert times == sorted(times)


# --- refused commits ---


@pytest.mark.spec("J7", "J14")
def test_what_the_store_refused_is_told_to_every_later_kernel() -> None:
    lead = Lead().leads()
    event = submitted("over")
    over = Job(event.job, event.owner, event.spec, event.spec_hash, Instant(1), phase=JobPhase.ENDED)
    lead.core.refused([over, Meta()])
    for epoch in (2, 3):
        lead.core.drop()
        lead.kernel = ToldKernel(SETTINGS)
        lead.core.committed(lead.take(epoch), lead.at)
        (led, _), *_ = lead.kernel.told
        assert led == Led(epoch, 7, ((event.job, event.spec_hash),), lead.wall_ms)
    lead.offer("over", "asked again")
    assert lead.commit().answers == [("asked again", Taken(event.job, again=True))]


@pytest.mark.spec("J7", "J14")
def test_of_very_many_refused_jobs_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "ENDED_MAX", 2)
    lead = Lead()
    for key in "abc":
        event = submitted(key)
        lead.core.refused([Job(event.job, event.owner, event.spec, event.spec_hash, Instant(1), phase=JobPhase.ENDED)])
    lead.take()
    (led, _), *_ = lead.kernel.told
    assert isinstance(led, Led) and [job for job, _ in led.ended] == [submitted(key).job for key in "bc"]


@pytest.mark.spec("J14")
def test_each_leader_core_queues_submissions_of_the_same_job() -> None:
    core, other = LeaderCore(SETTINGS), LeaderCore(SETTINGS)
    assert core.submissions.enter("first", {"job_1"})
    assert not core.submissions.enter("second", {"job_1"})
    assert other.submissions.enter("first", {"job_1"})


# --- little space ---


@pytest.mark.spec("J14", "A12")
def test_while_space_is_short_ticks_are_small_and_wait_for_what_was_decided() -> None:
    lead = Lead().leads()
    lead.kernel.lives = True
    # given a decision that is not durable, when there is space, then time passes all the same
    lead.offer("one")
    lead.pass_ms(PULSE_MS).pulse()
    assert [event for event, _ in lead.kernel.told if isinstance(event, Tick)] == [Tick()]
    # and when space is short, then no deadline is handled before that is durable
    lead.core.tight = True
    lead.pass_ms(PULSE_MS).pulse()
    assert len(lead.kernel.ticks()) == 1
    lead.commit()
    lead.pass_ms(PULSE_MS).pulse()
    assert lead.kernel.told[-1][0] == Tick(jobs_max=core_module.TIGHT_JOBS_MAX)
    # and also a tick that tells of lateness is small
    lead.pass_ms(PULSE_MS + TOLERANCE_MS + 1)
    lead.offer("two")
    (late,) = [event for event, _ in lead.kernel.told if isinstance(event, Tick) and event.late_ms]
    assert late.jobs_max == core_module.TIGHT_JOBS_MAX
