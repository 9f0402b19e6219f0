"""The queue: priority, then fairness between owners, then order of arrival."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.kernel.queue import Queue
from holdfast.model import JobId, Need, Owner, Resources

pytestmark = pytest.mark.spec("J13")

SMALL, BIG = Need(Resources(1)), Need(Resources(2))


class Bench:
    """A queue with owners' shares that grow by one with each job served."""

    def __init__(self) -> None:
        self.shares: dict[Owner, int] = {}
        self.queue = Queue(lambda owner: self.shares.get(owner, 0))

    def serve(self) -> JobId | None:
        head = self.queue.next()
        if head is None:
            return None
        job, _ = head
        owner = Owner(job.split("/")[0])
        self.queue.leave(job)
        self.shares[owner] = self.shares.get(owner, 0) + 1
        self.queue.share_changed(owner)
        return job


def test_ten_thousand_jobs_of_one_owner_do_not_stand_before_anothers_first():
    # given an owner with ten thousand jobs waiting and a hundred served
    bench = Bench()
    for i in range(10_000):
        bench.queue.join(JobId(f"many/{i}"), Owner("many"), 5, (SMALL, ()))
    for _ in range(100):
        bench.serve()
    # when another owner comes with one job
    bench.queue.join(JobId("one/0"), Owner("one"), 5, (SMALL, ()))
    # then it is the very next
    assert bench.serve() == "one/0"
    assert bench.serve() == "many/100"


def test_priority_goes_before_fairness_and_order():
    bench = Bench()
    bench.queue.join(JobId("a/low"), Owner("a"), 1, (SMALL, ()))
    bench.queue.join(JobId("b/high"), Owner("b"), 9, (SMALL, ()))
    bench.queue.join(JobId("a/mid"), Owner("a"), 5, (SMALL, ()))
    assert [bench.serve() for _ in range(4)] == ["b/high", "a/mid", "a/low", None]


def test_a_stuck_lane_is_passed_over_until_room_appears_that_serves_it():
    bench = Bench()
    bench.queue.join(JobId("a/big"), Owner("a"), 5, (BIG, ()))
    bench.queue.join(JobId("a/small"), Owner("a"), 5, (SMALL, ()))
    bench.queue.stick((BIG, ()))
    assert bench.serve() == "a/small"
    assert bench.serve() is None
    assert not bench.queue.free_up(lambda lane: lane[0] is SMALL)
    assert bench.queue.free_up(lambda lane: lane[0] is BIG)
    assert bench.serve() == "a/big"


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.sampled_from([SMALL, BIG])), max_size=40),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_everybody_is_served_once_and_no_owner_of_equal_priority_gets_ahead_by_more_than_one(arrivals, data):
    bench = Bench()
    for i, (owner, priority, need) in enumerate(arrivals):
        bench.queue.join(JobId(f"{owner}/{priority}/{i}"), Owner(owner), priority, (need, ()))
    gone = data.draw(st.sets(st.sampled_from(range(len(arrivals))))) if arrivals else set()
    for i in gone:
        owner, priority, _ = arrivals[i]
        bench.queue.leave(JobId(f"{owner}/{priority}/{i}"))
    served = []
    while (job := bench.serve()) is not None:
        served.append(job)
        assert len(served) <= len(arrivals)
    left = [f"{o}/{p}/{i}" for i, (o, p, _) in enumerate(arrivals) if i not in gone]
    assert sorted(served) == sorted(left)
    priorities = [int(job.split("/")[1]) for job in served]
    assert priorities == sorted(priorities, reverse=True)
    assert len(bench.queue) == 0
