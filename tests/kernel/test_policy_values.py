"""The formulas against numbers worked out by hand or by another way of reckoning: a moved constant is seen here."""

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy import cost
from holdfast.policy.backoff import backoff_ms
from holdfast.policy.chance import mix
from holdfast.policy.estimates import Spread, adapted, left, mean_ms, spread
from holdfast.policy.forecast import ENDINGS_MAX, ForecastRequest, Room, starts
from holdfast.policy.lease import node_part_ms, orchestrator_part_ms
from holdfast.policy.straggling import median_ms, slow_after_ms
from holdfast.policy.suspicion import Rhythm, silence_limit_ms
from holdfast.policy.versions import parts

ONE = (1, 1, 1, 0)


# --- waiting ---


@pytest.mark.spec("J8")
@pytest.mark.parametrize(
    ("failures", "draw", "wait"),
    [
        (-1, 7, 0), (0, 7, 0),
        (1, 0, 501), (1, 500, 1_001), (1, 501, 501),
        (2, 0, 1_001), (2, 1_001, 2_002), (2, 1_002, 1_001),
        (3, 0, 2_002), (4, 0, 4_004),
        (5, 0, 4_500), (5, 4_500, 9_000), (5, 4_501, 4_500),
        (31, 0, 4_500), (10_000, 0, 4_500),
    ],
)  # fmt: skip
def test_the_wait_doubles_with_each_failure_and_its_upper_half_is_drawn(failures: int, draw: int, wait: int) -> None:
    assert backoff_ms(failures, 1_001, 9_000, draw) == wait


@pytest.mark.spec("J8")
def test_the_wait_stops_doubling_after_thirty_failures() -> None:
    endless = 1 << 80
    assert backoff_ms(31, 2, endless, 0) == 1 << 30
    assert backoff_ms(30, 2, endless, 0) == 1 << 29
    assert backoff_ms(32, 2, endless, 0) == 1 << 30


@pytest.mark.spec("A6")
def test_the_drawn_bits_are_those_of_splitmix64() -> None:
    """The reference: state += golden gamma, then two xor-shift-multiplies; published for seed 1234567."""
    assert [mix(1_234_567, counter) for counter in range(5)] == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]  # fmt: skip
    assert mix((1 << 64) - 1, 3) == mix((1 << 64) - 1 + (1 << 64), 3)


@pytest.mark.spec("J5")
@given(st.integers(0, 10**9))
def test_lease_parts_are_nine_and_eleven_tenths_rounded_to_the_safe_side(lease: int) -> None:
    assert node_part_ms(lease) == floor(Fraction(9, 10) * lease)
    assert orchestrator_part_ms(lease) == -floor(-Fraction(11, 10) * lease)


# --- silence and stragglers ---


@pytest.mark.spec("H2")
@pytest.mark.parametrize(
    ("before", "gap", "after"),
    [
        (Rhythm(), 999, Rhythm(999, 499)),
        (Rhythm(1_000, 500), 1_800, Rhythm(1_100, 575)),
        (Rhythm(1_000, 500), 200, Rhythm(900, 575)),
        (Rhythm(1_000, 500), 1_000, Rhythm(1_000, 375)),
    ],
)
def test_the_rhythm_moves_an_eighth_and_its_deviation_a_quarter(before: Rhythm, gap: int, after: Rhythm) -> None:
    assert before.heard(gap) == after


@pytest.mark.spec("H2")
@pytest.mark.parametrize(
    ("rhythm", "limit"), [(Rhythm(1_000, 500), 4_000), (Rhythm(1_000, 100), 3_000), (Rhythm(2_000, 900), 5_000)]
)
def test_the_limit_of_silence_is_gap_and_four_deviations_and_a_keepalive_within_its_bounds(
    rhythm: Rhythm, limit: int
) -> None:
    assert silence_limit_ms(rhythm, 1_000, 3_000, 5_000) == limit


