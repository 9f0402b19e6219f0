"""`holdfast move`: a job goes to the machine that a person names, or they are told at once why not."""

import json
from collections.abc import Iterator

import pytest

from holdfast.testing.processes import LocalNetwork, wait_for

pytestmark = pytest.mark.xdist_group("cli-move")

SMALL = {"cpu_milli": 100, "memory_mib": 32, "disk_mib": 16}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("move")) as network:
        network.start_orchestrator(preset="lan")
        for name in ("ant", "bee"):
            network.start_node(name, flags=["--cpu", "1"], wait=False)
        for name in ("ant", "bee"):
            network.wait_node(name)
        yield network


@pytest.mark.spec("J12", "A1")
def test_a_person_moves_a_running_job_and_waits_until_it_runs_there(network: LocalNetwork) -> None:
    # given a job that runs
    client = network.client()
    job = client.jobs.submit(["sleep", "600"], **SMALL).id
    first = network.node_running(job)
    second = next(node for node in network.nodes.values() if node is not first)

    # when it is moved by name
    moved = network.cli("move", job, "--to", second.name, "--wait", "--json")

    # then it runs there, and `job show` says so
    view = json.loads(moved.stdout)
    assert (moved.returncode, view["move"]) == (0, {"to": second.id, "state": "done", "says": ""}), moved.stderr
    assert network.node_running(job) is second
    shown = network.cli("job", "show", job)
    assert f"to {second.id}, done" in shown.stdout

    # and asking for where it is says that it is there; for nowhere, that there is no such place
    again = network.cli("move", job, "--to", second.id)
    assert (again.returncode, again.stdout.strip()) == (0, f"{job} is on {second.id}")
    assert network.orchestrator is not None
    url, token = network.orchestrator.url, str(network.home / "orchestrator" / "admin.token")
    nowhere = network.cli("move", job, "--to", "cow", "--url", url, "--token-file", token)
    assert nowhere.returncode == 66 and "there is no node 'cow'" in nowhere.stderr
    many = network.cli("move", "arr_00000000000000", "--to", second.id)
    assert many.returncode == 2 and "an array of jobs" in many.stderr
    client.jobs.stop(job)


@pytest.mark.spec("J12", "H6")
def test_a_waiting_job_waits_for_the_chosen_machine_and_a_full_one_is_refused(network: LocalNetwork) -> None:
    # given two full machines and a job that waits
    client = network.client()
    whole = {**SMALL, "cpu_milli": 1000}
    running = [client.jobs.submit(["sleep", "600"], **whole).id for _ in range(2)]
    places = [network.node_running(job) for job in running]
    waiting = client.jobs.submit(["sleep", "600"], **whole).id

    # when a running one is moved to the other's machine, it is refused with what is missing
    full = network.cli("move", running[0], "--to", places[1].id)
    assert full.returncode == 65 and "no_room" in full.stderr and "cpu: 0 free of 1000 wanted" in full.stderr

    # and when the waiting one is moved, it waits for that machine alone
    chosen = network.cli("move", waiting, "--to", places[1].id)
    assert chosen.stdout.strip() == f"{waiting} waits for room on {places[1].id}"
    client.jobs.stop(running[0])
    wait_for(lambda: not client.nodes.get(places[0].id).attempts, "the other machine to be idle")
    explained = network.cli("job", "explain", waiting)
    assert places[1].id in explained.stdout and "the machine it was moved to" in explained.stdout

    # until there is room
    client.jobs.stop(running[1])
    assert network.node_running(waiting) is places[1]
    client.jobs.stop(waiting)
