"""Deadlines: everything fires when due or earlier, once, and what ended costs no memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.kernel.deadlines import SWEEP_MIN, Deadlines
from holdfast.model import Instant

pytestmark = pytest.mark.spec("H6")

steps = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50) | st.none()), max_size=60)


@given(steps)
def test_each_subject_fires_once_at_its_earliest_time_in_order(steps):
    deadlines, truth = Deadlines(), {}
    for name, due in steps:
        if due is None:
            deadlines.drop("job", name)
            truth.pop(name, None)
        else:
            deadlines.add(Instant(due), "job", name)
            truth[name] = min(due, truth.get(name, due))
    fired = []
    for now in range(51):
        assert deadlines.first() is None or deadlines.first() == min(v for v in truth.values() if v >= now)
        while (entry := deadlines.pop_due(Instant(now))) is not None:
            fired.append((now, entry[1]))
    assert sorted(fired) == sorted((due, name) for name, due in truth.items())
    assert [now for now, _ in fired] == sorted(now for now, _ in fired)


def test_a_million_ended_jobs_leave_nothing_behind():
    """Queue limits lie a day ahead: without sweeping, every job of a day would stay in memory."""
    deadlines = Deadlines()
    for i in range(20 * SWEEP_MIN):
        deadlines.add(Instant(86_400_000 + i), "job", f"job_{i}")
        deadlines.drop("job", f"job_{i}")
    assert len(deadlines) == 0
    assert len(deadlines._times) <= SWEEP_MIN + 1
    assert not deadlines._slots


def test_many_that_fall_due_together_come_in_the_order_of_their_names_once():
    """As after a change of leader, when every job is looked at: also those added or dropped while they fire."""
    deadlines = Deadlines()
    for i in reversed(range(20_000)):
        deadlines.add(Instant(5), "job", f"job_{i:05}")
    deadlines.add(Instant(4), "node", "node_early")
    fired = []
    while (entry := deadlines.pop_due(Instant(5))) is not None:
        fired.append(entry[1])
        if entry[1] == "job_00007":
            deadlines.drop("job", "job_00008")
            deadlines.add(Instant(5), "lease", "late")
            deadlines.add(Instant(9), "job", "job_00007")
    expected = [f"job_{i:05}" for i in range(20_000) if i != 8]
    assert fired == ["node_early", *expected, "late"]
    assert deadlines.first() == 9


def test_what_stays_fires_in_order_after_all_else_was_swept():
    """Given many deadlines in no order, most of which end early, then the others still fire in theirs."""
    deadlines = Deadlines()
    times = [i * 7_919 % 10_007 for i in range(6 * SWEEP_MIN)]
    for due in times:
        deadlines.add(Instant(due), "job", f"job_{due}")
        assert len(deadlines._times) <= 2 * len(deadlines._slots) + SWEEP_MIN + 1
    kept = times[::40]
    for due in times:
        if due not in kept:
            deadlines.drop("job", f"job_{due}")
        assert len(deadlines._times) <= 2 * len(deadlines._slots) + SWEEP_MIN + 1
    fired = []
    while (entry := deadlines.pop_due(Instant(20_000))) is not None:
        fired.append(entry[1])
    assert fired == [f"job_{due}" for due in sorted(kept)]


def test_times_that_are_gone_are_swept_only_when_there_are_many():
    deadlines = Deadlines()
    for i in range(SWEEP_MIN):
        deadlines.add(Instant(i), "job", f"job_{i}")
        deadlines.drop("job", f"job_{i}")
    assert len(deadlines._times) == SWEEP_MIN
