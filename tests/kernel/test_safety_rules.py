"""The rules on which safety rests, asked of the functions that hold them, whoever calls.

Their callers mostly look first. These tests do not: a rule that holds only because nobody asks for the opposite is
lost with the next caller.
"""

from typing import Any

import pytest
from kernel_driver import GOOD, ROOM, SETTINGS, Network, seen, with_two_nodes
from msgspec.structs import replace

from holdfast.kernel import checkpoints, contenders, health, poison
from holdfast.kernel.decision import Done, Rejected
from holdfast.kernel.events import CancelAsked, Checkpointed, FilesReceived, NodeSaid, Tick, Verified
from holdfast.kernel.world import World
from holdfast.model import (
    Attempt,
    AttemptId,
    AttemptPhase,
    Facts,
    Failure,
    FailureCode,
    Gpu,
    Hardware,
    Instant,
    Job,
    JobPhase,
    Keep,
    Need,
    NodeCause,
    NodeId,
    NodeState,
    Recovery,
    Resources,
    RevokeCause,
    Verdict,
    WaitReason,
)
from holdfast.model.messages import Discard, Go, HeldPhase, Load, Report, Start

LOST = Failure(FailureCode.NODE_LOST, "lost")


def world(network: Network) -> World:
    w = network.kernel._w
    w.begin(Instant(network.now))
    return w


def finished(network: Network) -> Attempt:
    """One attempt that has declared a result which is being verified."""
    network.submit()
    (attempt,) = network.attempts()
    network.report(attempt.node, seen(attempt, HeldPhase.FINISHED, GOOD))
    return network.attempts()[0]


# --- acceptance ---


@pytest.mark.spec("J5", "J7")
@pytest.mark.parametrize("but", ["revoked", "without a result", "of a job that has one", "of a job that is gone"])
def test_nothing_is_accepted_that_is(but: str) -> None:
    network = with_two_nodes()
    attempt = finished(network)
    w = world(network)
    match but:
        case "revoked":
            attempt = replace(attempt, revoked=LOST)
        case "without a result":
            attempt = replace(attempt, result=None)
        case "of a job that has one":
            w.put(replace(network.job(), accepted=AttemptId("att_other.1")))
        case _:
            attempt = replace(attempt, job="job_gone")
    changes = len(w.changes)

    assert contenders.accept(w, attempt) is False
    assert len(w.changes) == changes and not w.sends


@pytest.mark.spec("J5", "J7")
def test_what_is_accepted_ends_the_job_with_that_result() -> None:
    network = with_two_nodes()
    attempt = finished(network)
    w = world(network)

    assert contenders.accept(w, attempt) is True
    assert network.job().id not in w.jobs


@pytest.mark.spec("J5")
def test_a_result_that_is_found_wrong_or_under_another_fence_is_not_accepted() -> None:
    network = with_two_nodes()
    attempt = finished(network)

    network.tell(Verified(attempt.id, attempt.fence + 1, ok=True))
    assert network.job().accepted is None
    network.tell(Verified(attempt.id, attempt.fence, ok=False, detail="it differs"))
    assert network.job().accepted is None


# --- leases ---


@pytest.mark.spec("J5", "J8")
def test_a_second_go_for_a_job_that_must_not_repeat_is_a_mistake_that_stops_everything() -> None:
    network = with_two_nodes()
    network.submit(recovery=Recovery.NEVER)
    (attempt,) = network.attempts()
    network.report(attempt.node, seen(attempt, HeldPhase.READY))
    assert network.attempts()[0].go and network.said(Go)
    w = world(network)
    second = replace(attempt, id=AttemptId(f"{attempt.id[:-1]}2"), go=False)

    with pytest.raises(AssertionError, match="a second go"):
        contenders.grant_go(w, second, 1)


