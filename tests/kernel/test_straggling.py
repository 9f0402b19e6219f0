"""Stragglers: when an attempt is flagged, and when a second one starts beside it."""

from typing import Any

import pytest
from kernel_driver import EAGER, GOOD, HALF, WHOLE, Network, at, network_of, seen, stand_still

from holdfast.kernel.events import Checkpointed, Verified
from holdfast.model import (
    Attempt,
    Failure,
    FailureCode,
    JobPhase,
    Purpose,
    Recovery,
)
from holdfast.model.messages import HeldPhase


def stalled(**spec: Any) -> tuple[Network, Attempt]:
    """A job whose body stands still on one of two machines, and is flagged."""
    network = network_of("node_a", "node_b")
    network.submit(**{"need": HALF, **spec})
    (first,) = network.attempts()
    if spec.get("recovery") is Recovery.NEVER:
        network.report(first.node, seen(first, HeldPhase.READY))
    stand_still(network, first)
    assert network.attempts()[0].straggling.startswith("no progress")
    return network, first


@pytest.mark.spec("J9")
def test_beside_a_straggler_starts_one_other_attempt_and_the_first_goes_on() -> None:
    network, first = stalled()
    one, two = network.attempts()
    assert (two.purpose, one.revoked) == (Purpose.SECOND, None) and two.node != first.node
    # and however long both stand still, there is no third
    network.join("node_c")
    stand_still(network, one, two, ms=3 * EAGER.stall_ms)
    assert all(a.straggling and a.may_win for a in network.attempts())
    assert len(network.attempts()) == 2


@pytest.mark.spec("J9", "J8")
def test_what_must_not_repeat_is_flagged_only() -> None:
    network, first = stalled(recovery=Recovery.NEVER)
    stand_still(network, network.attempts()[0], ms=3 * EAGER.stall_ms)
    assert [(a.id, a.may_win) for a in network.attempts()] == [(first.id, True)]


@pytest.mark.spec("J9")
def test_second_attempts_cost_no_try_and_no_failure_and_are_few() -> None:
    # given a straggler whose second attempts are lost, one after the other
    network, _ = stalled()
    for made in (1, 2):
        second = network.attempts()[made]
        gone = Failure(FailureCode.RUNTIME_FAULT, "the shim was gone")
        network.report(second.node, seen(second, HeldPhase.FINISHED, failure=gone))
        network.report(second.node, seen(second, HeldPhase.GONE))
        network.join(f"node_{made}")
        stand_still(network, network.attempts()[0], ms=700)
    # then two were made, not more, and the job has paid for none
    assert len(network.attempts()) == 3
    job = network.job()
    assert (job.extra_attempts, job.tries, job.failures, job.phase) == (2, 1, 0, JobPhase.RUNNING)
    assert network.attempts()[0].may_win


@pytest.mark.spec("J9", "J13")
def test_room_that_somebody_waits_for_is_not_idle() -> None:
    # given a straggler on one of two machines, half of the other free, and a job that needs a whole one
    network = network_of("node_a", "node_b")
    network.submit(need=HALF)
    (first,) = network.attempts()
    network.submit("other", need=HALF, owner="ben")
    network.submit("large", need=WHOLE, owner="cleo")
    (other,) = network.attempts("other", "ben")
    assert first.node != other.node and network.job("large", "cleo").phase is JobPhase.QUEUED
    # when the body stands still for long, then nothing is started beside it
    stand_still(network, first, other)
    assert network.attempts()[0].straggling and len(network.attempts()) == 1
    assert len(network.attempts("large", "cleo")) == 0


@pytest.mark.spec("J9")
def test_a_body_that_moves_again_is_no_straggler() -> None:
    network, first = stalled(recovery=Recovery.NEVER)
    network.report(first.node, at(first, printed=7))
    assert network.attempts()[0].straggling == ""


@pytest.mark.spec("J9", "J6")
def test_a_body_that_saves_something_new_gets_on_and_one_that_saves_the_same_does_not() -> None:
    network = network_of("node_a")
    network.submit(recovery=Recovery.RESUME, checkpoint_ms=1_000)
    (first,) = network.attempts()
    network.report(first.node, at(first))
    for turn in range(4):
        stand_still(network, first, ms=EAGER.stall_ms // 2)
        network.tell(Checkpointed(first.id, first.fence, f"{turn:064x}", 10))
    assert network.attempts()[0].straggling == ""
    for _ in range(4):
        stand_still(network, first, ms=EAGER.stall_ms // 2)
        network.tell(Checkpointed(first.id, first.fence, f"{3:064x}", 10))
    assert network.attempts()[0].straggling


@pytest.mark.spec("J9", "H2")
def test_nobody_is_called_stalled_for_the_time_in_which_its_machine_was_away() -> None:
    # given a body that was seen at work before its machine was gone for long
    network = network_of("node_a")
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, at(first))
    network.report(first.node, at(first))
    network.leave(first.node)
    network.wait(EAGER.stall_ms + 1_000, step=500)
    # when the machine is back and says the same
    network.join(first.node, held=(at(first),))
    network.report(first.node, at(first))
    # then it counts from there
    assert network.attempts()[0].straggling == ""
    stand_still(network, network.attempts()[0])
    assert network.attempts()[0].straggling


@pytest.mark.spec("J9", "J14")
def test_what_peers_took_is_known_after_a_restart() -> None:
    # given two jobs of one name that were over soon, and a third that runs on
    network = network_of("node_a", "node_b")
    for key in ("one", "two"):
        network.submit(key, name="sum", need=HALF)
        (attempt,) = network.attempts(key)
        network.report(attempt.node, at(attempt))
        network.report(attempt.node, seen(attempt, HeldPhase.FINISHED, GOOD))
        network.tell(Verified(attempt.id, attempt.fence, ok=True))
    network.submit(name="sum", need=HALF)
    (slow,) = network.attempts()
    network.report(slow.node, at(slow))
    # when another orchestrator leads
    network.restart(epoch=2)
    network.join("node_a", held=(at(slow),) if slow.node == "node_a" else ())
    network.join("node_b", held=(at(slow),) if slow.node == "node_b" else ())
    for turn in range(40):
        network.now += 200
        network.report(slow.node, at(slow, cpu_ms=1_000 * turn))
    # then it finds the third too slow, however busy it is
    assert "like it took" in network.attempts()[0].straggling
