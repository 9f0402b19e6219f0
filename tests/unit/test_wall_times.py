"""Served time as dates: what was shown stays, the present is right, and the row stays small."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import DAY_MS, WallTimes
from holdfast.model.journal import WALL_OFFSETS_MAX, WALL_TOLERANCE_MS

pytestmark = pytest.mark.spec("H2", "J14")

NOW_MS = 1_700_000_000_000


def test_before_the_first_difference_served_time_is_the_date() -> None:
    assert WallTimes().wall_ms(5) == 5 and WallTimes().offset_ms == 0
    later = WallTimes().followed(NOW_MS, NOW_MS + DAY_MS)
    assert later.wall_ms(NOW_MS - 1) == NOW_MS - 1
    assert later.wall_ms(NOW_MS) == NOW_MS + DAY_MS
    assert later.wall_ms(NOW_MS + 7) == NOW_MS + DAY_MS + 7


def test_a_clock_that_was_ahead_for_two_seconds_leaves_all_other_dates_as_they_were() -> None:
    ahead = WallTimes().followed(NOW_MS, NOW_MS + 30 * DAY_MS)
    right = ahead.followed(NOW_MS + 2_000, NOW_MS + 2_000)
    assert right.wall_ms(NOW_MS + 1_999) == NOW_MS + 30 * DAY_MS + 1_999
    assert right.wall_ms(NOW_MS + 2_000) == NOW_MS + 2_000
    assert right.offset_ms == 0 and ahead.offset_ms == 30 * DAY_MS


@pytest.mark.parametrize("sign", [1, -1])
def test_a_difference_within_the_tolerance_is_none(sign: int) -> None:
    walls = WallTimes().followed(NOW_MS, NOW_MS + DAY_MS)
    assert not walls.differs(NOW_MS + 5, NOW_MS + 5 + DAY_MS + sign * WALL_TOLERANCE_MS)
    assert walls.differs(NOW_MS + 5, NOW_MS + 5 + DAY_MS + sign * (WALL_TOLERANCE_MS + 1))


def test_of_two_differences_at_one_moment_the_later_counts() -> None:
    walls = WallTimes().followed(NOW_MS, NOW_MS + DAY_MS).followed(NOW_MS, NOW_MS + 7)
    assert walls == WallTimes(((NOW_MS, 7),))


def test_if_there_are_too_many_the_smallest_change_is_forgotten_but_not_the_newest() -> None:
    walls = WallTimes()
    for number in range(WALL_OFFSETS_MAX):
        walls = walls.followed(NOW_MS + number, NOW_MS + number + number * DAY_MS + (5 if number == 9 else 0))
    assert len(walls.offsets) == WALL_OFFSETS_MAX
    last = walls.offset_ms
    walls = walls.followed(NOW_MS + 5_000, NOW_MS + 5_000 + last + 1)
    # The smallest change but the newest is the one from 9 to 10
    assert len(walls.offsets) == WALL_OFFSETS_MAX
    assert [since - NOW_MS for since, _ in walls.offsets] == [*range(10), *range(11, WALL_OFFSETS_MAX), 5_000]
    assert walls.offset_ms == last + 1


@given(st.lists(st.tuples(st.integers(0, DAY_MS), st.integers(-(10**13), 10**13)), max_size=600))
def test_the_row_is_bounded_ordered_and_right_now(steps: list[tuple[int, int]]) -> None:
    walls, served = WallTimes(), NOW_MS
    for passed, offset in steps:
        served += passed
        walls = walls.followed(served, served + offset)
        assert walls.wall_ms(served) == served + offset and walls.wall_ms(served + 9) == served + offset + 9
    assert [since for since, _ in walls.offsets] == sorted({since for since, _ in walls.offsets})
    assert len(walls.offsets) <= WALL_OFFSETS_MAX and len(msgspec.json.encode(walls)) < 32 * 1024
