"""What becomes of a job when an attempt is lost to it: what counts, what ends it, and what a deadline does."""

from typing import Any

import pytest
from kernel_driver import GOOD, HALF, ROOM, SETTINGS, WHOLE, Network, seen, with_two_nodes
from msgspec.structs import replace

from holdfast.kernel import health, moving, poison, reconcile, recovery, reservation
from holdfast.kernel.events import CancelAsked, Checkpointed, DrainAsked, NodeSaid, Tick
from holdfast.kernel.poison import POISON_WINDOW_MS
from holdfast.kernel.world import World
from holdfast.model import (
    Attempt,
    AttemptId,
    AttemptPhase,
    Facts,
    Failure,
    FailureCode,
    Instant,
    Job,
    JobId,
    NodeId,
    NodeState,
    Recovery,
    Resources,
)
from holdfast.model.messages import HeldPhase, Leaving, Offers, Save

FAULT = Failure(FailureCode.RUNTIME_FAULT, "no fork")
LOST = Failure(FailureCode.NODE_LOST, "it is gone")


def running(recovery: Recovery = Recovery.RESTART, **more: Any) -> tuple[Network, World, Attempt]:
    network = with_two_nodes(more.pop("settings", SETTINGS))
    network.submit(recovery=recovery, **more)
    (attempt,) = network.attempts()
    if recovery is Recovery.NEVER:
        network.report(attempt.node, seen(attempt, HeldPhase.READY))
    network.report(attempt.node, seen(attempt, HeldPhase.RUNNING))
    w = network.kernel._w
    w.begin(Instant(network.now))
    return network, w, network.attempts()[0]


def two_running(recovery: Recovery = Recovery.RESTART, **more: Any) -> tuple[Network, World, Attempt, Attempt]:
    """The first one's node was away, and is back."""
    network, w, first = running(recovery, **more)
    network.leave(first.node)
    second = network.attempts()[1]
    network.report(second.node, seen(second, HeldPhase.RUNNING))
    network.join(first.node, held=(seen(first, HeldPhase.RUNNING),))
    w.begin(Instant(network.now))
    first, second = network.attempts()[:2]
    assert first.may_win and second.may_win
    return network, w, first, second


def job_of(w: World, attempt: Attempt) -> Job | None:
    return w.jobs.get(attempt.job)


# --- what counts ---


@pytest.mark.spec("J7", "J8")
@pytest.mark.parametrize(
    ("code", "counted"),
    [(FailureCode.RUNTIME_FAULT, 1), (FailureCode.REFUSED, 0), (FailureCode.DRAINED, 0), (FailureCode.NODE_LOST, 1)],
)
def test_what_says_nothing_about_the_job_does_not_count(code: FailureCode, counted: int) -> None:
    _, w, attempt = running()
    recovery.attempt_failed(w, attempt, Failure(code, "so it was"), still_held=False)
    job = job_of(w, attempt)
    assert job is not None and job.failures == counted
    assert job.not_before_ms > w.patience and job.avoid == (attempt.node,)


@pytest.mark.spec("J7", "J8")
def test_a_user_error_ends_the_job_and_is_no_fault_of_the_machine() -> None:
    network, w, attempt = running(attempts_max=1)
    recovery.attempt_failed(w, attempt, Failure(FailureCode.EXIT_CODE, "it exited with 3", 3), still_held=True)
    assert job_of(w, attempt) is None
    assert w.nodes[attempt.node].strikes == 0
    assert network.job().id not in w.jobs


@pytest.mark.spec("J7", "J8")
def test_a_verdict_on_the_program_counts_only_from_the_last_one_standing() -> None:
    _, w, first, second = two_running()
    limit = Failure(FailureCode.TIME_LIMIT, "too long")
    recovery.attempt_failed(w, first, limit, still_held=True)
    assert job_of(w, second) is not None
    recovery.attempt_failed(w, second, limit, still_held=True)
    assert job_of(w, second) is None


@pytest.mark.spec("J8")
def test_a_job_is_not_given_up_while_a_rival_goes_on() -> None:
    _, w, first, second = two_running()
    job = job_of(w, first)
    assert job is not None
    w.put(replace(job, failures=SETTINGS.attempts_max - 1))
    recovery.attempt_failed(w, first, FAULT, still_held=True)
    assert job_of(w, second) is not None
    recovery.attempt_failed(w, second, FAULT, still_held=True)
    assert job_of(w, second) is None


