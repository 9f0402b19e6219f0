"""The leader's clock: it never runs back, no clock that can be set moves it, and lateness is told from the first
millisecond that counts."""

from typing import Any

import pytest

from holdfast.model import DAY_MS
from holdfast.orchestrator.leader.clock import wall_ms
from holdfast.orchestrator.leader.core import AWAY_MS, LeaderClock, Moment, pulse_ms_of

TOLERANCE_MS = 100
PULSE_MS = 50
SERVED_MS = AWAY_MS + TOLERANCE_MS
"""How much of a gap counts as served."""


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


@pytest.mark.spec("J14", "H2")
@pytest.mark.parametrize("wall", [-DAY_MS, 0, 1, 1_999_999, 2_000_001, 400 * 365 * DAY_MS])
def test_it_goes_on_from_what_was_written_whatever_the_wall_clock_shows(wall: int) -> None:
    hands = Hands(wall=wall)
    clock = hands.clock(last_ms=2_000_000)
    assert clock.now() == 2_000_000
    hands.boot += 30
    assert clock.now() == 2_000_030
    hands.boot -= 10
    assert clock.now() == 2_000_030
    hands.boot += 15
    assert clock.now() == 2_000_035


@pytest.mark.spec("J14")
@pytest.mark.parametrize(("wall", "now"), [(1_000_000, 1_000_000), (2, 2), (0, 1), (-5, 1)])
def test_the_very_first_leader_begins_at_its_wall_clock_and_never_at_none(wall: int, now: int) -> None:
    assert Hands(wall=wall).clock().now() == now


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
@pytest.mark.parametrize("jump_ms", [TOLERANCE_MS + 1, 31 * DAY_MS, 10 * 365 * DAY_MS, -1, -31 * DAY_MS])
def test_a_wall_clock_that_is_set_moves_no_time_and_is_no_lateness(jump_ms: int) -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += jump_ms
    hands.boot += 10

    assert not clock.late()
    assert clock.look() == (1_000_010, 0)


@pytest.mark.spec("J14", "H2")
@pytest.mark.parametrize("beyond_ms", [0, 1, 31 * DAY_MS])
def test_of_a_gap_in_which_nobody_looked_only_so_much_was_served(beyond_ms: int) -> None:
    # Given a leader whose machine was suspended
    hands = Hands()
    clock = hands.clock()
    hands.boot += SERVED_MS + beyond_ms

    # When it looks at its clock, then the rest of the gap is neither time served nor lateness
    assert clock.late()
    assert clock.look() == (1_000_000 + SERVED_MS, SERVED_MS - PULSE_MS)
    # And it goes on from there
    hands.boot += PULSE_MS
    assert clock.look() == (1_000_000 + SERVED_MS + PULSE_MS, 0)


@pytest.mark.spec("J14")
def test_a_gap_that_is_short_enough_was_served_whole() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.boot += SERVED_MS - 1
    assert clock.look() == (1_000_000 + SERVED_MS - 1, SERVED_MS - 1 - PULSE_MS)


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
