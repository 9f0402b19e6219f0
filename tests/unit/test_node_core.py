"""The node core: what a node does with what it is told."""

import pytest

from holdfast.model import (
    AttemptId,
    Failure,
    FailureCode,
    Instant,
    JobSpec,
    NodeId,
    Resources,
    Result,
    job_of,
)
from holdfast.model.job import Recovery
from holdfast.model.messages import (
    Discard,
    Drained,
    Go,
    Held,
    HeldPhase,
    Leaving,
    Load,
    Ping,
    Pong,
    Renewed,
    Report,
    Start,
    Welcome,
)
from holdfast.model.resources import Need
from holdfast.node.core.admission import NodeLimits
from holdfast.node.core.attempt_lifecycle import BodyOutcome, EndKind, Phase
from holdfast.node.core.core import NodeCore
from holdfast.node.core.events import (
    CommandReceived,
    Connected,
    Delivered,
    Disconnected,
    HangUp,
    LeaveAsked,
    LoadMeasured,
    NodeAction,
    NodeEvent,
    NodeTick,
    Recovered,
    RememberEpoch,
    Remove,
    Removed,
    Say,
    ShimDied,
    ShimSaid,
    ShimStatus,
    Spawn,
    SpawnFailed,
    Tell,
)
from holdfast.node.core.order import Order
from holdfast.node.core.verdicts import spawn_failure

NODE = NodeId("node_" + "a" * 32)
ATT = AttemptId("att_aaaaaaaaaaaaaa.1")
OTHER = AttemptId("att_bbbbbbbbbbbbbb.1")
LEASE = 10_000
WELCOME = Welcome(NODE, 5, heartbeat_ms=30_000, keepalive_ms=1_000, lease_ms=LEASE, orphan_ms_max=60_000,
                  stop_grace_ms=500)  # fmt: skip
PLENTY = Resources(cpu_milli=4_000, memory_mib=4_096, disk_mib=8_192)


class Bench:
    """A core under test, with a clock that the test moves."""

    def __init__(self, connected: bool = True, offered: Resources = PLENTY, limits: NodeLimits | None = None) -> None:
        self.core = NodeCore(NODE, "i1", offered=offered, limits=limits or NodeLimits())
        self.now = 1_000_000
        if connected:
            self.do(Connected(WELCOME))

    def do(self, event: NodeEvent, later_ms: int = 0) -> list[NodeAction]:
        self.now += later_ms
        return self.core.apply(event, Instant(self.now))

    def told(self, command: Start | Go | Discard | Renewed | Ping | Drained, later_ms: int = 0) -> list[NodeAction]:
        return self.do(CommandReceived(command), later_ms)

    def shim(self, phase: Phase, outcome: BodyOutcome | None = None, attempt: AttemptId = ATT) -> list[NodeAction]:
        return self.do(ShimSaid(attempt, ShimStatus(phase, outcome, 3, 2, "ab" * 32)))


def start(attempt: AttemptId = ATT, fence: int = 7, epoch: int = 5, lease_ms: int = 0, **spec: object) -> Start:
    fields: dict[str, object] = {"argv": ("echo", "hi"), **spec}
    return Start(epoch, attempt, fence, job_of(attempt), JobSpec(**fields), 60_000, lease_ms)  # type: ignore[arg-type]


def said(actions: list[NodeAction]) -> list[Held]:
    """Everything reported, in order."""
    return [held for a in actions if isinstance(a, Say) and isinstance(a.message, Report) for held in a.message.held]


def reports(actions: list[NodeAction]) -> list[Report]:
    return [a.message for a in actions if isinstance(a, Say) and isinstance(a.message, Report)]


def of(actions: list[NodeAction], kind: type) -> list[NodeAction]:
    return [a for a in actions if isinstance(a, kind)]


def tells(actions: list[NodeAction], do: str) -> list[Tell]:
    return [a for a in actions if isinstance(a, Tell) and a.do == do]


EXIT_0 = BodyOutcome(EndKind.EXIT, exit_code=0)


