"""The warden: what the shim decides about one body. Every time is given, none is read."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.node.core.attempt_lifecycle import (
    KILL_AGAIN_MS,
    KILL_MARGIN_MS,
    Act,
    AttemptLifecycle,
    BodyOutcome,
    EndKind,
    Phase,
)
from holdfast.node.core.order import Order, OrderError

ORDER = Order(
    attempt="att_0a.1",
    fence=7,
    job="job_0a",
    argv=("true",),
    time_limit_ms=60_000,
    orphan_ms_max=30_000,
    stop_grace_ms=2_000,
    log_bytes_max=1_000,
)
LEASED = dataclasses.replace(ORDER, lease_ms=20_000, wait_for_go=True)


def running(order: Order = ORDER, now: int = 1_000) -> AttemptLifecycle:
    lifecycle = AttemptLifecycle(order, now)
    if order.lease_ms:
        lifecycle.lease(now + order.lease_ms)
        lifecycle.go(now)
    assert lifecycle.due(now) is Act.START
    lifecycle.body_started(now)
    return lifecycle


def outcome(lifecycle: AttemptLifecycle) -> BodyOutcome:
    assert lifecycle.phase is Phase.ENDED
    assert lifecycle.outcome is not None
    return lifecycle.outcome


# --- starting ---


@pytest.mark.spec("J5", "J7")
def test_a_start_that_is_put_off_is_tried_again_if_it_still_may_be() -> None:
    lifecycle = AttemptLifecycle(ORDER, 0)
    assert lifecycle.due(0) is Act.START
    lifecycle.spawn_later()
    assert lifecycle.due(100) is Act.START
    lifecycle.spawn_later()
    lifecycle.stop("not needed any more")
    assert lifecycle.due(200) is Act.NOTHING
    assert outcome(lifecycle).kind is EndKind.STOPPED
    # nor once its lease is over
    leased = AttemptLifecycle(LEASED, 0)
    leased.lease(20_000)
    leased.go(0)
    assert leased.due(0) is Act.START
    leased.spawn_later()
    assert leased.due(20_000) is Act.NOTHING


@pytest.mark.spec("J5")
def test_a_body_starts_at_once_and_only_once() -> None:
    lifecycle = AttemptLifecycle(ORDER, 0)
    assert lifecycle.phase is Phase.PREPARING
    assert lifecycle.due(0) is Act.START
    assert lifecycle.due(0) is Act.NOTHING
    lifecycle.body_started(5)
    assert lifecycle.phase is Phase.RUNNING
    assert lifecycle.due(6) is Act.NOTHING


@pytest.mark.spec("J5", "J8")
def test_a_body_that_must_not_run_twice_needs_both_go_and_lease() -> None:
    # given an attempt that waits for the go
    lifecycle = AttemptLifecycle(LEASED, 0)
    assert lifecycle.phase is Phase.READY
    assert lifecycle.due(0) is Act.NOTHING
    # when only one of the two has come, it does not start
    lifecycle.go(1)
    assert lifecycle.due(1) is Act.NOTHING
    # then with both it does
    lifecycle.lease(20_000)
    assert lifecycle.due(2) is Act.START


@pytest.mark.spec("J5")
def test_a_go_that_comes_after_the_lease_ended_starts_nothing_until_the_lease_is_renewed() -> None:
    lifecycle = AttemptLifecycle(LEASED, 0)
    lifecycle.lease(10_000)
    lifecycle.go(10_000)
    assert lifecycle.due(10_000) is Act.NOTHING
    assert lifecycle.phase is Phase.READY
    lifecycle.lease(25_000)
    assert lifecycle.due(10_001) is Act.START


@pytest.mark.spec("J5")
def test_a_lease_too_short_to_stop_the_body_in_is_no_lease_to_start_under() -> None:
    lifecycle = AttemptLifecycle(LEASED, 0)
    lifecycle.go(0)
    lifecycle.lease(LEASED.stop_grace_ms + KILL_MARGIN_MS)
    assert lifecycle.due(0) is Act.NOTHING


@pytest.mark.spec("J5")
def test_stopped_before_it_started_it_never_starts() -> None:
    lifecycle = AttemptLifecycle(LEASED, 0)
    lifecycle.stop("superseded")
    assert outcome(lifecycle) == BodyOutcome(EndKind.STOPPED, detail="superseded")
    lifecycle.lease(50_000)
    lifecycle.go(1)
    assert lifecycle.due(1) is Act.NOTHING
    assert lifecycle.next_deadline() is None


@pytest.mark.spec("J12")
def test_a_stop_during_the_start_is_carried_out_after_it() -> None:
    lifecycle = AttemptLifecycle(ORDER, 0)
    assert lifecycle.due(0) is Act.START
    lifecycle.stop("drained")
    assert lifecycle.due(1) is Act.NOTHING
    lifecycle.body_started(2)
    assert lifecycle.due(2) is Act.TERM


@pytest.mark.spec("J7")
def test_a_body_that_could_not_be_started_is_a_fault_with_its_code() -> None:
    lifecycle = AttemptLifecycle(ORDER, 0)
    lifecycle.due(0)
    lifecycle.spawn_failed("runtime_fault", "no bwrap")
    assert outcome(lifecycle) == BodyOutcome(EndKind.FAULT, code="runtime_fault", detail="no bwrap")


# --- ending ---


@pytest.mark.spec("J7")
@pytest.mark.parametrize(("exit_code", "signal"), [(0, None), (3, None), (None, 11)])
def test_how_a_body_ended_by_itself_is_kept(exit_code: int | None, signal: int | None) -> None:
    lifecycle = running()
    lifecycle.body_ended(exit_code, signal, 2_000)
    assert outcome(lifecycle) == BodyOutcome(EndKind.EXIT, exit_code, signal)


@pytest.mark.spec("J7", "N4")
def test_the_time_limit_counts_from_the_start_of_the_body() -> None:
    lifecycle = AttemptLifecycle(LEASED, 0)
    lifecycle.lease(10**9)
    lifecycle.contact(10**9)
    lifecycle.go(20_000)
    assert lifecycle.due(20_000) is Act.START
    lifecycle.body_started(20_010)
    assert lifecycle.next_deadline() == 80_010
    assert lifecycle.due(80_009) is Act.NOTHING
    assert lifecycle.due(80_010) is Act.TERM
    assert lifecycle.next_deadline() == 82_010
    assert lifecycle.due(82_009) is Act.NOTHING
    assert lifecycle.due(82_010) is Act.KILL
    lifecycle.body_ended(None, 9, 82_020)
    assert outcome(lifecycle).kind is EndKind.TIME_LIMIT
    assert outcome(lifecycle).signal == 9


@pytest.mark.spec("N4")
def test_a_body_that_survives_its_killing_is_killed_again() -> None:
    lifecycle = running()
    lifecycle.stop("x")
    assert lifecycle.due(1_000) is Act.TERM
    assert lifecycle.due(3_000) is Act.KILL
    assert lifecycle.due(3_001) is Act.NOTHING
    assert lifecycle.next_deadline() == 3_000 + KILL_AGAIN_MS
    assert lifecycle.due(3_000 + KILL_AGAIN_MS) is Act.KILL


@pytest.mark.spec("J5")
def test_the_body_is_told_early_and_killed_before_its_lease_ends() -> None:
    lifecycle = running(LEASED, now=0)
    kill_at = 20_000 - KILL_MARGIN_MS
    assert lifecycle.due(kill_at - LEASED.stop_grace_ms - 1) is Act.NOTHING
    assert lifecycle.due(kill_at - LEASED.stop_grace_ms) is Act.TERM
    # a renewal that comes now comes too late: the body was told
    lifecycle.lease(60_000)
    assert lifecycle.due(kill_at) is Act.KILL
    lifecycle.body_ended(None, 9, kill_at + 1)
    assert outcome(lifecycle).kind is EndKind.LEASE


@pytest.mark.spec("J5")
def test_a_stop_never_outlasts_the_lease() -> None:
    lifecycle = running(LEASED, now=0)
    kill_at = 20_000 - KILL_MARGIN_MS
    assert lifecycle.due(kill_at - LEASED.stop_grace_ms - 1) is Act.NOTHING
    lifecycle.stop("cancelled")
    assert lifecycle.due(kill_at - LEASED.stop_grace_ms + 500) is Act.TERM
    assert lifecycle.next_deadline() == kill_at
    assert lifecycle.due(kill_at) is Act.KILL


@pytest.mark.spec("J5")
def test_after_a_freeze_past_the_lease_the_body_is_killed_without_grace() -> None:
    lifecycle = running(LEASED, now=0)
    assert lifecycle.due(500_000) is Act.KILL


@pytest.mark.spec("J5")
def test_a_long_grace_takes_at_most_a_quarter_of_the_lease() -> None:
    lifecycle = running(dataclasses.replace(LEASED, stop_grace_ms=600_000), now=0)
    assert lifecycle.due(14_000) is Act.NOTHING
    assert lifecycle.due(15_000) is Act.TERM


@pytest.mark.spec("N5")
def test_cut_off_for_too_long_it_stops_itself_and_each_word_gives_it_new_time() -> None:
    lifecycle = running(now=0)
    lifecycle.contact(10_000)
    lifecycle.contact(4_000)
    assert lifecycle.next_deadline() == 40_000
    assert lifecycle.due(39_999) is Act.NOTHING
    assert lifecycle.due(40_000) is Act.TERM
    lifecycle.body_ended(0, None, 40_100)
    assert outcome(lifecycle).kind is EndKind.ORPHAN


@pytest.mark.spec("H6")
def test_an_orphan_that_never_got_its_go_just_ends() -> None:
    lifecycle = AttemptLifecycle(LEASED, 0)
    assert lifecycle.due(LEASED.orphan_ms_max) is Act.NOTHING
    assert outcome(lifecycle).kind is EndKind.ORPHAN


@pytest.mark.spec("J7")
def test_a_body_that_ended_before_it_was_told_to_stop_ended_by_itself() -> None:
    lifecycle = running()
    lifecycle.stop("cancelled")
    lifecycle.body_ended(0, None, 1_001)
    assert outcome(lifecycle) == BodyOutcome(EndKind.EXIT, 0)


@pytest.mark.spec("J7")
def test_a_fault_under_a_running_body_kills_it_without_grace() -> None:
    lifecycle = running()
    lifecycle.fault("node_disk_full", "stdout.log: no space left")
    assert lifecycle.due(1_001) is Act.KILL
    lifecycle.body_ended(None, 9, 1_002)
    assert outcome(lifecycle) == BodyOutcome(EndKind.FAULT, None, 9, "stdout.log: no space left", "node_disk_full")


# --- what holds whatever happens ---

_EVENTS = st.one_of(
    st.tuples(st.just("go"), st.integers(0, 3_000)),
    st.tuples(st.just("lease"), st.integers(0, 3_000)),
    st.tuples(st.just("contact"), st.integers(0, 3_000)),
    st.tuples(st.just("stop"), st.integers(0, 3_000)),
    st.tuples(st.just("wait"), st.integers(0, 3_000)),
    st.tuples(st.just("freeze"), st.integers(0, 60_000)),
    st.tuples(st.just("ended"), st.integers(0, 3_000)),
)
_ORDERS = st.builds(
    lambda leased, limit, orphan, grace: dataclasses.replace(
        ORDER,
        lease_ms=leased,
        wait_for_go=leased > 0,
        time_limit_ms=limit,
        orphan_ms_max=orphan,
        stop_grace_ms=grace,
    ),
    st.sampled_from([0, 1_000, 3_000, 15_000]),
    st.integers(1, 20_000),
    st.integers(1, 20_000),
    st.integers(0, 6_000),
)


class World:
    """Drives a warden as the shim does: `due` after every event and at every deadline."""

    def __init__(self, order: Order) -> None:
        self.now = 1_000
        self.order = order
        self.lifecycle = AttemptLifecycle(order, self.now)
        self.leased_until = 0
        self.went = not order.wait_for_go
        self.alive = False
        self.born = self.died = None
        self.killed: tuple[int, int] | None = None
        """When, and how long the lease was then."""
        self.told: int | None = None
        self.ends: list[dict[str, object]] = []
        self.obey()

    def obey(self) -> None:
        act = self.lifecycle.due(self.now)
        if act is Act.START:
            assert self.born is None, "a body starts once"
            assert self.went
            assert self.order.lease_ms == 0 or self.now < self.leased_until
            self.alive, self.born = True, self.now
            self.lifecycle.body_started(self.now)
        elif act is Act.TERM:
            assert self.told is None, "SIGTERM comes once"
            self.told = self.now
        elif act is Act.KILL:
            self.killed = (self.now, self.leased_until)
            self.end(None, 9)
        if self.lifecycle.outcome is not None:
            self.ends.append(self.lifecycle.outcome.to_dict())
            assert self.ends[0] == self.ends[-1], "an outcome never changes"
            assert not self.alive

    def end(self, exit_code: int | None, signal: int | None) -> None:
        if self.alive:
            self.alive, self.died = False, self.now
            self.lifecycle.body_ended(exit_code, signal, self.now)

    def advance(self, ms: int) -> None:
        until = self.now + ms
        at_once = 0
        while (deadline := self.lifecycle.next_deadline()) is not None and deadline <= until:
            at_once = at_once + 1 if deadline <= self.now else 0
            assert at_once < 3, "a deadline that has been obeyed is past"
            self.now = max(self.now, deadline)
            self.obey()
        self.now = until

    def play(self, what: str, ms: int) -> None:
        if what == "freeze":
            self.now += ms
        else:
            self.advance(ms)
        if what == "go":
            self.went = True
            self.lifecycle.go(self.now)
        elif what == "lease":
            self.leased_until = max(self.leased_until, self.now + self.order.lease_ms)
            self.lifecycle.lease(self.now + self.order.lease_ms)
        elif what == "contact":
            self.lifecycle.contact(self.now)
        elif what == "stop":
            self.lifecycle.stop("asked")
        elif what == "ended":
            self.end(0, None)
        self.obey()


@pytest.mark.spec("J5", "H6")
@settings(max_examples=250, deadline=None)
@given(_ORDERS, st.lists(_EVENTS, max_size=25))
def test_whatever_happens_the_body_is_dead_by_its_lease_and_its_limits(
    order: Order, events: list[tuple[str, int]]
) -> None:
    world = World(order)
    for what, ms in events:
        world.play(what, ms)
        # a freeze may carry a body past its lease, but not past the first look after it
        if order.lease_ms and world.now >= world.leased_until:
            assert not world.alive
    # and with nothing more said, everything ends within its bounds
    world.advance(order.time_limit_ms + order.orphan_ms_max + order.stop_grace_ms + 1)
    assert world.lifecycle.phase is Phase.ENDED
    assert not world.alive
    assert world.lifecycle.next_deadline() is None


@pytest.mark.spec("J5", "N7")
@settings(max_examples=150, deadline=None)
@given(_ORDERS, st.lists(_EVENTS, max_size=25))
def test_every_body_is_told_before_it_is_killed_unless_time_has_run_out(
    order: Order, events: list[tuple[str, int]]
) -> None:
    world = World(order)
    for what, ms in events:
        world.play(what, ms)
    if world.killed is None:
        return
    at, leased_until = world.killed
    lease_is_out = bool(order.lease_ms) and at >= leased_until - KILL_MARGIN_MS
    grace_is_out = world.told is not None and at >= world.told + order.stop_grace_ms
    assert lease_is_out or grace_is_out


# --- orders ---

_WORD = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@pytest.mark.spec("N9")
@given(
    st.lists(_WORD, max_size=5),
    st.dictionaries(_WORD.filter(lambda w: w and "=" not in w), _WORD, max_size=4),
    st.integers(0, 2**40),
)
def test_an_order_survives_its_file(args: list[str], env: dict[str, str], fence: int) -> None:
    order = dataclasses.replace(
        ORDER, argv=("sh", *args), env=env, fence=fence, resources={"cpu_milli": 500, "gpus": 1}
    )
    assert Order.from_dict(order.to_dict()) == order


@pytest.mark.spec("N5")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"argv": []}, "argv is empty"),
        ({"argv": "ls"}, "argv is of the wrong type"),
        ({"argv": ["a\0b"]}, "NUL"),
        ({"argv": ["x" * 200_000]}, "at most"),
        ({"attempt": "../../etc"}, "is not a valid name"),
        ({"attempt": ".hidden"}, "is not a valid name"),
        ({"fence": -1}, "fence is -1"),
        ({"fence": True}, "fence is of the wrong type"),
        ({"fence": "1"}, "fence is of the wrong type"),
        ({"time_limit_ms": 0}, "time_limit_ms is 0"),
        ({"orphan_ms_max": 2**60}, "orphan_ms_max is"),
        ({"env": {"A=B": "c"}}, "holds '='"),
        ({"env": {"A": 1}}, "env is of the wrong type"),
        ({"env": []}, "env is of the wrong type"),
        ({"resources": {"cpu_milli": -5}}, "none negative"),
        ({"resources": {"moon": 1}}, "resources may hold"),
        ({"wait_for_go": True}, "wait_for_go needs a lease"),
        ({"shell": True}, "no field 'shell'"),
        ({"runtime": "a/b"}, "is not a valid name"),
    ],
)
def test_an_order_that_cannot_be_trusted_is_refused_by_name(change: dict[str, object], says: str) -> None:
    with pytest.raises(OrderError, match=says):
        Order.from_dict(ORDER.to_dict() | change)


@pytest.mark.spec("N5")
def test_an_order_with_a_field_missing_is_refused() -> None:
    raw = ORDER.to_dict()
    del raw["fence"]
    with pytest.raises(OrderError, match="fence"):
        Order.from_dict(raw)
    with pytest.raises(OrderError, match="JSON object"):
        Order.from_dict([1, 2])


@pytest.mark.spec("N9", "J7")
@given(
    st.sampled_from(EndKind),
    st.one_of(st.none(), st.integers(0, 255)),
    st.one_of(st.none(), st.integers(1, 64)),
    st.text(),
)
def test_an_outcome_survives_its_file(kind: EndKind, exit_code: int | None, signal: int | None, detail: str) -> None:
    it = BodyOutcome(kind, exit_code, signal, detail)
    assert BodyOutcome.from_dict(it.to_dict()) == it


@pytest.mark.spec("N5")
@pytest.mark.parametrize("raw", [None, {}, {"kind": "luck"}, {"kind": "exit", "exit_code": "0"}, {"kind": []}])
def test_what_is_no_outcome_is_refused(raw: object) -> None:
    with pytest.raises(ValueError):
        BodyOutcome.from_dict(raw)
