"""What a node says it holds, rule by rule: who gets a go, whose lease is renewed, which word is believed."""

from typing import Any

import pytest
from kernel_driver import GOOD, Network, seen, with_two_nodes
from msgspec.structs import replace

from holdfast.kernel.decision import Verify
from holdfast.kernel.events import CancelAsked, NodeSaid, Verified
from holdfast.model import (
    Attempt,
    AttemptId,
    AttemptPhase,
    Entry,
    Failure,
    FailureCode,
    Need,
    NodeState,
    Recovery,
    Resources,
)
from holdfast.model.messages import Discard, Go, Held, HeldPhase, Renewed, Report, Start

NEVER = Recovery.NEVER


def offered(recovery: Recovery = Recovery.RESTART, **more: Any) -> tuple[Network, Attempt]:
    network = with_two_nodes()
    network.submit(recovery=recovery, **more)
    return network, network.attempts()[0]


def granted() -> tuple[Network, Attempt]:
    """A leased attempt whose body may start."""
    network, attempt = offered(NEVER)
    network.report(attempt.node, seen(attempt, HeldPhase.READY))
    assert network.said(Go)
    return network, network.attempts()[0]


def says(network: Network, attempt: Attempt, phase: HeldPhase, **more: Any) -> Attempt:
    network.report(attempt.node, replace(seen(attempt, phase), **more))
    return network.attempts()[0]


# --- leases ---


@pytest.mark.spec("J5", "J8")
def test_a_lease_is_renewed_for_its_own_node_while_it_may_win() -> None:
    network, attempt = granted()
    other = "node_b" if attempt.node == "node_a" else "node_a"

    def renewed(node: str, *asked: str) -> list[Any]:
        network.report(node, renew=tuple(map(AttemptId, asked)), full=False)
        return [list(answer.attempts) for answer in network.said(Renewed)]

    assert renewed(other, attempt.id) == []
    assert renewed(attempt.node, "att_none.1") == []
    assert renewed(attempt.node, "att_none.1", attempt.id) == [[attempt.id]]
    network.tell(CancelAsked(network.job().id))
    assert renewed(attempt.node, attempt.id) == []


@pytest.mark.spec("J5", "J8")
def test_no_lease_is_renewed_for_a_body_that_may_not_start() -> None:
    network, attempt = offered(NEVER)
    network.report(attempt.node, seen(attempt, HeldPhase.PREPARING), renew=(attempt.id,))
    assert not network.said(Renewed)


@pytest.mark.spec("J5", "J8")
def test_only_what_must_not_repeat_waits_for_a_go() -> None:
    network, attempt = offered()
    says(network, attempt, HeldPhase.READY)
    assert not network.said(Go) and not network.attempts()[0].go


@pytest.mark.spec("J5", "J8")
def test_a_go_is_said_again_after_a_while_and_not_once_the_body_runs() -> None:
    network, attempt = granted()
    network.now += network.settings.resend_ms - 1
    says(network, attempt, HeldPhase.READY)
    assert not network.said(Go)
    network.now += 1
    says(network, attempt, HeldPhase.READY)
    assert [go.fence for go in network.said(Go)] == [attempt.fence]
    says(network, attempt, HeldPhase.RUNNING)
    network.now += network.settings.resend_ms
    says(network, attempt, HeldPhase.READY)
    assert not network.said(Go)


@pytest.mark.spec("J5", "J8")
@pytest.mark.parametrize("phase", [HeldPhase.RUNNING, HeldPhase.FINISHED])
def test_a_body_that_started_without_being_allowed_to_is_stopped_and_never_repeated(phase: HeldPhase) -> None:
    network, attempt = offered(NEVER)

    after = says(network, attempt, phase, result=GOOD if phase is HeldPhase.FINISHED else None)

    assert after.revoked is not None or after.failure is not None
    assert not [send for send in network.sends if isinstance(send, Verify)]
    assert network.node(attempt.node).strikes > 0
    assert not network.job().live and len(network.attempts()) == 1


