"""Stragglers: when an attempt is flagged, and when a second one starts beside it."""

from typing import Any

import pytest
from kernel_driver import EAGER, GOOD, HALF, WHOLE, Network, at, network_of, seen, stand_still
from msgspec.structs import replace

from holdfast.kernel import straggling
from holdfast.kernel.events import CancelAsked, Checkpointed, MoveAsked, Verified
from holdfast.model import (
    Attempt,
    Failure,
    FailureCode,
    JobId,
    JobPhase,
    MoveState,
    Need,
    NodeId,
    Owner,
    Purpose,
    Recovery,
    Resources,
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


@pytest.mark.spec("J9", "J6")
def test_a_straggler_that_saves_something_new_is_none_any_more() -> None:
    network, first = stalled(recovery=Recovery.RESUME, checkpoint_ms=1_000)
    network.tell(Checkpointed(first.id, first.fence, "ab" * 32, 10))
    assert network.attempts()[0].straggling == ""


@pytest.mark.spec("J9", "J8")
def test_a_job_that_had_all_its_attempts_gets_no_second_one() -> None:
    network = network_of("node_a", "node_b")
    network.submit(need=HALF)
    (first,) = network.attempts()
    network.report(first.node, at(first))
    network.kernel._w.put(replace(network.job(), tries=10_000))
    stand_still(network, first)
    assert network.attempts()[0].straggling and len(network.attempts()) == 1


@pytest.mark.spec("J9", "J12")
def test_a_job_that_is_being_moved_gets_no_second_attempt_elsewhere() -> None:
    network = network_of("node_a", "node_b", "node_c")
    network.submit(need=HALF, recovery=Recovery.RESUME, checkpoint_ms=60_000)
    (first,) = network.attempts()
    network.report(first.node, at(first))
    network.tell(MoveAsked(first.job, NodeId("node_b" if first.node == "node_a" else "node_a")))
    stand_still(network, first)
    move = network.job().move
    assert move is not None and move.state is MoveState.SAVING
    assert network.attempts()[0].straggling and len(network.attempts()) == 1


def at_sites(*sites: str) -> tuple[Network, Attempt]:
    """A job that runs on the first machine; each machine is at one of these sites."""
    network = Network(replace(EAGER, candidates=1))
    for number, site in enumerate(sites):
        network.join(f"node_{number}", site=site)
        if number == 0:
            network.submit(need=HALF)
    return network, network.attempts()[0]


@pytest.mark.spec("J9", "S1")
def test_a_second_attempt_goes_to_another_site_if_any_machine_there_is_idle() -> None:
    network, first = at_sites(*["north"] * 7, "south")
    w = network.kernel._w
    for draw in range(20):
        found = straggling._idle_room(w, w.jobs[first.job], [first], draw)
        assert found is not None and found.node == "node_7"


@pytest.mark.spec("J9", "S1")
def test_a_second_attempt_at_the_same_site_is_better_than_none() -> None:
    network, first = at_sites("north", "north", "north")
    w = network.kernel._w
    found = straggling._idle_room(w, w.jobs[first.job], [first], 1)
    assert found is not None and found.node != first.node


@pytest.mark.spec("J9", "J13")
@pytest.mark.parametrize(("needs", "idle"), [(straggling.NEEDS_MAX, True), (straggling.NEEDS_MAX + 1, False)])
def test_room_is_idle_that_no_waiting_job_can_use_unless_too_many_have_to_be_asked(needs: int, idle: bool) -> None:
    """Given jobs that wait for another kind of machine, then they keep nobody from this one."""
    network, first = at_sites("", "")
    w = network.kernel._w
    for number in range(needs):
        other = Need(Resources(1 + number, 1, 1, 0), arch="other")
        w.queue.join(JobId(f"job_{number}"), Owner("ben"), 0, (other, (), None))
    assert (straggling._idle_room(w, w.jobs[first.job], [first], 1) is not None) is idle


@pytest.mark.spec("J14")
def test_an_attempt_that_is_over_leaves_nothing_in_memory() -> None:
    network, _ = stalled()
    w = network.kernel._w
    assert w.claims and w.lifecycle.of(straggling.Straggling).claims
    network.tell(CancelAsked(network.job().id))
    for node in ("node_a", "node_b"):
        network.report(node)
    assert not w.attempts and not w.claims and not w.lifecycle.of(straggling.Straggling).claims


@pytest.mark.spec("J9")
def test_idle_room_is_looked_for_again_after_a_while() -> None:
    network = network_of("node_a")
    network.submit(need=HALF)
    (first,) = network.attempts()
    stand_still(network, first)
    network.join("node_b")
    w = network.kernel._w
    sought = w.lifecycle.of(straggling.Straggling).claims[first.id].sought_ms
    for early_ms, made in ((1, 1), (0, 2)):
        network.now = sought + EAGER.resend_ms - early_ms + w.meta.late_ms
        network.report("node_a", at(first))
        assert len(network.attempts()) == made