@pytest.mark.spec("J8")
@pytest.mark.parametrize(("failures", "lives"), [(SETTINGS.attempts_max - 2, True), (SETTINGS.attempts_max - 1, False)])
def test_the_last_failure_that_a_job_may_have_ends_it(failures: int, lives: bool) -> None:
    _, w, attempt = running()
    job = job_of(w, attempt)
    assert job is not None
    w.put(replace(job, failures=failures))
    recovery.attempt_failed(w, attempt, FAULT, still_held=True)
    assert (job_of(w, attempt) is not None) is lives


@pytest.mark.spec("J5", "J8")
def test_what_must_not_repeat_ends_with_its_attempt_whatever_the_failure() -> None:
    _, w, attempt = running(Recovery.NEVER)
    recovery.attempt_failed(w, attempt, FAULT, still_held=True)
    assert job_of(w, attempt) is None


def long_run(w: World, attempt: Attempt, saved: bool = True) -> Attempt:
    """As if its body had begun long ago and saved something new since."""
    begun = Instant(w.now - POISON_WINDOW_MS - 2)
    saved_ms = w.now if saved else Instant(begun + 1)
    attempt = replace(attempt, started_ms=begun, saved_ms=saved_ms)
    w.put(attempt)
    return attempt


@pytest.mark.spec("J8", "J6")
@pytest.mark.parametrize(
    ("code", "saved", "own_limit", "was_away", "failures"),
    [
        (FailureCode.NODE_LOST, True, None, True, 0),
        (FailureCode.NODE_LOST, True, None, False, 3),
        (FailureCode.NODE_LOST, True, 5, True, 3),
        (FailureCode.NODE_LOST, False, None, True, 3),
        (FailureCode.OOM_NODE, True, None, True, 3),
    ],
)
def test_a_long_job_that_saves_is_forgiven_for_machines_that_died(
    code: FailureCode, saved: bool, own_limit: int | None, was_away: bool, failures: int
) -> None:
    _, w, attempt = running(Recovery.RESUME, checkpoint_ms=1_000, attempts_max=own_limit)
    attempt = long_run(w, attempt, saved)
    job = job_of(w, attempt)
    assert job is not None
    w.put(replace(job, failures=2))

    recovery.attempt_failed(w, attempt, Failure(code, "so it was"), still_held=False, was_away=was_away)

    after = job_of(w, attempt)
    assert after is not None and after.failures == failures


# --- deadlines ---


@pytest.mark.spec("H6")
def test_deadlines_of_what_is_gone_do_nothing() -> None:
    _, w, attempt = running()
    changes = len(w.changes)
    recovery.phase_due(w, AttemptId("att_none.1"))
    recovery.lease_due(w, AttemptId("att_none.1"))
    recovery.lease_due(w, attempt.id)
    assert health.state_due(w, NodeId("node_none")) is False
    recovery.job_due(w, JobId("job_none"))
    recovery.drain_due(w, NodeId("node_none"))
    recovery.drain_due(w, attempt.node)
    assert len(w.changes) == changes and not w.sends


@pytest.mark.spec("J5", "J8")
def test_a_lease_ends_an_attempt_once_and_not_before_its_moment() -> None:
    network, w, attempt = running(Recovery.NEVER)
    over = network.settings.lease_ms * 11 // 10
    w.begin(Instant(network.now + over - 1))
    recovery.lease_due(w, attempt.id)
    assert w.attempts[attempt.id].may_win
    w.begin(Instant(network.now + over))
    recovery.lease_due(w, attempt.id)
    ended = w.attempts[attempt.id]
    assert ended.revoked is not None and ended.revoked.code is FailureCode.LEASE_LOST
    assert job_of(w, attempt) is None
    changes = len(w.changes)
    recovery.lease_due(w, attempt.id)
    assert len(w.changes) == changes


@pytest.mark.spec("J5")
def test_a_body_that_has_ended_on_a_node_that_is_there_needs_no_lease() -> None:
    network, w, attempt = running(Recovery.NEVER)
    network.report(attempt.node, seen(attempt, HeldPhase.FINISHED, GOOD))
    w.begin(Instant(network.now + 10 * network.settings.lease_ms))
    assert w.attempts[attempt.id].phase is AttemptPhase.UPLOADING
    recovery.lease_due(w, attempt.id)
    assert w.attempts[attempt.id].may_win


