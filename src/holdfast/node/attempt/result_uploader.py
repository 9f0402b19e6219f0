"""Uploads what bodies produce: their result files at the end, and captures of their checkpoint folders (SPEC J6, J10).
Uploads are complete; the orchestrator decides whether they count.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path

from holdfast.blobs import BlobCache, BlobIndex, Ignore, ManifestLimits, Scan, scan
from holdfast.blobs.errors import BlobError, BlobMissing, FolderChanged
from holdfast.model import Failure, FailureCode
from holdfast.model.messages import Progress
from holdfast.node.attempt.preparation import INPUTS, errno_name, recall_package
from holdfast.node.attempt.transfer import ContentTransfer
from holdfast.node.core.events import DeliveredFiles
from holdfast.node.core.verdicts import spawn_failure
from holdfast.node.node_files_client import AttemptAccess, NodeFilesClient, NodeFilesRefused
from holdfast.node.runtimes import child, scratch
from holdfast.passing import patiently, raise_if_passing, unless_passing
from holdfast.tasks import until_passed

STASH = child.STASH
"""What a capture read, on the job's own disk: the body may overwrite it before it is sent."""
UNSTEADY_S = 0.5
"""Delay before a folder that was being written to is scanned again."""

log = logging.getLogger("holdfast.node")


class Undelivered(Exception):
    """The files of a body cannot be delivered, now or later."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class ResultUploader:
    """Uploads the files of one attempt."""

    def __init__(
        self, at: AttemptAccess, folder: Path, disk_mib: int, carrier: ContentTransfer, door: NodeFilesClient
    ) -> None:
        self._at = at
        self._folder = folder
        self._limits = ManifestLimits.of_disk(max(1, disk_mib) << 20)
        self._carrier = carrier
        self._door = door
        self._index = BlobIndex()
        self._kept = ""
        """The last checkpoint that was stored."""
        self._there: frozenset[str] = frozenset()
        """The blobs of that checkpoint: the network has them."""
        self._capturing = asyncio.Lock()

    # --- result files ---

    async def deliver(self, told: Callable[[Progress], None]) -> DeliveredFiles:
        """Send what is new or different in `work/`. Raises Undelivered if that is hopeless."""
        work = self._folder / "work"
        try:
            found = await asyncio.to_thread(self._made, work)
            if not found.manifest.entries:
                return DeliveredFiles()

            def files_told(done: int, total: int) -> None:
                told(Progress("files", done, total))

            carried = await until_passed(lambda: self._carrier.send(self._at, work, found, told=files_told))
        except NodeFilesRefused as wrong:
            raise Undelivered(Failure(FailureCode.DATA, f"the files were refused: {wrong.says}")) from None
        except BlobError as wrong:
            code = FailureCode.NETWORK if wrong.passing else FailureCode.DATA
            raise Undelivered(Failure(code, f"the files could not be delivered: {wrong.says}")) from None
        except OSError as wrong:
            # If the disk is unreadable, this job loses its result, but the agent must not fail.
            failure = spawn_failure(errno_name(wrong), f"the files could not be read: {wrong.strerror}")
            raise Undelivered(failure) from None
        return DeliveredFiles(carried.manifest, carried.files, carried.bytes)

    def _made(self, work: Path) -> Scan:
        package, index = recall_package(self._folder)
        # Inputs come from elsewhere, and interpreter caches are not results.
        ignore = Ignore([f"/{INPUTS}/", "__pycache__/", ".cache/"])
        return scan(work, ignore=ignore, index=index, base=package, limits=self._limits)

    # --- checkpoints ---

    async def capture_every(self, period_ms: int) -> None:
        """Capture periodically until cancelled, or until captures of this attempt no longer count."""
        while True:
            await asyncio.sleep(period_ms / 1000)
            if not await self.capture():
                return

    async def capture(self) -> bool:
        """Capture the checkpoint folder now, unless it is unchanged. Returns False if captures no longer count."""
        async with self._capturing:
            folder = self._folder / "checkpoint"
            try:
                found = await self._still(folder)
                name = await asyncio.to_thread(lambda: found.manifest.name)
                if name == self._kept or not found.manifest.entries:
                    return True
                stash = BlobCache(self._folder / STASH, self._limits.total_bytes)
                self._there = frozenset()  # if this fails, the next capture stashes everything
                carried = await self._carrier.send(self._at, folder, found, stash)
                await self._door.save(self._at, carried.manifest)
                self._kept, self._index = carried.manifest, found.index
                self._there = frozenset(blob.sha for blob in found.manifest.blobs)
                log.info(
                    "%s: a checkpoint of %s bytes is kept (%s sent)", self._at.attempt, carried.bytes, carried.moved
                )
            except NodeFilesRefused as wrong:
                log.info("%s: no checkpoint: %s", self._at.attempt, wrong.says)
                return wrong.code not in ("revoked", "not_found", "not_live")
            except (FolderChanged, BlobMissing) as wrong:
                log.info("%s: the checkpoint folder keeps changing: %s", self._at.attempt, wrong.says)
            except (BlobError, OSError) as wrong:
                log.warning("%s: the checkpoint could not be kept: %s", self._at.attempt, wrong)
            finally:
                await asyncio.to_thread(_empty, self._folder / STASH)
            return True

    async def _still(self, folder: Path) -> Scan:
        """Scan a consistent state of the folder: no file is half-written or open for writing."""
        if await asyncio.to_thread(_open_for_writing, folder):
            await asyncio.sleep(UNSTEADY_S)
        if busy := await asyncio.to_thread(_open_for_writing, folder):
            raise FolderChanged(f"{busy} is being written to")
        stash = await asyncio.to_thread(self._new_stash)
        found = await asyncio.to_thread(
            scan, folder, index=self._index, steady=True, stash=stash, limits=self._limits, ignore=_UNFINISHED
        )
        if busy := await asyncio.to_thread(_open_for_writing, folder):
            raise FolderChanged(f"{busy} is being written to")
        return found

    def _new_stash(self) -> "_Aside":
        place = self._folder / STASH
        kept = BlobCache(place, self._limits.total_bytes)
        if scratch.is_own(str(self._folder), STASH):
            disk = patiently(os.statvfs, place)
            free = disk.f_bavail * disk.f_frsize
        else:
            folders = [str(self._folder / name) for name in ("work", "checkpoint", child.BUILD)]
            free = self._limits.total_bytes - (scratch.measured_mib(*folders) << 20)
        return _Aside(kept, self._there, max(0, free) // STASH_SHARE)


STASH_SHARE = 2
"""A capture takes at most one part in this many of what is free on the job's disk."""