@pytest.mark.spec("J5")
def test_a_go_that_was_given_is_said_again_under_the_same_fence() -> None:
    network = with_two_nodes()
    network.submit(recovery=Recovery.NEVER)
    (attempt,) = network.attempts()
    network.report(attempt.node, seen(attempt, HeldPhase.READY))
    before = network.attempts()[0]

    network.now += network.settings.resend_ms
    network.report(attempt.node, seen(attempt, HeldPhase.READY))

    assert network.attempts()[0].fence == before.fence
    assert [go.fence for go in network.said(Go)] in ([before.fence], [])


# --- revocation ---


@pytest.mark.spec("J5")
def test_what_was_revoked_keeps_its_first_cause_and_saves_nothing() -> None:
    network = with_two_nodes()
    network.submit(recovery=Recovery.RESUME, checkpoint_ms=1_000)
    (attempt,) = network.attempts()
    network.report(attempt.node, seen(attempt, HeldPhase.RUNNING))
    w = world(network)
    revoked = contenders.revoke(w, w.attempts[attempt.id], Facts(revoke=RevokeCause.LEASE_LOST))
    again = contenders.revoke(w, revoked, Facts(revoke=RevokeCause.CANCELLED))

    answer = checkpoints.keep(w, Checkpointed(attempt.id, attempt.fence, "cc" * 32, 5))

    assert again.revoked == revoked.revoked is not None and again.revoke_cause is RevokeCause.LEASE_LOST
    assert isinstance(answer, Rejected) and answer.code == "revoked"
    assert w.jobs[attempt.job].checkpoint is None
    assert not checkpoints.may_save(w, revoked)


@pytest.mark.spec("J5")
@pytest.mark.parametrize(
    ("why", "cause"),
    [
        (Facts(revoke=RevokeCause.CANCELLED, by="ada"), FailureCode.CANCELLED),
        (Facts(revoke=RevokeCause.POISON, nodes=("node_a",)), FailureCode.POISON),
        (None, FailureCode.SUPERSEDED),
    ],
)
def test_with_a_job_all_that_runs_for_it_is_revoked_and_told_why(why: Facts | None, cause: FailureCode) -> None:
    network = with_two_nodes()
    network.submit()
    (attempt,) = network.attempts()
    w = world(network)

    contenders.end_job(w, attempt.job, Verdict.FAILED, LOST, why=why)

    revoked = w.attempts[attempt.id].revoked
    assert revoked is not None and revoked.code is cause


@pytest.mark.spec("J10")
def test_what_a_job_needs_to_be_run_again_is_kept_when_it_ends() -> None:
    network = with_two_nodes()
    network.submit(package="aa" * 32)

    decision = network.tell(CancelAsked(network.job().id))

    (kept,) = [row for row in decision.changes if isinstance(row, Keep)]
    assert kept.manifests == ("aa" * 32,)
    assert kept.until_ms == network.now + network.settings.files_keep_ms


@pytest.mark.spec("J5")
def test_healthy_is_only_what_may_still_win_on_a_node_that_works() -> None:
    network = with_two_nodes()
    network.submit()
    (attempt,) = network.attempts()
    w = world(network)

    assert contenders.healthy(w, attempt)
    assert not contenders.healthy(w, replace(attempt, revoked=LOST))
    assert not contenders.must_not_repeat(network.job(), replace(attempt, go=True))


# --- checkpoints never go back ---


def two_savers() -> tuple[Network, Attempt, Attempt]:
    """Two contenders for one job that both run and may save."""
    network = with_two_nodes()
    network.submit(recovery=Recovery.RESUME, checkpoint_ms=1_000)
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    network.leave(first.node)
    second = network.attempts()[1]
    network.report(second.node, seen(second, HeldPhase.RUNNING))
    network.join(first.node, held=(seen(first, HeldPhase.RUNNING),))
    return network, *network.attempts()[:2]


