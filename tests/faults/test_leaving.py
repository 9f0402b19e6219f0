"""Going away in good order, and being away for a while: drained nodes, nodes told to end, an absent orchestrator."""

import json
import signal

import pytest
from fault_network import PRINTED, FaultNetwork, Fleet, lives, program_of

from holdfast.testing.processes import READY_S, wait_for

pytestmark = pytest.mark.xdist_group("faults-leaving")

GRACE_MS = 5_000
"""Enough to finish within for whoever is let go at once, however busy the machine is."""


@pytest.fixture(scope="module")
def machines(fleet: Fleet) -> FaultNetwork:
    return fleet("ant", "bee", drain_ms=GRACE_MS)


@pytest.fixture
def network(machines: FaultNetwork) -> FaultNetwork:
    machines.settle()
    return machines


@pytest.mark.spec("N7", "J5")
def test_a_drained_node_may_finish_within_the_grace(network: FaultNetwork) -> None:
    # given a job on a node
    job = network.hold()
    node = network.node_running(job)

    # when the operator drains the node and the job ends soon after
    network.client().nodes.drain(node.id)
    view = network.finish(job)

    # then it ended there, on its first attempt, and the node takes nothing new until it is taken back
    assert (view.verdict, view.attempts_made, view.node) == ("succeeded", 1, node.id)
    elsewhere = network.hold()
    assert network.node_running(elsewhere) is network.other(node)
    network.finish(elsewhere)
    network.cli("node", "drain", "--off", node.id, check=0)
    assert network.node_running(network.hold_on(node)) is node


@pytest.mark.spec("N7", "J5", "J7")
def test_a_drained_node_loses_what_does_not_finish_within_the_grace(network: FaultNetwork) -> None:
    # given a job on a node, and nobody lets it go
    job = network.hold()
    first = network.node_running(job)
    body = program_of(first)

    # when the node is drained
    network.client().nodes.drain(first.id)

    # then after the grace the job moves, by nobody's fault, and the node is left with nothing
    second = network.successor(job, first)
    view = network.finish(job)
    revoked = view.attempts[0].revoked
    assert revoked is not None
    assert (revoked.code, revoked.blame, revoked.billable) == ("drained", "platform", False)
    assert (view.verdict, view.attempts_made, view.node) == ("succeeded", 2, second.id)
    network.wait_clean(first)
    assert not lives(body)


@pytest.mark.spec("N7", "J5")
def test_a_node_told_to_end_moves_its_work_and_says_goodbye(network: FaultNetwork) -> None:
    # given a job on a node that gives its work a second to finish
    network.start_node("cow", flags=["--grace", "1s"])
    node = network.nodes["cow"]
    job = network.hold_on(node)
    body = program_of(node)

    # when the node is told to end (SIGTERM)
    node.signal(signal.SIGTERM)

    # then it ends in good order, its work goes on elsewhere, and it is no longer part of the network
    assert node.process.wait(READY_S) == 0
    view = network.finish(job)
    assert view.verdict == "succeeded" and view.node != node.id
    assert not lives(body) and not node.bodies() and not node.shims()
    network.wait_node("cow", state="gone")
    assert network.journal("node.suspect", node=node.id) == []
    assert "Traceback" not in node.output()
    del network.nodes["cow"]


@pytest.mark.spec("J5", "J14", "N9")
def test_work_goes_on_without_an_orchestrator_and_its_result_counts_on_return(network: FaultNetwork) -> None:
    # given a job that runs
    job = network.hold()
    node = network.node_running(job)
    network.wait_output(job)
    folder = network.folders(job, node)[0]
    before = network.now()

    # when the orchestrator is killed, and the job ends while nobody leads
    network.up.kill()
    network.let_go(job)

    def over() -> bool:
        return json.loads((folder / "status.json").read_text())["phase"] == "ended"

    wait_for(over, "the body to end by itself")
    wait_for(lambda: "no session with" in node.output(), "the node to notice")
    assert node.running()

    # then its result is accepted when the orchestrator is back: the only attempt, to the last letter
    network.start_orchestrator()
    view = network.client().jobs.wait(job, timeout_s=READY_S)
    assert (view.verdict, view.attempts_made, view.node) == ("succeeded", 1, node.id)
    assert network.output(job) == PRINTED
    assert network.journal("node.suspect", "job.takeover", after=before) == []
    network.wait_clean(node)