@pytest.mark.spec("H6", "H3")
def test_a_body_that_runs_past_its_limit_is_stopped_and_its_machine_struck() -> None:
    _, w, attempt = running(time_limit_ms=1_000)
    w.begin(Instant(attempt.phase_until_ms - 1))
    recovery.phase_due(w, attempt.id)
    assert w.attempts[attempt.id].may_win
    w.begin(attempt.phase_until_ms)
    recovery.phase_due(w, attempt.id)
    stopped = w.attempts[attempt.id].revoked
    assert stopped is not None and stopped.code is FailureCode.TIME_LIMIT
    assert w.nodes[attempt.node].strikes > 0


@pytest.mark.spec("H6", "H2")
@pytest.mark.parametrize("phase", [AttemptPhase.OFFERED, AttemptPhase.RUNNING])
def test_the_deadline_of_an_attempt_waits_for_a_node_that_is_away(phase: AttemptPhase) -> None:
    _, w, attempt = running()
    w.put(replace(w.nodes[attempt.node], state=NodeState.SUSPECT))
    w.presence(attempt.node).session = None
    w.put(replace(attempt, phase=phase, phase_until_ms=w.patience))
    recovery.phase_due(w, attempt.id)
    assert w.attempts[attempt.id].may_win


@pytest.mark.spec("H6")
def test_an_offer_to_a_node_that_is_lost_does_not_wait() -> None:
    _, w, attempt = running()
    w.put(replace(w.nodes[attempt.node], state=NodeState.LOST))
    w.presence(attempt.node).session = None
    w.put(replace(attempt, phase=AttemptPhase.OFFERED, phase_until_ms=w.patience))
    recovery.phase_due(w, attempt.id)
    assert not w.attempts[attempt.id].may_win


@pytest.mark.spec("J13")
@pytest.mark.parametrize(("early_ms", "lives"), [(1, True), (0, False)])
def test_a_job_waits_to_the_end_of_its_limit(early_ms: int, lives: bool) -> None:
    network = with_two_nodes()
    for key in ("one", "two", "three"):
        network.submit(key, need=WHOLE)
    job = network.job("three")
    w = network.kernel._w
    w.begin(Instant(job.queue_until_ms - early_ms))
    recovery.job_due(w, job.id)
    assert (job.id in w.jobs) is lives


@pytest.mark.spec("J13")
def test_a_limit_on_waiting_ends_nothing_that_runs() -> None:
    network, w, attempt = running()
    w.begin(Instant(network.job().queue_until_ms + 1))
    recovery.job_due(w, attempt.job)
    assert attempt.job in w.jobs


# --- draining, and offering less ---


@pytest.mark.spec("N7", "J5")
@pytest.mark.parametrize(("kind", "stays"), [(Recovery.RESTART, False), (Recovery.NEVER, True)])
def test_after_its_grace_a_draining_node_keeps_only_what_must_not_repeat(kind: Recovery, stays: bool) -> None:
    network, w, attempt = running(kind)
    network.tell(DrainAsked(attempt.node, True))
    until = w.nodes[attempt.node].drain_until_ms
    w.begin(Instant(until - 1))
    recovery.drain_due(w, attempt.node)
    assert w.attempts[attempt.id].may_win
    w.begin(until)
    recovery.drain_due(w, attempt.node)
    assert w.attempts[attempt.id].may_win is stays


@pytest.mark.spec("N7", "J6")
def test_a_body_that_saves_is_asked_once_more_before_it_is_moved() -> None:
    network, w, attempt = running(Recovery.RESUME, checkpoint_ms=1_000)
    network.tell(Checkpointed(attempt.id, attempt.fence, "11" * 32, 5))
    network.tell(DrainAsked(attempt.node, True))
    until = w.nodes[attempt.node].drain_until_ms
    last = until + network.settings.save_ms_max
    for now, asked in ((until, True), (last - 1, True), (last, False)):
        w.begin(Instant(now))
        recovery.drain_due(w, attempt.node)
        assert w.attempts[attempt.id].may_win is asked
        assert bool([s for s in w.sends if isinstance(getattr(s, "message", None), Save)]) is asked


@pytest.mark.spec("N7", "J6")
def test_a_body_that_saved_after_its_grace_is_moved_at_once() -> None:
    network, w, attempt = running(Recovery.RESUME, checkpoint_ms=1_000)
    network.tell(DrainAsked(attempt.node, True))
    network.now = w.nodes[attempt.node].drain_until_ms
    network.tell(Checkpointed(attempt.id, attempt.fence, "11" * 32, 5))
    assert not network.attempts()[0].may_win


