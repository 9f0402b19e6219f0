"""Moving a job makes before it breaks: whatever becomes of the chosen machine, the job goes on, and has one result."""

import pytest
from fault_network import COUNTING, PRINTED, SMALL, FaultNetwork, Fleet

from holdfast.errors import Refused
from holdfast.testing.processes import READY_S, NodeProcesses, wait_for

pytestmark = pytest.mark.xdist_group("faults-moves")


@pytest.fixture(scope="module")
def machines(fleet: Fleet) -> FaultNetwork:
    return fleet("ant", "bee")


@pytest.fixture
def network(machines: FaultNetwork) -> FaultNetwork:
    machines.settle()
    for name in machines.nodes:  # one that has just come back is on probation, and refuses to be chosen
        machines.wait_node(name, state="ready")
    return machines


def starts(network: FaultNetwork, job: str) -> list[int]:
    """Where each attempt that printed something began to count."""
    lines = network.output(job).splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("from ")]


def counted(network: FaultNetwork, job: str, node: NodeProcesses) -> int:
    file = network.folders(job, node)[0] / "checkpoint" / "count"
    return int(file.read_text() or 0) if file.exists() else 0


@pytest.mark.spec("J12", "J6", "J5")
def test_a_running_job_moves_with_what_it_has_done(network: FaultNetwork) -> None:
    # given a job that has counted for a while, and saved nothing
    client = network.client()
    job = client.jobs.submit(["sh", "-c", COUNTING], recovery="resume", checkpoint_ms=3_600_000, **SMALL).id
    first = network.node_running(job)
    second = network.other(first)
    wait_for(lambda: counted(network, job, first) > 5, "it to count")

    # when it is moved, and the answer gets lost, so it is moved again
    client.jobs.move(job, second.id, key="a move")
    client.jobs.move(job, second.name, key="a move")
    view = client.jobs.wait_moved(job, timeout_s=READY_S)

    # then it was saved for that, goes on from there on the other node, and is over on the first
    assert view.move is not None and view.move.state == "done"
    wait_for(lambda: len(starts(network, job)) == 2, "the second attempt to print where it begins")
    assert starts(network, job)[1] > 5
    network.wait_clean(first)
    network.let_go(job, second)
    view = client.jobs.wait(job, timeout_s=READY_S)
    assert (view.verdict, view.attempts_made, view.node) == ("succeeded", 2, second.id)
    assert view.accepted == view.attempts[1].id and view.attempts[1].purpose == "move"
    assert view.attempts[0].revoked is not None and "was moved" in view.attempts[0].revoked.detail
    kinds = [entry.kind for entry in network.journal("attempt.running", "job.moved", "attempt.revoked", job=job)]
    assert kinds == ["attempt.running", "attempt.running", "job.moved", "attempt.revoked"]


@pytest.mark.spec("J12", "J5", "H2")
def test_a_target_that_dies_midway_leaves_the_job_where_it_is(network: FaultNetwork) -> None:
    # given a job on its way to a machine that has just frozen, which nobody knows
    client = network.client()
    job = network.hold()
    first = network.node_running(job)
    second = network.other(first)
    second.freeze_tree()
    client.jobs.move(job, second.id)

    # when that machine dies
    second.kill_tree()

    # then the person is told, and the job ends where it was, at no cost
    with pytest.raises(Refused) as refused:
        client.jobs.wait_moved(job, timeout_s=READY_S)
    assert refused.value.code == "not_moved"
    assert client.jobs.get(job).phase == "running"
    network.let_go(job, first)
    view = client.jobs.wait(job, timeout_s=READY_S)
    assert (view.verdict, view.node, view.accepted) == ("succeeded", first.id, view.attempts[0].id)
    assert network.output(job) == PRINTED


@pytest.mark.spec("J12", "J14")
def test_a_move_goes_on_under_the_next_orchestrator(network: FaultNetwork) -> None:
    # given a job that is offered to a machine which stands still
    client = network.client()
    job = network.hold()
    first = network.node_running(job)
    second = network.other(first)
    second.freeze_tree()
    assert client.jobs.move(job, second.id).move is not None

    # when the orchestrator is killed and comes back, and the machine wakes
    network.up.kill()
    second.thaw_tree()
    network.restart_orchestrator()

    # then the job arrives there, once
    view = client.jobs.wait_moved(job, timeout_s=READY_S)
    assert view.move is not None and view.move.state == "done"
    network.wait_clean(first)
    assert network.finish(job).node == second.id


@pytest.mark.spec("J12", "J8")
def test_what_must_not_run_twice_is_not_moved_once_it_runs(network: FaultNetwork) -> None:
    # given a body that may start only once, and runs
    client = network.client()
    job = network.hold(recovery="never")
    first = network.node_running(job)

    # when somebody wants it elsewhere, then it is refused at once and nothing changes
    with pytest.raises(Refused) as refused:
        client.jobs.move(job, network.other(first).id)
    assert refused.value.code == "must_not_repeat"
    assert network.finish(job).attempts_made == 1
