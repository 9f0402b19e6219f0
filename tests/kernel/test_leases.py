"""Class `never`: go, lease, and what is never repeated."""

import pytest
from kernel_driver import Network, seen, with_two_nodes

from holdfast.kernel.events import Verified
from holdfast.model import (
    Attempt,
    FailureCode,
    Recovery,
    Verdict,
)
from holdfast.model.messages import (
    Go,
    HeldPhase,
    Renewed,
)
from holdfast.node.core.attempt_lifecycle import Act, AttemptLifecycle, Phase
from holdfast.node.core.order import Order


def never_with_go() -> tuple[Network, Attempt]:
    network = with_two_nodes()
    network.submit(recovery=Recovery.NEVER)
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.READY))
    assert [g.attempt for g in network.said(Go)] == [first.id]
    return network, first


@pytest.mark.spec("J5", "J8")
def test_after_the_go_no_other_node_gets_the_job_though_its_body_was_never_seen() -> None:
    # given a body that may start, and was not seen running
    network, first = never_with_go()
    # when its node is cut off, however long
    network.leave(first.node)
    other = "node_b" if first.node == "node_a" else "node_a"
    network.wait(network.settings.lease_ms * 2, report={other: []})
    # then nobody else got it, and it ends as what it is
    assert len(network.attempts()) == 1
    assert network.job().failure is not None
    assert network.job().failure.code is FailureCode.LEASE_LOST  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.spec("J8")
def test_the_orchestrator_waits_longer_than_the_lease() -> None:
    network, first = never_with_go()
    network.leave(first.node)
    other = "node_b" if first.node == "node_a" else "node_a"
    network.wait(network.settings.lease_ms, report={other: []})
    assert network.job().live


@pytest.mark.spec("J8")
def test_a_revoked_attempt_gets_no_further_lease() -> None:
    # given a leased body whose job was given up because its machine did not stop it in time
    network, first = never_with_go()
    network.report(first.node, seen(first, HeldPhase.RUNNING), renew=(first.id,))
    assert [r.attempts for r in network.said(Renewed)] == [(first.id,)]
    network.tell(Verified(first.id, first.fence, ok=True))
    network.leave(first.node)
    network.wait(network.settings.lease_ms * 2)
    assert network.attempts()[0].revoked is not None
    # when its machine is back and asks for more
    network.join(first.node, held=(seen(first, HeldPhase.RUNNING),))
    network.report(first.node, seen(first, HeldPhase.RUNNING), renew=(first.id,))
    # then it gets none
    assert network.said(Renewed) == []


@pytest.mark.spec("J8")
def test_a_body_that_started_without_its_go_is_not_accepted_and_not_repeated() -> None:
    network = with_two_nodes()
    network.submit(recovery=Recovery.NEVER)
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    assert not network.job().live
    assert network.job().verdict is Verdict.FAILED
    assert len(network.attempts()) == 1


LEASED = Order(
    attempt="att_1.1",
    fence=1,
    job="job_1",
    argv=("true",),
    time_limit_ms=60_000,
    orphan_ms_max=60_000,
    stop_grace_ms=500,
    log_bytes_max=1_000,
    lease_ms=10_000,
    wait_for_go=True,
)


@pytest.mark.spec("J5", "J8")
def test_a_lease_alone_starts_nothing() -> None:
    # given a body that must not run twice, under a good lease
    lifecycle = AttemptLifecycle(LEASED, 0)
    lifecycle.lease(10_000)
    # when the go does not come, it does not start
    assert lifecycle.due(1) is Act.NOTHING
    assert lifecycle.phase is Phase.READY
    # then with the go it does
    lifecycle.go(2)
    assert lifecycle.due(2) is Act.START
