"""Contenders: one accepted result, fences, revocation, takeover."""

from typing import Any

import pytest
from kernel_driver import GOOD, HALF, WHOLE, Network, seen, with_two_nodes
from msgspec.structs import replace

from holdfast.kernel import contenders
from holdfast.kernel.decision import Verify
from holdfast.kernel.events import CancelAsked, DeliveryRefused, Tick, Verified
from holdfast.kernel.world import Member, World
from holdfast.model import (
    Attempt,
    Failure,
    FailureCode,
    Instant,
    Job,
    JobId,
    JobPhase,
    Need,
    NodeId,
    NodeState,
)
from holdfast.model.messages import (
    Discard,
    HeldPhase,
    Start,
)


@pytest.mark.spec("J5")
def test_a_result_that_was_verified_after_its_attempt_was_revoked_is_not_accepted() -> None:
    # given a result that is being verified
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.FINISHED, GOOD))
    assert [s for s in network.sends if isinstance(s, Verify)]
    # when the verdict does not come in time, so that the attempt is given up, and comes then
    held = {first.node: [seen(first, HeldPhase.FINISHED, GOOD)]}
    network.wait(network.settings.upload_ms_max + 200, step=100, report=held)
    assert network.attempts()[0].live
    assert network.attempts()[0].revoked is not None
    network.tell(Verified(first.id, first.fence, ok=True))
    # then it counts for nothing
    assert network.job().accepted is None


@pytest.mark.spec("A12", "H3", "J7")
@pytest.mark.parametrize("phase", [HeldPhase.RUNNING, HeldPhase.FINISHED])
def test_a_node_whose_delivery_was_refused_loses_the_attempt_and_is_struck(phase: HeldPhase) -> None:
    # given an attempt that runs, or whose result is being verified
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, phase, GOOD if phase is HeldPhase.FINISHED else None))
    # when something is refused that was sent under another fence, then nothing happens
    network.tell(DeliveryRefused(first.id, first.fence + 1, "out of order"))
    assert network.attempts()[0].live and network.node(first.node).state is NodeState.READY
    # and when what it sent for the attempt itself is refused
    network.tell(DeliveryRefused(first.id, first.fence, "a manifest is out of order"))
    # then the attempt is over by its node's fault, the node is set aside, and the job is to go on elsewhere
    (ended,) = network.attempts()
    assert ended.failure is not None and not ended.live
    assert (ended.failure.code, ended.failure.detail) == (FailureCode.INVALID_RESULT, "a manifest is out of order")
    assert network.node(first.node).state is NodeState.QUARANTINED
    assert network.job().verdict is None and first.node in network.job().avoid
    assert first.fence in [discard.fence for discard in network.said(Discard)]
    # and a verdict on its result that comes later counts for nothing
    network.tell(Verified(first.id, first.fence, ok=True))
    assert network.job().accepted is None


@pytest.mark.spec("J5", "A12")
def test_a_revoked_attempt_is_not_struck_for_what_it_delivers() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    network.tell(CancelAsked(network.job().id))
    network.tell(DeliveryRefused(first.id, first.fence, "a manifest is out of order"))
    assert network.node(first.node).state is NodeState.READY and not network.node(first.node).strikes


@pytest.mark.spec("J5")
def test_a_report_under_another_fence_is_answered_with_a_discard() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, replace(seen(first, HeldPhase.RUNNING), fence=first.fence + 1), full=False)
    assert network.attempts()[0].phase.value == "offered"
    assert [d.fence for d in network.said(Discard)] == [first.fence + 1]


def two_that_run() -> tuple[Network, Attempt, Attempt]:
    """Two contenders whose bodies both run, because the first one's node was away."""
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    network.leave(first.node)
    second = network.attempts()[1]
    network.report(second.node, seen(second, HeldPhase.RUNNING))
    network.join(first.node, held=(seen(first, HeldPhase.RUNNING),))
    assert len([a for a in network.attempts() if a.may_win]) == 2
    return network, first, second