@pytest.mark.spec("J9")
def test_the_upper_median_and_the_limit_for_slow_ones() -> None:
    assert median_ms([4, 1, 3, 2]) == 3
    assert median_ms([5, 1, 3]) == 3
    assert median_ms([7]) == 7
    assert slow_after_ms([100, 300], 3, 4, 10) is None
    assert slow_after_ms([100, 300, 200], 3, 4, 10) == 800
    assert slow_after_ms([100, 300, 200], 3, 4, 1_000) == 1_000


# --- cost ---


@pytest.mark.spec("S1")
@given(
    st.integers(0, 64_000), st.integers(0, 64_000), st.integers(0, 64_000), st.integers(0, 64_000),
    st.integers(0, 1_500), st.integers(0, 4), st.integers(0, 4), st.booleans(), st.booleans(),
)  # fmt: skip
def test_the_terms_of_the_cost_sum_to_what_placement_compares(
    cpu_free, cpu_total, memory_free, memory_total, load, gpus_free, gpus_wanted, same_site, avoided
):  # fmt: skip
    amounts = (cpu_free, cpu_total, memory_free, memory_total, load)
    of_the_job = (gpus_free, gpus_wanted, same_site, avoided)
    terms = cost.breakdown(cost.standing_terms(*amounts), cost.placing_terms(*of_the_job))
    standing = cost.standing_ms(*amounts)
    placing = cost.placing_ms(*of_the_job)
    assert terms["load"] + terms["leftover"] == standing
    assert terms["waste"] + terms["spread"] + terms["avoid"] == placing


@pytest.mark.spec("S1")
@pytest.mark.parametrize(
    ("amounts", "load", "leftover"),
    [
        ((4_000, 4_000, 8_000, 8_000, 0), 0, 0),
        ((4_000, 4_000, 8_000, 8_000, 250), 250, 0),
        ((1_000, 4_000, 2_000, 8_000, 250), 750, 0),
        ((1_000, 4_000, 2_000, 8_000, 900), 900, 0),
        ((1_000, 4_000, 8_000, 8_000, 0), 750, 150),
        ((4_000, 4_000, 2_000, 8_000, 0), 0, 150),
        ((0, 0, 0, 0, 0), 1_000, 0),
        ((0, 3_000, 1_000, 3_000, 0), 1_000, 66),
        ((997, 1_000, 250, 1_000, 3), 3, 149),
        ((333, 1_000, 999, 1_000, 667), 667, 133),
        ((1, 0, 1, 0, 5), 5, 0),
        ((1_000, 1_000, 996, 1_000, 0), 0, 0),
        ((996, 1_000, 1_000, 1_000, 0), 4, 0),
        ((1_000, 1_000, 999, 1_000, 0), 0, 0),
    ],
)
def test_load_and_unevenness_in_milliseconds(amounts: tuple[int, int, int, int, int], load: int, leftover: int) -> None:
    assert cost.standing_terms(*amounts) == (load, leftover)
    assert cost.standing_ms(*amounts) == load + leftover


@pytest.mark.spec("S1")
@pytest.mark.parametrize(
    ("of_the_job", "waste", "spread_ms", "avoid"),
    [
        ((0, 0, False, False), 0, 0, 0),
        ((1, 0, False, False), 4_000, 0, 0),
        ((1, 1, False, False), 0, 0, 0),
        ((0, 0, True, False), 0, 10_000, 0),
        ((0, 0, False, True), 0, 0, 60_000),
        ((2, 0, True, True), 4_000, 10_000, 60_000),
    ],
)
def test_waste_spread_and_avoidance_in_milliseconds(
    of_the_job: tuple[int, int, bool, bool], waste: int, spread_ms: int, avoid: int
) -> None:
    assert cost.placing_terms(*of_the_job) == (waste, spread_ms, avoid)
    assert cost.placing_ms(*of_the_job) == waste + spread_ms + avoid


