"""The formulas: each does what its docstring says, at the edges too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.backoff import backoff_ms
from holdfast.policy.chance import mix
from holdfast.policy.lease import node_part_ms, orchestrator_part_ms
from holdfast.policy.straggling import got_on, slow_after_ms
from holdfast.policy.suspicion import Rhythm, silence_limit_ms
from holdfast.policy.versions import at_least


@pytest.mark.spec("J8")
@given(st.integers(1, 100), st.integers(1, 10_000), st.integers(1, 100_000), st.integers(0, 2**64 - 1))
def test_back_off_grows_to_its_maximum_and_keeps_at_least_half(failures, base, most, draw):
    wait = backoff_ms(failures, base, most, draw)
    whole = min(most, base * 2 ** (failures - 1))
    assert whole // 2 <= wait <= whole


@pytest.mark.spec("J8")
def test_no_failure_means_no_wait():
    assert backoff_ms(0, 500, 60_000, 12345) == 0


@pytest.mark.spec("H2")
@given(st.lists(st.integers(1, 100_000), max_size=50))
def test_silence_is_judged_between_the_floor_and_the_ceiling_whatever_the_rhythm(gaps):
    rhythm = Rhythm()
    for gap in gaps:
        rhythm = rhythm.heard(gap)
    assert 3_000 <= silence_limit_ms(rhythm, 1_000, 3_000, 5_000) <= 5_000


@pytest.mark.spec("H2")
def test_a_jittery_node_gets_more_time_than_a_steady_one():
    steady, jittery = Rhythm(), Rhythm()
    for i in range(40):
        steady = steady.heard(1_000)
        jittery = jittery.heard(300 if i % 2 else 2_500)
    assert silence_limit_ms(steady, 1_000, 1_500, 9_000) < silence_limit_ms(jittery, 1_000, 1_500, 9_000)


@pytest.mark.spec("J5")
@given(st.integers(10, 10**7))
def test_the_node_stops_well_before_the_orchestrator_gives_up(lease):
    """Even if the node's clock runs a tenth slow, its body is dead first."""
    assert node_part_ms(lease) * 11 // 10 < orchestrator_part_ms(lease)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
@pytest.mark.spec("A6")
def test_the_same_counter_gives_the_same_bits_and_the_next_one_others(seed, counter):
    assert mix(seed, counter) == mix(seed, counter)
    assert mix(seed, counter) != mix(seed, counter + 1)
    assert 0 <= mix(seed, counter) < 2**64


@pytest.mark.spec("J2")
@pytest.mark.parametrize(
    ("version", "wanted", "serves"),
    [
        ("535.104.05", "535.104.5", True),
        ("535.104", "535.104.0", True),
        ("550.1", "535.104.05", True),
        ("9.9", "10", False),
        ("12.4", "12.10", False),
        ("", "1", False),
        ("newest", "1", False),
        ("١٢", "1", False),
        ("anything", "", True),
    ],
)
def test_versions_are_compared_number_by_number_and_what_is_none_counts_as_the_oldest(version, wanted, serves):
    assert at_least(version, wanted) is serves


@pytest.mark.spec("J9")
@pytest.mark.parametrize(
    ("cpu_ms", "printed", "moved"),
    [
        (1_000, 10, False),
        (1_049, 10, False),
        (1_050, 10, True),
        (1_000, 11, True),
        (0, 10, True),
        (1_000, 0, True),
    ],
)
def test_a_body_gets_on_if_it_prints_or_computes_and_not_by_polling_now_and_then(cpu_ms, printed, moved):
    assert got_on(cpu_ms, printed, cpu_before_ms=1_000, printed_before=10) is moved


@pytest.mark.spec("J9")
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=15), st.integers(1, 15))
def test_slow_is_far_beyond_the_median_of_enough_peers(took, peers_min):
    limit = slow_after_ms(took, peers_min, factor=3, floor_ms=1_000)
    if len(took) < peers_min:
        assert limit is None
    else:
        assert limit is not None and limit >= max(1_000, 3 * sorted(took)[(len(took) - 1) // 2])
        assert limit <= max(1_000, 3 * max(took))