@pytest.mark.spec("J5")
def test_that_nothing_ran_is_no_proof_that_something_did() -> None:
    """Given a leased attempt without a go, when its node says that it uploads, then nothing is concluded from it."""
    network, attempt = offered(NEVER)
    after = says(network, attempt, HeldPhase.UPLOADING)
    assert after.phase in (AttemptPhase.OFFERED, AttemptPhase.PREPARING) and after.started_ms is None
    network, attempt = granted()
    assert says(network, attempt, HeldPhase.UPLOADING).phase is AttemptPhase.UPLOADING


# --- results ---


@pytest.mark.spec("J7")
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (FailureCode.EXIT_CODE, FailureCode.EXIT_CODE),
        (FailureCode.CANCELLED, FailureCode.INVALID_RESULT),
        (FailureCode.POISON, FailureCode.INVALID_RESULT),
        (FailureCode.LEASE_LOST, FailureCode.INVALID_RESULT),
    ],
)
def test_a_machine_says_only_what_it_can_know(said: FailureCode, kept: FailureCode) -> None:
    network, attempt = offered()
    after = says(network, attempt, HeldPhase.FINISHED, failure=Failure(said, "so it says"))
    assert after.failure is not None and after.failure.code is kept


@pytest.mark.spec("J5", "J7")
def test_a_lease_that_was_given_can_be_lost() -> None:
    network, attempt = granted()
    after = says(network, attempt, HeldPhase.FINISHED, failure=Failure(FailureCode.LEASE_LOST, "not renewed"))
    assert after.failure is not None and after.failure.code is FailureCode.LEASE_LOST


@pytest.mark.spec("J7")
def test_who_says_finished_and_declares_nothing_has_failed() -> None:
    network, attempt = offered()
    after = says(network, attempt, HeldPhase.FINISHED)
    assert after.failure is not None and after.failure.code is FailureCode.INVALID_RESULT
    assert not [send for send in network.sends if isinstance(send, Verify)]


@pytest.mark.spec("J7")
def test_a_result_is_verified_once_and_again_only_after_an_answer() -> None:
    network, attempt = offered()
    for asked in (1, 0, 0):
        says(network, attempt, HeldPhase.FINISHED, result=GOOD)
        assert len([send for send in network.sends if isinstance(send, Verify)]) == asked


@pytest.mark.spec("J7")
def test_of_two_declarations_neither_counts() -> None:
    network, attempt = offered()
    says(network, attempt, HeldPhase.FINISHED, result=GOOD)
    after = says(network, attempt, HeldPhase.FINISHED, result=replace(GOOD, stdout_bytes=4))
    assert after.failure is not None and after.failure.code is FailureCode.INVALID_RESULT
    network.tell(Verified(attempt.id, attempt.fence, ok=True))
    assert network.job().accepted is None


@pytest.mark.spec("J7", "H3")
def test_what_was_revoked_meanwhile_is_not_judged() -> None:
    """Given a result that is being verified, when the job was stopped, then a bad verdict strikes nobody."""
    network, attempt = offered()
    says(network, attempt, HeldPhase.FINISHED, result=GOOD)
    network.tell(CancelAsked(network.job().id))
    for fence in (attempt.fence, attempt.fence + 1):
        decision = network.tell(Verified(attempt.id, fence, ok=False, detail="it differs"))
        assert not decision.changes and not decision.sends
    assert network.node(attempt.node).strikes == 0


@pytest.mark.spec("J7", "H3")
def test_a_verdict_under_another_fence_or_before_a_result_judges_nobody() -> None:
    network, attempt = offered()
    for fence in (attempt.fence, attempt.fence + 1):
        assert not network.tell(Verified(attempt.id, fence, ok=False, detail="it differs")).changes
    says(network, attempt, HeldPhase.FINISHED, result=GOOD)
    assert not network.tell(Verified(attempt.id, attempt.fence + 1, ok=False, detail="it differs")).changes


