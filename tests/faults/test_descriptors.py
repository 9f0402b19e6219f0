"""A process of the network may open no more files for a while. Jobs end well, with all of their files and output, and
nobody is struck or blamed for it."""

import contextlib
import hashlib
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_network import SMALL, FaultNetwork, Fleet

from holdfast.testing.processes import NodeProcesses

pytestmark = pytest.mark.xdist_group("faults-files")

WHILE_S = 2.0
ROOMY = {**SMALL, "disk_mib": 64}
PRINTS = "cat given; seq 1 20000; head -c 300000 /dev/zero > made; echo aside >&2"
JOBS = 6


@pytest.fixture(scope="module")
def network(fleet: Fleet) -> FaultNetwork:
    return fleet("ant", "bee")


@contextlib.contextmanager
def without_descriptors(*pids: int) -> Iterator[None]:
    """These processes may not open anything; what they have open stays open."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids}
    try:
        for pid, (_, hard) in before.items():
            lowest = min(set(range(4096)) - {int(name) for name in os.listdir(f"/proc/{pid}/fd")})
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, hard))
        yield
    finally:
        for pid, limits in before.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def agents(network: FaultNetwork) -> list[int]:
    """The agents and their launchers: what starts jobs and carries their files."""
    nodes = [node for node in network.nodes.values() if isinstance(node, NodeProcesses)]
    return [pid for node in nodes for pid in (node.pid, *(child.pid for child in node.descendants()))]


def jobs_end_well(network: FaultNetwork, starved: list[int], tmp_path: Path) -> None:
    client, before = network.client(), network.now()
    folder = tmp_path / "sent"
    folder.mkdir()
    (folder / "given").write_text("given\n" * 1000)
    package = client.content.send(folder).manifest
    # given jobs that run, end and begin while a process may open nothing
    jobs = [client.jobs.submit(["sh", "-c", PRINTS], package=package, **ROOMY) for _ in range(JOBS)]
    with without_descriptors(*starved):
        threading.Event().wait(WHILE_S)
    # then each of them ends once and well, with all that it made and printed
    printed = "given\n" * 1000 + "".join(f"{n}\n" for n in range(1, 20001))
    for job in jobs:
        view = job.wait(timeout_s=120, check=False)
        assert view.verdict == "succeeded", f"{view.failure}; {[a.failure for a in view.attempts]}"
        assert len(network.journal("job.accepted", job=job.id)) == 1
        client.jobs.results(job.id, to=tmp_path / job.id)
        made = (tmp_path / job.id / "made").read_bytes()
        assert hashlib.sha256(made).digest() == hashlib.sha256(bytes(300_000)).digest()
        lines = [line for line in client.jobs.logs(job.id) if line.attempt == view.accepted]
        streams = {s: "".join(line.text for line in lines if line.stream == s) for s in ("stdout", "stderr")}
        assert streams == {"stdout": printed, "stderr": "aside\n"}
    # and nobody is struck or blamed
    assert network.journal("node.strike", "node.quarantined", after=before) == []
    blamed = [a.failure for job in jobs for a in client.jobs.get(job.id).attempts if a.failure]
    assert [failure for failure in blamed if failure.blame == "user"] == []
    assert client.doctor().ok


@pytest.mark.spec("N5", "J4", "J10", "H3")
def test_agents_that_may_open_no_more_files_for_a_while(network: FaultNetwork, tmp_path: Path) -> None:
    jobs_end_well(network, agents(network), tmp_path)


@pytest.mark.spec("N5", "J4", "J10", "H3")
def test_an_orchestrator_that_may_open_no_more_files_for_a_while(network: FaultNetwork, tmp_path: Path) -> None:
    jobs_end_well(network, [network.up.pid], tmp_path)