# --- estimates ---


@pytest.mark.spec("J15")
def test_two_intervals_one_after_the_other_add_like_the_sides_of_a_right_angle() -> None:
    assert Spread(97, 100, 108).plus(Spread(196, 200, 206)) == Spread(295, 300, 310)
    assert Spread(196, 200, 206).plus(Spread(97, 100, 108)) == Spread(295, 300, 310)
    assert Spread(0, 3, 3).plus(Spread(0, 1, 1)) == Spread(1, 4, 4)
    assert Spread(0, 10, 10).plus(Spread(-10, 0, 0)) == Spread(0, 10, 10)
    assert Spread(-30, 10, 10).plus(Spread(0, 0, 0)) == Spread(0, 10, 10)


@pytest.mark.spec("J15")
@pytest.mark.parametrize(
    ("permille", "wider"),
    [
        (1_000, Spread(6_000, 10_000, 15_000)),
        (2_000, Spread(2_000, 10_000, 20_000)),
        (500, Spread(8_000, 10_000, 12_500)),
        (100, Spread(9_250, 10_000, 10_750)),
        (4_000, Spread(0, 10_000, 30_000)),
    ],
)
def test_a_stretched_interval_keeps_its_middle_and_a_least_width(permille: int, wider: Spread) -> None:
    assert Spread(6_000, 10_000, 15_000).stretched(permille) == wider


@pytest.mark.spec("J15")
def test_an_interval_from_many_cuts_a_tenth_from_both_ends() -> None:
    nineteen = [1_000 * n for n in range(1, 20)]
    assert spread(nineteen) == Spread(2_000, 10_000, 18_000)
    assert spread(list(reversed(nineteen))) == spread(nineteen)
    fourteen = [100 * n for n in range(1, 15)]
    assert spread(fourteen) == Spread(150, 750, 1_350)
    nine = [100 * n for n in range(1, 10)]
    assert spread(nine) == Spread(100, 500, 900)
    uneven = [0, 10, 40, 90, 160, 250, 360, 490, 640, 810, 1_000, 1_210, 1_440, 1_690]
    assert spread(uneven) == Spread(5, 425, 1_565)


@pytest.mark.spec("J15")
def test_an_interval_from_few_reaches_beyond_them() -> None:
    # one: rank 0.2, so 1 + 1.25 · 0.8 = 2; four: rank 0.5, so 1 + 1.25 · 0.5 = 1.625
    assert spread([1_000]) == Spread(500, 1_000, 2_001)
    assert spread([1_300, 2_600, 3_900, 5_200]) == Spread(800, 3_250, 8_451)
    assert spread([4, 8]) == Spread(2, 6, 16)


@pytest.mark.spec("J15")
def test_what_is_left_follows_from_those_that_lasted_longer() -> None:
    assert left([1_000, 2_000, 3_000], 3_000) is None
    assert left([1_000, 2_000, 3_000], 2_000) == spread([1_000])
    assert left([1_000, 2_000, 3_000], 1_999) == spread([1, 1_001])
    assert mean_ms([1, 2, 4]) == 2


@pytest.mark.spec("J15")
@pytest.mark.parametrize(
    ("stretch", "right", "changed"),
    [
        (1_000, True, 980), (1_000, False, 1_081), (1_049, True, 1_028), (1_099, False, 1_187),
        (251, True, 250), (250, True, 250), (7_999, False, 8_000), (8_000, False, 8_000), (8_000, True, 7_840),
    ],
)  # fmt: skip
def test_a_miss_widens_four_times_as_much_as_a_hit_narrows(stretch: int, right: bool, changed: int) -> None:
    assert adapted(stretch, right) == changed


# --- the rehearsal of a queue ---


def wanted(key: str, *rooms: int, amounts: tuple[int, int, int, int] = ONE, lasts_ms: int = 100) -> ForecastRequest:
    return ForecastRequest(key, amounts, frozenset(rooms or (0,)), lasts_ms)


