"""One story for each rule about attempts beside another: a second beside a straggler, and one to which a job moves."""

from typing import Any

import pytest
from by_hand import GOOD, SETTINGS, Network, seen
from msgspec.structs import replace

from holdfast.kernel.decision import Done, Rejected
from holdfast.kernel.events import Checkpointed, MoveAsked, Verified
from holdfast.kernel.moving import MOVES_MAX
from holdfast.model import (
    Attempt,
    Failure,
    FailureCode,
    JobPhase,
    MoveState,
    Need,
    NodeId,
    Purpose,
    Recovery,
    Resources,
    job_id,
)
from holdfast.model.messages import Discard, Held, HeldPhase, Progress, Save, Start

EAGER = replace(
    SETTINGS,
    stall_ms=3_000,
    slow_ms_min=3_000,
    slow_peers_min=2,
    suspect_ms_max=60_000,
    lease_ms=60_000,
    reserve_ms=60_000,
)
WHOLE = Need(Resources(4_000, 512, 100, 0))
"""A whole machine."""
HALF = Need(Resources(2_000, 512, 100, 0))


def network_of(*nodes: str) -> Network:
    network = Network(EAGER)
    for node in nodes:
        network.join(node)
    return network


def at(attempt: Attempt, cpu_ms: int = 10, printed: int = 0) -> Held:
    """Its body runs and has got so far."""
    return replace(seen(attempt, HeldPhase.RUNNING), progress=Progress("run", cpu_ms=cpu_ms, printed=printed))


def stand_still(network: Network, *attempts: Attempt, ms: int = EAGER.stall_ms + 1_000) -> None:
    """These bodies run and do nothing for so long."""
    held: dict[str, list[Held]] = {}
    for attempt in attempts:
        held.setdefault(attempt.node, []).append(at(attempt))
    network.wait(ms, step=200, report=held)


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


# --- stragglers ---


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
    assert (job.seconds, job.tries, job.failures, job.phase) == (2, 1, 0, JobPhase.RUNNING)
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


# --- moves ---


def moving(**spec: Any) -> tuple[Network, Attempt, NodeId]:
    """A job that runs on one machine and was moved to another."""
    network = network_of("node_a", "node_b")
    network.submit(**{"need": HALF, **spec})
    (first,) = network.attempts()
    network.report(first.node, at(first))
    there = NodeId("node_b" if first.node == "node_a" else "node_a")
    assert move(network, there) == Done("moving")
    return network, network.attempts()[0], there


def move(network: Network, to: str, key: str = "") -> Any:
    return network.tell(MoveAsked(job_id("ann", "k"), NodeId(to), key=key)).answer


@pytest.mark.spec("J12", "J5")
def test_a_moved_job_is_stopped_where_it_was_only_once_it_runs_where_it_should() -> None:
    network, first, there = moving()
    second = network.attempts()[1]
    assert (second.node, second.purpose) == (there, Purpose.MOVE)
    network.report(there, seen(second, HeldPhase.PREPARING))
    assert network.attempts()[0].revoked is None
    network.report(there, seen(second, HeldPhase.RUNNING))
    assert network.attempts()[0].revoked is not None and network.said(Discard)[0].attempt == first.id
    move_now = network.job().move
    assert move_now is not None and move_now.state is MoveState.DONE
    assert (network.job().tries, network.job().failures) == (1, 0)


@pytest.mark.spec("J12", "J6")
def test_a_job_that_resumes_is_saved_before_it_moves() -> None:
    network, first, _ = moving(recovery=Recovery.RESUME, checkpoint_ms=60_000)
    assert [s.attempt for s in network.said(Save)] == [first.id] and len(network.attempts()) == 1
    network.tell(Checkpointed(first.id, first.fence, "ab" * 32, 10))
    assert [s.checkpoint for s in network.said(Start)] == ["ab" * 32]


@pytest.mark.spec("J12", "J8")
def test_what_must_not_repeat_stays_once_it_may_have_started() -> None:
    network = network_of("node_a", "node_b")
    network.submit(recovery=Recovery.NEVER)
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.READY))
    answer = move(network, "node_b" if first.node == "node_a" else "node_a")
    assert isinstance(answer, Rejected) and answer.code == "must_not_repeat"
    assert network.attempts()[0].revoked is None