# --- refusals and what is gone ---


@pytest.mark.spec("N5", "H3")
@pytest.mark.parametrize("failure", [None, Failure(FailureCode.RUNTIME_FAULT, "no room")])
def test_a_refusal_is_one_whatever_code_it_names_and_costs_nothing(failure: Failure | None) -> None:
    network, attempt = offered()
    after = says(network, attempt, HeldPhase.REFUSED, failure=failure)
    assert after.failure is not None and after.failure.code is FailureCode.REFUSED
    assert after.failure.detail == ("it gave no reason" if failure is None else "no room")
    assert network.node(attempt.node).strikes == 0


@pytest.mark.spec("J5")
def test_a_body_that_ran_cannot_be_refused_any_more() -> None:
    network, attempt = offered()
    says(network, attempt, HeldPhase.RUNNING)
    after = says(network, attempt, HeldPhase.REFUSED, failure=Failure(FailureCode.REFUSED, "no room"))
    assert after.failure is not None and after.failure.code is FailureCode.RUNTIME_FAULT
    assert network.node(attempt.node).strikes > 0


@pytest.mark.spec("J5")
def test_what_was_revoked_is_discarded_again_after_a_while_until_it_is_gone() -> None:
    network, attempt = offered()
    says(network, attempt, HeldPhase.RUNNING)
    network.tell(CancelAsked(network.job().id))
    assert network.said(Discard)
    network.now += network.settings.resend_ms - 1
    says(network, attempt, HeldPhase.RUNNING)
    assert not network.said(Discard)
    network.now += 1
    says(network, attempt, HeldPhase.RUNNING)
    assert [discard.fence for discard in network.said(Discard)] == [attempt.fence]
    network.report(attempt.node, Held(attempt.id, attempt.fence, HeldPhase.GONE))
    assert not network.said(Discard) and network.attempts()[0].phase is AttemptPhase.ENDED


@pytest.mark.spec("J5")
def test_what_was_revoked_and_is_then_refused_is_discarded_and_over() -> None:
    network, attempt = offered()
    network.tell(CancelAsked(network.job().id))
    says(network, attempt, HeldPhase.REFUSED, failure=Failure(FailureCode.REFUSED, "no room"))
    assert network.said(Discard) and network.attempts()[0].phase is AttemptPhase.ENDED


@pytest.mark.spec("J5")
def test_an_offer_that_a_full_report_does_not_name_is_said_again_after_a_while() -> None:
    network, attempt = offered()
    network.report(attempt.node)
    assert not network.said(Start)
    network.now += network.settings.resend_ms
    network.report(attempt.node, full=False)
    assert not network.said(Start)
    network.report(attempt.node)
    assert [start.fence for start in network.said(Start)] == [attempt.fence]


@pytest.mark.spec("J5", "H3")
def test_a_body_that_vanished_from_a_node_that_was_there_is_its_fault() -> None:
    network, attempt = offered()
    says(network, attempt, HeldPhase.RUNNING)
    network.report(attempt.node)
    assert network.attempts()[0].failure is not None
    assert network.node(attempt.node).strikes > 0


@pytest.mark.spec("J5", "H2")
def test_a_body_that_went_down_with_its_node_is_nobodys_fault() -> None:
    network, attempt = offered()
    says(network, attempt, HeldPhase.RUNNING)
    network.leave(attempt.node)
    network.join(attempt.node)
    first = network.attempts()[0]
    assert first.failure is not None and first.failure.code is FailureCode.NODE_LOST
    assert network.node(attempt.node).strikes == 0