@pytest.mark.spec("J6", "J5")
def test_a_checkpoint_that_lies_further_back_is_counted_and_does_not_stand() -> None:
    network, first, second = two_savers()

    def save(attempt: Attempt, manifest: str) -> Any:
        return network.tell(Checkpointed(attempt.id, attempt.fence, manifest * 32, 5)).answer

    save(first, "11")
    save(first, "22")
    answer = save(second, "33")

    assert isinstance(answer, Done) and "later state" in answer.says
    checkpoint = network.job().checkpoint
    assert checkpoint is not None and (checkpoint.manifest, checkpoint.depth) == ("22" * 32, 2)
    behind = network.attempts()[1]
    assert (behind.captures, behind.saved_ms) == (1, None)
    save(second, "44")
    checkpoint = network.job().checkpoint
    assert checkpoint is not None and checkpoint.manifest == "44" * 32


@pytest.mark.spec("J6")
def test_the_same_state_saved_again_is_nothing_new() -> None:
    network, first, _ = two_savers()
    network.tell(Checkpointed(first.id, first.fence, "11" * 32, 5))
    saved_ms = network.attempts()[0].saved_ms
    network.now += 1_000

    network.tell(Checkpointed(first.id, first.fence, "11" * 32, 5))

    assert network.attempts()[0].saved_ms == saved_ms != None  # noqa: E711
    assert network.attempts()[0].captures == 2


@pytest.mark.spec("J6")
def test_how_far_an_attempt_got_counts_what_it_saved_for_a_job_that_goes_on_from_it() -> None:
    network, first, _ = two_savers()
    job = network.job()
    ran = replace(first, started_ms=Instant(1_000), saved_ms=Instant(3_000))

    assert checkpoints.got_far(job, ran, 1_999)
    assert not checkpoints.got_far(job, ran, 2_000)
    assert not checkpoints.got_far(job, replace(ran, started_ms=None), 1)
    assert not checkpoints.got_far(job, replace(ran, saved_ms=None), 1)
    assert not checkpoints.got_far(replace(job, spec=replace(job.spec, recovery=Recovery.RESTART)), ran, 1)


@pytest.mark.spec("J6")
def test_what_another_attempt_saved_was_not_saved_by_this_one() -> None:
    network, first, second = two_savers()
    network.tell(Checkpointed(first.id, first.fence, "11" * 32, 5))
    w = world(network)
    now = Instant(network.now - w.meta.late_ms)

    assert checkpoints.saved_since(w, first, now)
    assert not checkpoints.saved_since(w, first, Instant(now + 1))
    assert not checkpoints.saved_since(w, second, Instant(0))


# --- where a job goes ---


SMALL = Need(Resources(100, 100, 100, 0))


def busy_network(*nodes: tuple[str, str], load: int = 700) -> Network:
    """Machines (node, site) so busy that no one is taken without comparing it with the others."""
    network = Network(replace(SETTINGS, candidates=40, suspect_ms_max=60_000))
    for node, site in nodes:
        network.join(node, site=site)
        be_busy(network, node, load)
    return network


def be_busy(network: Network, node: str, permille: int) -> None:
    network.seqs[node] += 1
    report = Report(network.seqs[node], True, (), Load(cpu_permille=permille))
    network.tell(NodeSaid(network.sessions[node], NodeId(node), report))


NODES = (("node_a", ""), ("node_b", ""), ("node_c", ""))


@pytest.mark.spec("S1")
def test_of_equal_machines_the_first_by_name_is_taken_and_of_others_the_least_busy() -> None:
    network = busy_network(*NODES)
    network.submit("first", need=SMALL)
    be_busy(network, "node_b", 600)
    network.submit("second", need=SMALL)

    assert network.attempts("first")[0].node == "node_a"
    assert network.attempts("second")[0].node == "node_b"


@pytest.mark.spec("S1", "J5")
def test_a_machine_on_which_the_job_failed_comes_last_even_if_it_is_idle() -> None:
    network = busy_network(*NODES)
    network.submit(need=SMALL)
    (first,) = network.attempts()
    failure = Failure(FailureCode.RUNTIME_FAULT, "no fork")
    network.report(first.node, seen(first, HeldPhase.FINISHED, failure=failure))
    network.report(first.node)
    be_busy(network, first.node, 0)
    network.wait(network.settings.backoff_ms * 4)

    assert first.node == "node_a"
    assert [a.node for a in network.attempts()[1:]] == ["node_b"]


