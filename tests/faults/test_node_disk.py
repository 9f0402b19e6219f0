"""A job within its limits writes as much as it can on a machine with a small disk: the machine stays well, and what it
has no room for it refuses (SPEC N4, N5)."""

import os
from pathlib import Path
from typing import Any

import pytest
from fault_network import PRINTED, FaultNetwork, small_disk

from holdfast.blobs import BlobIndex, Manifest
from holdfast.blobs.errors import DiskFull
from holdfast.blobs.manifest import EmptyFolder
from holdfast.node.attempt.preparation import recall_package, remember_package
from holdfast.node.health import DISK_FREE_MIB_MIN
from holdfast.node.runtimes import child, scratch
from holdfast.testing.processes import READY_S, wait_for

GREEDY = """
while [ ! -e release ]; do
  head -c 5000000 /dev/urandom > "$HOLDFAST_CHECKPOINT_DIR/.state.new"
  mv "$HOLDFAST_CHECKPOINT_DIR/.state.new" "$HOLDFAST_CHECKPOINT_DIR/state"
  head -c 9000000 /dev/zero; head -c 9000000 /dev/zero >&2
  cat /dev/zero > fill
  rm -f fill
done
"""
DISK_MIB = 24
LARGE: dict[str, Any] = {"cpu_milli": 100, "memory_mib": 32, "disk_mib": DISK_MIB}


@pytest.mark.spec("N4", "N5", "H3", "J6", "J7", "A12")
def test_a_job_that_writes_as_much_as_it_may_harms_neither_its_node_nor_its_neighbour(tmp_path: Path) -> None:
    with small_disk(tmp_path / "node-ant", 192) as disk, FaultNetwork(tmp_path) as network:
        # given a job on a node with a small disk
        network.start_orchestrator()
        node = network.start_node("ant")
        client = network.client()
        neighbour = network.hold()
        network.node_running(neighbour)
        since = network.now()

        # when another one fills its disk, its checkpoints and its output as fast as it can
        greedy = client.jobs.submit(["sh", "-c", GREEDY], checkpoint_ms=1000, **LARGE).id
        network.node_running(greedy)
        (folder,) = network.folders(greedy)
        third = client.jobs.submit(["true"], **LARGE).id
        least = [_free_mib(disk)]

        def written() -> bool:
            least.append(_free_mib(disk))
            printed = [(folder / f"{stream}.log").stat().st_size for stream in ("stdout", "stderr")]
            assert max(printed) <= DISK_MIB << 19
            full = all(size > (DISK_MIB << 19) - 1024 for size in printed)
            return full and len(network.journal("job.saved", job=greedy)) >= 2

        wait_for(written, "it to have printed all it may, and saved twice")

        # then the machine keeps what it needs itself, and refuses what it has no room for, without a strike
        refused = network.entry("attempt.failed", job=third)
        assert "of the node's disk" in refused.text, refused
        least.append(_free_mib(disk))
        assert min(least) > DISK_FREE_MIB_MIN

        # and every job ends for its own reason: when the first one has ended, there is room for the third
        view = network.finish(greedy)
        reason = view.failure.code if view.failure else view.verdict
        assert reason in ("succeeded", "disk_quota")
        assert client.jobs.wait(third, timeout_s=READY_S).verdict == "succeeded"
        view = network.finish(neighbour)
        assert (view.verdict, view.attempts_made) == ("succeeded", 1)
        assert network.output(neighbour) == PRINTED
        assert not network.journal("node.strike", "node.quarantined", "node.suspect", after=since)
        assert client.nodes.get(node.id).state == "ready"
        network.wait_clean(node)


@pytest.mark.spec("N4", "J7")
def test_a_list_of_files_that_does_not_fit_is_the_jobs_fault(tmp_path: Path) -> None:
    # given a job with a disk of 1 MiB, and a package of empty folders whose list is larger
    entries = [EmptyFolder(f"{number:0200}") for number in range(20_000)]
    folder = tmp_path / "attempt"
    folder.mkdir()
    scratch.make(str(folder), ("work", child.LISTS), 1, 0)
    try:
        # when the list is stored, then the job's disk is full, and not the machine's
        with pytest.raises(DiskFull):
            remember_package(folder, Manifest.of(entries), BlobIndex())
        assert recall_package(folder)[0] is None
    finally:
        scratch.detach(str(folder))


def _free_mib(disk: Path) -> int:
    state = os.statvfs(disk)
    return state.f_bavail * state.f_frsize >> 20
