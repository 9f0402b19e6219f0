"""When a node dials again, and when it gives up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import AttemptId, AttemptPhase, Hardware, NodeId, Resources
from holdfast.model.messages import Held, Hello, Refusal
from holdfast.node.core import redial
from holdfast.node.core.redial import DialEnd, Redial, belongs, ending_of, redial_ms

FULL = (1 << 64) - 1
draws = st.integers(0, FULL)


def shortest(dialling: Redial, now_ms: int, *, lasted_ms: int = 0, welcomed: bool = False) -> int | None:
    """A try that begins now and is lost after `lasted_ms`: the shortest wait that may follow."""
    dialling.dialled(now_ms)
    return dialling.ended(DialEnd.LOST, now_ms + lasted_ms, 0, welcomed=welcomed)


@pytest.mark.spec("J5")
def test_the_first_try_comes_soon_and_the_others_within_a_second() -> None:
    dialling = Redial(0)
    assert [shortest(dialling, 1_000 * number) for number in range(6)] == [50, 100, 200, 400, 500, 500]


@pytest.mark.spec("A11")
def test_an_orchestrator_that_is_away_for_long_is_asked_less_often() -> None:
    dialling = Redial(0)
    waits = [shortest(dialling, now_ms) for now_ms in range(0, 80_000, 5_000)]
    assert waits[4:] == [500] * 8 + [2_500] * 4
    # And after a session the time counts from its end
    assert shortest(dialling, 80_000, welcomed=True) == 500


@pytest.mark.spec("J5")
@pytest.mark.parametrize(("lasted_ms", "wait_ms"), [(redial.STEADY_MS, 400), (redial.STEADY_MS + 1, 50)])
def test_a_session_that_stood_starts_the_count_anew(lasted_ms: int, wait_ms: int) -> None:
    dialling = Redial(0)
    for _ in range(3):
        shortest(dialling, 0)
    assert shortest(dialling, 10, lasted_ms=lasted_ms, welcomed=True) == wait_ms


@pytest.mark.spec("A11")
@given(st.integers(1, 60), st.integers(0, 600_000), draws)
def test_no_wait_is_without_bounds(failures: int, away_ms: int, draw: int) -> None:
    wait_ms = redial_ms(failures, away_ms, False, draw)
    limit_ms = redial.REDIAL_MS_MAX if away_ms < redial.AWAY_MS else redial.AWAY_REDIAL_MS_MAX
    assert min(redial.REDIAL_MS, limit_ms) // 2 <= wait_ms <= limit_ms
    crowded_ms = redial_ms(failures, away_ms, True, draw)
    assert redial.CROWD_REDIAL_MS // 2 <= crowded_ms <= redial.CROWD_REDIAL_MS


@pytest.mark.spec("A11")
def test_who_finds_the_line_full_stays_away_for_a_while() -> None:
    dialling = Redial(0)
    dialling.dialled(0)
    wait_ms = dialling.ended(DialEnd.CROWDED, 5, 0, welcomed=False)
    assert wait_ms is not None and wait_ms >= redial.CROWD_REDIAL_MS // 2


@pytest.mark.spec("N9", "N12")
@pytest.mark.parametrize(
    ("end", "met", "belongs", "goes_on"),
    [
        (DialEnd.LOST, False, False, True),
        (DialEnd.CROWDED, False, False, True),
        (DialEnd.APART, False, False, False),
        (DialEnd.APART, True, False, True),
        (DialEnd.APART, False, True, True),
        (DialEnd.UNTRUSTED, False, False, False),
        (DialEnd.UNTRUSTED, False, True, False),
        (DialEnd.UNTRUSTED, True, False, True),
        (DialEnd.REFUSED, False, False, False),
        (DialEnd.REFUSED, True, True, False),
    ],
)
def test_a_node_gives_up_where_dialling_again_would_not_help(
    end: DialEnd, met: bool, belongs: bool, goes_on: bool
) -> None:
    dialling = Redial(0)
    if met:
        dialling.ended(DialEnd.LOST, 0, 0, welcomed=True)
    wait_ms = dialling.ended(end, 0, 0, welcomed=False, belongs=belongs)
    assert (wait_ms is not None) == goes_on
    if end is DialEnd.APART and wait_ms is not None:
        assert redial.APART_REDIAL_MS // 2 <= wait_ms <= redial.APART_REDIAL_MS


@pytest.mark.spec("N12")
@pytest.mark.parametrize(
    ("code", "final", "end"),
    [
        ("version", True, DialEnd.APART),
        ("token_revoked", True, DialEnd.REFUSED),
        ("busy", True, DialEnd.REFUSED),
        ("busy", False, DialEnd.CROWDED),
        ("version", False, DialEnd.LOST),
        ("uuid_in_use", False, DialEnd.LOST),
    ],
)
def test_a_refusal_says_whether_to_come_back(code: str, final: bool, end: DialEnd) -> None:
    assert ending_of(Refusal(code, "go away", final=final)) is end


@pytest.mark.spec("A11", "N9")
@given(st.lists(st.tuples(st.sampled_from(DialEnd), st.integers(0, 100_000), st.booleans(), draws), max_size=40))
def test_who_had_a_session_gives_up_only_when_it_is_refused(story: list[tuple[DialEnd, int, bool, int]]) -> None:
    dialling, now_ms, met = Redial(0), 0, False
    for end, lasted_ms, welcomed, draw in story:
        dialling.dialled(now_ms)
        now_ms += lasted_ms
        met = met or welcomed
        wait_ms = dialling.ended(end, now_ms, draw, welcomed=welcomed)
        if met:
            assert (wait_ms is None) == (end is DialEnd.REFUSED)
        assert wait_ms is None or 50 <= wait_ms <= redial.APART_REDIAL_MS
        now_ms += wait_ms or 0


@pytest.mark.spec("N9")
@pytest.mark.parametrize(("epoch_seen", "holds", "known"), [(0, 0, False), (1, 0, True), (0, 1, True), (7, 2, True)])
def test_a_node_belongs_where_its_home_shows_an_earlier_session(epoch_seen: int, holds: int, known: bool) -> None:
    held = tuple(Held(AttemptId(f"att_{n}"), n + 1, AttemptPhase.RUNNING) for n in range(holds))
    hello = Hello(
        NodeId("node_a"), "i1", "ab" * 32, "1.0.0", Hardware(), Resources(1_000, 64), "none", held=held,
        epoch_seen=epoch_seen,
    )  # fmt: skip
    assert belongs(hello) is known
