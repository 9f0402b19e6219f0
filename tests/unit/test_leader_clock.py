"""The leader's clock: it never runs back, and lateness is told from the first millisecond that counts."""

from typing import Any

import pytest

from holdfast.orchestrator.leader.clock import wall_ms
from holdfast.orchestrator.leader.core import LeaderClock, Moment, pulse_ms_of

TOLERANCE_MS = 100
PULSE_MS = 50


class Hands:
    """A boot clock and a wall clock that stand where they are put."""

    def __init__(self, boot: int = 5_000, wall: int = 1_000_000) -> None:
        self.boot, self.wall = boot, wall

    def clock(self, last_ms: int = 0) -> "Read":
        return Read(self, last_ms)

    def pass_(self, ms: int) -> None:
        self.boot += ms
        self.wall += ms


class Read:
    """The leader's clock, given what the hands show at each call."""

    def __init__(self, hands: Hands, last_ms: int) -> None:
        self._hands = hands
        self._clock = LeaderClock(TOLERANCE_MS, PULSE_MS, last_ms, self._at())

    def _at(self) -> Moment:
        return Moment(self._hands.boot, self._hands.wall)

    def now(self) -> int:
        return self._clock.now(self._at())

    def look(self, stalled: bool = False) -> tuple[int, int]:
        return self._clock.look(self._at(), stalled)

    def late(self) -> bool:
        return self._clock.late(self._at())

    def kept(self) -> None:
        self._clock.kept(self._at())


@pytest.mark.spec("J14")
def test_it_begins_at_the_later_of_what_was_written_and_the_wall_and_goes_on_with_the_boot_clock() -> None:
    hands = Hands()
    assert hands.clock().now() == 1_000_000
    ahead = hands.clock(last_ms=2_000_000)
    hands.pass_(30)
    assert ahead.now() == 2_000_030
    hands.boot -= 10
    assert ahead.now() == 2_000_030
    hands.boot += 15
    assert ahead.now() == 2_000_035


@pytest.mark.spec("J14")
@pytest.mark.parametrize(("tolerance_ms", "pulse_ms"), [(1, 20), (40, 20), (42, 21), (100, 50), (400, 200), (402, 200)])
def test_the_pulse_is_half_the_tolerance_within_bounds(tolerance_ms: int, pulse_ms: int) -> None:
    assert pulse_ms_of(tolerance_ms) == pulse_ms


@pytest.mark.spec("J14", "H2")
@pytest.mark.parametrize(
    ("passed_ms", "late_ms"),
    [(PULSE_MS, 0), (PULSE_MS + TOLERANCE_MS, 0), (PULSE_MS + TOLERANCE_MS + 1, TOLERANCE_MS + 1)],
)
def test_time_beyond_the_promise_and_the_tolerance_is_lateness_once(passed_ms: int, late_ms: int) -> None:
    hands = Hands()
    clock = hands.clock()
    hands.pass_(passed_ms)

    assert clock.late() is (late_ms > 0)
    assert clock.look() == (1_000_000 + passed_ms, late_ms)
    assert not clock.late()
    assert clock.look() == (1_000_000 + passed_ms, 0)


@pytest.mark.spec("J14", "H2")
@pytest.mark.parametrize(("stalled", "late_after_ms"), [(False, PULSE_MS + TOLERANCE_MS), (True, TOLERANCE_MS)])
def test_a_loop_that_was_late_promises_anew_unless_it_is_stalled(stalled: bool, late_after_ms: int) -> None:
    hands = Hands()
    clock = hands.clock()
    hands.pass_(1_000)
    clock.look(stalled)

    hands.pass_(late_after_ms)
    assert not clock.late() and clock.look() == (1_000_000 + 1_000 + late_after_ms, 0)
    hands.pass_(1)
    assert clock.late() and clock.look()[1] == late_after_ms + 1 - (0 if stalled else PULSE_MS)


@pytest.mark.spec("J14", "H2")
@pytest.mark.parametrize(("jump_ms", "followed"), [(TOLERANCE_MS, False), (TOLERANCE_MS + 1, True)])
def test_a_wall_clock_that_jumps_ahead_is_followed_and_the_jump_is_lateness(jump_ms: int, followed: bool) -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += jump_ms

    assert clock.late() is followed
    assert clock.look() == ((1_000_000 + jump_ms, jump_ms) if followed else (1_000_000, 0))


@pytest.mark.spec("J14", "H2")
def test_after_a_jump_and_a_freeze_both_count_and_the_promise_is_new() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.pass_(PULSE_MS + 500)
    hands.wall += 2_000

    assert clock.look() == (1_000_000 + PULSE_MS + 500 + 2_000, 500 + 2_000)
    hands.pass_(PULSE_MS + TOLERANCE_MS)
    assert not clock.late()
    hands.pass_(1)
    assert clock.late()


@pytest.mark.spec("J14")
def test_a_wall_clock_that_is_set_back_changes_nothing() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall -= 500_000
    hands.boot += 10
    assert not clock.late()
    assert clock.look() == (1_000_010, 0)


@pytest.mark.spec("J14")
def test_a_pulse_that_ran_is_a_new_promise() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.pass_(PULSE_MS)
    clock.kept()
    hands.pass_(PULSE_MS + TOLERANCE_MS)
    assert not clock.late()
    hands.pass_(1)
    assert clock.late()


@pytest.mark.spec("J14")
def test_the_wall_is_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: Any = iter([1_700_000_000_123_999_999])
    monkeypatch.setattr("holdfast.orchestrator.leader.clock.time.time_ns", lambda: next(readings))
    assert wall_ms() == 1_700_000_000_123
