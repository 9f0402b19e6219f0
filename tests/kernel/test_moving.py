"""Moves: a job goes to a chosen machine, and runs there before it stops where it was."""

from typing import Any

import pytest
from kernel_driver import HALF, WHOLE, Network, at, network_of, seen
from msgspec.structs import replace

from holdfast.kernel import contenders
from holdfast.kernel.decision import Done, Rejected
from holdfast.kernel.events import Checkpointed, MoveAsked
from holdfast.kernel.health import NodeHealth
from holdfast.kernel.moving import MOVES_MAX
from holdfast.model import (
    Attempt,
    Failure,
    FailureCode,
    JobPhase,
    Move,
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
        network.submit(key, need=WHOLE, attempts_max=1)
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


# --- what a move takes, and what it leaves alone ---


def state(network: Network) -> MoveState:
    now = network.job().move
    assert now is not None
    return now.state


def moved_once() -> tuple[Network, Attempt]:
    """A job that was moved and runs on its new machine; a third machine is there."""
    network, first, there = moving()
    network.report(there, at(network.attempts()[1]))
    network.report(first.node)
    network.join("node_c")
    assert state(network) is MoveState.DONE
    return network, network.attempts()[1]


@pytest.mark.spec("J12", "J5")
def test_a_job_on_its_second_move_is_not_where_it_should_be_because_it_still_works_where_it_was() -> None:
    """Given a body that came by a move and moves on, when it ends where it is, then the contender at its goal lives."""
    network, second = moved_once()
    move(network, "node_c")
    network.report(second.node, seen(second, HeldPhase.UPLOADING))
    assert state(network) is MoveState.STARTING
    assert [a.may_win for a in network.attempts()[1:]] == [True, True]


@pytest.mark.spec("J12", "J5")
def test_a_move_goes_on_when_the_machine_that_is_left_dies_first() -> None:
    network, second = moved_once()
    move(network, "node_c")
    network.leave(second.node)
    assert state(network) is MoveState.STARTING
    third = network.attempts()[2]
    network.report("node_c", at(third))
    assert state(network) is MoveState.DONE and not network.attempts()[1].may_win


@pytest.mark.spec("J12")
def test_a_move_that_is_done_does_not_fail_with_the_machine_it_led_to() -> None:
    network, second = moved_once()
    network.leave(second.node)
    assert state(network) is MoveState.DONE
    assert network.attempts()[1].revoked is None and network.attempts()[2].node == "node_c"


@pytest.mark.spec("J12", "J5")
def test_the_last_contender_of_a_job_is_not_revoked_because_its_machine_is_away() -> None:
    """Given a move of which only the new attempt is left, when its machine is cut off, then it may come back."""
    network, first, there = moving()
    network.report(there, seen(network.attempts()[1], HeldPhase.PREPARING))
    network.report(first.node)
    assert not network.attempts()[0].live and state(network) is MoveState.STARTING

    network.leave(there)

    assert state(network) is MoveState.FAILED
    assert network.attempts()[1].may_win


@pytest.mark.spec("J12", "J5", "J6")
def test_a_body_that_is_cut_off_while_it_saves_for_a_move_is_not_revoked_for_it() -> None:
    network, first, second = two_savers()
    move(network, "node_c")
    assert state(network) is MoveState.SAVING

    network.leave(first.node)

    assert state(network) is MoveState.FAILED
    assert [a.may_win for a in network.attempts()[:2]] == [True, True]
    assert second.node != first.node


def two_savers() -> tuple[Network, Attempt, Attempt]:
    """Two contenders that both run and save, because the first one's machine was away; a third machine is free."""
    network = network_of("node_a", "node_b")
    network.submit(need=HALF, recovery=Recovery.RESUME, checkpoint_ms=60_000)
    (first,) = network.attempts()
    network.report(first.node, at(first))
    network.leave(first.node)
    second = network.attempts()[1]
    network.report(second.node, at(second))
    network.join(first.node, held=(at(first),))
    network.join("node_c")
    return network, first, second


@pytest.mark.spec("J12", "J6")
def test_a_move_waits_for_a_state_that_is_newer_than_the_request() -> None:
    """Given two contenders of which one has saved more, when the other one saves less than that, then the job has no
    new state yet from which it could start elsewhere."""
    network, first, second = two_savers()
    for manifest in ("11", "22"):
        network.tell(Checkpointed(first.id, first.fence, manifest * 32, 5))
    network.now += 1_000
    move(network, "node_c")

    network.tell(Checkpointed(second.id, second.fence, "33" * 32, 5))
    assert state(network) is MoveState.SAVING and not network.said(Start)
    network.tell(Checkpointed(first.id, first.fence, "44" * 32, 5))
    assert state(network) is MoveState.STARTING and [s.checkpoint for s in network.said(Start)] == ["44" * 32]


@pytest.mark.spec("J12", "S1")
def test_room_that_was_taken_while_a_job_saved_is_not_given_twice() -> None:
    network, first, there = moving(recovery=Recovery.RESUME, checkpoint_ms=60_000)
    network.submit("other", need=WHOLE)
    assert network.attempts("other")[0].node == there

    network.tell(Checkpointed(first.id, first.fence, "ab" * 32, 10))

    assert state(network) is MoveState.FAILED
    assert len(network.attempts()) == 1 and network.attempts()[0].may_win


@pytest.mark.spec("J12", "J6")
@pytest.mark.parametrize("why", ["it starts anew anywhere", "its machine cannot be asked"])
def test_nobody_waits_for_a_state_that_is_of_no_use_or_cannot_be_asked_for(why: str) -> None:
    kind = Recovery.RESTART if why == "it starts anew anywhere" else Recovery.RESUME
    network = network_of("node_a", "node_b")
    network.submit(need=HALF, recovery=kind, checkpoint_ms=60_000)
    (first,) = network.attempts()
    network.report(first.node, at(first))
    if kind is Recovery.RESUME:
        w = network.kernel._w
        w.lifecycle.of(NodeHealth).forgive_until_ms = w.soon(60_000)
        network.leave(first.node)

    move(network, "node_b" if first.node == "node_a" else "node_a")

    assert state(network) is MoveState.STARTING and len(network.attempts()) == 2


@pytest.mark.spec("J12", "J13")
def test_a_job_that_starts_elsewhere_by_a_move_waits_for_no_other_room() -> None:
    network = network_of("node_a", "node_b")
    network.submit(need=HALF)
    (first,) = network.attempts()
    network.report(first.node, at(first))
    w = network.kernel._w
    contenders.wait_in_line(w, network.job(), contenders.lane_of(w, network.job()))
    move(network, "node_b" if first.node == "node_a" else "node_a")
    assert network.kernel.waiting == 0 and len(network.attempts()) == 2


@pytest.mark.spec("J12", "H5")
def test_a_job_that_lost_the_attempt_of_its_move_is_again_what_its_other_attempt_is() -> None:
    network = network_of("node_a", "node_b")
    network.submit(need=HALF)
    (first,) = network.attempts()
    there = "node_b" if first.node == "node_a" else "node_a"
    move(network, there)
    network.report(there, seen(network.attempts()[1], HeldPhase.PREPARING))
    assert network.job().phase is JobPhase.PREPARING
    network.leave(there)
    assert network.job().phase is JobPhase.ASSIGNED


@pytest.mark.spec("J12", "H5")
def test_a_move_that_failed_says_why_even_if_the_machine_did_not() -> None:
    network, _, there = moving()
    failure = Failure(FailureCode.IMAGE)
    network.report(there, seen(network.attempts()[1], HeldPhase.FINISHED, failure=failure))
    now = network.job().move
    assert now is not None and (now.state, now.says) == (MoveState.FAILED, failure.meaning.says)


@pytest.mark.spec("J12")
@pytest.mark.parametrize(
    ("last", "answer"), [("done", Done), ("done elsewhere", Rejected), ("failed", Rejected), ("none", Rejected)]
)
def test_only_a_move_that_led_there_is_done_when_it_is_asked_for_again(last: str, answer: type) -> None:
    network = network_of("node_a", "node_b")
    network.submit(need=HALF)
    (first,) = network.attempts()
    network.report(first.node, at(first))
    to = {"done": first.node, "done elsewhere": NodeId("node_z"), "failed": first.node, "none": None}[last]
    was = None if to is None else Move(to, MoveState.FAILED if last == "failed" else MoveState.DONE)
    network.kernel._w.put(replace(network.job(), move=was))
    assert isinstance(move(network, first.node), answer)
