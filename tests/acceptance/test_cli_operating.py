"""`holdfast node status|pause|resume|offer`: the operator of a machine decides what it hosts, and sees it."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from holdfast.node.operator.operator_socket import ask
from holdfast.testing.processes import LocalNetwork

pytestmark = pytest.mark.xdist_group("cli-operating")

SMALL = {"cpu_milli": 100, "memory_mib": 32, "disk_mib": 16}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("operating")) as network:
        network.start_orchestrator(preset="lan")
        network.start_node("ant", flags=["--engine", "none", "--no-network", "--private-inputs"])
        yield network


@pytest.mark.spec("N8", "N10")
def test_an_operator_pauses_a_node_and_its_work_moves_then_takes_work_again(network: LocalNetwork) -> None:
    # given a job on the only node, and a second node to move to
    client = network.client()
    ant = network.nodes["ant"]
    job = client.jobs.submit(["sleep", "600"], **SMALL).id
    assert network.node_running(job) is ant
    bee = network.start_node("bee")

    # when the node's operator looks, and pauses it
    shown = network.cli("node", "status", "--home", str(ant.home))
    assert shown.returncode == 0 and job.removeprefix("job_") in shown.stdout and "running" in shown.stdout
    paused = network.cli("node", "pause", "--grace", "0s", "--home", str(ant.home), "--json")
    assert json.loads(paused.stdout)["paused"] is True

    # then the job runs on the other one, and the pause outlives the agent
    network.wait_for(lambda: network.node_running(job) is bee, "the job to move")
    ant.terminate()
    network.wait_node("ant", state="gone")
    network.start_node("ant", flags=["--engine", "none"], wait=False)
    network.wait_for(lambda: client.nodes.get(ant.id).connected, "it to be back")
    network.wait_for(lambda: client.nodes.get(ant.id).draining, "the pause to be told again")

    # until it is resumed
    assert "taking work" in network.cli("node", "resume", "--home", str(ant.home)).stdout
    network.wait_for(lambda: not client.nodes.get(ant.id).draining, "it to take work again")
    assert json.loads(network.cli("node", "resume", "--home", str(ant.home), "--json").stdout)["paused"] is False
    client.jobs.stop(job)


@pytest.mark.spec("N10")
def test_an_operator_offers_less_and_what_no_longer_fits_moves(network: LocalNetwork) -> None:
    client = network.client()
    ant = network.nodes["ant"]
    offered = network.cli(
        "node", "offer", "--cpu", "1", "--memory", "64MiB", "--disk", "64MiB", "--gpus", "0", "--home", str(ant.home),
        "--json",
    )  # fmt: skip
    assert json.loads(offered.stdout)["offered"] == {"cpu_milli": 1000, "memory_mib": 64, "disk_mib": 64, "gpus": 0}
    network.wait_for(lambda: client.nodes.get(ant.id).free["memory_mib"] <= 64, "the network to know")
    nothing = network.cli("node", "offer", "--home", str(ant.home))
    assert nothing.returncode == 2 and "Give --cpu" in nothing.stderr


@pytest.mark.spec("N7", "N8", "N10", "J14")
def test_a_drain_outlives_restarts_and_pauses_and_the_machine_says_who_drained_it(network: LocalNetwork) -> None:
    # given a node that the network's operator drained
    client = network.client()
    cat = network.start_node("cat", flags=["--engine", "none"])

    def both_know(what: str, drained: bool = True) -> None:
        network.wait_for(lambda: client.nodes.get(cat.id).connected, f"it to be connected {what}")
        assert client.nodes.get(cat.id).drained is drained, what
        network.wait_for(lambda: ask(cat.home, {"ask": "status"})["drained"] is drained, f"the node to know {what}")
        assert ask(cat.home, {"ask": "status"})["trouble"] == ""

    def paused(yes: bool) -> None:
        network.wait_for(lambda: ("paused" in client.nodes.get(cat.id).draining_because) is yes, "the owner's wish")

    client.nodes.drain("cat")
    both_know("when it is drained")
    shown = network.cli("node", "status", "--home", str(cat.home), check=0).stdout
    assert "drained by the network's operator" in shown

    # when the node leaves in good order and comes back, then it is still drained, and knows
    cat.terminate()
    network.wait_node("cat", state="gone")
    cat = network.start_node("cat", flags=["--engine", "none"], wait=False)
    both_know("after its restart")

    # when the orchestrator is killed and comes back
    network.restart_orchestrator()
    both_know("after the orchestrator's")

    # when its owner pauses it and resumes it: they are told, too
    ask(cat.home, {"do": "pause", "grace_ms": 0})
    paused(True)
    back = network.cli("node", "resume", "--home", str(cat.home), check=0).stdout
    assert "the network's operator drained it" in back
    paused(False)
    both_know("after a pause")

    # until the network's operator takes it back, and no sooner than its owner does
    ask(cat.home, {"do": "pause", "grace_ms": 0})
    paused(True)
    told = network.cli("node", "drain", "cat", "--off", check=0).stdout
    assert "gets no work yet: paused by its own operator" in told
    both_know("when it is taken back", drained=False)
    assert client.nodes.get(cat.id).draining
    ask(cat.home, {"do": "resume"})
    network.wait_for(lambda: not client.nodes.get(cat.id).draining, "it to take work again")
    cat.terminate()


@pytest.mark.spec("N8")
def test_asking_where_no_node_runs_says_so(network: LocalNetwork, tmp_path: Path) -> None:
    done = network.cli("node", "status", "--home", str(tmp_path), "--json")
    assert done.returncode == 69 and "no node runs" in done.stderr and "Traceback" not in done.stderr


def _hour(ahead: int) -> str:
    """A window of an hour, so many hours from now: by the clock of this machine, which is the node's."""
    start = datetime.now() + timedelta(hours=ahead)
    return f"{start:%H:%M}-{start + timedelta(hours=1):%H:%M}"


