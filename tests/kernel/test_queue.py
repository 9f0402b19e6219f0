"""The queue: fairness between owners first, then priority, then work that was begun, then order of arrival."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.kernel import queue as queue_module
from holdfast.kernel.queue import LaneKey, Queue
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


def test_a_newcomer_is_one_more_owner_to_be_served_in_turn():
    bench = Bench()
    for job in ("a/1", "a/2", "b/1"):
        bench.queue.join(JobId(job), Owner(job[0]), 5, (SMALL, (), None))
    assert [bench.queue.turn_if(Owner(owner), 5) for owner in "abc"] == [4, 4, 3]


def test_a_job_that_left_and_came_back_waits_once():
    bench = Bench()
    lane = (SMALL, (), None)
    for job in ("a/first", "a/again", "a/last"):
        bench.queue.join(JobId(job), Owner("a"), 5, lane)
    bench.queue.leave(JobId("a/again"))
    bench.queue.join(JobId("a/again"), Owner("a"), 5, lane)
    assert [job for job, _, _ in bench.queue.in_order(9, lambda need: 1)] == ["a/first", "a/last", "a/again"]
    assert [bench.serve() for _ in range(4)] == ["a/first", "a/last", "a/again", None]


def test_the_owner_with_least_is_next_however_often_shares_change():
    """What is stale of the order of owners is swept again and again, and the order stays."""
    bench, random = Bench(), Random(1)
    owners = [Owner(f"{number:02}") for number in range(100)]
    for owner in owners:
        bench.queue.join(JobId(f"{owner}/0"), owner, 5, (SMALL, (), None))
    sweeps = 0
    for _ in range(2_000):
        entries = len(bench.queue._heap)
        owner = random.choice(owners)
        bench.shares[owner] = random.randrange(1, 1_000)
        bench.queue.share_changed(owner)
        if len(bench.queue._heap) <= entries:
            sweeps += 1
            head = bench.queue.next()
            assert head is not None
            least = min(bench.shares.get(other, 0) for other in owners)
            assert bench.shares.get(Owner(head[0].split("/")[0]), 0) == least
    assert sweeps > 5


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


# --- the same as a plain list ---

OWNERS = [Owner("a"), Owner("b")]
LANES: list[LaneKey] = [(SMALL, (), None), (BIG, (), None), (SMALL, (NodeId("node_x"),), None)]
events = st.one_of(
    st.tuples(st.just("join"), st.integers(0, 7), st.integers(0, 2), st.booleans(), st.sampled_from(LANES)),
    st.tuples(st.just("leave"), st.integers(0, 7)),
    st.tuples(st.just("share"), st.sampled_from(OWNERS), st.integers(0, 3)),
    st.tuples(st.just("stick"), st.sampled_from(LANES)),
    st.tuples(st.just("dry"), st.sampled_from([SMALL, BIG])),
    st.tuples(st.just("free"), st.sampled_from([SMALL, BIG])),
)


class PlainQueue:
    """What the queue promises, written so that it can be read: one list, searched from the beginning each time."""

    def __init__(self) -> None:
        self.jobs: list[tuple[JobId, Owner, tuple[int, bool], LaneKey]] = []
        """In the order of arrival: id, owner, rank, lane."""
        self.shares: dict[Owner, int] = {}
        self.best: dict[Owner, int] = {}
        self.ranked: list[Owner] = []
        """The owner whose rank changed last is last."""
        self.stuck: set[LaneKey] = set()
        self.dry: set[Need] = set()

    def forget(self) -> None:
        """What nobody waits for is neither stuck nor dry."""
        lanes = {job[3] for job in self.jobs}
        self.stuck &= lanes
        self.dry &= {lane[0] for lane in lanes}
        self.best = {owner: best for owner, best in self.best.items() if any(job[1] == owner for job in self.jobs)}

    def leave(self, job: JobId) -> None:
        self.jobs = [other for other in self.jobs if other[0] != job]
        self.forget()

    def join(self, job: JobId, owner: Owner, rank: tuple[int, bool], lane: LaneKey) -> None:
        self.leave(job)
        self.jobs.append((job, owner, rank, lane))
        self.best[owner] = min(self.best.get(owner, 0), rank[0])
        if lane[0] in self.dry:
            self.stuck.add(lane)
        self.rank(owner)

    def rank(self, owner: Owner) -> None:
        self.ranked = [*(other for other in self.ranked if other != owner), owner]

    def stick(self, lanes: list[LaneKey]) -> None:
        self.stuck |= set(lanes)
        self.forget()

    def of(self, owner: Owner, open_only: bool = False) -> list[tuple[JobId, Owner, tuple[int, bool], LaneKey]]:
        """An owner's jobs, the first one first."""
        mine = [job for job in self.jobs if job[1] == owner and not (open_only and job[3] in self.stuck)]
        return sorted(mine, key=lambda job: job[2])

    def next(self) -> tuple[JobId, LaneKey] | None:
        order = sorted(self.best, key=lambda o: (self.shares.get(o, 0), self.best[o], self.ranked.index(o)))
        found = next((mine[0] for owner in order if (mine := self.of(owner, open_only=True))), None)
        return None if found is None else (found[0], found[3])

    def heads(self) -> list[tuple[JobId, LaneKey]]:
        order = sorted(self.best, key=lambda owner: (self.shares.get(owner, 0), self.best[owner], owner))
        return [(mine[0][0], mine[0][3]) for owner in order for mine in [self.of(owner)]]

    def in_order(self, most: int) -> list[JobId]:
        left = {owner: self.of(owner) for owner in self.best}
        shares = dict(self.shares)
        found: list[JobId] = []
        while any(left.values()) and len(found) < most:
            owner = min((o for o in left if left[o]), key=lambda o: (shares.get(o, 0), left[o][0][2][0], o))
            found.append(left[owner].pop(0)[0])
            shares[owner] = shares.get(owner, 0) + 1
        return found