@pytest.mark.spec("J5")
def test_a_second_result_changes_nothing() -> None:
    # given two results, both being verified
    network, first, second = two_that_run()
    network.report(first.node, seen(first, HeldPhase.FINISHED, GOOD))
    network.report(second.node, seen(second, HeldPhase.FINISHED, replace(GOOD, stdout_sha256="bb" * 32)))
    # when both are found good
    network.tell(Verified(first.id, first.fence, ok=True))
    network.tell(Verified(second.id, second.fence, ok=True))
    # then the first one stands
    assert network.job().accepted == first.id
    assert network.job().result == GOOD


@pytest.mark.spec("J5", "J7")
def test_a_result_declared_after_another_is_not_accepted_by_the_verdict_on_the_other() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.FINISHED, GOOD))
    network.report(first.node, seen(first, HeldPhase.FINISHED, replace(GOOD, stdout_sha256="bb" * 32)))
    network.tell(Verified(first.id, first.fence, ok=True))
    assert network.job().accepted is None


@pytest.mark.spec("J5")
def test_who_lost_is_told_to_stop() -> None:
    # given two contenders that both run
    network, first, second = two_that_run()
    # when the second delivers
    network.report(second.node, seen(second, HeldPhase.FINISHED, GOOD))
    network.tell(Verified(second.id, second.fence, ok=True))
    # then the first is revoked and told
    assert network.job().accepted == second.id
    assert network.attempts()[0].revoked is not None
    assert first.id in [d.attempt for d in network.said(Discard)]


@pytest.mark.spec("J5", "H2")
def test_a_broken_stream_brings_a_second_contender_in_the_same_step() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    network.leave(first.node)
    assert network.node(first.node).state is NodeState.SUSPECT
    assert [s.attempt for s in network.said(Start)] == [network.attempts()[1].id]
    assert network.attempts()[0].revoked is None


# --- a job that looks for a machine ---


@pytest.mark.spec("J5", "J8", "J13")
@pytest.mark.parametrize(
    ("until_ms", "used_up", "then"),
    [(1, False, "it waits for its back-off"), (0, False, "it waits for room"), (0, True, "it ends")],
)
def test_a_back_off_is_over_in_its_moment(until_ms: int, used_up: bool, then: str) -> None:
    _, w, job = waiting_again()
    w.put(replace(job, not_before_ms=w.soon(until_ms), tries=10_000 if used_up else 0))

    contenders.seek(w, job.id)

    assert (job.id in w.queue) is (then == "it waits for room")
    assert (job.id in w.jobs) is (then != "it ends")


def waiting_again() -> tuple[Network, World, Job]:
    """A job whose only attempt was refused by the only machine."""
    network = Network()
    network.join("node_a")
    network.submit()
    (attempt,) = network.attempts()
    network.report("node_a", seen(attempt, HeldPhase.REFUSED))
    w = network.kernel._w
    w.begin(Instant(network.now))
    return network, w, w.jobs[attempt.job]


@pytest.mark.spec("J8", "J14")
def test_a_job_that_had_all_its_attempts_ends_under_a_new_leader_in_a_row_and_not_only_in_memory() -> None:
    """A rebuild changes no row: what it decided would be lost, and the job would be live in the store for ever."""
    network, w, job = waiting_again()
    network.rows[job.id] = replace(w.jobs[job.id], tries=10_000, not_before_ms=Instant(0))

    network.restart(epoch=2)
    network.tell(Tick())

    assert network.job().phase is JobPhase.ENDED


@pytest.mark.spec("J5")
def test_the_phase_of_a_job_that_has_ended_is_not_looked_at() -> None:
    _, w, _ = waiting_again()
    changes = len(w.changes)
    contenders.refresh(w, JobId("job_gone"))
    assert len(w.changes) == changes


@pytest.mark.spec("J13")
def test_room_that_nobody_waits_for_is_not_kept_as_news() -> None:
    network = with_two_nodes()
    assert not network.kernel._w.freed


