"""Served time in the kernel: what is stored of it, and that the wall clock is only shown."""

import pytest
from kernel_driver import with_two_nodes

from holdfast.kernel.events import Led, Tick
from holdfast.kernel.kernel import CLOCK_MS, CLOCK_SET_MS, IDLE_CLOCK_MS, Kernel
from holdfast.model import DAY_MS, Entry, Instant, Meta, Settings, WallTimes
from holdfast.model.journal import WALL_TOLERANCE_MS

pytestmark = pytest.mark.spec("H2", "J1")

NOW = Instant(1_700_000_000_000)
SETTINGS = Settings.test()


def led(wall_ms: int | None = NOW) -> Kernel:
    kernel = Kernel(SETTINGS)
    kernel.apply(Led(1, 7, (), wall_ms), NOW)
    return kernel


def at(ms: int) -> Instant:
    return Instant(NOW + ms)


def test_an_idle_kernel_stores_the_time_every_minute_and_no_more_often() -> None:
    kernel = led()
    assert not kernel.clock_due(at(IDLE_CLOCK_MS - 1))
    assert kernel.apply(Tick(), at(IDLE_CLOCK_MS - 1)).changes == ()
    assert kernel.clock_due(at(IDLE_CLOCK_MS))
    (meta,) = kernel.apply(Tick(), at(IDLE_CLOCK_MS)).changes
    assert isinstance(meta, Meta) and meta.now_ms == at(IDLE_CLOCK_MS)
    assert not kernel.clock_due(at(2 * IDLE_CLOCK_MS - 1)) and kernel.clock_due(at(2 * IDLE_CLOCK_MS))


def test_while_a_job_lives_the_time_is_stored_twice_as_often() -> None:
    network = with_two_nodes()
    network.submit("one")
    kernel, now = network.kernel, network.now
    assert not kernel.clock_due(Instant(now + CLOCK_MS - 1)) and kernel.clock_due(Instant(now + CLOCK_MS))


@pytest.mark.parametrize("by_ms", [WALL_TOLERANCE_MS + 1, CLOCK_SET_MS, 31 * DAY_MS, -31 * DAY_MS, -CLOCK_SET_MS])
def test_a_wall_clock_that_is_set_changes_dates_and_nothing_else(by_ms: int) -> None:
    kernel = led()
    assert kernel.wall_differs(at(5), NOW + 5 + by_ms)
    told = kernel.apply(Tick(wall_ms=NOW + 5 + by_ms), at(5))
    noted = [row for row in told.changes if isinstance(row, Entry)]
    assert WallTimes(((at(5), by_ms),)) in told.changes and told.sends == ()
    assert [entry.kind for entry in noted] == (["orchestrator.clock"] if abs(by_ms) >= CLOCK_SET_MS else [])
    meta = told.changes[-1]
    assert isinstance(meta, Meta) and (meta.now_ms, meta.late_ms) == (at(5), 0)
    # And it is told once
    assert not kernel.wall_differs(at(5), NOW + 5 + by_ms)
    assert kernel.apply(Tick(wall_ms=NOW + 5 + by_ms), at(5)).changes == ()


def test_a_wall_clock_that_is_nearly_right_changes_nothing() -> None:
    assert led().apply(Tick(wall_ms=NOW + WALL_TOLERANCE_MS), NOW).changes == ()
    (meta,) = led().apply(Tick(late_ms=0, wall_ms=None), at(IDLE_CLOCK_MS)).changes
    assert isinstance(meta, Meta)


@pytest.mark.parametrize(("by_ms", "way"), [(31 * DAY_MS, "ahead by 2678400 s"), (-CLOCK_SET_MS, "back by 60 s")])
def test_the_journal_says_that_dates_jump(by_ms: int, way: str) -> None:
    noted = [row for row in led().apply(Tick(wall_ms=NOW + by_ms), NOW).changes if isinstance(row, Entry)]
    assert [entry.text for entry in noted] == [
        f"the wall clock went {way}: nobody led meanwhile, or it was set; dates shown follow it, and no deadline moves"
    ]


@pytest.mark.parametrize("by_ms", [31 * DAY_MS, -31 * DAY_MS, 500])
def test_a_restart_goes_on_from_the_stored_time_and_says_how_long_nobody_led(by_ms: int) -> None:
    # Given a network that was stopped
    rows = led().rows()
    kernel = Kernel.load(SETTINGS, rows)

    # When it is led again, by a wall clock that shows another time
    told = kernel.apply(Led(2, 7, (), NOW + by_ms), NOW)

    # Then no time was served meanwhile, no lateness is counted, and dates follow the wall clock
    meta = told.changes[-1]
    assert isinstance(meta, Meta) and (meta.now_ms, meta.late_ms) == (NOW, 0)
    entries = [row for row in told.changes if isinstance(row, Entry)]
    assert entries[0].facts is not None and entries[0].facts.ms == max(0, by_ms)
    clock = ["orchestrator.clock"] if abs(by_ms) > WALL_TOLERANCE_MS else []
    assert [entry.kind for entry in entries] == ["orchestrator.led", *clock]
    # And a third leader does not count the same absence again
    again = Kernel.load(SETTINGS, kernel.rows()).apply(Led(3, 7, (), NOW + by_ms), NOW)
    (first, *_) = [row for row in again.changes if isinstance(row, Entry)]
    assert first.facts is not None and first.facts.ms == (0 if clock else max(0, by_ms))


def test_the_very_first_leader_was_never_absent() -> None:
    kernel = Kernel(SETTINGS)
    entries = [row for row in kernel.apply(Led(1, 7, (), NOW), NOW).changes if isinstance(row, Entry)]
    assert [(entry.kind, entry.facts and entry.facts.ms) for entry in entries] == [("orchestrator.led", 0)]


def test_an_event_of_a_recording_without_wall_time_shows_nothing() -> None:
    assert not any(isinstance(row, WallTimes) for row in led(None).rows())
