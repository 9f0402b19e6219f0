"""What a capture of a checkpoint folder sets aside: a large state of which little changed must cost little."""

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.blobs import CHUNK_BYTES, BlobCache, Scan
from holdfast.blobs.errors import BlobMissing
from holdfast.node.attempt import attempt_folders
from holdfast.node.attempt.result_uploader import STASH, ResultUploader
from holdfast.node.attempt.transfer import TransferredFolder
from holdfast.node.core.order import Order
from holdfast.node.node_files_client import AttemptAccess
from holdfast.node.runtimes import scratch
from holdfast.node.runtimes.runtime import runtime_named

CHUNKS = 6


class Network:
    """Takes whatever is sent, and notes what was set aside for it; or has lost something."""

    def __init__(self) -> None:
        self.aside: list[int] = []
        self.broken = False

    async def send(self, at: AttemptAccess, folder: Path, scanned: Scan, stash: BlobCache) -> TransferredFolder:
        self.aside.append(sum(blob.sha in stash for blob in scanned.manifest.blobs))
        if self.broken:
            raise BlobMissing("something is gone")
        return TransferredFolder(scanned.manifest.name, 1, scanned.manifest.total_bytes, 0)

    async def save(self, at: AttemptAccess, manifest: str) -> None:
        pass


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The one file of a checkpoint, of several pieces."""
    (tmp_path / "checkpoint").mkdir()
    path = tmp_path / "checkpoint" / "state"
    path.write_bytes(os.urandom(CHUNKS * CHUNK_BYTES))
    return path


def change_a_piece(state: Path) -> None:
    with state.open("r+b") as file:
        file.seek(CHUNK_BYTES)
        file.write(os.urandom(100))


@pytest.mark.spec("J6")
def test_only_what_the_network_has_not_is_set_aside(tmp_path: Path, state: Path, network: Network) -> None:
    """Given a checkpoint that was captured, when one piece of it changes, then the next capture sets that one aside."""

    async def story() -> None:
        keeper = ResultUploader(AttemptAccess("att_a.1", 1), tmp_path, 128, network, network)  # type: ignore[arg-type]
        await keeper.capture()
        change_a_piece(state)
        await keeper.capture()

    asyncio.run(story())
    assert network.aside == [CHUNKS, 1]


@pytest.mark.spec("J6")
def test_after_a_failure_everything_is_set_aside_again(tmp_path: Path, state: Path, network: Network) -> None:
    """Given a capture that failed because the network had lost something, when the next is taken, then it relies on
    nothing that was there before: the body may overwrite it at any moment."""

    async def story() -> None:
        keeper = ResultUploader(AttemptAccess("att_a.1", 1), tmp_path, 128, network, network)  # type: ignore[arg-type]
        await keeper.capture()
        network.broken = True
        change_a_piece(state)
        await keeper.capture()
        network.broken = False
        change_a_piece(state)
        await keeper.capture()

    asyncio.run(story())
    assert network.aside == [CHUNKS, 1, CHUNKS]


@pytest.mark.spec("J7", "N13")
def test_a_capture_is_on_the_jobs_own_disk_and_leaves_half_of_what_is_free(tmp_path: Path, network: Network) -> None:
    # given an attempt with a disk, of which its checkpoint takes a part
    attempt = tmp_path / "att_a.1"
    attempt.mkdir()
    disk_mib = 12 * CHUNK_BYTES >> 20
    order = Order("att_a.1", 1, "job_a", ("true",), 1, 1, 0, 0, resources={"disk_mib": disk_mib}, checkpoint=True)
    try:
        runtime_named("bubblewrap").prepare(order, str(attempt))
        (attempt / "checkpoint" / "state").write_bytes(os.urandom(CHUNKS * CHUNK_BYTES))
        free = os.statvfs(attempt / "checkpoint")
        # when it is captured
        keeper = ResultUploader(AttemptAccess("att_a.1", 1), attempt, disk_mib, network, network)  # type: ignore[arg-type]
        asyncio.run(keeper.capture())
        # then what was set aside is within the job's disk, and takes at most half of what the job had left
        if not scratch.hindrance():
            assert (attempt / STASH).stat().st_dev == (attempt / "checkpoint").stat().st_dev != attempt.stat().st_dev
        (aside,) = network.aside
        assert 0 < aside * CHUNK_BYTES <= free.f_bavail * free.f_frsize // 2
        # and afterwards it is all the job's again
        assert os.listdir(attempt / STASH) == []
    finally:
        attempt_folders.clean(attempt)