class _Aside:
    """Stashes what a capture reads, except blobs that the network has: a large state with few changes is read again and
    again, but only its new parts will be sent.

    The job pays for it with its own disk. What does not fit is not stashed but read again from the folder when it is
    sent; if the body has changed it by then, the capture is given up and the next one tries again."""

    def __init__(self, kept: BlobCache, there: Collection[str], bytes_max: int) -> None:
        self._kept = kept
        self._there = there
        self._room = bytes_max

    def put(self, sha: str, data: bytes | bytearray | memoryview) -> None:
        if sha in self._there or len(data) > self._room:
            return
        self._room -= len(data)
        self._kept.put(sha, data)


def _empty(stash: Path) -> None:
    """The folder itself is a mount point and stays."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(stash):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


_UNFINISHED = Ignore(["*.tmp", "*.part", "*.partial", ".*.new"])
"""Names that mark a file as incomplete."""


def _open_for_writing(folder: Path) -> str:
    """A file below the folder that some process has open for writing; empty: none. Sees only processes of this machine,
    and only those that the kernel shows to this user."""
    try:
        device = patiently(os.stat, folder).st_dev
        whole = [entry for entry in _files(folder) if not _UNFINISHED.leaves_out(entry.name, folder=False)]
        inodes = {patiently(entry.stat, follow_symlinks=False).st_ino: entry.name for entry in whole}
    except OSError as wrong:
        raise_if_passing(wrong)
        return ""
    for name in patiently(os.listdir, "/proc"):
        if not name.isdigit():
            continue
        with unless_passing():  # a process or a file of it is gone, or not ours to see
            for fd in patiently(os.listdir, f"/proc/{name}/fd"):
                with unless_passing():
                    status = patiently(os.stat, f"/proc/{name}/fd/{fd}")
                    if status.st_dev == device and status.st_ino in inodes and _writes(name, fd):
                        return inodes[status.st_ino]
    return ""


def _files(folder: Path) -> "list[os.DirEntry[str]]":
    found: list[os.DirEntry[str]] = []
    pending = [str(folder)]
    while pending:
        with patiently(os.scandir, pending.pop()) as entries:
            for entry in entries:
                if patiently(entry.is_dir, follow_symlinks=False):
                    pending.append(entry.path)
                elif patiently(entry.is_file, follow_symlinks=False):
                    found.append(entry)
    return found


def _writes(pid: str, fd: str) -> bool:
    flags = [line for line in patiently(_text, f"/proc/{pid}/fdinfo/{fd}").splitlines() if line.startswith("flags:")]
    return any(int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY for line in flags)


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()