@pytest.mark.spec("S1", "J5")
def test_a_second_contender_is_put_at_another_site_even_on_a_busier_machine() -> None:
    network = busy_network(("node_a", "north"), ("node_b", "north"), ("node_c", "south"))
    network.submit(need=SMALL)
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    be_busy(network, "node_c", 900)

    network.leave(first.node)

    assert [a.node for a in network.attempts()] == ["node_a", "node_c"]


@pytest.mark.spec("S1", "J5")
def test_machines_that_name_no_site_share_none() -> None:
    network = busy_network(("node_a", ""), ("node_b", ""), ("node_c", "south"))
    network.submit(need=SMALL)
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    be_busy(network, "node_c", 900)

    network.leave(first.node)

    assert [a.node for a in network.attempts()] == ["node_a", "node_b"]


@pytest.mark.spec("S1")
def test_a_machine_with_a_gpu_is_spared_for_who_needs_one() -> None:
    network = busy_network(*NODES)
    gpus = (Gpu("Test 1", 8_000),)
    network.join("node_0", offered=replace(ROOM, gpus=1), hardware=Hardware(total=replace(ROOM, gpus=1), gpus=gpus))
    be_busy(network, "node_0", 700)

    network.submit("without", need=SMALL)
    network.submit("with", need=Need(Resources(100, 100, 100, 1)))

    assert network.attempts("without")[0].node == "node_a"
    assert network.attempts("with")[0].node == "node_0"


# --- a job that waits again ---


@pytest.mark.spec("J13", "H6")
def test_a_job_that_lost_its_machine_waits_as_long_as_it_may_and_not_longer() -> None:
    network = Network(replace(SETTINGS, queue_ms_max=3_000, suspect_ms_max=60_000))
    network.join("node_a")
    network.submit()
    (attempt,) = network.attempts()
    network.report("node_a", seen(attempt, HeldPhase.RUNNING))
    network.leave("node_a")
    lost_ms = network.now
    network.wait(network.settings.suspect_ms_max + 5_000)

    job = network.job()
    assert job.phase is JobPhase.ENDED
    assert job.failure is not None and job.ended_ms is not None
    assert job.ended_ms - lost_ms <= network.settings.suspect_ms_max + 4_000


@pytest.mark.spec("J5")
def test_an_attempt_that_has_ended_says_no_more() -> None:
    network = with_two_nodes()
    attempt = finished(network)
    network.tell(Verified(attempt.id, attempt.fence, ok=True))
    assert network.attempts()[0].phase is AttemptPhase.ENDED

    network.report(attempt.node, seen(attempt, HeldPhase.RUNNING))

    assert network.said(Discard) and not network.said(Start)
    assert network.job().accepted == attempt.id


# --- whose doing it is that a machine went down ---


def on_many(nodes: int) -> tuple[Network, World, Attempt]:
    """One job that runs on one of so many machines."""
    network = Network(replace(SETTINGS, suspect_ms_max=60_000))
    for number in range(nodes):
        network.join(f"node_{number:02}")
    network.submit()
    (attempt,) = network.attempts()
    network.report(attempt.node, seen(attempt, HeldPhase.RUNNING))
    return network, world(network), network.attempts()[0]


def others_gone(w: World, attempt: Attempt, others: int) -> None:
    w.lifecycle.of(poison.Poison).went.clear()
    w.lifecycle.of(poison.Poison).went[attempt.node] = w.patience
    for node in sorted(n for n in w.nodes if n != attempt.node)[:others]:
        w.lifecycle.of(poison.Poison).went[node] = w.patience


@pytest.mark.spec("J8")
@pytest.mark.parametrize(
    ("present", "others", "blamed"), [(4, 0, True), (10, 1, False), (11, 1, True), (15, 2, False), (16, 2, True)]
)
def test_a_job_is_blamed_unless_a_fifth_of_the_fleet_went_at_once(present: int, others: int, blamed: bool) -> None:
    _, w, attempt = on_many(present)
    others_gone(w, attempt, others)

    poison.blame_job(w, attempt)

    assert w.jobs[attempt.job].felled == ((attempt.node,) if blamed else ())


