"""Every state has a deadline, and nobody is charged for time in which no leader ran."""

import pytest
from kernel_driver import Network, seen, with_two_nodes

from holdfast.kernel.events import Tick
from holdfast.model import (
    FailureCode,
    NodeState,
)
from holdfast.model.messages import (
    HeldPhase,
)


@pytest.mark.spec("H6")
def test_an_offer_that_is_not_answered_goes_elsewhere() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.wait(network.settings.offer_ms_max + 2_000, report={"node_a": [], "node_b": []})
    assert network.attempts()[0].revoked is not None
    assert network.attempts()[0].revoked.code is FailureCode.OFFER_UNANSWERED  # pyright: ignore[reportOptionalMemberAccess]
    assert {a.node for a in network.attempts()} != {first.node}


@pytest.mark.spec("H6", "J7")
def test_a_preparation_that_takes_too_long_is_given_up() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    held = {first.node: [seen(first, HeldPhase.PREPARING)]}
    network.wait(network.settings.prepare_ms_max + 1_000, step=100, report=held)
    revoked = network.attempts()[0].revoked
    assert revoked is not None
    assert revoked.code is FailureCode.PREPARE_TIMEOUT


@pytest.mark.spec("H6", "J13")
def test_a_job_that_finds_no_room_ends_at_its_queue_limit() -> None:
    network = Network()
    network.submit(queue_limit_ms=1_000)
    network.wait(1_200)
    failure = network.job().failure
    assert failure is not None
    assert failure.code is FailureCode.QUEUE_EXPIRED


@pytest.mark.spec("H6", "J14", "A12")
def test_a_tick_may_handle_the_deadlines_of_a_few_jobs_and_the_others_follow() -> None:
    # given five jobs that are due at the same time
    network = Network()
    keys = [str(number) for number in range(5)]
    for key in keys:
        network.submit(key, queue_limit_ms=1_000)
    network.now += 1_000
    # when every tick handles two, then two end with each, a millisecond after the other
    for left in (3, 1, 0):
        network.tell(Tick(jobs_max=2))
        assert sum(network.job(key).live for key in keys) == left
        network.tell(Tick(jobs_max=2))
        assert sum(network.job(key).live for key in keys) == left, "time has to pass first"
        network.now += 1
    # and without a limit all end at once
    for key in ("a", "b", "c"):
        network.submit(key, queue_limit_ms=1_000)
    network.now += 1_000
    network.tell(Tick())
    assert not any(network.job(key).live for key in ("a", "b", "c"))


@pytest.mark.spec("J14", "H6")
def test_time_without_a_leader_counts_against_nobody() -> None:
    # given a job that waits, and an orchestrator that is away for longer than the job may wait
    network = Network()
    network.submit(queue_limit_ms=1_000)
    network.wait(200)
    network.restart(epoch=2, away_ms=60_000)
    # when it leads again, then the job has the time it had left
    network.wait(500)
    assert network.job().live
    network.wait(1_000)
    assert not network.job().live


@pytest.mark.spec("H2")
@pytest.mark.parametrize("frozen_ms", [2_000, 60_000])
def test_time_in_which_the_orchestrator_was_frozen_counts_against_nobody(frozen_ms: int) -> None:
    # given a node at work, and an orchestrator frozen for longer than a node may be silent
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.PREPARING))
    assert frozen_ms > network.settings.silence_ceiling_ms
    network.now += frozen_ms
    # when it learns of its own lateness, then nobody is blamed and no session is ended
    network.tell(Tick(late_ms=frozen_ms))
    assert network.sends == []
    assert network.node(first.node).state is NodeState.READY
    assert [a.revoked for a in network.attempts()] == [None]