@pytest.mark.spec("N10")
def test_a_node_offers_itself_in_its_hours_and_its_work_is_moved_outside_of_them(network: LocalNetwork) -> None:
    # given a job on a node that was started with hours in which we are
    client = network.client()
    others = [node for node in network.nodes.values() if node.running()]
    for other in others:
        network.cli("node", "pause", "--home", str(other.home))
        network.wait_for(lambda o=other: client.nodes.get(o.id).draining, "the network to know that it is paused")
    within = f"{datetime.now():%H:%M}-{datetime.now() + timedelta(hours=6):%H:%M}"
    flags = ["--engine", "none", "--grace", "0s"]
    owl = network.start_node("owl", flags=[*flags, "--hours", "Mon-Sun 00:00-00:01", "--hours", within])
    assert not client.nodes.get(owl.id).draining
    shown = network.cli("node", "status", "--home", str(owl.home))
    assert "within its hours, until" in shown.stdout
    job = client.jobs.submit(["sleep", "600"], **SMALL).id
    network.wait_for(lambda: network.node_running(job) is owl, "the job to run there")
    for other in others:
        network.cli("node", "resume", "--home", str(other.home))

    # when its operator sets others, then its work moves, it takes nothing new and says until when
    told = network.cli("node", "offer", "--hours", _hour(3), "--hours", _hour(5), "--home", str(owl.home))
    assert told.returncode == 0 and "outside its hours, back at" in told.stdout
    network.wait_for(lambda: client.nodes.get(owl.id).draining, "it to drain")
    network.wait_for(lambda: network.node_running(job) in others, "the job to run elsewhere")
    assert "outside its hours, back at" in network.cli("node", "show", owl.id).stdout
    client.jobs.stop(job)
    found = json.loads(network.cli("node", "status", "--home", str(owl.home), "--json").stdout)
    assert found["paused"] and not found["paused_by_operator"] and not found["hours"]["within"]
    assert "outside its hours" in network.cli("node", "resume", "--home", str(owl.home)).stdout
    assert client.nodes.get(owl.id).draining

    # until they begin, or it has none any more; and what nobody can mean changes nothing
    wrong = network.cli("node", "offer", "--hours", "late", "--home", str(owl.home))
    assert wrong.returncode == 2 and "is not a window" in wrong.stderr and "Traceback" not in wrong.stderr
    network.cli("node", "offer", "--hours", "always", "--home", str(owl.home))
    network.wait_for(lambda: not client.nodes.get(owl.id).draining, "it to take work again")
