"""Rules of the node's pure core at their edges: what is refused, what a fence and a session bind, when a body dies."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.model import (
    BUILD,
    CONTAINER,
    JOBS,
    NETWORK,
    PLAIN,
    AttemptId,
    FailureCode,
    Input,
    Instant,
    JobSpec,
    Need,
    NodeId,
    Resources,
    Result,
    job_of,
)
from holdfast.model.messages import Discard, Go, HeldPhase, Leaving, Load, Offers, Renewed, Report, Save, Start, Welcome
from holdfast.node.core import core as core_module
from holdfast.node.core.admission import Means, NodeLimits, crowding, flaw, order_for, output_bytes_max, unable
from holdfast.node.core.attempt_lifecycle import Act, AttemptLifecycle, BodyOutcome, EndKind, Phase
from holdfast.node.core.core import NodeCore
from holdfast.node.core.events import (
    CaptureCheckpoint,
    CommandReceived,
    Connected,
    Delivered,
    DeliveredFiles,
    Disconnected,
    HangUp,
    LeaveAsked,
    LoadMeasured,
    NodeAction,
    NodeEvent,
    NodeTick,
    Recovered,
    Say,
    ShimSaid,
    ShimStatus,
    Spawn,
    Tell,
)
from holdfast.node.core.held_attempt import HeldAttempt
from holdfast.node.core.order import Order, OrderError
from holdfast.node.core.resource_usage import excess
from holdfast.node.core.verdicts import verdict

ATTEMPT = AttemptId("att_a.1")
LIMITS = NodeLimits(attempts_max=3, argv_bytes_max=10, env_bytes_max=4, time_limit_ms_max=60_000, lease_ms_max=9_000)
ROOM = Resources(4_000, 4_000, 4_000, 2)
SMALL = Need(Resources(1_000, 100, 10, 0))
WELCOME = Welcome(NodeId("node_a"), 5, 5_000, 700, 9_000, 20_000, 500)


def start(attempt: str = ATTEMPT, fence: int = 1, lease_ms: int = 0, time_limit_ms: int = 60_000, **more: Any) -> Start:
    spec = JobSpec(**{"argv": ("run",), "need": SMALL, **more})
    return Start(5, AttemptId(attempt), fence, job_of(AttemptId(attempt)), spec, time_limit_ms, lease_ms)


# --- what is wrong with an assignment ---


@pytest.mark.spec("N5")
@pytest.mark.parametrize(
    "sound",
    [
        start(fence=0),
        start(fence=2**53),
        start(argv=("run", "7 bytes")),
        start(env={"A": "abc"}),
        start(time_limit_ms=1),
        start(time_limit_ms=60_000),
        start(lease_ms=0),
        start(lease_ms=9_000),
        start(checkpoint_ms=0),
        start(need=Need(Resources(0, 0, 0, 0))),
        start(inputs=(Input("one.csv", manifest="ab" * 32),)),
    ],
)
def test_an_assignment_at_the_edge_of_what_is_allowed_is_sound(sound: Start) -> None:
    assert flaw(sound, LIMITS) == ""


@pytest.mark.spec("N5")
@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (start(fence=-1), "fence"),
        (start(fence=2**53 + 1), "fence"),
        (start(argv=("",)), "argv is empty"),
        (start(argv=()), "argv is empty"),
        (start(argv=("run", "8 bytes.")), "argv is 11 bytes"),
        (start(env={"A": "abcd"}), "env is 5 bytes"),
        (start(argv=("run", "\0")), "NUL"),
        (start(env={"A": "\0"}), "NUL"),
        (start(env={"A": "", "1": ""}), "name in env"),
        (start(need=Need(Resources(1, -1, 1, 1))), "negative"),
        (start(need=Need(Resources(1, 1, 1, -1))), "negative"),
        (start(time_limit_ms=0), "time limit"),
        (start(time_limit_ms=60_001), "time limit"),
        (start(lease_ms=-1), "lease"),
        (start(lease_ms=9_001), "lease"),
        (start(checkpoint_ms=-1), "checkpoint"),
        (start(package="no hash"), "hash of a manifest"),
        (start(inputs=(Input("a", manifest="ab" * 32), Input("b", manifest="AB" * 32))), "hash of a manifest"),
        (start(inputs=(Input("../a", manifest="ab" * 32),)), "name of an input"),
        (replace(start(), job=job_of(AttemptId("att_b.1"))), "belong"),
        (start(attempt="att_a/1.1"), "malformed"),
    ],
)
def test_one_step_beyond_is_named(bad: Start, says: str) -> None:
    assert says in flaw(bad, LIMITS)


@pytest.mark.spec("N5", "N10")
def test_what_is_asked_may_fill_the_node_and_the_first_thing_that_exceeds_it_is_named() -> None:
    assert crowding(ROOM, ROOM, Resources()) == ""
    assert crowding(Resources(1_000, 1, 1, 0), ROOM, Resources(3_000, 0, 0, 0)) == ""
    assert crowding(Resources(1_000, 4_001, 1, 0), ROOM, Resources(3_000, 0, 0, 0)).startswith("4001 memory_mib")
    assert crowding(Resources(1, 1, 1, 1), ROOM, Resources(0, 0, 0, 3)).startswith("1 gpus asked, 0 free of 2")


@pytest.mark.spec("N10", "J1")
@pytest.mark.parametrize(
    ("how", "features", "missing"),
    [
        ({}, (JOBS, PLAIN), ""),
        ({}, (JOBS, CONTAINER, BUILD), "plain"),
        ({"image": "busybox"}, (JOBS, CONTAINER), ""),
        ({"image": "busybox"}, (JOBS, PLAIN), "container"),
        ({"dockerfile": "Dockerfile"}, (JOBS, CONTAINER, BUILD), ""),
        ({"dockerfile": "Dockerfile"}, (JOBS, CONTAINER, PLAIN), "build"),
        ({"dockerfile": "Dockerfile"}, (JOBS, PLAIN), "build, container"),
    ],
)
def test_what_a_node_does_not_offer_is_named(how: dict[str, str], features: tuple[str, ...], missing: str) -> None:
    found = unable(start(**how), Means("bubblewrap", features))
    assert found == (f"this node does not offer: {missing}" if missing else "")


@pytest.mark.spec("N4")
@pytest.mark.parametrize(
    ("how", "contained"), [({}, False), ({"image": "busybox"}, True), ({"dockerfile": "Dockerfile"}, True)]
)
def test_an_order_names_the_runtime_and_the_engine_that_the_job_needs(how: dict[str, str], contained: bool) -> None:
    means = Means("bubblewrap", engine="/run/engine", limits={"pids": 4})

    order = order_for(start(lease_ms=0, checkpoint_ms=1, **how), WELCOME, means, LIMITS, ("gpu0",))

    assert isinstance(order, Order)
    assert (order.runtime, order.engine) == ((CONTAINER, "/run/engine") if contained else ("bubblewrap", ""))
    assert order.checkpoint and not order.wait_for_go and not order.network
    assert (order.gpu_ids, order.limits) == (("gpu0",), {"pids": 4})


@pytest.mark.spec("N4")
def test_an_order_waits_for_its_go_exactly_if_it_has_a_lease() -> None:
    asked = start(lease_ms=1, need=Need(SMALL.resources, features=(JOBS, NETWORK)))

    order = order_for(asked, WELCOME, Means(), LIMITS)

    assert isinstance(order, Order)
    assert order.wait_for_go and order.lease_ms == 1 and order.network and not order.checkpoint


@pytest.mark.spec("N4", "A12")
@pytest.mark.parametrize(
    ("disk_mib", "bytes_max", "allowed"),
    [
        (0, 64 << 20, 1 << 20),
        (1, 64 << 20, 1 << 20),
        (2, 64 << 20, 1 << 20),
        (3, 64 << 20, 3 << 19),
        (127, 64 << 20, 127 << 19),
        (128, 64 << 20, 64 << 20),
        (1_024, 64 << 20, 64 << 20),
        (1_024, 100, 100),
    ],
)
def test_both_streams_of_a_job_print_at_most_as_much_as_its_disk_holds(
    disk_mib: int, bytes_max: int, allowed: int
) -> None:
    assert output_bytes_max(disk_mib, bytes_max) == allowed
    asked = start(need=Need(Resources(100, 10, disk_mib)))

    order = order_for(asked, WELCOME, Means(), NodeLimits(log_bytes_max=bytes_max))

    assert isinstance(order, Order)
    assert order.log_bytes_max == allowed
    assert order.resources["disk_mib"] == max(1, disk_mib), "without a limit it could fill the machine's disk"


@pytest.mark.spec("N5")
def test_an_order_that_cannot_be_written_is_a_refusal() -> None:
    means = Means(limits={"no such limit": 1})

    told = node(means=means).told(start())

    assert [h.phase for h in told.held] == [HeldPhase.REFUSED]
    assert not told.of(Spawn)


# --- the order itself ---


def order(**more: Any) -> Order:
    given: dict[str, Any] = {
        "attempt": "att_a.1", "fence": 1, "job": "job_a", "argv": ("run",), "time_limit_ms": 10_000,
        "orphan_ms_max": 60_000, "stop_grace_ms": 500, "log_bytes_max": 100,
    }  # fmt: skip
    return Order(**{**given, **more})


@pytest.mark.spec("N5")
@pytest.mark.parametrize(
    "more",
    [
        {"fence": 0}, {"time_limit_ms": 1}, {"orphan_ms_max": 1}, {"stop_grace_ms": 0}, {"log_bytes_max": 0},
        {"time_limit_ms": 2**53}, {"resources": {"cpu_milli": 0}}, {"limits": {"pids": 0}}, {"env": {"A": ""}},
        {"argv": ("x" * (128 * 1024 - 1),)}, {"argv": ("x", "y" * (128 * 1024 - 3))},
        {"lease_ms": 1, "wait_for_go": True},
    ],
)  # fmt: skip
def test_an_order_at_the_edge_can_be_written(more: dict[str, Any]) -> None:
    assert order(**more).attempt == "att_a.1"


@pytest.mark.spec("N5")
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"argv": ("",)}, "argv is empty"),
        ({"argv": ("a", "b\0")}, "NUL"),
        ({"env": {"": "1"}}, "name in env"),
        ({"env": {"A=B": "1"}}, "name in env"),
        ({"argv": ("x" * 128 * 1024,)}, "131073 bytes"),
        ({"argv": ("x", "y" * (128 * 1024 - 2))}, "131073 bytes"),
        ({"fence": -1}, "fence"),
        ({"time_limit_ms": 0}, "time_limit_ms"),
        ({"orphan_ms_max": 0}, "orphan_ms_max"),
        ({"stop_grace_ms": -1}, "stop_grace_ms"),
        ({"log_bytes_max": -1}, "log_bytes_max"),
        ({"lease_ms": -1}, "lease_ms"),
        ({"time_limit_ms": 2**53 + 1}, "time_limit_ms"),
        ({"resources": {"cpu_milli": -1}}, "resources"),
        ({"resources": {"wheels": 1}}, "resources"),
        ({"limits": {"pids": -1}}, "limits"),
        ({"limits": {"wheels": 1}}, "limits"),
        ({"engine": "a\0"}, "gpu_ids"),
        ({"gpu_ids": ("a", "b\0")}, "gpu_ids"),
        ({"wait_for_go": True}, "wait_for_go"),
    ],
)
def test_an_order_beyond_the_edge_names_its_field(more: dict[str, Any], says: str) -> None:
    with pytest.raises(OrderError, match=says):
        order(**more)


@pytest.mark.spec("N5")
@pytest.mark.parametrize(
    "wrong",
    [
        {"argv": ["run", 1]}, {"argv": "run"}, {"env": {1: "a"}}, {"env": {"A": 1}}, {"env": ["A"]}, {"fence": True},
        {"resources": {"cpu_milli": "1"}}, {"network": 1}, {"job": 5}, {"unknown": 1}, {"resources": {1: 1}},
    ],
)  # fmt: skip
def test_an_order_that_is_read_has_the_types_of_its_fields(wrong: dict[str, Any]) -> None:
    assert Order.from_dict(order().to_dict()) == order()
    with pytest.raises(OrderError, match=r"of the wrong type|has no field"):
        Order.from_dict({**order().to_dict(), **wrong})


# --- what a body uses ---


@pytest.mark.spec("N4")
@pytest.mark.parametrize(
    ("used", "code"),
    [
        ((0, 100, 0, 0), ""),
        ((0, 101, 0, 0), "oom_job"),
        ((0, 0, 0, 1), "oom_job"),
        ((0, 0, 50, 0), ""),
        ((0, 0, 51, 0), "disk_quota"),
        ((1_999, 0, 0, 0), ""),
        ((2_000, 0, 0, 0), "time_limit"),
    ],
)
def test_a_body_may_use_what_it_asked_for_and_no_more(used: tuple[int, int, int, int], code: str) -> None:
    limited = order(resources={"memory_mib": 100, "disk_mib": 50}, limits={"cpu_s": 2})
    assert excess(limited, *used) == code


@pytest.mark.spec("N4")
def test_what_is_not_limited_is_not_exceeded_and_a_limit_of_one_is_a_limit() -> None:
    assert excess(order(), 10**9, 10**9, 10**9, 0) == ""
    least = order(resources={"memory_mib": 1, "disk_mib": 1}, limits={"cpu_s": 1})
    assert excess(least, 0, 2, 0, 0) == "oom_job"
    assert excess(least, 0, 0, 2, 0) == "disk_quota"
    assert excess(least, 1_000, 0, 0, 0) == "time_limit"


@pytest.mark.spec("J7")
@pytest.mark.parametrize(("code", "signal"), [(3, None), (None, 9), (0, 9), (None, None)])
def test_only_an_exit_with_zero_by_itself_is_a_result(code: int | None, signal: int | None) -> None:
    judged = verdict(ShimStatus(Phase.ENDED, BodyOutcome(EndKind.EXIT, code, signal), 5, 6, "cd" * 32))
    assert judged.code is FailureCode.EXIT_CODE  # type: ignore[union-attr]
    assert isinstance(verdict(ShimStatus(Phase.ENDED, BodyOutcome(EndKind.EXIT, 0), 5, 6, "cd" * 32)), Result)


# --- the life of a body ---


def running(now: int = 1_000, **more: Any) -> AttemptLifecycle:
    """A body that runs since `now`."""
    lifecycle = AttemptLifecycle(order(**more), now)
    if lifecycle.order.wait_for_go:
        lifecycle.lease(now + lifecycle.order.lease_ms)
        lifecycle.go(now)
    assert lifecycle.due(now) is Act.START
    lifecycle.body_started(now)
    return lifecycle


@pytest.mark.spec("N4")
def test_a_body_is_told_to_end_and_then_killed_again_and_again() -> None:
    lifecycle = running(time_limit_ms=5_000)

    assert lifecycle.next_deadline() == 6_000
    assert lifecycle.due(5_999) is Act.NOTHING
    assert lifecycle.due(6_000) is Act.TERM
    assert lifecycle.status()["stopping"] == "time_limit"
    assert lifecycle.next_deadline() == 6_500
    assert lifecycle.due(6_499) is Act.NOTHING
    assert lifecycle.due(6_500) is Act.KILL
    assert lifecycle.next_deadline() == 7_500
    assert lifecycle.due(7_499) is Act.NOTHING
    assert lifecycle.due(7_500) is Act.KILL
    lifecycle.body_ended(None, 9, 7_600)
    says = "ran 5000 ms, its limit"
    assert lifecycle.outcome == BodyOutcome(EndKind.TIME_LIMIT, None, 9, says)
    assert lifecycle.status() == {
        "attempt": "att_a.1", "fence": 1, "phase": "ended", "go": True, "stopping": "", "started_ms": 1_000,
        "outcome": {"kind": "time_limit", "exit_code": None, "signal": 9, "detail": says, "code": ""},
    }  # fmt: skip
    assert lifecycle.next_deadline() is None


@pytest.mark.spec("N4")
def test_a_body_that_runs_is_not_stopping_and_has_no_outcome() -> None:
    status = running().status()
    assert (status["phase"], status["stopping"], status["outcome"]) == ("running", "", None)


@pytest.mark.spec("J5")
def test_a_leased_body_is_dead_before_its_lease_ends() -> None:
    """A tenth of a short lease is kept for dying, and a quarter at most for the grace."""
    lifecycle = running(lease_ms=400, wait_for_go=True, stop_grace_ms=500)

    assert lifecycle.due(1_259) is Act.NOTHING
    assert lifecycle.due(1_260) is Act.TERM
    assert lifecycle.due(1_359) is Act.NOTHING
    assert lifecycle.due(1_360) is Act.KILL


@pytest.mark.spec("J5")
def test_of_a_long_lease_a_tenth_of_a_second_is_kept_for_dying() -> None:
    lifecycle = running(lease_ms=8_000, wait_for_go=True, stop_grace_ms=500)

    assert lifecycle.next_deadline() == 8_400
    assert lifecycle.due(8_399) is Act.NOTHING
    assert lifecycle.due(8_400) is Act.TERM
    assert lifecycle.due(8_900) is Act.KILL


@pytest.mark.spec("J5")
def test_a_lease_that_is_renewed_after_the_body_was_told_to_end_comes_too_late() -> None:
    lifecycle = running(lease_ms=8_000, wait_for_go=True, stop_grace_ms=500, orphan_ms_max=100_000)
    assert lifecycle.due(8_400) is Act.TERM

    lifecycle.lease(60_000)

    assert lifecycle.due(8_450) is Act.NOTHING
    assert lifecycle.status()["stopping"] == "lease"
    assert lifecycle.due(8_900) is Act.KILL


@pytest.mark.spec("J5")
def test_a_body_that_was_stopped_before_it_began_never_begins() -> None:
    lifecycle = AttemptLifecycle(order(), 1_000)
    lifecycle.stop("revoked")

    assert lifecycle.due(1_000) is Act.NOTHING
    assert lifecycle.outcome is not None and lifecycle.outcome.kind is EndKind.STOPPED
    lifecycle.body_started(1_001)
    assert lifecycle.phase is Phase.ENDED


@pytest.mark.spec("J5")
def test_a_body_that_was_asked_for_and_stopped_before_it_began_is_stopped_not_at_fault() -> None:
    lifecycle = AttemptLifecycle(order(), 1_000)
    assert lifecycle.due(1_000) is Act.START
    lifecycle.stop("revoked")

    lifecycle.spawn_failed("runtime_fault", "no fork")

    assert lifecycle.outcome == BodyOutcome(EndKind.STOPPED, detail="revoked")


@pytest.mark.spec("N4")
def test_a_second_start_does_not_begin_the_time_anew() -> None:
    lifecycle = running(time_limit_ms=5_000)
    lifecycle.body_started(4_000)
    assert lifecycle.next_deadline() == 6_000


@pytest.mark.spec("J5")
def test_a_go_is_contact() -> None:
    lifecycle = AttemptLifecycle(order(lease_ms=90_000, wait_for_go=True, orphan_ms_max=10_000), 1_000)
    lifecycle.lease(91_000)
    lifecycle.go(9_000)
    assert lifecycle.next_deadline() == 19_000


@pytest.mark.spec("N4")
def test_a_body_whose_machinery_failed_gets_no_grace_and_nothing_it_says_counts() -> None:
    lifecycle = running()
    lifecycle.fault("node_disk_full", "the disk is full")

    assert lifecycle.due(2_000) is Act.KILL
    lifecycle.body_ended(0, None, 2_001)

    assert lifecycle.outcome == BodyOutcome(EndKind.FAULT, 0, None, "the disk is full", "node_disk_full")


@pytest.mark.spec("N4")
def test_a_body_that_ends_by_itself_before_it_was_told_to_has_ended_by_itself() -> None:
    stopped = running()
    stopped.stop("revoked")
    stopped.body_ended(0, None, 1_100)
    failed = running()
    failed.fault("node_disk_full", "the disk is full")
    failed.body_ended(0, None, 1_100)

    assert stopped.outcome == BodyOutcome(EndKind.EXIT, 0)
    assert failed.outcome is not None and failed.outcome.kind is EndKind.FAULT


@pytest.mark.spec("N4")
def test_a_body_that_was_killed_without_a_warning_ended_for_that_cause() -> None:
    """Given a lease so short that there is no time for a warning, then the kill is what ended it."""
    lifecycle = running(lease_ms=400, wait_for_go=True, stop_grace_ms=500)
    assert lifecycle.due(1_400) is Act.KILL
    assert lifecycle.next_deadline() == 2_400

    lifecycle.body_ended(None, 9, 1_401)

    assert lifecycle.outcome is not None and lifecycle.outcome.kind is EndKind.LEASE


@pytest.mark.spec("N4")
def test_the_first_cause_to_stop_a_body_is_the_one_that_is_told() -> None:
    lifecycle = running()
    lifecycle.stop("revoked")
    lifecycle.stop("later")
    lifecycle.fault("node_disk_full", "later still")
    assert lifecycle.due(1_001) is Act.TERM
    lifecycle.body_ended(None, 15, 1_002)
    lifecycle.stop("after its end")

    assert lifecycle.outcome == BodyOutcome(EndKind.STOPPED, None, 15, "revoked")
    assert lifecycle.status()["stopping"] == "" and lifecycle.due(9_999_999) is Act.NOTHING


# --- what a fence and a session bind ---


class Answered:
    """What a node did, and what it then holds."""

    def __init__(self, actions: list[NodeAction], core: NodeCore) -> None:
        self.actions, self.held = actions, core.held()

    def of(self, *kinds: type) -> list[Any]:
        return [action for action in self.actions if isinstance(action, kinds)]

    def said(self, kind: type) -> list[Any]:
        return [action.message for action in self.of(Say) if isinstance(action.message, kind)]


class Driven:
    def __init__(self, core: NodeCore) -> None:
        self.core, self.now, self.seq = core, 10_000, 0

    def happens(self, event: NodeEvent, after_ms: int = 1) -> Answered:
        self.now += after_ms
        told = Answered(self.core.apply(event, Instant(self.now)), self.core)
        self.seq = max([self.seq, *(report.seq for report in told.said(Report))])
        return told

    def told(self, command: Any, after_ms: int = 1) -> Answered:
        return self.happens(CommandReceived(command), after_ms)

    def shim(
        self, phase: Phase, outcome: BodyOutcome | None = None, attempt: AttemptId = ATTEMPT, go: bool = False
    ) -> Answered:
        return self.happens(ShimSaid(attempt, ShimStatus(phase, outcome, 5, 6, "cd" * 32, go=go)))


def node(connected: bool = True, means: Means = Means("none", (JOBS, PLAIN)), **more: Any) -> Driven:  # noqa: B008
    driven = Driven(NodeCore(NodeId("node_a"), "first", 5, ROOM, means, more.get("limits", LIMITS)))
    if connected:
        driven.happens(Connected(WELCOME))
    return driven


def ready(lease_ms: int = 9_000) -> Driven:
    """A node that holds one leased attempt which waits for its go."""
    driven = node()
    driven.told(start(lease_ms=lease_ms))
    driven.shim(Phase.READY)
    return driven


@pytest.mark.spec("J5", "N5")
def test_a_command_under_another_fence_concerns_nobody_here() -> None:
    """Given an attempt that is held under fence 1, when commands name fence 2, then nothing happens to it."""
    driven = ready()

    go = driven.told(Go(5, ATTEMPT, 2, driven.seq))
    driven.told(Go(5, ATTEMPT, 1, driven.seq))
    driven.shim(Phase.RUNNING)
    save = driven.told(Save(5, ATTEMPT, 2))
    discard = driven.told(Discard(5, ATTEMPT, 2, "lost"))

    assert not go.of(Tell) and not save.of(CaptureCheckpoint) and not discard.of(Tell)
    assert [(h.fence, h.phase) for h in discard.said(Report)[0].held] == [(2, HeldPhase.GONE)]
    assert [h.phase for h in discard.held] == [HeldPhase.RUNNING]
    assert driven.told(Save(5, ATTEMPT, 1)).of(CaptureCheckpoint) == [CaptureCheckpoint(ATTEMPT)]
    assert not driven.told(Save(5, AttemptId("att_z.9"), 1)).of(CaptureCheckpoint)


@pytest.mark.spec("J5")
def test_a_go_starts_a_leased_body_that_is_wanted_and_nothing_else() -> None:
    unleased = node()
    unleased.told(start())
    unleased.shim(Phase.PREPARING)
    assert not unleased.told(Go(5, ATTEMPT, 1, unleased.seq)).actions

    unwanted = ready()
    stop = unwanted.told(Discard(5, ATTEMPT, 1, ""))
    assert stop.of(Tell) == [Tell(ATTEMPT, "stop", reason="no longer wanted")]
    assert not unwanted.told(Go(5, ATTEMPT, 1, unwanted.seq)).of(Tell)

    wanted = ready()
    went = wanted.told(Go(5, ATTEMPT, 1, wanted.seq))
    assert [tell.do for tell in went.of(Tell)] == ["lease", "go"]


@pytest.mark.spec("J5")
def test_only_the_first_go_counts_from_its_report_a_second_one_asks_for_a_lease() -> None:
    """Given a go that came too late to start anything, when another one comes, then a lease is asked for first."""
    driven = ready(lease_ms=2_000)
    said = driven.seq
    late = driven.told(Go(5, ATTEMPT, 1, said), after_ms=2_500)
    assert not late.of(Tell) or [tell.do for tell in late.of(Tell)] == ["contact"]
    asked = late.said(Report)
    assert any(ATTEMPT in report.renew for report in asked)

    driven.shim(Phase.READY)
    again = driven.told(Go(5, ATTEMPT, 1, driven.seq))

    assert not [tell for tell in again.of(Tell) if tell.do == "go"]
    renewed = driven.told(Renewed(5, driven.seq, (ATTEMPT,)))
    assert [tell.do for tell in renewed.of(Tell)] == ["lease", "go"]


@pytest.mark.spec("J5")
def test_what_was_said_in_an_earlier_session_grants_nothing_in_the_next() -> None:
    """Given a report of a session that ended, when the next session answers it, then no lease counts from it."""
    driven = ready()
    said = driven.seq
    driven.happens(Disconnected())
    driven.happens(Connected(WELCOME))

    old = driven.told(Go(5, ATTEMPT, 1, said))

    assert not [tell for tell in old.of(Tell) if tell.do == "go"]
    assert any(ATTEMPT in report.renew for report in old.said(Report))


@pytest.mark.spec("J5", "N9")
def test_news_and_wishes_of_a_session_end_with_it() -> None:
    driven = ready()
    driven.happens(Disconnected())
    driven.shim(Phase.ENDED, BodyOutcome(EndKind.EXIT, 0))
    welcomed = driven.happens(Connected(WELCOME))

    assert [report.full for report in welcomed.said(Report)] == [True]


@pytest.mark.spec("N5", "J14")
def test_a_welcome_for_another_node_or_of_a_lower_epoch_is_hung_up_on() -> None:
    driven = node(connected=False)

    other = driven.happens(Connected(replace(WELCOME, node=NodeId("node_b"))))
    lower = driven.happens(Connected(replace(WELCOME, epoch=4)))

    for told in (other, lower):
        assert len(told.of(HangUp)) == 1 and len(told.actions) == 1
    assert not driven.core.connected


@pytest.mark.spec("N5")
def test_an_attempt_that_was_forgotten_under_one_fence_is_refused_under_another() -> None:
    driven = node()
    driven.told(Discard(5, ATTEMPT, 1, "lost"))

    again = driven.told(start(fence=1))
    other = driven.told(start(fence=2))

    assert [(h.fence, h.phase) for h in again.said(Report)[0].held] == [(1, HeldPhase.GONE)]
    assert [(h.fence, h.phase) for h in other.said(Report)[0].held] == [(2, HeldPhase.REFUSED)]
    assert not again.of(Spawn) and not other.of(Spawn) and not other.held


@pytest.mark.spec("N5")
def test_a_second_fence_for_what_is_held_is_refused_and_disturbs_nothing() -> None:
    driven = node()
    driven.told(start(fence=1))

    second = driven.told(start(fence=2))

    assert [(h.fence, h.phase) for h in second.said(Report)[0].held] == [(2, HeldPhase.REFUSED)]
    assert [(h.fence, h.phase) for h in second.held] == [(1, HeldPhase.PREPARING)]


@pytest.mark.spec("N5", "N4")
def test_what_the_node_does_not_offer_is_refused_and_the_refusal_is_kept() -> None:
    driven = node()

    told = driven.told(start(need=Need(SMALL.resources, features=(JOBS, NETWORK))))

    assert [h.phase for h in told.held] == [HeldPhase.REFUSED]
    assert not told.of(Spawn)


@pytest.mark.spec("N5")
def test_a_flawed_assignment_is_refused_and_not_kept() -> None:
    driven = node()
    told = driven.told(start(time_limit_ms=0))
    assert [h.phase for h in told.said(Report)[0].held] == [HeldPhase.REFUSED]
    assert not told.held


@pytest.mark.spec("N5")
def test_one_attempt_more_than_is_allowed_is_refused_and_not_kept() -> None:
    driven = node()
    for number in range(1, 5):
        told = driven.told(start(attempt=f"att_a.{number}"))
    assert len(told.held) == 3
    assert [h.phase for h in told.said(Report)[0].held] == [HeldPhase.REFUSED]


@pytest.mark.spec("N5")
def test_only_so_many_discarded_attempts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "FORGOTTEN_MAX", 2)
    driven = node()
    for number in (1, 2, 3):
        driven.told(Discard(5, AttemptId(f"att_a.{number}"), 1, "lost"))

    spawned = [bool(driven.told(start(attempt=f"att_a.{number}")).of(Spawn)) for number in (3, 2, 1)]

    assert spawned == [False, False, True]


@pytest.mark.spec("J5")
def test_a_lease_counts_from_a_report_that_is_younger_than_the_lease() -> None:
    driven = ready(lease_ms=9_000)
    said = driven.seq
    driven.told(Go(5, ATTEMPT, 1, said))
    driven.shim(Phase.RUNNING)
    driven.happens(NodeTick(), after_ms=700)
    first = driven.seq
    driven.happens(NodeTick(), after_ms=700)

    counted = driven.told(Renewed(5, first, (ATTEMPT,)))
    unknown = driven.told(Renewed(5, driven.seq + 5, (ATTEMPT,)))

    assert [tell.do for tell in counted.of(Tell)] == ["lease"]
    assert not unknown.of(Tell)


@pytest.mark.spec("J5")
@pytest.mark.parametrize("remembered", [0, 1, 2])
def test_only_so_many_reports_are_remembered_for_leases(remembered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "LEASE_REPORTS_MAX", 2)
    driven = ready()
    oldest = driven.seq
    driven.happens(NodeTick(), after_ms=700)
    driven.happens(NodeTick(), after_ms=700)

    assert driven.seq == oldest + 2
    seq = driven.seq - remembered
    assert bool([tell for tell in driven.told(Go(5, ATTEMPT, 1, seq)).of(Tell) if tell.do == "go"]) is (remembered < 2)


@pytest.mark.spec("J5")
def test_a_lease_is_not_renewed_for_what_is_unwanted_or_has_none() -> None:
    driven = ready()
    driven.told(Go(5, ATTEMPT, 1, driven.seq))
    driven.shim(Phase.RUNNING)
    driven.told(start(attempt="att_b.1"))
    assert driven.happens(NodeTick(), after_ms=700).said(Report)[0].renew == (ATTEMPT,)

    driven.told(Discard(5, ATTEMPT, 1, "lost"))

    assert driven.happens(NodeTick(), after_ms=700).said(Report)[0].renew == ()


@pytest.mark.spec("J5", "N9")
@pytest.mark.parametrize(("lease_ms", "go", "asks"), [(9_000, True, True), (9_000, False, False), (0, True, False)])
def test_after_a_restart_a_lease_is_renewed_for_a_body_that_was_told_to_go(lease_ms: int, go: bool, asks: bool) -> None:
    driven = node(connected=False)
    found = order(lease_ms=lease_ms, wait_for_go=lease_ms > 0, job="job_a")
    driven.happens(Recovered(found, ShimStatus(Phase.READY, go=go)))
    driven.happens(Connected(WELCOME))

    assert (ATTEMPT in driven.happens(NodeTick(), after_ms=700).said(Report)[0].renew) is asks


@pytest.mark.spec("J5")
def test_a_body_that_never_went_has_no_logs_to_wait_for() -> None:
    ended = ready().shim(Phase.ENDED, BodyOutcome(EndKind.STOPPED))
    began = ready().shim(Phase.ENDED, BodyOutcome(EndKind.EXIT, 0), go=True)

    assert [h.phase for h in ended.held] == [HeldPhase.FINISHED]
    assert [h.phase for h in began.held] == [HeldPhase.UPLOADING]


@pytest.mark.spec("J10")
def test_a_result_names_its_files_only_if_there_are_any() -> None:
    for files, manifest in ((DeliveredFiles(), ""), (DeliveredFiles("ab" * 32, 2, 30), "ab" * 32)):
        driven = node()
        driven.told(start())
        driven.shim(Phase.RUNNING)
        driven.shim(Phase.ENDED, BodyOutcome(EndKind.EXIT, 0))

        (held,) = driven.happens(Delivered(ATTEMPT, files)).held

        assert held.result is not None
        assert (held.result.manifest, held.result.files) == (manifest, files.count)


@pytest.mark.spec("H3")
def test_a_sickness_is_told_at_once_to_whoever_listens() -> None:
    away = node(connected=False)
    assert not away.happens(LoadMeasured(Load(sick="hot"))).actions
    here = node()
    assert here.happens(LoadMeasured(Load(sick="hot"))).said(Report)[0].load == Load(sick="hot")
    assert not here.happens(LoadMeasured(Load(5, sick="hot"))).actions


@pytest.mark.spec("J5")
def test_a_body_that_does_not_go_is_told_again_only_under_a_lease() -> None:
    driven = ready(lease_ms=2_000)
    driven.told(Go(5, ATTEMPT, 1, driven.seq))

    again = driven.happens(NodeTick(), after_ms=1_000)
    over = driven.happens(NodeTick(), after_ms=1_000)

    assert [tell.do for tell in again.of(Tell) if tell.do != "contact"] == ["lease", "go"]
    assert not [tell for tell in over.of(Tell) if tell.do == "go"]
    assert (driven.core.next_due() or 0) > driven.now


@pytest.mark.spec("J5")
def test_a_body_is_not_told_to_go_in_the_moment_in_which_its_lease_ends() -> None:
    driven = ready(lease_ms=2_000)
    said_ms = driven.now
    driven.told(Go(5, ATTEMPT, 1, driven.seq))
    until = driven.core.holding(ATTEMPT)
    assert until is not None and until.lease_until == said_ms + 1_800

    over = driven.happens(NodeTick(), after_ms=said_ms + 1_800 - driven.now)

    assert not [tell for tell in over.of(Tell) if tell.do == "go"]


@pytest.mark.spec("J5")
def test_what_was_just_told_to_go_is_told_to_stop_at_once_when_it_is_discarded() -> None:
    driven = ready()
    driven.told(Go(5, ATTEMPT, 1, driven.seq))

    told = driven.told(Discard(5, ATTEMPT, 1, "lost"))

    assert told.of(Tell) == [Tell(ATTEMPT, "stop", reason="lost")]


@pytest.mark.spec("J5")
def test_a_lease_of_a_millisecond_is_a_lease_and_without_one_nothing_is_renewed() -> None:
    held = HeldAttempt(ATTEMPT, 1, Resources(), granted=True)
    assert not held.leased and not held.renews
    held.lease_ms = 1
    assert held.leased and held.renews


@pytest.mark.spec("N7")
def test_a_leaving_node_stops_what_runs_after_its_grace_and_has_time_for_last_words() -> None:
    driven = node()
    driven.told(start())
    driven.shim(Phase.RUNNING)
    driven.happens(LeaveAsked(1_000))

    stop = driven.happens(NodeTick(), after_ms=1_000)
    driven.shim(Phase.ENDED, BodyOutcome(EndKind.STOPPED))
    early = driven.happens(NodeTick(), after_ms=2_497)
    late = driven.happens(NodeTick(), after_ms=5)

    assert Tell(ATTEMPT, "stop", reason="the node is leaving") in stop.of(Tell)
    assert not early.said(Leaving) and [leaving.done for leaving in late.said(Leaving)] == [True]


@pytest.mark.spec("N10")
def test_an_offer_is_told_as_it_stands() -> None:
    from holdfast.node.core.events import OfferAsked

    driven = node()
    told = driven.happens(OfferAsked(Resources(1, 2, 3, 0), True, -5, "games"))
    kept = driven.happens(OfferAsked())
    assert told.said(Offers) == [Offers(Resources(1, 2, 3, 0), True, 0, "games")]
    assert kept.said(Offers) == [Offers(Resources(1, 2, 3, 0), True, 60_000, "games")]