@pytest.mark.spec("J3")
def test_a_job_goes_from_start_to_gone() -> None:
    bench = Bench()
    actions = bench.told(start())
    assert [a.order.argv for a in actions if isinstance(a, Spawn)] == [("echo", "hi")]
    assert said(actions) == [Held(ATT, 7, HeldPhase.PREPARING)]

    assert said(bench.shim(Phase.RUNNING)) == [Held(ATT, 7, HeldPhase.RUNNING)]
    assert said(bench.shim(Phase.ENDED, EXIT_0)) == [Held(ATT, 7, HeldPhase.UPLOADING)]
    assert said(bench.do(Delivered(ATT))) == [
        Held(ATT, 7, HeldPhase.FINISHED, result=Result("ab" * 32, 3, 2)),
    ]

    assert bench.told(Discard(5, ATT, 7, "accepted", accepted=True)) == [Remove(ATT)]
    assert said(bench.do(Removed(ATT))) == [Held(ATT, 7, HeldPhase.GONE)]
    assert bench.core.held() == ()


@pytest.mark.spec("J5")
def test_a_repeated_start_changes_nothing_and_is_answered() -> None:
    bench = Bench()
    bench.told(start())
    bench.shim(Phase.RUNNING)
    actions = bench.told(start())
    assert not of(actions, Spawn)
    assert said(actions) == [Held(ATT, 7, HeldPhase.RUNNING)]


@pytest.mark.spec("J5")
def test_a_start_under_another_fence_is_refused_and_the_held_one_stays() -> None:
    bench = Bench()
    bench.told(start())
    bench.shim(Phase.RUNNING)
    actions = bench.told(start(fence=8))
    assert not of(actions, Spawn)
    assert [(h.fence, h.phase) for h in said(actions)] == [(8, HeldPhase.REFUSED)]
    assert bench.core.held() == (Held(ATT, 7, HeldPhase.RUNNING),)


@pytest.mark.spec("J5")
def test_a_late_start_does_not_bring_back_what_was_discarded() -> None:
    bench = Bench()
    assert said(bench.told(Discard(5, ATT, 7, "moved"))) == [Held(ATT, 7, HeldPhase.GONE)]
    actions = bench.told(start())
    assert not of(actions, Spawn)
    assert said(actions) == [Held(ATT, 7, HeldPhase.GONE)]


@pytest.mark.spec("N5")
def test_a_lower_epoch_changes_nothing() -> None:
    bench = Bench()
    bench.told(start())
    before = bench.core.held()
    for stale in (start(OTHER, epoch=4), Discard(4, ATT, 7, "old"), Ping(4, 1)):
        assert bench.told(stale) == []
    assert bench.core.held() == before


@pytest.mark.spec("N5")
def test_a_higher_epoch_is_remembered_before_anything_is_done() -> None:
    bench = Bench()
    actions = bench.told(start(epoch=6))
    assert actions[0] == RememberEpoch(6)
    assert of(actions, Spawn)


@pytest.mark.spec("N5")
def test_the_session_of_a_deposed_leader_is_hung_up() -> None:
    core = NodeCore(NODE, "i1", epoch_seen=9)
    actions = core.apply(Connected(WELCOME), Instant(1))
    assert of(actions, HangUp)
    assert not core.connected


@pytest.mark.spec("N5")
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (start(AttemptId("att_../../x.1")), "id"),
        (start(argv=()), "argv"),
        (start(argv=("a\0b",)), "NUL"),
        (start(argv=("x" * 40_000,)), "argv is"),
        (start(env={"BAD-NAME": "1"}), "env"),
        (start(need=Need(Resources(cpu_milli=-1))), "negative"),
        (start(need=Need(Resources(cpu_milli=5_000))), "5000 cpu_milli asked, 4000 free of 4000 offered"),
        (Start(5, ATT, 7, job_of(OTHER), JobSpec(("a",)), 60_000), "does not belong"),
        (Start(5, ATT, 7, job_of(ATT), JobSpec(("a",)), 0), "time limit"),
    ],
)
def test_an_assignment_that_cannot_be_meant_is_refused_with_a_reason(bad: Start, why: str) -> None:
    bench = Bench()
    actions = bench.told(bad)
    assert not of(actions, Spawn)
    (held,) = said(actions)
    assert held.phase is HeldPhase.REFUSED
    assert held.failure is not None and held.failure.code is FailureCode.REFUSED
    assert why in held.failure.detail