@pytest.mark.spec("J5")
def test_a_report_about_an_attempt_of_another_node_changes_nothing_of_it() -> None:
    network, attempt = offered()
    other = "node_b" if attempt.node == "node_a" else "node_a"
    report = Report(50, False, (seen(attempt, HeldPhase.FINISHED, GOOD),))
    network.tell(NodeSaid(network.sessions[other], type(attempt.node)(other), report))
    assert network.attempts()[0] == attempt
    assert [discard.attempt for discard in network.said(Discard)] == [attempt.id]


@pytest.mark.spec("J5", "H2")
def test_a_node_that_is_back_without_the_body_takes_nothing_from_the_contender_that_goes_on() -> None:
    network, attempt = offered()
    says(network, attempt, HeldPhase.RUNNING)
    network.leave(attempt.node)
    assert network.attempts()[1].may_win

    network.join(attempt.node, held=(seen(attempt, HeldPhase.GONE),))

    first, second = network.attempts()
    assert first.phase is AttemptPhase.ENDED and second.may_win


@pytest.mark.spec("J5", "J10")
@pytest.mark.parametrize(
    ("phase", "more"),
    [
        (HeldPhase.FINISHED, {}),
        (HeldPhase.FINISHED, {"failure": Failure(FailureCode.EXIT_CODE, "it exited with 3", 3)}),
        (HeldPhase.FINISHED, {"failure": Failure(FailureCode.CANCELLED, "not for a machine to say")}),
        (HeldPhase.FINISHED, {"result": replace(GOOD, stdout_bytes=4)}),
        (HeldPhase.REFUSED, {"failure": Failure(FailureCode.REFUSED, "no room")}),
    ],
)
def test_a_node_is_told_to_clean_up_after_every_attempt_that_failed_there(phase: HeldPhase, more: Any) -> None:
    network, attempt = offered()
    if "result" in more:
        says(network, attempt, HeldPhase.FINISHED, result=GOOD)

    says(network, attempt, phase, **more)

    assert [discard.fence for discard in network.said(Discard)] == [attempt.fence]
    assert not [send for send in network.sends if isinstance(send, Verify)]


@pytest.mark.spec("J5", "J8")
def test_a_go_that_answers_a_hello_counts_its_lease_from_the_hello() -> None:
    """A lease that counted from a later message would last longer on the node than the orchestrator waits."""
    network, attempt = offered(NEVER)

    network.join(attempt.node, held=(seen(attempt, HeldPhase.READY),))

    assert [go.seq for go in network.said(Go)] == [0]


# --- one decision about several attempts ---


@pytest.mark.spec("J5", "H3")
def test_an_attempt_that_a_quarantine_revokes_is_not_judged_by_the_same_report() -> None:
    """Given a node one fault short of quarantine that holds two attempts, when a report names neither, then the first
    is its fault, and the second, which the quarantine revokes, is closed as revoked: no strike, no failure."""
    network = with_two_nodes()
    for node in ("node_c", "node_d"):
        network.join(node)
    limit = network.settings.strikes_to_quarantine
    keys = [f"k{number}" for number in range(40)]
    for key in keys:
        network.submit(key, NEVER, need=Need(Resources(100, 10, 10, 0)))
    held = [network.attempts(key)[0] for key in keys]
    mine = sorted((a for a in held if a.node == held[0].node), key=lambda a: a.id)[: limit + 1]
    assert len(mine) == limit + 1
    node = mine[0].node
    others = [seen(a, HeldPhase.PREPARING) for a in held if a.node == node and a not in mine]
    network.report(node, *others, *(seen(a, HeldPhase.PREPARING) for a in mine))

    decision = network.report(node, *others)

    assert network.node(node).state is NodeState.QUARANTINED and network.node(node).strikes == limit
    last = network.rows[mine[-1].id]
    assert last.revoked is not None and last.failure == last.revoked and not last.live
    assert network.rows[last.job].failures == 0
    assert [network.rows[a.job].failures for a in mine[:-1]] == [1] * limit
    kinds = [row.kind for row in decision.changes if isinstance(row, Entry) and row.attempt == last.id]
    assert "attempt.failed" not in kinds
