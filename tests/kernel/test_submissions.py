"""Submissions: idempotency keys, retries, bounded attempts, poison."""

import pytest
from kernel_driver import Network, seen, with_two_nodes

from holdfast.kernel.decision import Rejected, Taken
from holdfast.kernel.events import CancelAsked, Led, Submitted
from holdfast.kernel.kernel import Kernel
from holdfast.kernel.world import ENDED_MAX
from holdfast.model import (
    Failure,
    FailureCode,
    JobId,
    JobSpec,
    NodeState,
    Owner,
    Recovery,
    job_id,
)
from holdfast.model.messages import (
    Go,
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
    failed = Failure(FailureCode.EXIT_CODE, exit_code=1)
    for turn in (0, 1):  # once more on the other machine, which confirms it
        attempt = network.attempts()[turn]
        network.report(attempt.node, seen(attempt, HeldPhase.FINISHED, failure=failed))
    network.wait(2_000, report={"node_a": [], "node_b": []})
    assert network.job().failure == failed
    assert len(network.attempts()) == 2


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


# --- a job that has ended ---


def ended_never() -> Network:
    """A job of class `never` that had its go and was cancelled; its node no longer holds it."""
    network = with_two_nodes()
    network.submit(recovery=Recovery.NEVER)
    (attempt,) = network.attempts()
    network.report(attempt.node, seen(attempt, HeldPhase.READY))
    assert network.said(Go)
    network.tell(CancelAsked(network.job().id))
    network.report(attempt.node)
    assert not network.job().live and not network.attempts()[0].live
    return network


@pytest.mark.spec("J7", "J13", "J14")
def test_a_job_that_has_ended_is_not_submitted_again() -> None:
    network = ended_never()
    before = dict(network.rows)

    assert network.submit(recovery=Recovery.NEVER) == Taken(job_id("ann", "k"), again=True)
    refused = network.submit(recovery=Recovery.NEVER, name="another")

    assert isinstance(refused, Rejected) and refused.code == "key_reused"
    assert network.rows == before and not network.sends


@pytest.mark.spec("J7", "J13", "J14")
def test_a_rebuilt_kernel_is_told_which_jobs_it_must_not_take_again() -> None:
    """Only live rows are loaded. What the store refused is in the first event."""
    network = ended_never()
    job, before = network.job(), dict(network.rows)
    network.kernel = Kernel.load(network.settings, network.rows.values())
    network.tell(Led(2, 7, ((job.id, job.spec_hash),)))
    before["meta"] = network.rows["meta"]

    assert network.submit(recovery=Recovery.NEVER) == Taken(job.id, again=True)
    assert network.rows == before and not network.sends


@pytest.mark.spec("J14")
def test_as_many_ended_jobs_as_stated_are_remembered_and_the_oldest_is_forgotten() -> None:
    network = with_two_nodes()
    ids = [JobId(f"job_{number:014}") for number in range(ENDED_MAX + 1)]
    network.tell(Led(2, 7, tuple((id, "a hash") for id in ids)))
    spec = JobSpec(("true",))

    def again(id: JobId) -> bool:
        answer = network.tell(Submitted(id, Owner("ann"), spec, "a hash")).answer
        assert isinstance(answer, Taken)
        return answer.again

    assert again(ids[1]) and again(ids[-1])
    assert not again(ids[0])


@pytest.mark.spec("J7", "J13", "J14")
def test_a_live_attempt_of_a_job_that_is_not_live_tells_a_rebuilt_kernel_that_the_job_has_ended() -> None:
    network = with_two_nodes()
    network.submit()
    network.submit("another")
    network.tell(CancelAsked(network.job().id))
    assert network.attempts()[0].live, "its node has not confirmed yet"
    network.restart(2)
    before = dict(network.rows)

    assert network.submit() == Taken(job_id("ann", "k"), again=True)
    assert network.submit(name="something else") == Taken(job_id("ann", "k"), again=True), "only the store knows more"
    assert network.rows == before and not network.sends
    refused = network.submit("another", name="something else")
    assert isinstance(refused, Rejected) and refused.code == "key_reused"