@pytest.mark.spec("N4", "N5")
def test_what_is_held_counts_against_what_is_offered_until_its_body_ended() -> None:
    bench = Bench(offered=Resources(1_000, 512, 1_024))
    bench.told(start())
    assert said(bench.told(start(OTHER)))[0].phase is HeldPhase.REFUSED
    bench.told(Discard(5, OTHER, 7, "refused"))

    bench.shim(Phase.ENDED, EXIT_0)
    third = AttemptId("att_cccccccccccccc.1")
    assert of(bench.told(start(third)), Spawn)


@pytest.mark.spec("N5")
def test_a_refusal_is_repeated_until_it_is_discarded() -> None:
    bench = Bench(offered=Resources())
    bench.told(start())
    (full,) = reports(bench.do(NodeTick(), 1_000))
    assert full.full and full.held[0].phase is HeldPhase.REFUSED
    assert said(bench.told(Discard(5, ATT, 7, "noted"))) == [Held(ATT, 7, HeldPhase.GONE)]


@pytest.mark.spec("N4", "N5")
def test_an_attempt_that_finds_no_room_when_it_is_prepared_is_refused_and_its_folder_removed() -> None:
    bench = Bench()
    bench.told(start())
    why = Failure(FailureCode.REFUSED, "no room")
    assert said(bench.do(SpawnFailed(ATT, why))) == [Held(ATT, 7, HeldPhase.REFUSED, failure=why)]
    (full,) = reports(bench.do(NodeTick(), 1_000))
    assert full.held[0].phase is HeldPhase.REFUSED, "it is repeated until it is discarded"
    assert bench.core.in_use == Resources()
    assert bench.told(Discard(5, ATT, 7, "noted")) == [Remove(ATT)]
    assert said(bench.do(Removed(ATT))) == [Held(ATT, 7, HeldPhase.GONE)]


@pytest.mark.spec("N5")
def test_no_more_attempts_are_held_than_one_report_can_say() -> None:
    bench = Bench(limits=NodeLimits(attempts_max=1))
    bench.told(start())
    (held,) = said(bench.told(start(OTHER)))
    assert held.phase is HeldPhase.REFUSED
    assert len(bench.core.held()) == 1


# --- leases ---


def leased(bench: Bench) -> int:
    """An attempt that waits for its go; the number of the report that said so."""
    bench.told(start(lease_ms=LEASE, recovery=Recovery.NEVER))
    return reports(bench.shim(Phase.READY))[-1].seq


@pytest.mark.spec("J8")
def test_a_leased_body_waits_for_go_and_its_lease_counts_from_the_report_that_go_answers() -> None:
    bench = Bench()
    actions = bench.told(start(lease_ms=LEASE, recovery=Recovery.NEVER))
    assert [a.order.wait_for_go for a in actions if isinstance(a, Spawn)] == [True]
    actions = bench.shim(Phase.READY)
    assert said(actions) == [Held(ATT, 7, HeldPhase.READY)]
    ready, seq = bench.now, reports(actions)[-1].seq
    bench.do(NodeTick(), 3_000)
    actions = bench.told(Go(5, ATT, 7, seq))
    assert [t.at_ms for t in tells(actions, "lease")] == [ready + 9_000]
    assert tells(actions, "go")


