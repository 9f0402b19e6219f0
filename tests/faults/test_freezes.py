"""Freezes under the settings as shipped (preset `lan`): an orchestrator that stood still blames nobody, a node that
stands still is found in time."""

import time

import pytest
from fault_network import PRINTED, FaultNetwork, Fleet, lives, program_of

from holdfast.testing.processes import READY_S, wait_for

pytestmark = pytest.mark.timeout(300)

FROZEN_S = 30.0
FOUND_MS_MAX = 6_000


@pytest.fixture(scope="module")
def machines(fleet: Fleet) -> FaultNetwork:
    return fleet("ant", "bee", preset="lan")


@pytest.fixture
def network(machines: FaultNetwork) -> FaultNetwork:
    machines.settle()
    return machines


@pytest.mark.serial
@pytest.mark.spec("H2", "H4", "J5")
def test_a_node_frozen_under_work_is_found_within_six_seconds(network: FaultNetwork) -> None:
    # given running work
    job = network.hold()
    node = network.node_running(job)
    since = network.now()
    body = program_of(node)

    # when the whole machine stands still
    stopped_ms = time.time_ns() // 1_000_000
    node.freeze_tree()

    # then it is suspected within six seconds, with its cause on record, and another node ends the job
    suspected = network.entry("node.suspect", node=node.id, after=since)
    assert 0 < suspected.at_ms - stopped_ms < FOUND_MS_MAX
    assert "silent for" in suspected.text
    second = network.successor(job, node)
    network.let_go(job, second)
    view = network.client().jobs.wait(job, timeout_s=READY_S)
    assert (view.verdict, view.attempts_made, view.node) == ("succeeded", 2, second.id)

    # and when it goes on, it gives up what it still has
    node.thaw_tree()
    wait_for(lambda: not lives(body), "the frozen body to be ended")
    network.wait_clean(node)
    assert len(network.journal("job.accepted", job=job)) == 1


@pytest.mark.xdist_group("faults-frozen")
@pytest.mark.spec("J14", "H2", "H4")
def test_an_orchestrator_frozen_for_half_a_minute_suspects_nobody(network: FaultNetwork) -> None:
    # given running work on both nodes
    before = network.now()
    jobs = [network.hold_on(node) for node in network.nodes.values()]
    bodies = [program_of(node) for node in network.nodes.values()]
    since = network.now()

    # when the orchestrator stands still for 30 s and then goes on
    network.up.freeze()
    frozen = time.monotonic()
    wait_for(lambda: time.monotonic() - frozen >= FROZEN_S, "the freeze to be over", FROZEN_S + 1, every_s=0.5)
    network.up.thaw()

    # then it charges the time to itself
    def charged() -> bool:
        entries = network.journal("orchestrator.late", after=since)
        return any(int(entry.text.split()[0]) >= (FROZEN_S - 1) * 1000 for entry in entries)

    wait_for(charged, "the half minute to be on record")
    # and all work ends where it was, on its first attempt, with no node suspected and nothing taken over
    assert all(lives(body) for body in bodies)
    for job in jobs:
        view = network.finish(job)
        assert (view.verdict, view.attempts_made) == ("succeeded", 1)
        assert network.output(job) == PRINTED
    assert network.journal("node.suspect", "job.takeover", "node.lost", after=before) == []
