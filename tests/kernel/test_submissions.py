"""Submissions: idempotency keys, retries, bounded attempts, poison."""

import pytest
from kernel_driver import Network, seen, with_two_nodes

from holdfast.kernel.decision import Rejected, Taken
from holdfast.model import (
    Failure,
    FailureCode,
    NodeState,
    job_id,
)
from holdfast.model.messages import (
    HeldPhase,
)


@pytest.mark.spec("J13", "J14")
def test_the_same_key_gives_the_same_job_and_another_job_under_it_is_refused() -> None:
    network = with_two_nodes()
    assert network.submit() == Taken(job_id("ann", "k"))
    network.wait(100)
    before = network.job()
    assert network.submit() == Taken(job_id("ann", "k"), again=True)
    assert network.job() == before
    refused = network.submit(name="another")
    assert isinstance(refused, Rejected)
    assert refused.code == "key_reused"


@pytest.mark.spec("J7", "J8")
def test_a_fault_of_the_job_itself_is_not_tried_again() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    failed = Failure(FailureCode.EXIT_CODE, exit_code=1)
    network.report(first.node, seen(first, HeldPhase.FINISHED, failure=failed))
    network.wait(2_000, report={"node_a": [], "node_b": []})
    assert network.job().failure == failed
    assert len(network.attempts()) == 1


@pytest.mark.spec("J8")
def test_attempts_are_bounded_whatever_fails() -> None:
    # given a fleet on which every attempt breaks, on ever other nodes
    network = Network()
    for number in range(12):
        network.join(f"node_{number:02}")
    network.submit(attempts_max=2)
    for _ in range(200):
        live = [a for a in network.attempts() if a.live and a.revoked is None]
        for attempt in live:
            broke = seen(attempt, HeldPhase.FINISHED, failure=Failure(FailureCode.RUNTIME_FAULT))
            network.report(attempt.node, broke, full=False)
        network.wait(100, step=100)
    # then it ends with that failure, after as many as it may have
    failure = network.job().failure
    assert failure is not None
    assert failure.code is FailureCode.RUNTIME_FAULT
    assert network.job().failures == 2


@pytest.mark.spec("J8")
def test_a_job_under_which_several_nodes_went_down_is_stopped_as_poison() -> None:
    # given a fleet large enough that losing a few is no network failure
    network = Network()
    for number in range(30):
        network.join(f"node_{number:02}")
    network.submit()
    # when one node after the other goes down with its body running
    for _ in range(network.settings.poison_nodes):
        (attempt,) = [a for a in network.attempts() if a.may_win and network.node(a.node).state is NodeState.READY]
        network.report(attempt.node, seen(attempt, HeldPhase.RUNNING))
        network.leave(attempt.node)
    # then it is stopped, and says so
    failure = network.job().failure
    assert failure is not None
    assert failure.code is FailureCode.POISON