@pytest.mark.spec("J8")
@pytest.mark.parametrize("late", [True, False])
def test_a_go_that_comes_late_or_answers_the_hello_only_makes_the_node_ask_for_a_lease(late: bool) -> None:
    bench = Bench()
    seq = leased(bench)
    actions = bench.told(Go(5, ATT, 7, seq), 9_000) if late else bench.told(Go(5, ATT, 7, 0))
    assert not tells(actions, "go")
    asking = next(r for r in reports(actions) if r.renew == (ATT,))
    asked = bench.now
    actions = bench.told(Renewed(5, asking.seq, (ATT,)), later_ms=200)
    assert [t.at_ms for t in tells(actions, "lease")] == [asked + 9_000]
    assert tells(actions, "go")


@pytest.mark.spec("J8")
def test_a_go_that_answers_another_session_starts_nothing() -> None:
    bench = Bench()
    seq = leased(bench)
    bench.do(Disconnected())
    bench.do(Connected(WELCOME))
    assert not tells(bench.told(Go(5, ATT, 7, seq)), "go")


@pytest.mark.spec("J8")
def test_a_go_that_answers_a_report_about_another_attempt_starts_nothing() -> None:
    bench = Bench()
    leased(bench)
    bench.told(start(OTHER, lease_ms=LEASE, recovery=Recovery.NEVER))
    (about_other,) = reports(bench.shim(Phase.READY, attempt=OTHER))
    assert not tells(bench.told(Go(5, ATT, 7, about_other.seq)), "go")


@pytest.mark.spec("J8")
def test_a_shim_that_did_not_hear_go_is_told_again_while_the_lease_holds() -> None:
    bench = Bench()
    bench.told(Go(5, ATT, 7, leased(bench)))
    assert tells(bench.do(NodeTick(), 1_000), "go")
    assert not tells(bench.do(NodeTick(), 9_000), "go")


@pytest.mark.spec("J8")
def test_renewals_extend_the_lease_from_the_moment_they_were_asked_for() -> None:
    bench = Bench()
    bench.told(Go(5, ATT, 7, leased(bench)))
    bench.shim(Phase.RUNNING)
    (full,) = reports(bench.do(NodeTick(), 1_000))
    asked = bench.now
    assert full.renew == (ATT,)
    actions = bench.told(Renewed(5, full.seq, (ATT,)), later_ms=400)
    assert [t.at_ms for t in tells(actions, "lease")] == [asked + 9_000]
    assert not tells(bench.told(Renewed(5, full.seq, (ATT,))), "lease"), "a repeated answer is worth nothing"
    assert not tells(bench.told(Renewed(5, full.seq + 99, (ATT,))), "lease"), "nor is one to no question"


@pytest.mark.spec("J8", "N9")
def test_a_restarted_agent_goes_on_renewing_what_runs_and_waits_where_it_does_not() -> None:
    bench = Bench(connected=False)
    running, ready = order(ATT, LEASE), order(OTHER, LEASE)
    bench.do(Recovered(running, ShimStatus(Phase.RUNNING)))
    bench.do(Recovered(ready, ShimStatus(Phase.READY)))
    (full,) = reports(bench.do(Connected(WELCOME)))
    assert [h.phase for h in full.held] == [HeldPhase.RUNNING, HeldPhase.READY]
    assert full.renew == (ATT,)
    assert not tells(bench.told(Go(5, OTHER, 7, 0)), "go")


def order(attempt: AttemptId, lease_ms: int = 0) -> Order:
    return Order(attempt, 7, job_of(attempt), ("echo",), 60_000, 60_000, 500, 1_000_000, lease_ms=lease_ms,
                 wait_for_go=lease_ms > 0, resources={"cpu_milli": 1_000})  # fmt: skip


# --- reporting ---


@pytest.mark.spec("N2", "H2")
def test_reports_come_at_the_keepalive_while_work_is_held_and_at_the_heartbeat_otherwise() -> None:
    bench = Bench()
    bench.do(LoadMeasured(Load(cpu_permille=12)))
    assert bench.core.next_due() == bench.now + 30_000
    (idle,) = reports(bench.do(NodeTick(), 30_000))
    assert idle.full and idle.held == () and idle.load == Load(cpu_permille=12)
    bench.told(start())
    due = bench.core.next_due()
    assert due is not None and due <= bench.now + 1_000
    (busy,) = reports(bench.do(NodeTick(), 1_000))
    assert busy.full and busy.held == (Held(ATT, 7, HeldPhase.PREPARING),)


