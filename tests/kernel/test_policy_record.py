"""Formulas over a machine's record (policy.record)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy import record

ENDS = st.text(alphabet="su.13", max_size=record.ENDS_KEPT)


@pytest.mark.spec("H3")
@given(ENDS, st.sampled_from("su13"))
def test_a_record_keeps_the_last_ends(ends: str, mark: str) -> None:
    later = record.with_end(ends, mark)
    assert later[-1] == mark and len(later) == min(len(ends) + 1, record.ENDS_KEPT)
    assert (ends + mark).endswith(later)


@pytest.mark.spec("H3")
def test_faults_count_among_the_last_ten_ends_with_their_points() -> None:
    assert record.fault_points("13su.") == 4
    assert record.fault_points("1" + "s" * 9) == 1
    assert record.fault_points("1" + "s" * 10) == 0
    assert (record.fault_mark(3), record.fault_mark(9), record.fault_mark(12)) == ("3", "9", "9")


@pytest.mark.spec("H3")
@given(ENDS)
def test_what_is_forgiven_has_no_points_and_as_many_ends(ends: str) -> None:
    after = record.forgiven(ends)
    assert record.fault_points(after) == 0
    assert (len(after), after.count("u"), after.count("s")) == (len(ends), ends.count("u"), ends.count("s"))


@pytest.mark.spec("A12")
def test_the_last_blame_is_taken_out_and_nothing_else() -> None:
    assert record.without_last_blame("susu1") == "sus1"
    assert record.without_last_blame("ss1") == "ss1"
    assert record.without_last_blame("") == ""


@pytest.mark.spec("A12")
def test_whose_word_counts() -> None:
    # 2 of 20 beside 1 of 20 is twice as often; 3 of 20 is more
    assert record.blames_as_usual("s" * 18 + "uu", 20, 1, 20, 2)
    assert not record.blames_as_usual("s" * 17 + "uuu", 20, 1, 20, 2)
    # too little is known of it, or of the others
    assert not record.blames_as_usual("s" * 17 + "uu", 20, 1, 20, 2)
    assert not record.blames_as_usual("s" * 18 + "uu", 19, 19, 20, 2)


@pytest.mark.spec("A12")
@pytest.mark.parametrize(
    ("good", "at_once"), [(0, 4), (3, 4), (4, 8), (7, 8), (8, 16), (23, 128), (24, 256), (10**9, 256)]
)
def test_how_much_a_machine_is_given_at_once(good: int, at_once: int) -> None:
    assert record.attempts_at_once(good, 4, 256) == at_once


@pytest.mark.spec("A12")
def test_any_first_and_most_are_kept() -> None:
    assert record.attempts_at_once(5, 1, 20) == 20
    assert record.attempts_at_once(0, 300, 256) == 256
    assert record.attempts_at_once(2, 1, 256) == 4