@pytest.mark.spec("N10", "J5")
def test_what_no_longer_fits_moves_the_youngest_first_and_what_must_not_repeat_stays() -> None:
    network = Network(replace(SETTINGS, suspect_ms_max=60_000))
    network.join("node_a")
    for key, kind in (("old", Recovery.RESTART), ("young", Recovery.RESTART)):
        network.submit(key, recovery=kind, need=HALF)
    held = [seen(network.attempts(key)[0], HeldPhase.RUNNING) for key in ("old", "young")]
    network.report("node_a", *held)

    def offer(cpu: int) -> list[bool]:
        offers = Offers(replace(ROOM, cpu_milli=cpu))
        network.tell(NodeSaid(network.sessions["node_a"], NodeId("node_a"), offers))
        return [network.attempts(key)[0].may_win for key in ("old", "young")]

    assert offer(4_000) == [True, True]
    assert offer(3_999) == [True, False]
    assert offer(2_000) == [True, False]
    assert offer(1_999) == [False, False]


@pytest.mark.spec("N10", "J5")
def test_an_offer_that_shrinks_takes_nothing_that_must_not_repeat() -> None:
    network, _, attempt = running(Recovery.NEVER)
    offers = Offers(Resources(1, 1, 1, 0))
    network.tell(NodeSaid(network.sessions[attempt.node], attempt.node, offers))
    assert network.attempts()[0].may_win


@pytest.mark.spec("N7", "J5")
def test_a_node_that_is_drained_again_keeps_its_work_for_the_new_grace_and_not_longer() -> None:
    network, w, attempt = running()
    network.tell(DrainAsked(attempt.node, True))
    first_until = w.nodes[attempt.node].drain_until_ms
    network.tell(DrainAsked(attempt.node, False))
    network.now += 500
    network.tell(DrainAsked(attempt.node, True))
    until = w.nodes[attempt.node].drain_until_ms
    assert until == first_until + 500

    for now, stays in ((first_until, True), (until, False)):
        network.now = now
        network.report(attempt.node, seen(attempt, HeldPhase.RUNNING))
        network.tell(Tick())
        assert network.attempts()[0].may_win is stays


@pytest.mark.spec("N7", "J6", "H6")
def test_a_body_that_is_asked_to_save_and_does_not_is_moved_all_the_same() -> None:
    network, w, attempt = running(Recovery.RESUME, checkpoint_ms=1_000)
    network.tell(DrainAsked(attempt.node, True))
    until = w.nodes[attempt.node].drain_until_ms

    for now, stays in ((until, True), (until + network.settings.save_ms_max, False)):
        network.now = now
        network.report(attempt.node, seen(attempt, HeldPhase.RUNNING))
        network.tell(Tick())
        assert network.attempts()[0].may_win is stays


# --- a long job and machines that die ---


def long_and_alone() -> tuple[Network, World, Attempt]:
    """A body that has run and saved for long, on the only machine; the job has failed twice before."""
    network = Network()
    network.join("node_a")
    network.submit(recovery=Recovery.RESUME, checkpoint_ms=1_000)
    (attempt,) = network.attempts()
    network.report("node_a", seen(attempt, HeldPhase.RUNNING))
    w = network.kernel._w
    w.begin(Instant(network.now))
    attempt = long_run(w, network.attempts()[0])
    w.put(replace(w.jobs[attempt.job], failures=2))
    return network, w, attempt


@pytest.mark.spec("J8", "J6")
@pytest.mark.parametrize("how", ["it came back without the body", "it stayed away", "it said goodbye"])
def test_a_machine_that_died_under_a_long_job_is_no_failure_of_the_job_however_it_is_learned(how: str) -> None:
    network, w, attempt = long_and_alone()
    if how == "it said goodbye":
        network.tell(NodeSaid(network.sessions["node_a"], NodeId("node_a"), Leaving(0, done=True)))
    else:
        network.leave("node_a")
    if how == "it came back without the body":
        network.join("node_a")
    elif how == "it stayed away":
        network.now += network.settings.suspect_ms_max
        network.tell(Tick())

    assert attempt.id not in w.attempts
    job = w.jobs[attempt.job]
    assert job.failures == 0
    assert job.not_before_ms == 0, "nothing failed, so nothing is waited for"


@pytest.mark.spec("J8", "J6")
def test_a_long_job_is_forgiven_a_machine_that_reports_its_death_while_a_rival_goes_on() -> None:
    _, w, first, second = two_running(Recovery.RESUME, checkpoint_ms=1_000)
    first = long_run(w, first)
    w.put(replace(w.jobs[first.job], failures=2))

    recovery.attempt_failed(w, first, Failure(FailureCode.ORPHANED, "cut off for too long"), still_held=True)

    assert w.attempts[second.id].may_win and w.jobs[first.job].failures == 0


