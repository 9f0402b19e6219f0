"""A body that gets nowhere is flagged, and where the job may be repeated another attempt finishes it."""

from collections.abc import Iterator

import pytest
from fault_network import HELD, SMALL, FaultNetwork
from warm import SETTINGS

from holdfast.testing.processes import READY_S, wait_for
from holdfast.wire.http import JobView

pytestmark = pytest.mark.xdist_group("faults-stragglers")

FIRST_STALLS = ["sh", "-c", 'case "$HOLDFAST_ATTEMPT" in *.1) exec sleep 600;; esac; echo done']
"""The first attempt hangs, whatever its machine; any other prints and ends."""
IDLE = ["sh", "-c", "echo begun; exec sleep 600"]
EAGER = {SETTINGS: '{"stall_ms": 3000, "slow_ms_min": 4000, "slow_peers_min": 2}'}
"""So that a test need not wait for the minutes of a real network."""


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultNetwork]:
    with FaultNetwork(tmp_path_factory.mktemp("stragglers")) as network:
        network.start_orchestrator(env=EAGER)
        for name in ("ant", "bee"):
            network.start_node(name, wait=False)
        for name in ("ant", "bee"):
            network.wait_node(name)
        yield network


@pytest.fixture
def network(machines: FaultNetwork) -> FaultNetwork:
    machines.settle()
    return machines


def two_attempts(network: FaultNetwork, job: str) -> JobView:
    """The job once a second attempt of it was made."""
    view = wait_for(lambda: (v := network.client().jobs.get(job)).attempts_made == 2 and v, f"two attempts of {job}")
    assert isinstance(view, JobView)
    return view


@pytest.mark.spec("J9", "J5")
def test_a_stalled_body_is_flagged_and_the_job_finishes_on_another_node(network: FaultNetwork) -> None:
    # given a job whose first attempt hangs
    client = network.client()
    job = client.jobs.submit(FIRST_STALLS, **SMALL).id
    first = network.node_running(job)

    # when it has neither printed nor computed for a while
    flagged = network.entry("attempt.straggling", job=job)
    assert flagged.text.startswith("straggling: no progress") and flagged.node == first.id

    # then another attempt on the other node brings the only result, and the first is told to go
    view = client.jobs.wait(job, timeout_s=READY_S)
    assert (view.verdict, view.attempts_made, view.node) == ("succeeded", 2, network.other(first).id)
    assert view.accepted == view.attempts[1].id and view.attempts[1].purpose == "second"
    assert view.attempts[0].revoked is not None and view.attempts[0].revoked.code == "superseded"
    assert network.output(job) == "done\n"
    network.wait_clean(first)

    # and nobody is to blame, and whoever reads the log was told
    assert network.journal("node.strike", node=first.id) == []
    told = [line.text for line in client.jobs.logs(job) if line.stream == "platform"]
    assert any(text.startswith("straggling: no progress") for text in told)


@pytest.mark.spec("J9", "J14")
def test_a_flag_and_its_second_attempt_outlive_the_orchestrator(network: FaultNetwork) -> None:
    # given a job that stands still on one node while a second attempt of it stands still on the other
    client = network.client()
    job = client.jobs.submit(IDLE, **SMALL).id
    before = two_attempts(network, job)
    assert before.attempts[0].straggling and "straggling" in client.jobs.explain(job).attempts[0]

    # when the orchestrator is killed and comes back
    network.up.kill()
    network.restart_orchestrator(env=EAGER)
    network.wait_node("ant")
    network.wait_node("bee")

    # then the flag still stands, and however still both stand, there is no third attempt
    wait_for(lambda: client.jobs.get(job).attempts[1].straggling, "the second to be flagged as well")
    view = client.jobs.get(job)
    assert view.attempts[0].straggling and view.attempts_made == 2
    client.jobs.stop(job)


@pytest.mark.spec("J9", "J8")
def test_what_must_not_run_twice_is_flagged_and_left_alone(network: FaultNetwork) -> None:
    # given a body that waits, of a job that must not repeat, and one beside it that may
    client = network.client()
    job = client.jobs.submit(IDLE, recovery="never", **SMALL).id
    network.entry("attempt.straggling", job=job)
    other = client.jobs.submit(IDLE, **SMALL).id

    # when the other has long got its second attempt
    two_attempts(network, other)

    # then this one still has its first, and it runs on
    view = client.jobs.get(job)
    assert (view.phase, view.attempts_made) == ("running", 1) and view.attempts[0].straggling
    assert "must not run twice" in client.jobs.explain(job).attempts[0]
    client.jobs.stop(job)
    client.jobs.stop(other)


@pytest.mark.spec("J9")
def test_a_body_far_slower_than_its_peers_is_flagged(network: FaultNetwork) -> None:
    # given two jobs of one name that were over at once
    client = network.client()
    for _ in range(2):
        client.jobs.run(["true"], name="sum", timeout_s=READY_S, **SMALL)

    # when a third of that name runs on and on, busily
    slow = client.jobs.submit(HELD, name="sum", **SMALL).id

    # then it is flagged for that, and the first of the two attempts to end wins
    assert "like it took" in network.entry("attempt.straggling", job=slow).text
    two_attempts(network, slow)
    assert network.finish(slow).verdict == "succeeded"
