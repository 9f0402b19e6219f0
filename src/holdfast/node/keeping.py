"""Keeps what bodies make: delivers their files at the end, and captures their checkpoint folders on the way (SPEC J6,
J10). What is delivered is whole; whether it counts is the orchestrator's to say.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from holdfast.blobs import BlobCache, Ignore, Index, Limits, Scan, scan
from holdfast.blobs.errors import BlobError, BlobMissing, FolderChanged
from holdfast.model import Failure, FailureCode
from holdfast.model.messages import Progress
from holdfast.node.carrying import Carrier
from holdfast.node.core.stimuli import Files
from holdfast.node.core.verdicts import spawn_failure
from holdfast.node.door import DataDoor, DoorRefused, Held
from holdfast.node.preparing import INPUTS, errno_name, recall_package

STASH = "checkpoint.stash"
"""What a capture read, set aside beside the folder: the body may overwrite it before it is sent."""
STASH_BYTES_MAX = 1 << 40
UNSTEADY_S = 0.5
"""Before a folder is looked at again that was being written to."""

log = logging.getLogger("holdfast.node")


class Undelivered(Exception):
    """What a body made cannot be delivered, now or later."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class Keeper:
    """Of one attempt."""

    def __init__(self, at: Held, folder: Path, disk_mib: int, carrier: Carrier, door: DataDoor) -> None:
        self._at = at
        self._folder = folder
        self._limits = Limits(total_bytes=max(1, disk_mib) << 20)
        self._carrier = carrier
        self._door = door
        self._index = Index()
        self._kept = ""
        """The last checkpoint that was delivered."""
        self._there: frozenset[str] = frozenset()
        """The blobs of that one: the network has them."""
        self._capturing = asyncio.Lock()

    # --- files ---

    async def deliver(self, told: Callable[[Progress], None]) -> Files:
        """Send what is new or different in `work/`. Undelivered where that makes no sense."""
        work = self._folder / "work"
        try:
            found = await asyncio.to_thread(self._made, work)
            if not found.manifest.entries:
                return Files()
            carried = await self._carrier.send(
                self._at, work, found, told=lambda done, total: told(Progress("files", done, total))
            )
        except DoorRefused as wrong:
            raise Undelivered(Failure(FailureCode.DATA, f"the files were not taken: {wrong.says}")) from None
        except BlobError as wrong:
            code = FailureCode.NETWORK if wrong.passing else FailureCode.DATA
            raise Undelivered(Failure(code, f"the files could not be delivered: {wrong.says}")) from None
        except OSError as wrong:
            # A disk that cannot be read any more costs this job its result, and not the node its agent.
            failure = spawn_failure(errno_name(wrong), f"the files could not be read: {wrong.strerror}")
            raise Undelivered(failure) from None
        return Files(carried.manifest, carried.files, carried.bytes)

    def _made(self, work: Path) -> Scan:
        package, index = recall_package(self._folder)
        # Inputs came from elsewhere, and caches of the interpreter are nobody's result.
        ignore = Ignore([f"/{INPUTS}/", "__pycache__/", ".cache/"])
        return scan(work, ignore=ignore, index=index, base=package, limits=self._limits)

    # --- checkpoints ---

    async def capture_every(self, period_ms: int) -> None:
        """Until cancelled, or until nothing this attempt saves can count any more."""
        while True:
            await asyncio.sleep(period_ms / 1000)
            if not await self.capture():
                return

    async def capture(self) -> bool:
        """Capture the checkpoint folder as it stands now, unless it is as it was. False: nothing it saves counts."""
        async with self._capturing:
            folder = self._folder / "checkpoint"
            try:
                found = await self._still(folder)
                name = await asyncio.to_thread(lambda: found.manifest.name)
                if name == self._kept or not found.manifest.entries:
                    return True
                stash = BlobCache(self._folder / STASH, STASH_BYTES_MAX)
                self._there = frozenset()  # should this fail, the next one sets everything aside
                carried = await self._carrier.send(self._at, folder, found, stash)
                await self._door.save(self._at, carried.manifest)
                self._kept, self._index = carried.manifest, found.index
                self._there = frozenset(blob.sha for blob in found.manifest.blobs)
                log.info(
                    "%s: a checkpoint of %s bytes is kept (%s sent)", self._at.attempt, carried.bytes, carried.moved
                )
            except DoorRefused as wrong:
                log.info("%s: no checkpoint: %s", self._at.attempt, wrong.says)
                return wrong.code not in ("revoked", "not_found", "not_live")
            except (FolderChanged, BlobMissing) as wrong:
                log.info("%s: the checkpoint folder does not stand still: %s", self._at.attempt, wrong.says)
            except (BlobError, OSError) as wrong:
                log.warning("%s: the checkpoint could not be kept: %s", self._at.attempt, wrong)
            finally:
                await asyncio.to_thread(shutil.rmtree, self._folder / STASH, True)
            return True

    async def _still(self, folder: Path) -> Scan:
        """All files of one moment, none of them half-written: nobody has one open for writing."""
        if await asyncio.to_thread(_open_for_writing, folder):
            await asyncio.sleep(UNSTEADY_S)
        if busy := await asyncio.to_thread(_open_for_writing, folder):
            raise FolderChanged(f"{busy} is being written to")
        stash = _Aside(BlobCache(self._folder / STASH, STASH_BYTES_MAX), self._there)
        found = await asyncio.to_thread(
            scan, folder, index=self._index, steady=True, stash=stash, limits=self._limits, ignore=_UNFINISHED
        )
        if busy := await asyncio.to_thread(_open_for_writing, folder):
            raise FolderChanged(f"{busy} is being written to")
        return found


class _Aside:
    """Keeps what a capture reads, except what the network has already: a large state of which little changed is read
    again and again, but only what is new in it will be sent."""

    def __init__(self, kept: BlobCache, there: Collection[str]) -> None:
        self._kept = kept
        self._there = there

    def put(self, sha: str, data: bytes | bytearray | memoryview) -> None:
        if sha not in self._there:
            self._kept.put(sha, data)


_UNFINISHED = Ignore(["*.tmp", "*.part", "*.partial", ".*.new"])
"""Names that say of themselves that they are not whole yet."""


def _open_for_writing(folder: Path) -> str:
    """A file below the folder that some process has open for writing; empty: none. Only processes of this machine are
    seen, and only as far as the kernel lets this user look."""
    try:
        device = os.stat(folder).st_dev
        whole = [entry for entry in _files(folder) if not _UNFINISHED.leaves_out(entry.name, folder=False)]
        inodes = {entry.stat(follow_symlinks=False).st_ino: entry.name for entry in whole}
    except OSError:
        return ""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{name}/fd/{fd}")
                    if status.st_dev == device and status.st_ino in inodes and _writes(name, fd):
                        return inodes[status.st_ino]
    return ""


def _files(folder: Path) -> "list[os.DirEntry[str]]":
    found: list[os.DirEntry[str]] = []
    pending = [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    found.append(entry)
    return found


def _writes(pid: str, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}") as file:
        for line in file:
            if line.startswith("flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