@pytest.mark.spec("J15")
def test_those_who_fit_start_now_and_the_next_when_something_ends() -> None:
    one_room = [Room(ONE, [])]
    assert starts(one_room, [wanted("a", lasts_ms=70), wanted("b", lasts_ms=0), wanted("c")]) == {
        "a": 0, "b": 70, "c": 71,
    }  # fmt: skip


@pytest.mark.spec("J15")
def test_each_amount_has_to_be_free_and_the_room_has_to_serve() -> None:
    room = Room((2, 2, 2, 2), [])
    for short in range(4):
        amounts = tuple(3 if place == short else 2 for place in range(4))
        assert starts([room], [wanted("a", amounts=amounts)]) == {}  # type: ignore[arg-type]
    assert starts([room], [wanted("a", amounts=(2, 2, 2, 2))]) == {"a": 0}
    assert starts([room, room], [wanted("a", 1), wanted("b", 2)]) == {"a": 0}


@pytest.mark.spec("J15")
def test_what_ends_together_is_free_together_and_what_was_taken_is_not_free() -> None:
    room = Room((0, 0, 0, 0), [(50, (1, 2, 3, 4)), (50, (1, 2, 3, 4)), (60, (1, 1, 1, 1))])
    assert starts([room], [wanted("all", amounts=(2, 4, 6, 8), lasts_ms=5), wanted("more", amounts=(3, 5, 7, 9))]) == {
        "all": 50, "more": 60,
    }  # fmt: skip
    assert starts([room], [wanted("all", amounts=(2, 4, 6, 8), lasts_ms=15), wanted("more", amounts=(3, 5, 7, 9))]) == {
        "all": 50, "more": 65,
    }  # fmt: skip
    taken = [Room((2, 2, 2, 2), [])]
    both = [wanted("a", amounts=(1, 1, 1, 1), lasts_ms=9), wanted("b", amounts=(2, 2, 2, 2))]
    assert starts(taken, both) == {"a": 0, "b": 9}


@pytest.mark.spec("J15")
def test_the_line_is_served_in_order_and_a_large_one_does_not_stop_smaller_ones() -> None:
    room = Room((2, 2, 2, 0), [(10, (2, 2, 2, 0))])
    line = [wanted("large", amounts=(4, 4, 4, 0)), wanted("small", amounts=(1, 1, 1, 0), lasts_ms=3)]
    assert starts([room], line) == {"small": 0, "large": 10}


@pytest.mark.spec("J15")
def test_a_rehearsal_ends_with_the_answer_that_is_wanted_and_after_a_bounded_number_of_endings() -> None:
    line = [wanted(str(number), lasts_ms=1) for number in range(ENDINGS_MAX + 10)]
    everybody = starts([Room(ONE, [])], line)
    assert len(everybody) == ENDINGS_MAX + 1
    assert max(everybody.values()) == ENDINGS_MAX
    assert set(starts([Room(ONE, [])], line, until="3")) == {"0", "1", "2", "3"}
    assert starts([Room(ONE, [(5, ONE)])], []) == {}


@pytest.mark.spec("J2")
def test_parts_of_a_version() -> None:
    assert parts("535.104.05") == (535, 104, 5)
    assert parts("1.0.0") == (1,)
    assert parts("0") == ()
    assert parts("1.x.2") == (1, 0, 2)
    assert parts("1" * 64 + ".5") == (int("1" * 64),)
    assert parts("1" * 62 + ".5") == (int("1" * 62), 5)
    assert parts("²") == ()


@pytest.mark.spec("S1")
def test_of_a_version_only_so_many_letters_are_read() -> None:
    assert parts("1." * 31 + "12") == (1,) * 31 + (12,)
    assert parts("1." * 31 + "123") == (1,) * 31 + (12,)