@pytest.mark.spec("H1")
def test_a_machine_that_falls_sick_says_so_at_once() -> None:
    bench = Bench()
    (report,) = reports(bench.do(LoadMeasured(Load(sick="the disk is full"))))
    assert report.load == Load(sick="the disk is full")
    assert not reports(bench.do(LoadMeasured(Load(sick="the disk is full"))))


@pytest.mark.spec("H3")
def test_a_ping_is_answered() -> None:
    assert Bench().told(Ping(5, 42)) == [Say(Pong(42))]


@pytest.mark.spec("N7", "N8")
def test_a_node_knows_that_the_network_drains_it_until_it_hears_otherwise() -> None:
    bench = Bench()
    assert bench.told(Drained(5, True)) == []
    assert bench.core.drained
    bench.told(Drained(4, False))  # of one who no longer leads
    bench.do(Disconnected())
    assert bench.core.drained, "its owner may ask while nobody can be heard"
    bench.do(Connected(WELCOME))  # who is drained still hears so next
    assert not bench.core.drained


@pytest.mark.spec("J5", "J14")
def test_work_goes_on_while_cut_off_and_its_end_is_told_on_return() -> None:
    bench = Bench()
    bench.told(start())
    bench.shim(Phase.RUNNING)
    actions = bench.do(Disconnected())
    assert tells(actions, "contact") and not tells(actions, "stop")
    assert bench.shim(Phase.ENDED, EXIT_0) == []
    (full,) = reports(bench.do(Connected(WELCOME)))
    assert [h.phase for h in full.held] == [HeldPhase.UPLOADING]
    assert said(bench.do(Delivered(ATT)))[0].phase is HeldPhase.FINISHED


@pytest.mark.spec("J5")
def test_a_shim_hears_of_contact_while_the_session_stands() -> None:
    bench = Bench()
    bench.told(start())
    bench.shim(Phase.RUNNING)
    (told,) = tells(bench.do(NodeTick(), 6_000), "contact")
    assert told.at_ms == bench.now


@pytest.mark.spec("J7")
@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (BodyOutcome(EndKind.EXIT, exit_code=3), FailureCode.EXIT_CODE),
        (BodyOutcome(EndKind.EXIT, signal=11), FailureCode.EXIT_CODE),
        (BodyOutcome(EndKind.TIME_LIMIT, signal=15), FailureCode.TIME_LIMIT),
        (BodyOutcome(EndKind.LEASE), FailureCode.LEASE_LOST),
        (BodyOutcome(EndKind.ORPHAN), FailureCode.ORPHANED),
        (BodyOutcome(EndKind.STOPPED), FailureCode.DRAINED),
        (BodyOutcome(EndKind.FAULT, code="node_disk_full"), FailureCode.NODE_DISK_FULL),
        (BodyOutcome(EndKind.FAULT, code="runtime_fault"), FailureCode.RUNTIME_FAULT),
        (BodyOutcome(EndKind.FAULT, code="oom_node", signal=9), FailureCode.OOM_NODE),
        (BodyOutcome(EndKind.FAULT, code="oom_job", signal=9), FailureCode.OOM_JOB),
        (BodyOutcome(EndKind.FAULT, code="disk_quota", exit_code=1), FailureCode.DISK_QUOTA),
        (BodyOutcome(EndKind.FAULT, code="time_limit", signal=9), FailureCode.TIME_LIMIT),
        (BodyOutcome(EndKind.FAULT, code="cancelled"), FailureCode.RUNTIME_FAULT),
        (None, FailureCode.RUNTIME_FAULT),
    ],
)
def test_every_end_has_its_own_code(outcome: BodyOutcome | None, code: FailureCode) -> None:
    bench = Bench()
    bench.told(start())
    bench.shim(Phase.ENDED, outcome)
    (held,) = said(bench.do(Delivered(ATT)))
    assert held.result is None and held.failure is not None and held.failure.code is code