@pytest.mark.spec("J8")
@pytest.mark.parametrize(("beyond_ms", "blamed"), [(0, True), (1, False)])
def test_a_job_is_blamed_only_for_machines_that_went_soon_after_it_began(beyond_ms: int, blamed: bool) -> None:
    network, w, attempt = on_many(4)
    assert attempt.started_ms is not None
    w.begin(Instant(attempt.started_ms + poison.POISON_WINDOW_MS + beyond_ms))
    others_gone(w, attempt, 0)

    poison.blame_job(w, attempt)

    assert bool(w.jobs[attempt.job].felled) is blamed
    assert bool([row for row in w.changes if isinstance(row, Job)]) is blamed
    assert network.job().felled == ()


@pytest.mark.spec("J8")
def test_a_job_is_blamed_for_nothing_that_went_before_its_body_ran_and_once_for_each_machine() -> None:
    _, w, attempt = on_many(4)
    others_gone(w, attempt, 0)
    poison.blame_job(w, replace(attempt, started_ms=None))
    poison.blame_job(w, replace(attempt, job="job_gone"))
    assert w.jobs[attempt.job].felled == ()

    poison.blame_job(w, attempt)
    poison.blame_job(w, attempt)

    assert w.jobs[attempt.job].felled == (attempt.node,)


@pytest.mark.spec("J8")
def test_machines_are_forgotten_as_news_of_a_cut_after_the_window() -> None:
    network = Network(replace(SETTINGS, suspect_ms_max=60_000))
    for node in ("node_a", "node_b", "node_c"):
        network.join(node)
    network.leave("node_a")
    w = world(network)
    went = w.patience
    w.begin(Instant(network.now + poison.MASS_WINDOW_MS - 1))
    health.suspect(w, NodeId("node_b"), Facts(node_cause=NodeCause.LINK_BROKE, detail="cut"))
    assert set(w.lifecycle.of(poison.Poison).went) == {"node_a", "node_b"}
    w.begin(Instant(network.now + poison.MASS_WINDOW_MS))
    health.suspect(w, NodeId("node_c"), Facts(node_cause=NodeCause.LINK_BROKE, detail="cut"))

    assert w.patience - went == poison.MASS_WINDOW_MS
    assert set(w.lifecycle.of(poison.Poison).went) == {"node_b", "node_c"}


# --- a job that must not repeat ---


