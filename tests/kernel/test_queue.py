"""The queue: fairness between owners first, then priority, then work that was begun, then order of arrival."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.kernel.queue import Queue
from holdfast.model import JobId, Need, NodeId, Owner, Resources

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
        bench.queue.join(JobId(f"many/{i}"), Owner("many"), 5, (SMALL, (), None))
    for _ in range(100):
        bench.serve()
    # when another owner comes with one job
    bench.queue.join(JobId("one/0"), Owner("one"), 5, (SMALL, (), None))
    # then it is the very next
    assert bench.serve() == "one/0"
    assert bench.serve() == "many/100"


def test_priority_orders_an_owners_own_jobs_and_breaks_ties_between_owners():
    bench = Bench()
    bench.queue.join(JobId("a/low"), Owner("a"), 1, (SMALL, (), None))
    bench.queue.join(JobId("b/high"), Owner("b"), 9, (SMALL, (), None))
    bench.queue.join(JobId("a/mid"), Owner("a"), 5, (SMALL, (), None))
    assert [bench.serve() for _ in range(4)] == ["b/high", "a/mid", "a/low", None]


def test_a_flood_at_the_highest_priority_does_not_stand_before_anothers_first():
    bench = Bench()
    for i in range(200):
        bench.queue.join(JobId(f"flood/{i}"), Owner("flood"), 9, (SMALL, (), None))
    bench.serve()
    bench.queue.join(JobId("modest/0"), Owner("modest"), 0, (SMALL, (), None))
    assert bench.serve() == "modest/0"


def test_of_one_owner_and_priority_a_job_that_lost_its_machine_goes_first():
    # given jobs that wait, and one that comes back to wait because its machine went away
    bench = Bench()
    lane, elsewhere = (SMALL, (), None), (SMALL, (NodeId("node_gone"),), None)
    bench.queue.join(JobId("a/fresh"), Owner("a"), 5, lane)
    bench.queue.join(JobId("a/urgent"), Owner("a"), 9, lane)
    bench.queue.join(JobId("a/lost"), Owner("a"), 5, elsewhere, fresh=False)
    # then it stands behind what matters more, before what had no machine yet, and that is what is foretold
    assert [bench.queue.ahead_of(JobId(f"a/{name}")) for name in ("urgent", "lost", "fresh")] == [0, 1, 2]
    assert bench.queue.ahead_if(Owner("a"), 5) == 3
    assert [job for job, _ in bench.queue.heads(1)] == ["a/urgent"]
    assert [bench.serve() for _ in range(3)] == ["a/urgent", "a/lost", "a/fresh"]


def test_a_job_that_lost_its_machine_does_not_stand_before_another_owner():
    bench = Bench()
    bench.queue.join(JobId("b/fresh"), Owner("b"), 5, (SMALL, (), None))
    bench.queue.join(JobId("a/lost"), Owner("a"), 5, (SMALL, (), None), fresh=False)
    assert bench.serve() == "b/fresh"


def test_a_stuck_lane_is_passed_over_until_room_appears_that_serves_it():
    bench = Bench()
    bench.queue.join(JobId("a/big"), Owner("a"), 5, (BIG, (), None))
    bench.queue.join(JobId("a/small"), Owner("a"), 5, (SMALL, (), None))
    bench.queue.stick((BIG, (), None))
    assert bench.serve() == "a/small"
    assert bench.serve() is None
    assert bench.queue.free_up(lambda need: need is SMALL, lambda lane: True) == []
    assert bench.queue.free_up(lambda need: need is BIG, lambda lane: True) == [(BIG, (), None)]
    assert bench.serve() == "a/big"


def test_a_dry_need_sticks_all_its_lanes_and_those_that_join_later():
    bench = Bench()
    bench.queue.join(JobId("a/1"), Owner("a"), 5, (BIG, (), None))
    bench.queue.dry(BIG)
    bench.queue.join(JobId("a/2"), Owner("a"), 5, (BIG, (NodeId("node_x"),), None))
    assert bench.serve() is None
    bench.queue.free_up(lambda need: True, lambda lane: not lane[1])
    assert bench.serve() == "a/1"
    assert bench.serve() is None


def test_waiting_does_not_cost_memory_for_those_who_left():
    """One job waits; twenty thousand of the same owner come and go behind it, and as many change their share."""
    bench = Bench()
    bench.queue.join(JobId("a/stays"), Owner("a"), 5, (BIG, (), None))
    bench.queue.stick((BIG, (), None))
    for i in range(20_000):
        bench.queue.join(JobId(f"a/{i}"), Owner("a"), 5, (BIG, (), None))
        bench.queue.leave(JobId(f"a/{i}"))
        bench.queue.share_changed(Owner("a"))
    assert len(bench.queue._heap) < 200
    assert sum(len(jobs) for line in bench.queue._lines.values() for jobs in line.lanes.values()) < 200


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.booleans(), st.sampled_from([SMALL, BIG])), max_size=40
    ),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_everybody_is_served_once_the_owner_with_least_first_and_by_rank_within_an_owner(arrivals, data):
    bench = Bench()
    names = [JobId(f"{owner}/{priority}/{fresh:d}/{i}") for i, (owner, priority, fresh, _) in enumerate(arrivals)]
    for name, (owner, priority, fresh, need) in zip(names, arrivals, strict=True):
        bench.queue.join(name, Owner(owner), priority, (need, (), None), fresh)
    gone = data.draw(st.sets(st.sampled_from(range(len(arrivals))))) if arrivals else set()
    for i in gone:
        bench.queue.leave(names[i])
    served = []
    while (head := bench.queue.next()) is not None:
        waiting = {bench.queue.waiting[j][1] for j in bench.queue.members()}
        least = min(bench.shares.get(owner, 0) for owner in waiting)
        assert bench.shares.get(Owner(head[0].split("/")[0]), 0) == least
        served.append(bench.serve())
    assert sorted(served) == sorted(name for i, name in enumerate(names) if i not in gone)
    for owner in "abc":
        mine = [(-int(p), int(f), int(i)) for o, p, f, i in (job.split("/") for job in served) if o == owner]
        assert mine == sorted(mine)
    assert len(bench.queue) == 0
