"""kill -9 of every process that a node is made of: what the person who sent the job sees of it is one right answer."""

import signal

import pytest
from fault_network import PRINTED, QUICK, FaultNetwork, Fleet, lives, program_of

from holdfast.testing.processes import READY_S, wait_for

pytestmark = pytest.mark.xdist_group("faults-kills")

LARGE = {"memory_mib": 600}
"""More than any node but `big` offers."""


@pytest.fixture(scope="module")
def machines(fleet: Fleet) -> FaultNetwork:
    network = fleet(**QUICK)
    for name, memory in (("ant", "512MiB"), ("bee", "512MiB"), ("big", "1GiB")):
        network.start_node(name, flags=["--memory", memory], wait=False)
    return network


@pytest.fixture
def network(machines: FaultNetwork) -> FaultNetwork:
    machines.settle()
    return machines


@pytest.mark.spec("J5", "H2", "N9")
def test_a_killed_agent_loses_the_job_to_another_node_and_its_body_is_swept_when_it_returns(
    network: FaultNetwork,
) -> None:
    # given a job that runs
    job = network.hold()
    first = network.node_running(job)
    body = program_of(first)
    since = network.now()

    # when the agent is killed: the shim and the body live on, but nobody can speak for them
    first.kill_agent()
    network.entry("node.suspect", node=first.id, after=since)
    assert lives(body)

    # then another node takes over at once and ends the job
    second = network.successor(job, first)
    network.let_go(job, second)
    view = network.client().jobs.wait(job, timeout_s=READY_S)
    assert (view.verdict, view.attempts_made) == ("succeeded", 2)

    # and when the agent is back, what survived is reported, not wanted, and swept
    back = network.start_again(first)
    wait_for(lambda: not lives(body), "the old body to be ended")
    network.wait_clean(back)
    assert len(network.journal("job.accepted", job=job)) == 1
    assert "att_" + job[4:] + ".1 is no longer wanted: superseded" in back.output()


@pytest.mark.spec("J5", "J14", "N9")
def test_a_killed_and_restarted_agent_finds_its_job_running_and_the_orchestrator_adopts_it(
    network: FaultNetwork,
) -> None:
    # given a job that only one node can hold, with some of its output printed
    job = network.hold(**LARGE)
    node = network.node_running(job)
    body = program_of(node)
    network.wait_output(job)

    # when its agent is killed, found missing, and started again
    node.kill_agent()
    lost = network.entry("node.suspect", node=node.id, job=None, after=network.journal(job=job)[0].seq)
    back = network.start_again(node)
    network.entry("node.probation", node=node.id, after=lost.seq)

    # then the very same process goes on, under the very same attempt
    assert program_of(back) == body and lives(body)
    view = network.finish(job)
    assert (view.verdict, view.attempts_made, len(view.attempts)) == ("succeeded", 1, 1)
    assert network.output(job) == PRINTED
    network.wait_clean(back)


@pytest.mark.spec("J5", "J7", "J8")
def test_a_killed_shim_is_a_fault_of_the_machine_and_the_job_is_tried_elsewhere(network: FaultNetwork) -> None:
    # given a job that runs
    job = network.hold()
    first = network.node_running(job)
    body = program_of(first)

    # when the shim beside it is killed
    first.kill_shims()

    # then the body goes with it, the attempt failed by the machinery, and another node ends the job
    failed = network.entry("attempt.failed", job=job)
    assert failed.text.startswith("runtime_fault")
    assert not lives(body)
    view = network.finish(job)
    assert (view.verdict, view.attempts_made) == ("succeeded", 2)
    assert view.node != first.id
    failure = view.attempts[0].failure
    assert failure is not None
    assert (failure.code, failure.blame, failure.billable) == ("runtime_fault", "provider", False)
    network.wait_clean(first)
    assert first.running()


@pytest.mark.spec("J7")
def test_a_killed_body_is_the_users_own_end_and_is_not_repeated(network: FaultNetwork) -> None:
    # given a job that has begun: to run, and to print
    job = network.hold(attempts_max=1)
    node = network.node_running(job)
    network.wait_output(job)

    # when its own process dies of SIGKILL, as if it had done that to itself
    program_of(node).send_signal(signal.SIGKILL)

    # then it failed with that signal, by the user's doing, on its only attempt, and what it had printed is kept
    view = network.client().jobs.wait(job, timeout_s=READY_S, check=False)
    assert view.verdict == "failed" and view.failure is not None
    assert (view.failure.code, view.failure.signal, view.failure.blame) == ("exit_code", 9, "user")
    assert (view.failure.retryable, view.attempts_made) == (False, 1)
    assert network.output(job) == "begun\n"
    network.wait_clean(node)


@pytest.mark.spec("J5", "J8", "N9")
def test_a_machine_that_loses_its_power_costs_nothing_and_the_result_is_the_same(network: FaultNetwork) -> None:
    # given the result of an undisturbed run
    undisturbed = network.finish(network.hold())

    # when the same job runs and every process of its node is killed at once
    job = network.hold()
    first = network.node_running(job)
    network.wait_output(job)
    first.kill_tree()

    # then another node takes over, and the result is the same to the bit
    view = network.finish(job)
    assert (view.verdict, view.attempts_made) == ("succeeded", 2)
    assert (view.result_sha256, view.result_bytes) == (undisturbed.result_sha256, undisturbed.result_bytes)
    assert len(network.journal("job.takeover", job=job)) == 1

    # and when the machine has power again, it clears away what it finds on its disk
    back = network.start_again(first)
    network.wait_node(back.name)
    network.wait_clean(back)
    assert len(network.journal("job.accepted", job=job)) == 1


@pytest.mark.spec("J5", "H2", "N9")
def test_a_frozen_machine_that_wakes_after_the_takeover_is_told_why_it_lost(network: FaultNetwork) -> None:
    # given a job that runs
    job = network.hold()
    zombie = network.node_running(job)
    body = program_of(zombie)

    # when its whole machine freezes and another one takes over and ends the job
    zombie.freeze_tree()
    takeover = network.entry("job.takeover", job=job)
    assert "silent for" in takeover.text
    second = network.successor(job, zombie)
    network.let_go(job, second)
    winner = network.client().jobs.wait(job, timeout_s=READY_S)

    # and it wakes with its own body about to end
    (network.folders(job, zombie)[0] / "work" / "release").touch()
    zombie.thaw_tree()

    # then there is still one accepted result, the zombie was told why, and nothing of it is left
    network.wait_clean(zombie)
    assert not lives(body)
    after = network.client().jobs.get(job)
    assert (after.verdict, after.node, after.result_sha256) == ("succeeded", second.id, winner.result_sha256)
    assert len(network.journal("job.accepted", job=job)) == 1
    revoked = network.journal("attempt.revoked", job=job)
    assert [entry.attempt for entry in revoked] == [winner.attempts[0].id]
    assert f"{winner.attempts[1].id} delivered the result that counts" in revoked[0].text
    assert f"{winner.attempts[0].id} is no longer wanted: {revoked[0].text}" in zombie.output()
    network.wait_node(zombie.name)