@pytest.mark.spec("J5", "J8")
def test_a_job_whose_body_may_have_begun_waits_for_its_lease_and_is_not_started_elsewhere() -> None:
    network = with_two_nodes()
    network.submit(recovery=Recovery.NEVER)
    (attempt,) = network.attempts()
    network.report(attempt.node, seen(attempt, HeldPhase.READY))
    network.leave(attempt.node)

    assert network.job().wait_reason is WaitReason.LEASE
    network.wait(network.settings.lease_ms)
    assert len(network.attempts()) == 1 and network.job().live
    network.wait(network.settings.lease_ms // 5)
    assert len(network.attempts()) == 1 and not network.job().live


@pytest.mark.spec("J5")
def test_a_job_that_must_not_repeat_and_had_no_go_is_given_to_another_machine_at_once() -> None:
    network = with_two_nodes()
    network.submit(recovery=Recovery.NEVER)
    (attempt,) = network.attempts()
    network.report(attempt.node, seen(attempt, HeldPhase.PREPARING))

    network.leave(attempt.node)

    first, second = network.attempts()
    assert first.revoked is not None and second.may_win and second.fence > first.fence


@pytest.mark.spec("H3")
def test_a_quarantine_doubles_with_each_further_fault_up_to_its_longest() -> None:
    network = Network(replace(SETTINGS, quarantine_share_max_permille=1_000))
    network.join("node_a")
    s = network.settings
    lengths: list[int] = []
    for strikes in (1, s.strikes_to_quarantine, s.strikes_to_quarantine + 1, s.strikes_to_quarantine + 2, 500):
        w = world(network)
        w.put(replace(w.nodes[NodeId("node_a")], state=NodeState.READY, strikes=strikes))
        health.quarantine(w, w.nodes[NodeId("node_a")], Facts(node_cause=NodeCause.FAULTS))
        lengths.append(w.nodes[NodeId("node_a")].quarantined_until_ms - w.patience)

    longest = s.quarantine_ms_max
    assert lengths == [min(longest, s.quarantine_ms * n) for n in (1, 1, 2, 4)] + [longest]


@pytest.mark.spec("H3")
def test_a_quarantine_doubles_at_most_twenty_times() -> None:
    network = Network(
        replace(SETTINGS, quarantine_share_max_permille=1_000, quarantine_ms=1, quarantine_ms_max=1 << 30)
    )
    network.join("node_a")
    w = world(network)
    w.put(replace(w.nodes[NodeId("node_a")], strikes=500))
    health.quarantine(w, w.nodes[NodeId("node_a")], Facts(node_cause=NodeCause.FAULTS))
    assert w.nodes[NodeId("node_a")].quarantined_until_ms - w.patience == 1 << 20


# --- what is kept of a job that has ended ---


@pytest.mark.spec("J10")
@pytest.mark.parametrize(("known", "live"), [(True, True), (True, False), (False, True)])
def test_files_are_not_received_while_anybody_calls_the_job_live(known: bool, live: bool) -> None:
    """The row may be older than what is decided, and what is decided may not be committed yet."""
    network = with_two_nodes()
    network.submit(package="aa" * 32)
    job = network.job()
    if not known:
        network.tell(CancelAsked(job.id))
    decision = network.tell(FilesReceived(job if live else replace(job, phase=JobPhase.ENDED)))
    assert isinstance(decision.answer, Rejected) and not decision.changes


@pytest.mark.spec("J6")
def test_a_body_that_saves_as_often_as_it_may_can_save() -> None:
    network = with_two_nodes()
    network.submit(recovery=Recovery.RESUME, checkpoint_ms=1)
    (attempt,) = network.attempts()
    network.report(attempt.node, seen(attempt, HeldPhase.RUNNING))
    assert checkpoints.may_save(world(network), network.attempts()[0])


@pytest.mark.spec("J6", "H2")
def test_when_a_state_was_saved_is_told_on_the_clock_that_stands_still_while_we_are_late() -> None:
    network, first, _ = two_savers()
    network.now += 5_000
    network.tell(Tick(5_000))
    network.tell(Checkpointed(first.id, first.fence, "11" * 32, 5))
    w = world(network)

    assert checkpoints.saved_since(w, first, w.patience)
    assert not checkpoints.saved_since(w, first, w.soon(1))


@pytest.mark.spec("J8", "J6")
def test_a_job_that_is_blamed_for_nothing_is_not_written_when_it_got_far() -> None:
    _, w, attempt = on_many(4)
    begun = Instant(w.now - poison.POISON_WINDOW_MS - 2)
    w.put(replace(w.jobs[attempt.job], spec=replace(w.jobs[attempt.job].spec, recovery=Recovery.RESUME)))
    changes = len(w.changes)
    poison.blame_job(w, replace(attempt, started_ms=begun, saved_ms=w.now))
    assert len(w.changes) == changes


# --- how much one owner may have ---


@pytest.mark.spec("J13")
def test_an_owner_may_have_so_many_live_jobs_and_one_more_when_one_has_ended() -> None:
    network = Network(replace(SETTINGS, owner_live_jobs_max=1))
    network.join("node_a")
    codes = [getattr(network.submit(key, owner=owner), "code", "") for owner in ("ann", "ben") for key in ("1", "2")]
    assert codes == ["", "owner_limit", "", "owner_limit"]
    network.tell(CancelAsked(network.job("1").id))
    assert getattr(network.submit("2"), "code", "") == ""
