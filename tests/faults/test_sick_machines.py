"""A machine whose disk fails says so, keeps no work, and nobody's job is blamed for it."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_network import FaultNetwork

from holdfast.node.hardware import measure_load, read_disk
from holdfast.node.health import DISK_FREE_MIB_MIN
from holdfast.testing.processes import wait_for


class Disk:
    """An ext4 of its own in a file, mounted by a loop device."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def fail(self) -> None:
        """The file system finds an error in itself, and takes no more writes: what a dying disk looks like."""
        device = Path(self._source()).name
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("a test")

    def _source(self) -> str:
        words = ["findmnt", "-no", "SOURCE", str(self.place)]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def disk(place: Path, size_mib: int = 512, *words: str) -> Iterator[Disk]:
    image = place.with_suffix(".img")
    place.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(size_mib << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", *words, str(image)], check=True)
    subprocess.run(["mount", "-o", "loop,errors=remount-ro", str(image), str(place)], check=True)
    try:
        yield Disk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        image.unlink()


@pytest.mark.spec("H1")
def test_a_disk_is_read_as_it_is(tmp_path: Path) -> None:
    # Given a good disk, then nothing is said
    with disk(tmp_path / "good") as good:
        assert measure_load(good.place).sick == ""
        # When little room is left, then that is said, and no longer when there is room again
        filler = good.place / "filler"
        free = read_disk(good.place).free_mib
        subprocess.run(["fallocate", "-l", f"{free - DISK_FREE_MIB_MIN + 8}MiB", str(filler)], check=True)
        assert "MiB left" in measure_load(good.place).sick
        filler.unlink()
        assert measure_load(good.place).sick == ""
        # When it takes no more writes, then that is said
        good.fail()
        assert measure_load(good.place).sick == "the node's disk became read-only"
    # Given one with room but without names for files
    with disk(tmp_path / "crowded", 256, "-N", "200") as crowded:
        assert "more files" in measure_load(crowded.place).sick


@pytest.mark.spec("H1", "H3", "J5")
def test_a_node_whose_disk_fails_loses_its_work_and_says_why(tmp_path: Path) -> None:
    with disk(tmp_path / "node-ant") as broken, FaultNetwork(tmp_path) as network:
        # Given a job on a node, and another node
        network.start_orchestrator()
        ant = network.start_node("ant")
        job = network.hold(key="standing")
        assert network.node_running(job) is ant
        bee = network.start_node("bee")

        # When its disk takes no more writes
        broken.fail()

        # Then it calls itself sick, by name, and the job runs on the other one
        client = network.client()
        wait_for(lambda: "read-only" in client.nodes.get(ant.id).cause, lambda: client.nodes.get(ant.id).cause)
        wait_for(lambda: network.node_running(job) is bee, "the job to run elsewhere", timeout_s=60)
        assert client.jobs.get(job).failure is None
        # And its own operator sees it
        shown = network.cli("node", "status", "--home", str(ant.home), "--json")
        assert "read-only" in json.loads(shown.stdout)["health"]["sick"]
        assert "became read-only" in network.cli("node", "status", "--home", str(ant.home)).stdout
