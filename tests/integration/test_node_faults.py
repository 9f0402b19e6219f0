"""A node's own disk and sockets that fail it in the wrong moment: the attempt gets a named end, and nobody waits."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.blobs import scanning
from holdfast.model import FailureCode
from holdfast.node.attempt import attempt_folders as folders
from holdfast.node.attempt.result_uploader import ResultUploader, Undelivered
from holdfast.node.attempt.shim_client import ShimClient
from holdfast.node.core.attempt_lifecycle import EndKind, Phase
from holdfast.node.core.events import ShimStatus
from holdfast.node.node_files_client import AttemptAccess
from holdfast.testing.attempts import PATIENCE_S, Attempts
from holdfast.testing.processes import wait_for


@pytest.mark.spec("J7", "H6")
def test_a_shim_that_cannot_be_dialled_is_heard_from_its_file(attempts: Attempts) -> None:
    # given an attempt whose shim can make no socket
    attempt = attempts.prepare("true", orphan_ms_max=3_600_000)
    (attempt.home / "control.sock").mkdir()
    attempt.spawn()
    said: list[ShimStatus] = []
    died: list[str] = []

    async def heard() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await ShimClient("att_0a.1", attempt.home, said.append, died.append).run(fresh=True)

    # then how it ended is known long before it gives up waiting for somebody, and nothing of it stays
    asyncio.run(heard())
    assert died == []
    (last,) = said
    assert last.phase is Phase.ENDED and last.outcome is not None
    assert (last.outcome.kind, last.outcome.code) == (EndKind.FAULT, "runtime_fault")
    wait_for(lambda: not attempt.shim_lives(), "the shim to end")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """With an attempt on it, whose shim was not started, and no room for another byte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "none", str(disk)], check=True)
    home = disk / "att"
    home.mkdir()
    (home / "order.json").write_text("{}")
    with pytest.raises(OSError, match="No space"):
        (disk / "filler").write_bytes(bytes(1 << 20))
    yield home
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.spec("J5", "H6")
def test_the_place_of_a_shim_can_be_taken_on_a_full_disk(full_disk: Path) -> None:
    assert folders.claim(full_disk)
    assert folders.is_claimed(full_disk) and folders.read_identity(full_disk) is None
    # and by one alone
    assert not folders.claim(full_disk)


@pytest.mark.spec("J7", "H6")
@pytest.mark.parametrize(
    ("number", "code"), [(errno.EIO, FailureCode.RUNTIME_FAULT), (errno.ENOSPC, FailureCode.NODE_DISK_FULL)]
)
def test_files_that_the_disk_does_not_give_back_cost_the_result_and_not_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: FailureCode
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "made").write_text("something")

    def broken(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(scanning, "read_exactly", broken)
    nobody: Any = None
    keeper = ResultUploader(AttemptAccess("att_a.1", 1), tmp_path, 64, nobody, nobody)
    with pytest.raises(Undelivered) as found:
        asyncio.run(keeper.deliver(lambda progress: None))
    assert found.value.failure.code is code
    assert os.strerror(number) in found.value.failure.detail