@pytest.mark.parametrize("sweep_min", [0, 2])
@given(st.lists(events, max_size=60))
@settings(max_examples=150, deadline=None)
def test_the_queue_decides_as_a_plain_list_would_and_forgets_what_left(sweep_min, steps):
    kept, queue_module.SWEEP_MIN = queue_module.SWEEP_MIN, sweep_min
    try:
        plain = PlainQueue()
        queue = Queue(lambda owner: plain.shares.get(owner, 0))
        for step in steps:
            match step:
                case "join", number, priority, fresh, lane:
                    job, owner = JobId(f"job_{number}"), OWNERS[number % 2]
                    queue.join(job, owner, priority, lane, fresh)
                    plain.join(job, owner, (-priority, fresh), lane)
                case "leave", number:
                    queue.leave(JobId(f"job_{number}"))
                    plain.leave(JobId(f"job_{number}"))
                case "share", owner, share:
                    plain.shares[owner] = share
                    queue.share_changed(owner)
                    if owner in plain.best:
                        plain.rank(owner)
                case "stick", lane:
                    queue.stick(lane)
                    plain.stick([lane])
                case "dry", need:
                    queue.dry(need)
                    plain.dry.add(need)
                    plain.stick([lane for lane in LANES if lane[0] is need])
                case "free", need:
                    queue.free_up(lambda other, need=need: other is need, lambda lane: not lane[1])
                    plain.dry.discard(need)
                    plain.stuck -= {lane for lane in LANES if lane[0] is need and not lane[1]}
            assert queue.next() == plain.next()
            assert queue.heads(9) == plain.heads()
            for most in (2, 9):
                assert [job for job, _, _ in queue.in_order(most, lambda need: 1)] == plain.in_order(most)
            for owner in OWNERS:
                new = queue.in_order(9, lambda need: 1, (JobId("job_new"), owner, 1, LANES[0]))
                mine = [job for job, whose, _ in new if whose == owner]
                before = [job for job, _, rank, _ in plain.of(owner) if rank <= (-1, True)]
                assert mine.index(JobId("job_new")) == len(before)
                assert queue._own_before(owner, (-1, True), queue._seq) >= len(before)
            assert [queue.stuck(lane) for lane in LANES] == [
                lane in plain.stuck or lane[0] in plain.dry for lane in LANES
            ]
            lanes = {job[3] for job in plain.jobs}
            assert set(queue._loose) == lanes - plain.stuck and queue._stuck == plain.stuck
    finally:
        queue_module.SWEEP_MIN = kept