# --- deadlines that find less than they expected ---


@pytest.mark.spec("H6")
def test_what_is_lost_of_a_job_that_has_ended_changes_nothing() -> None:
    _, w, attempt = running()
    changes = len(w.changes)
    recovery.go_on(w, replace(attempt, job=JobId("job_gone")), LOST)
    assert len(w.changes) == changes and not w.sends


@pytest.mark.spec("H6")
def test_an_attempt_without_a_deadline_is_not_ended_by_one() -> None:
    _, w, attempt = running()
    w.put(replace(attempt, phase_until_ms=Instant(0)))
    recovery.phase_due(w, attempt.id)
    assert w.attempts[attempt.id].may_win


@pytest.mark.spec("H6", "H2")
@pytest.mark.parametrize(
    ("phase", "grace_ms", "waits"),
    [
        (AttemptPhase.PREPARING, 1, True),
        (AttemptPhase.PREPARING, 0, False),
        (AttemptPhase.RUNNING, 0, True),
    ],
)
def test_a_deadline_waits_for_a_node_that_may_be_back_and_a_body_that_runs_always_does(
    phase: AttemptPhase, grace_ms: int, waits: bool
) -> None:
    _, w, attempt = running()
    presence = w.presence(attempt.node)
    presence.session, presence.grace_until_ms = None, w.soon(grace_ms)
    w.put(replace(attempt, phase=phase, phase_until_ms=w.patience))
    recovery.phase_due(w, attempt.id)
    assert w.attempts[attempt.id].may_win is waits


@pytest.mark.spec("J5", "J8")
@pytest.mark.parametrize("why", ["it has no lease", "it was revoked"])
def test_no_lease_is_watched_that_cannot_be_lost(why: str) -> None:
    network, w, attempt = running(Recovery.RESTART if why == "it has no lease" else Recovery.NEVER)
    if why == "it was revoked":
        network.tell(CancelAsked(attempt.job))
    w.deadlines.drop("lease", attempt.id)
    watched = len(w.deadlines)
    recovery.lease_due(w, attempt.id)
    assert len(w.deadlines) == watched


@pytest.mark.spec("J5", "J8")
def test_a_leased_body_that_ended_and_whose_node_then_goes_is_still_given_up_in_time() -> None:
    """Given a body that ended, so that its lease ran out unnoticed, when its node goes before the result is delivered,
    then the job ends when the lease that counts from the last answer is over, not when the node is lost."""
    network, _, attempt = running(Recovery.NEVER)
    held = seen(attempt, HeldPhase.UPLOADING)
    network.wait(2 * network.settings.lease_ms, step=200, report={attempt.node: [held]})
    assert network.attempts()[0].may_win

    network.leave(attempt.node)
    network.wait(2 * network.settings.lease_ms, step=200)

    failure = network.job().failure
    assert failure is not None and failure.code is FailureCode.LEASE_LOST
    assert len(network.attempts()) == 1


# --- an attempt whose job is not known ---


@pytest.mark.spec("J5", "J14")
@pytest.mark.parametrize(
    "meets",
    [
        lambda w, attempt: recovery.go_on(w, attempt, LOST),
        lambda w, attempt: recovery.drain_due(w, attempt.node),
        lambda w, attempt: recovery.make_fit(w, attempt.node),
        lambda w, attempt: health.take_over(w, attempt, Facts()),
        lambda w, attempt: health.returned(w, attempt),
        lambda w, attempt: poison.Poison().returned(w, attempt),
        lambda w, attempt: moving.body_started(w, attempt),
        lambda w, attempt: reconcile._waits_for_go(w, attempt),
        lambda w, attempt: reconcile.observe_ready(w, attempt, 1),
        lambda w, attempt: reconcile.missing(w, attempt, came_back=False),
        lambda w, attempt: reservation._ends_by(w, attempt),
    ],
)
def test_a_kernel_that_meets_an_attempt_of_a_job_it_does_not_know_decides_nothing(meets: Any) -> None:
    """No event leads there. If one did, the kernel must neither break nor do anything to the attempt."""
    network = with_two_nodes()
    network.submit()
    (attempt,) = network.attempts()
    w = network.kernel._w
    w.begin(Instant(network.now + SETTINGS.resend_ms))
    w.put(replace(w.nodes[attempt.node], draining=True, offered=Resources(), drain_until_ms=w.patience))
    del w.jobs[attempt.job]
    w.begin(w.now)

    meets(w, attempt)

    assert not w.changes and not w.sends
    assert w.attempts[attempt.id] == attempt
