"""Work that is not safe to repeat: whatever becomes of its machine, its body starts once or not at all (SPEC J8)."""

import time

import pytest
from fault_network import PRINTED, QUICK, QUICK_RULES, FaultNetwork, Fleet, lives, program_of

from holdfast.testing.processes import READY_S, wait_for

pytestmark = pytest.mark.xdist_group("faults-never")

LEASE_MS = QUICK_RULES.lease_ms
ONE_CORE = {"cpu_milli": 1000}


@pytest.fixture(scope="module")
def machines(fleet: Fleet) -> FaultNetwork:
    network = fleet(**QUICK)
    for name in ("ant", "bee"):
        network.start_node(name, flags=["--cpu", "1"], wait=False)
    return network


@pytest.fixture
def network(machines: FaultNetwork) -> FaultNetwork:
    machines.settle()
    return machines


@pytest.mark.spec("J8", "J3")
def test_undisturbed_it_runs_once_and_succeeds(network: FaultNetwork) -> None:
    job = network.hold(recovery="never")
    node = network.node_running(job)
    # longer than its lease: renewing holds
    began = network.entry("attempt.go", job=job).at_ms
    wait_for(lambda: time.time() * 1000 - began > LEASE_MS * 1.2, "a lease to have run out if it was not renewed")
    assert program_of(node)
    view = network.finish(job)
    assert (view.verdict, view.attempts_made) == ("succeeded", 1)
    assert network.output(job) == PRINTED


@pytest.mark.spec("J5", "J7", "J8")
def test_cut_off_while_it_runs_it_stops_itself_and_is_never_started_again(network: FaultNetwork) -> None:
    # given such a job, running, and another node with room for it
    job = network.hold(recovery="never")
    node = network.node_running(job)
    body = program_of(node)
    started = network.entry("attempt.running", job=job)

    # when its machine can no longer be heard: the agent hangs, the body runs on
    node.freeze()
    network.entry("node.suspect", node=node.id, after=started.seq)
    assert "must not run twice" in network.client().jobs.explain(job).waiting_for

    # then the body is dead before anyone gives up on it, and the job ends by the network's fault, unpaid
    view = network.client().jobs.wait(job, timeout_s=READY_S, check=False)
    assert not lives(body)
    assert view.verdict == "failed" and view.failure is not None
    assert (view.failure.code, view.failure.blame, view.failure.billable) == ("lease_lost", "network", False)

    # and no second body ever started: not then, and not when the machine is back
    node.thaw()
    network.wait_clean(node)
    after = network.client().jobs.get(job)
    assert (after.attempts_made, len(after.attempts)) == (1, 1)
    assert len(network.journal("attempt.go", "attempt.running", job=job)) == 2
    assert network.journal("job.accepted", job=job) == []
    assert network.output(job).count("begun") == 1


@pytest.mark.spec("J5", "J8")
def test_when_its_machine_dies_before_the_go_it_moves_like_any_other(network: FaultNetwork) -> None:
    # given one node that is fully taken, and another that has just frozen, unnoticed
    doomed = network.nodes["ant"]
    blocker = network.hold_on(network.other(doomed), **ONE_CORE)
    wait_for(lambda: not network.client().nodes.get(doomed.id).attempts, "the other to hold nothing")
    since = network.now()
    doomed.freeze_tree()

    # when such a job is offered to the frozen one, which dies without having said that it is ready
    job = network.hold(recovery="never", **ONE_CORE)
    offered = network.entry("job.assigned", job=job)
    assert offered.node == doomed.id
    doomed.kill_tree()
    network.entry("node.suspect", node=doomed.id, after=since)

    # then the job moves to the other as soon as there is room, and runs there, once
    network.finish(blocker)
    view = network.finish(job)
    assert (view.verdict, view.attempts_made) == ("succeeded", 2)
    assert view.node == network.nodes["bee"].id
    revoked = view.attempts[0].revoked
    assert revoked is not None and revoked.code == "node_lost"
    assert [entry.attempt for entry in network.journal("attempt.go", job=job)] == [view.attempts[1].id]
    assert network.output(job) == PRINTED


@pytest.mark.spec("J7", "J8")
def test_when_its_machine_loses_power_while_it_runs_it_ends_and_is_not_repeated(network: FaultNetwork) -> None:
    # given such a job, running
    job = network.hold(recovery="never")
    node = network.node_running(job)

    # when its machine dies under it
    node.kill_tree()

    # then the job ends by name, unpaid, although another node has room
    view = network.client().jobs.wait(job, timeout_s=READY_S, check=False)
    assert view.verdict == "failed" and view.failure is not None
    assert (view.failure.code, view.failure.billable, view.attempts_made) == ("lease_lost", False, 1)
    assert len(network.journal("attempt.running", job=job)) == 1

    # and a machine that comes back does not start it either
    back = network.start_again(node)
    network.wait_node(back.name)
    network.wait_clean(back)
    assert network.client().jobs.get(job).attempts_made == 1
