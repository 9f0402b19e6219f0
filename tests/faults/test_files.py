"""What a job was given and what it made survives machines: nothing half, nothing false, nothing lost."""

import hashlib
from pathlib import Path

import pytest
from fault_network import SMALL, FaultNetwork, Fleet

from holdfast.errors import HoldfastError
from holdfast.testing.processes import wait_for

pytestmark = pytest.mark.xdist_group("faults-files")

ROOMY = {**SMALL, "disk_mib": 256}
MAKE = "cat given.txt > made.txt; seq 1 200000 > many.txt; mkdir -p deep/er; head -c 40000000 /dev/zero > deep/er/big"


@pytest.fixture(scope="module")
def machines(fleet: Fleet) -> FaultNetwork:
    return fleet("ant", "bee")


@pytest.fixture
def network(machines: FaultNetwork) -> FaultNetwork:
    machines.settle()
    return machines


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "given.txt").write_text("given\n")
    return folder


def fetched(network: FaultNetwork, manifest: str, into: Path) -> dict[str, str]:
    network.client().content.fetch(manifest, into)
    files = [path for path in into.rglob("*") if path.is_file()]
    return {str(path.relative_to(into)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.spec("J1", "J10", "J11")
def test_a_folder_goes_up_and_what_is_new_or_different_comes_back(
    network: FaultNetwork, package: Path, tmp_path: Path
) -> None:
    # given a folder that the network has
    client = network.client()
    sent = client.content.send(package)
    assert client.content.send(package).moved == 0, "nothing goes up twice"

    # when a job runs in it, changes one file and makes others
    job = client.jobs.run(["sh", "-c", MAKE + "; echo more >> given.txt"], package=sent.manifest, **ROOMY, timeout_s=60)

    # then exactly these come back, whole
    assert job.files is not None
    files = fetched(network, job.files.manifest, tmp_path / "results")
    assert set(files) == {"given.txt", "made.txt", "many.txt", "deep/er/big"}
    assert (tmp_path / "results" / "given.txt").read_text() == "given\nmore\n"
    assert files["deep/er/big"] == hashlib.sha256(bytes(40_000_000)).hexdigest()


@pytest.mark.spec("J5", "J10")
def test_a_node_killed_while_it_delivers_costs_nothing_but_time(
    network: FaultNetwork, package: Path, tmp_path: Path
) -> None:
    # given a job that has ended and whose files are on their way
    client = network.client()
    sent = client.content.send(package)
    job = client.jobs.submit(["sh", "-c", MAKE], package=sent.manifest, **ROOMY).id
    first = network.node_running(job)
    wait_for(lambda: client.jobs.get(job).phase in ("uploading", "ended"), "its body to end")

    # when everything of its node is killed
    first.kill_tree()

    # then the job ends with one result, and all of it is there
    view = client.jobs.wait(job, timeout_s=60)
    assert view.verdict == "succeeded" and view.files is not None
    assert len(network.journal("job.accepted", job=job)) == 1
    assert set(fetched(network, view.files.manifest, tmp_path / "results")) == {"made.txt", "many.txt", "deep/er/big"}


@pytest.mark.spec("J14", "J10")
def test_an_orchestrator_killed_while_files_arrive_loses_none(
    network: FaultNetwork, package: Path, tmp_path: Path
) -> None:
    # given files on their way
    client = network.client()
    sent = client.content.send(package)
    job = client.jobs.submit(["sh", "-c", MAKE], package=sent.manifest, **ROOMY).id
    wait_for(lambda: client.jobs.get(job).phase in ("uploading", "ended"), "its body to end")

    # when the orchestrator is killed and comes back
    network.up.kill()
    network.start_orchestrator()

    # then the same attempt delivers them, and nothing had to run again
    view = network.client().jobs.wait(job, timeout_s=60)
    assert (view.verdict, view.attempts_made) == ("succeeded", 1), view.attempts
    assert view.files is not None
    assert set(fetched(network, view.files.manifest, tmp_path / "results")) == {"made.txt", "many.txt", "deep/er/big"}


@pytest.mark.spec("J7", "J1")
def test_a_package_that_nobody_sent_is_refused_and_one_that_does_not_fit_is_the_users(
    network: FaultNetwork, tmp_path: Path
) -> None:
    client = network.client()
    with pytest.raises(HoldfastError, match="no folder was sent"):
        client.jobs.submit(["true"], package="0" * 64, **SMALL)
    big = tmp_path / "big"
    big.mkdir()
    (big / "large").write_bytes(bytes(range(256)) * 4096 * 40)
    sent = client.content.send(big)
    view = client.jobs.run(["true"], package=sent.manifest, **SMALL, check=False, timeout_s=60)
    assert view.failure is not None
    assert (view.failure.code, view.failure.blame) == ("disk_quota", "user")


@pytest.mark.spec("N13", "J7")
def test_an_address_inside_the_nodes_own_network_is_not_fetched(network: FaultNetwork) -> None:
    inputs = [{"name": "secret", "url": network.client().url + "/healthz"}]
    view = network.client().jobs.run(["true"], inputs=inputs, **SMALL, check=False, timeout_s=60)
    assert view.failure is not None
    assert view.failure.code == "data" and "own network" in view.failure.detail


@pytest.mark.spec("J10")
def test_files_are_kept_until_they_are_acknowledged(network: FaultNetwork, tmp_path: Path) -> None:
    client = network.client()
    job = client.jobs.run(["sh", "-c", "echo made > made"], **SMALL, timeout_s=60)
    assert job.files is not None and not job.files.received
    after = client.jobs.received(job.id)
    assert after.files is not None and after.files.received
    assert set(fetched(network, after.files.manifest, tmp_path / "again")) == {"made"}, "and a while longer"
