"""Moves: a job goes to a chosen machine, and runs there before it stops where it was."""

from typing import Any

import pytest
from kernel_driver import HALF, WHOLE, Network, at, network_of, seen

from holdfast.kernel.decision import Done, Rejected
from holdfast.kernel.events import Checkpointed, MoveAsked
from holdfast.kernel.moving import MOVES_MAX
from holdfast.model import (
    Attempt,
    Failure,
    FailureCode,
    JobPhase,
    MoveState,
    NodeId,
    Purpose,
    Recovery,
    job_id,
)
from holdfast.model.messages import Discard, HeldPhase, Save, Start


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
