"""Intervals: how they come from what was seen, how they widen, and the rehearsal of a queue they lean on."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.kernel.queue import Queue
from holdfast.model import JobId, Need, Owner, Resources
from holdfast.policy import forecast
from holdfast.policy.estimates import STRETCH_MAX, STRETCH_MIN, Spread, adapted, left, mean_ms, spread
from holdfast.policy.forecast import ENDINGS_MAX, ForecastRequest, Room, starts

pytestmark = pytest.mark.spec("J15")

durations = st.lists(st.integers(1, 10**8), min_size=1, max_size=40)
spreads = st.tuples(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**7)).map(
    lambda parts: Spread(parts[0], parts[0] + parts[1], parts[0] + parts[1] + parts[2])
)


@given(durations)
def test_an_interval_is_in_order_and_holds_the_middle_of_what_was_seen(seen):
    low, middle, high = spread(seen)
    assert 0 <= low <= middle <= high
    assert min(seen) <= middle <= max(seen)
    if len(seen) >= 9:
        assert min(seen) <= low and high <= max(seen)
    else:  # so few cannot hold a tenth: it reaches beyond them
        assert low <= min(seen) and high >= max(seen)


@given(durations, st.integers(2, 50))
def test_what_takes_longer_by_a_factor_is_foretold_longer_by_that_factor(seen, factor):
    slower = spread([ms * factor for ms in seen])
    for part, larger in zip(spread(seen), slower, strict=True):
        assert abs(larger - part * factor) <= 2 * factor


@pytest.mark.parametrize("runs", [9, 15, 39])
@pytest.mark.parametrize("shape", ["lognormal", "exponential", "uniform"])
def test_four_of_five_that_come_next_lie_inside_whatever_the_distribution(runs: int, shape: str):
    chance = random.Random(runs)
    draw = {
        "lognormal": lambda: int(chance.lognormvariate(9, 1)) + 1,
        "exponential": lambda: int(chance.expovariate(1e-4)) + 1,
        "uniform": lambda: chance.randrange(1_000, 90_000),
    }[shape]
    inside = 0
    for _ in range(3_000):
        low, _, high = spread([draw() for _ in range(runs)])
        inside += low <= draw() <= high
    assert 0.76 <= inside / 3_000 <= 0.84, inside / 3_000


@given(durations, st.integers(0, 10**8))
def test_what_is_left_never_counts_those_that_would_have_ended(seen, passed):
    found = left(seen, passed)
    assert (found is None) == (passed >= max(seen))
    if found is not None:
        assert found.middle <= max(seen) - passed


@given(spreads, spreads)
def test_one_after_the_other_is_no_surer_than_each_and_no_wider_than_both(first, second):
    both = first.plus(second)
    assert both.middle == first.middle + second.middle
    above = both.high - both.middle
    assert max(first.high - first.middle, second.high - second.middle) - 1 <= above
    assert above <= (first.high - first.middle) + (second.high - second.middle)
    assert both.low <= both.middle <= both.high


@given(spreads, st.integers(STRETCH_MIN, STRETCH_MAX))
def test_stretching_keeps_the_middle_and_never_says_more_than_jitter_allows(found, permille):
    wider = found.stretched(permille)
    assert wider.low <= wider.middle == found.middle <= wider.high
    assert wider.high - wider.middle >= 250


@settings(max_examples=30)
@given(st.floats(0.05, 8), st.integers(0, 1_000))
def test_the_stretch_settles_where_four_of_five_are_right_however_wrong_the_first_guess_was(truth, seed):
    # given errors that lie within `truth` times the guessed width four times of five
    chance = random.Random(seed)
    stretch, right = 1_000, 0
    for turn in range(3_000):
        hit = abs(chance.gauss(0, truth / 1.2816)) <= stretch / 1_000
        right += hit and turn >= 1_000
        stretch = adapted(stretch, hit)
    if truth >= 0.5 and truth <= 6:  # within the bounds of the stretch
        assert 0.74 <= right / 2_000 <= 0.86, right / 2_000
    assert STRETCH_MIN <= stretch <= STRETCH_MAX


# --- the rehearsal ---

amounts = st.tuples(st.integers(1, 4), st.integers(1, 4), st.just(0), st.just(0))


@st.composite
def networks(draw):
    sizes = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.just(0), st.just(0)), max_size=5))
    rooms = [Room(free, draw(st.lists(st.tuples(st.integers(1, 1_000), amounts), max_size=4))) for free in sizes]
    every = frozenset(range(len(rooms)))
    line = [
        ForecastRequest(
            f"job{n}", want, every if draw(st.booleans()) else frozenset(draw(st.sets(st.integers(0, 5)))), lasts
        )
        for n, (want, lasts) in enumerate(draw(st.lists(st.tuples(amounts, st.integers(1, 500)), max_size=8)))
    ]
    return rooms, line


@given(networks())
def test_nobody_is_given_more_room_than_there_is_and_who_fits_in_the_end_is_placed(network):
    rooms, line = network
    found = starts(rooms, line)
    for wanted in line:
        could = [
            all(
                want <= have + sum(end[1][k] for end in rooms[i].ends)
                for k, (want, have) in enumerate(zip(wanted.amounts, rooms[i].free, strict=True))
            )
            for i in range(len(rooms))
            if i in wanted.rooms
        ]
        assert (wanted.key in found) == any(could)
    assert all(at >= 0 for at in found.values())


@given(networks())
def test_of_two_that_want_the_same_the_first_in_line_starts_first(network):
    rooms, line = network
    found = starts(rooms, line)
    for i, first in enumerate(line):
        for second in line[i + 1 :]:
            alike = (first.amounts, first.rooms) == (second.amounts, second.rooms)
            if alike and first.key in found and second.key in found:
                assert found[first.key] <= found[second.key]


def test_a_queue_of_equal_jobs_moves_one_place_with_each_that_ends():
    rooms = [Room((0, 0, 0, 0), [(100, (1, 1, 0, 0)), (250, (1, 1, 0, 0))])]
    line = [ForecastRequest(f"job{n}", (1, 1, 0, 0), frozenset({0}), 1_000) for n in range(4)]
    assert starts(rooms, line) == {"job0": 100, "job1": 250, "job2": 1_100, "job3": 1_250}
    assert starts(rooms, line, until="job1") == {"job0": 100, "job1": 250}


def test_the_mean_is_what_a_queue_moves_by():
    assert mean_ms((1_000, 2_000, 6_000)) == 3_000


# --- who is before whom ---

arrivals = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.sampled_from([1, 2]), st.booleans()), max_size=25
)


@given(arrivals, st.sampled_from("abcd"), st.integers(0, 9))
def test_the_order_that_is_foretold_is_the_order_in_which_they_are_served(jobs, owner, priority):
    # given a queue, and one who would join it
    shares: dict[Owner, int] = {}
    queue = Queue(lambda of: shares.get(of, 0))
    for n, (who, how, size, fresh) in enumerate(jobs):
        queue.join(JobId(f"{who}/{n}"), Owner(who), how, (Need(Resources(size)), (), None), fresh)
    new = (JobId("new"), Owner(owner), priority, (Need(Resources(1)), (), None))
    predicted = [job for job, _, _ in queue.in_order(100, lambda need: need.resources.cpu_milli, new)]
    assert sorted(predicted) == sorted([*queue.waiting, "new"])
    # when it joins and all are served one by one
    queue.join(JobId("new"), Owner(owner), priority, new[3])
    served: list[JobId] = []
    while (head := queue.next()) is not None:
        job, lane = head
        who = queue.waiting[job][1]
        queue.leave(job)
        shares[who] = shares.get(who, 0) + lane[0].resources.cpu_milli
        queue.share_changed(who)
        served.append(job)
    # then each owner's jobs came in the order foretold
    for one in "abcd":
        mine = [job for job in served if job.startswith(one) or (job == "new" and one == owner)]
        assert mine == [job for job in predicted if job in mine]
    assert len(served) == len(predicted)


def test_a_rehearsal_takes_no_more_steps_than_it_may(monkeypatch: pytest.MonkeyPatch):
    """Sixty-four rooms full of small things, and a long line of which nobody finds room before nearly all have ended;
    in the other line somebody may find room at every ending."""
    looks = 0
    served = forecast._served

    def counted(line, *more):
        nonlocal looks
        looks += 1
        return served(line, *more)

    monkeypatch.setattr(forecast, "_served", counted)
    rooms = [Room((0, 0, 0, 0), [(1 + 64 * n + i, (100, 100, 1, 0)) for n in range(256)]) for i in range(64)]
    everywhere = frozenset(range(64))
    large = [ForecastRequest(f"large{n}", (25_600, 25_600, 1, 0), everywhere, 1_000) for n in range(128)]
    assert starts(rooms, large) == {}
    assert looks == 64
    looks, endless = 0, [*large, ForecastRequest("nowhere", (1, 1, 1, 0), frozenset(), 1_000)]
    assert starts(rooms, endless) == {}
    assert looks == 64 + ENDINGS_MAX