@pytest.mark.spec("J12")
def test_a_waiting_job_goes_nowhere_but_to_the_chosen_machine() -> None:
    # given two full machines
    network = network_of("node_a", "node_b")
    for key in ("one", "two"):
        network.submit(key, need=WHOLE)
    network.submit(need=WHOLE)
    # when the waiting job is moved to one, and the other comes free
    assert move(network, "node_a") == Done("moving")
    busy = {a.node: a for key in ("one", "two") for a in network.attempts(key)}
    failed = Failure(FailureCode.EXIT_CODE, exit_code=1)
    network.report("node_b", seen(busy[NodeId("node_b")], HeldPhase.FINISHED, failure=failed))
    network.wait(500, report={"node_a": [at(busy[NodeId("node_a")])], "node_b": []})
    # then it waits on
    assert network.attempts() == []
    network.report("node_a", seen(busy[NodeId("node_a")], HeldPhase.FINISHED, failure=failed))
    assert [a.node for a in network.attempts()] == ["node_a"]


@pytest.mark.spec("J12")
def test_the_same_request_again_changes_nothing() -> None:
    # given a job that was moved there and back
    network = network_of("node_a", "node_b")
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, at(first))
    there = "node_b" if first.node == "node_a" else "node_a"
    move(network, there, key="one")
    second = network.attempts()[1]
    network.report(there, seen(second, HeldPhase.RUNNING))
    network.report(first.node)
    assert move(network, first.node, key="two") == Done("moving")
    third = network.attempts()[2]
    network.report(first.node, seen(third, HeldPhase.RUNNING))
    network.report(there)
    # when the last request arrives once more, after the job was taken elsewhere by other means
    network.join("node_c")
    network.leave(first.node)
    fourth = network.attempts()[3]
    network.report(fourth.node, seen(fourth, HeldPhase.RUNNING))
    again = move(network, first.node, key="two")
    # then it is known, and nothing comes of it
    assert again == Done("this request was taken before: done")
    assert len(network.attempts()) == 4


@pytest.mark.spec("J12", "J5")
def test_a_machine_that_goes_away_before_the_job_runs_there_costs_the_job_nothing() -> None:
    network, _, there = moving()
    network.leave(there)
    first, second = network.attempts()
    move_now = network.job().move
    assert move_now is not None and move_now.state is MoveState.FAILED
    assert first.may_win and second.revoked is not None
    assert (network.job().failures, network.job().phase) == (0, JobPhase.RUNNING)


@pytest.mark.spec("J12")
def test_the_return_of_the_first_machine_does_not_undo_a_move() -> None:
    # given a move, and the first machine away for a moment
    network, first, there = moving()
    network.leave(first.node)
    network.join(first.node, held=(at(first),))
    # then the move goes on
    second = network.attempts()[1]
    assert second.may_win
    network.report(there, seen(second, HeldPhase.RUNNING))
    assert network.attempts()[0].revoked is not None


@pytest.mark.spec("J12")
def test_a_result_on_its_way_is_not_thrown_away_by_a_move() -> None:
    network, first, there = moving()
    network.report(first.node, seen(first, HeldPhase.UPLOADING))
    network.report(there, seen(network.attempts()[1], HeldPhase.RUNNING))
    assert network.attempts()[0].may_win


@pytest.mark.spec("J12")
def test_a_job_that_is_being_moved_is_not_sent_elsewhere() -> None:
    network, _, there = moving()
    network.join("node_c")
    answer = move(network, "node_c")
    assert isinstance(answer, Rejected) and answer.code == "move_under_way"
    move_now = network.job().move
    assert move_now is not None and move_now.to == there


@pytest.mark.spec("J12")
def test_a_job_is_not_moved_for_ever() -> None:
    network = network_of("node_a", "node_b")
    network.submit()
    (attempt,) = network.attempts()
    network.report(attempt.node, at(attempt))
    for _ in range(MOVES_MAX):
        there = "node_b" if attempt.node == "node_a" else "node_a"
        assert move(network, there) == Done("moving")
        before, attempt = attempt, network.attempts()[-1]
        network.report(there, at(attempt))
        network.report(before.node)
    answer = move(network, "node_b" if attempt.node == "node_a" else "node_a")
    assert isinstance(answer, Rejected) and answer.code == "moved_too_often"