@pytest.mark.spec("J7", "J8")
def test_a_leased_body_that_ended_before_its_go_is_said_to_have_ended_not_to_have_run() -> None:
    bench = Bench()
    bench.told(start(lease_ms=3_000))
    bench.shim(Phase.READY)
    (held,) = said(bench.shim(Phase.ENDED, BodyOutcome(EndKind.ORPHAN)))
    assert held.phase is HeldPhase.FINISHED and held.failure is not None
    assert held.failure.code is FailureCode.ORPHANED


@pytest.mark.spec("J7")
def test_a_dead_shim_and_one_that_could_not_start_are_faults_of_the_machine() -> None:
    bench = Bench()
    bench.told(start())
    bench.told(start(OTHER))
    (died,) = said(bench.do(ShimDied(ATT, "killed")))
    (failed,) = said(bench.do(SpawnFailed(OTHER, spawn_failure("ENOSPC", "no space"))))
    assert died == Held(ATT, 7, HeldPhase.FINISHED, failure=Failure(FailureCode.RUNTIME_FAULT, "killed"))
    assert failed.failure == Failure(FailureCode.NODE_DISK_FULL, "no space")
    assert bench.shim(Phase.RUNNING) == [], "the dead do not speak"


@pytest.mark.spec("J5")
def test_a_discarded_body_is_told_to_stop_until_it_has_ended_and_then_removed() -> None:
    bench = Bench()
    bench.told(start())
    bench.shim(Phase.RUNNING)
    assert tells(bench.told(Discard(5, ATT, 7, "superseded")), "stop")[0].reason == "superseded"
    assert tells(bench.do(NodeTick(), 1_000), "stop"), "the first word may be lost"
    actions = bench.shim(Phase.ENDED, BodyOutcome(EndKind.STOPPED))
    assert of(actions, Remove) == [Remove(ATT)]
    assert said(bench.do(Removed(ATT))) == [Held(ATT, 7, HeldPhase.GONE)]
    assert bench.core.in_use == Resources()


# --- leaving ---


@pytest.mark.spec("N7")
def test_a_leaving_node_takes_nothing_finishes_what_it_has_and_says_goodbye() -> None:
    bench = Bench()
    bench.told(start())
    bench.shim(Phase.RUNNING)
    assert Say(Leaving(5_000)) in bench.do(LeaveAsked(5_000))
    (refused,) = said(bench.told(start(OTHER)))
    assert refused.failure == Failure(FailureCode.REFUSED, "the node is leaving")
    bench.shim(Phase.ENDED, EXIT_0)
    bench.do(Delivered(ATT))
    bench.told(Discard(5, ATT, 7, "accepted", accepted=True))
    assert Say(Leaving(0, done=True)) in bench.do(Removed(ATT))
    assert bench.core.left


@pytest.mark.spec("N7")
def test_what_outlives_the_grace_is_stopped_and_no_goodbye_is_said_while_it_lives() -> None:
    bench = Bench()
    bench.told(start())
    bench.shim(Phase.RUNNING)
    bench.do(LeaveAsked(5_000))
    assert bench.core.next_due() is not None
    assert not tells(bench.do(NodeTick(), 4_999), "stop")
    assert tells(bench.do(NodeTick(), 1), "stop")
    bench.do(NodeTick(), 60_000)
    assert not bench.core.left
    actions = bench.shim(Phase.ENDED, BodyOutcome(EndKind.STOPPED))
    assert bench.core.left and Say(Leaving(0, done=True)) in actions


@pytest.mark.spec("N7")
def test_an_idle_node_leaves_at_once_and_a_returning_session_hears_that_it_leaves() -> None:
    assert Say(Leaving(0, done=True)) in Bench().do(LeaveAsked(5_000))
    busy = Bench()
    busy.told(start())
    busy.do(LeaveAsked(5_000))
    busy.do(Disconnected())
    assert Say(Leaving(4_000)) in busy.do(Connected(WELCOME), 1_000)
