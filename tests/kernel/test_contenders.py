"""Contenders: one accepted result, fences, revocation, takeover."""

import pytest
from kernel_driver import GOOD, Network, seen, with_two_nodes
from msgspec.structs import replace

from holdfast.kernel.decision import Verify
from holdfast.kernel.events import Verified
from holdfast.model import (
    Attempt,
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