@pytest.mark.spec("J5", "J13")
def test_a_job_that_its_own_machine_may_not_serve_again_does_not_keep_others_from_it() -> None:
    """Given a job whose revoked attempt still lies on the only machine, so that it waits although there is room, when
    another job with the same need arrives, then that one is placed."""
    network = Network()
    network.join("node_a")
    network.submit(need=HALF)
    (first,) = network.attempts()
    held = {"node_a": [seen(first, HeldPhase.PREPARING)]}
    network.wait(network.settings.prepare_ms_max + 2_000, step=500, report=held)
    w = network.kernel._w
    assert w.attempts[first.id].revoked is not None and first.job in w.queue

    network.submit("other", need=HALF)

    assert [a.node for a in network.attempts("other")] == ["node_a"]


# --- which machine serves whom ---


def one_machine(**more: Any) -> tuple[Network, World, Job, Member]:
    network = Network()
    network.join("node_a", **more)
    network.submit("other", need=HALF)
    network.submit(need=WHOLE)
    w = network.kernel._w
    w.begin(Instant(network.now))
    return network, w, network.job(), w.fleet[NodeId("node_a")]


@pytest.mark.spec("J5", "S1")
@pytest.mark.parametrize(
    ("need", "ruled_out", "only", "closed", "fits", "serves"),
    [
        (HALF, (), None, False, True, True),
        (HALF, (), "node_a", False, True, True),
        (HALF, (), "node_b", False, True, False),
        (HALF, ("node_a",), None, False, True, False),
        (WHOLE, (), None, False, False, False),
        (replace(HALF, arch="other"), (), None, False, False, True),
        (HALF, (), None, True, False, False),
    ],
)
def test_room_that_appeared_serves_a_lane_only_if_one_machine_meets_all_of_it(
    need: Need, ruled_out: tuple[NodeId, ...], only: NodeId | None, closed: bool, fits: bool, serves: bool
) -> None:
    _, w, _, member = one_machine()
    none = Member(NodeId("node_0"))
    if closed:
        w.index.close(member)

    assert contenders._fits_one(need, [none, member]) is fits
    lane = (need, ruled_out, only)
    assert contenders._serves_one(lane, [none, member]) is serves
    assert contenders._still_served(w, [lane], [none, member]) == ([lane] if fits and serves else [])


@pytest.mark.spec("J5", "J12", "S1")
@pytest.mark.parametrize(
    ("need", "ruled_out", "taken"),
    [
        (HALF, (), True),
        (WHOLE, (), False),
        (replace(HALF, arch="other"), (), False),
        (HALF, (NodeId("node_a"),), False),
    ],
)
def test_a_machine_that_a_person_chose_is_taken_only_if_it_can_serve_and_holds_no_attempt_of_the_job(
    need: Need, ruled_out: tuple[NodeId, ...], taken: bool
) -> None:
    _, w, job, member = one_machine()
    found = contenders.choose(w, job, (need, ruled_out, member.node))
    assert found is (member if taken else None)


@pytest.mark.spec("J13")
def test_lanes_that_the_last_room_went_past_are_not_tried_again() -> None:
    """Every try is a draw: the number of draws shows that only the job that was placed was tried."""
    network = Network()
    network.join("node_a")
    network.submit("first", need=WHOLE)
    for number in range(4):
        network.submit(f"waits {number}", need=replace(WHOLE, resources=replace(WHOLE.resources, disk_mib=10 + number)))
    (first,) = network.attempts("first")
    draws = network.kernel._w.meta.draws

    failure = Failure(FailureCode.EXIT_CODE, "it exited with 3", 3)
    network.report("node_a", seen(first, HeldPhase.FINISHED, failure=failure))

    assert network.attempts("waits 0") and network.kernel.waiting == 3
    assert network.kernel._w.meta.draws == draws + 1


@pytest.mark.spec("J12")
def test_a_machine_that_a_person_chose_and_nobody_knows_is_not_taken() -> None:
    _, w, job, _ = one_machine()
    assert contenders.choose(w, job, (HALF, (), NodeId("node_none"))) is None
