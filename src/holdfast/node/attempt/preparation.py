"""Prepares an attempt: its folder, its files, its checkpoint, and its environment (SPEC J1, J6). Then the body may
start. Decides nothing except the blame when something is unavailable.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from holdfast.blobs import BlobIndex, Manifest
from holdfast.blobs.beneath import Beneath, NotAFile
from holdfast.blobs.errors import BlobError, BlobMissing, DiskFull, InTheWay, ManifestRefused, Mismatch
from holdfast.durable import durable_write
from holdfast.model import Failure, FailureCode, Input
from holdfast.model.messages import Progress
from holdfast.node.attempt import web_inputs
from holdfast.node.attempt.disk_room import MIB, DiskRoom, footprint_bytes, reserve_output
from holdfast.node.attempt.requirements_file import TEXT_BYTES_MAX
from holdfast.node.attempt.transfer import ContentTransfer
from holdfast.node.attempt.venvs import VenvFailed, Venvs
from holdfast.node.core.events import AttemptInputs
from holdfast.node.core.order import Order
from holdfast.node.core.verdicts import spawn_failure
from holdfast.node.images.image_cache import Images
from holdfast.node.images.image_names import NoImage
from holdfast.node.node_files_client import AttemptAccess, NodeFilesRefused
from holdfast.node.runtimes import child, scratch
from holdfast.node.runtimes.runtime import runtime_named
from holdfast.passing import patiently, raise_if_passing
from holdfast.tasks import in_own_thread, until_passed

PACKAGE_FILE = "package.manifest"
INDEX_FILE = "package.index"
"""What was put into `work/`, stored on the same disk: the difference at the end is the job's result."""
ROOM_S_MAX = 2.0
"""How long an attempt waits for the space of others that have ended and are being removed."""
ROOM_S = 0.1
INPUTS = "inputs"
LOST_CODES = ("blob_damaged", "blob_missing", "not_found")
"""Codes with which the orchestrator says that it does not have what it told this node to fetch."""
FETCH_S_MAX = 12 * 60.0
"""Per URL. Below the orchestrator's limit for preparation, so that the reason reaches the owner."""

PreparationProgress = Callable[[Progress], None]


class Unprepared(Exception):
    """It cannot be prepared here; `failure` has the reason and the blame."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class Preparer:
    def __init__(
        self,
        carrier: ContentTransfer,
        venvs: Venvs,
        room: DiskRoom,
        images: Images | None = None,
        *,
        private_inputs: bool = False,
    ) -> None:
        """`images`: None if there is no container engine. `private_inputs`: jobs may name addresses inside the node's
        own network."""
        self._carrier = carrier
        self._venvs = venvs
        self._room = room
        self._images = images
        self._private = private_inputs

    async def prepare(
        self, folder: Path, order: Order, attempt_inputs: AttemptInputs, told: PreparationProgress
    ) -> Order:
        """Returns the order, completed for the shim. Raises Unprepared if that fails; the folder may then be partly
        filled."""
        order = replace(order, requirements=bool(attempt_inputs.requirements))
        try:
            await self._take_room(order)
            await asyncio.to_thread(patiently, runtime_named(order.runtime).prepare, order, str(folder))
            await asyncio.to_thread(patiently, reserve_output, folder, order.log_bytes_max)
            await until_passed(lambda: self._furnish(folder, order, attempt_inputs, told))
            return await self._surround(folder, order, attempt_inputs, told)
        except Unprepared:
            raise
        except VenvFailed as wrong:
            raise Unprepared(wrong.failure) from None
        except NoImage as wrong:
            raise Unprepared(wrong.failure) from None
        except web_inputs.Unfetched as wrong:
            raise Unprepared(wrong.failure) from None
        except NodeFilesRefused as wrong:
            code = FailureCode.DAMAGED if wrong.code in LOST_CODES else FailureCode.DATA
            raise Unprepared(Failure(code, f"the files could not be fetched: {wrong.says}")) from None
        except BlobError as wrong:
            raise Unprepared(_blamed(wrong, order)) from None
        except OSError as wrong:
            name = errno_name(wrong)
            raise Unprepared(spawn_failure(name, f"its folder could not be created: {wrong.strerror}")) from None

    async def _take_room(self, order: Order) -> None:
        lacking = await asyncio.to_thread(self._room.take, order)
        for _ in range(round(ROOM_S_MAX / ROOM_S)):
            if not lacking:
                return
            await asyncio.sleep(ROOM_S)
            lacking = await asyncio.to_thread(self._room.take, order)
        if lacking:
            asked = f"with its output it may take {footprint_bytes(order) // MIB} MiB of the node's disk"
            raise Unprepared(Failure(FailureCode.REFUSED, f"{asked}, {lacking // MIB + 1} MiB more than it has"))

    def adopt(self, order: Order) -> None:
        """Keep in use what an earlier agent prepared for a running attempt."""
        self._room.adopt(order)
        if self._images is not None and order.image:
            self._images.hold(order.image, order.attempt)

    async def release(self, attempt: str) -> None:
        """Called when nothing of the attempt is left."""
        if self._images is not None:
            await self._images.release(attempt)

    async def close(self) -> None:
        if self._images is not None:
            await self._images.close()

    async def _surround(
        self, folder: Path, order: Order, attempt_inputs: AttemptInputs, told: PreparationProgress
    ) -> Order:
        """Provide what its body runs in: a Python environment, or an image."""
        work = folder / "work"
        if attempt_inputs.requirements:
            told(Progress("build"))
            text = await asyncio.to_thread(_text_in, work, attempt_inputs.requirements)
            return replace(order, venv=str(await in_own_thread(self._venvs.take, order, text)))
        if not attempt_inputs.image and not attempt_inputs.dockerfile:
            return order
        if self._images is None:
            raise Unprepared(Failure(FailureCode.REFUSED, "this node has no container engine"))

        def stage_told(stage: str, done: int, total: int) -> None:
            told(Progress(stage, done, total))

        if attempt_inputs.image:
            image = await self._images.ensure(attempt_inputs.image, order.attempt, stage_told)
        else:
            asked = {**order.resources, "pids": order.limits.get("pids", 0)}
            image = await self._images.build(
                work, order.attempt, attempt_inputs.dockerfile, told=stage_told, asked=asked
            )
        return replace(order, image=image.id)

    async def _furnish(
        self, folder: Path, order: Order, attempt_inputs: AttemptInputs, told: PreparationProgress
    ) -> None:
        at = AttemptAccess(order.attempt, order.fence)
        room = order.resources.get("disk_mib", 0) << 20
        work = folder / "work"
        owner = _owner_of(work)

        def bytes_told(done: int, total: int) -> None:
            told(Progress("data", done, total))

        if attempt_inputs.package:
            manifest, index = await self._carrier.fetch(
                at, attempt_inputs.package, work, bytes_max=room, owner=owner, told=bytes_told
            )
            await asyncio.to_thread(remember_package, folder, manifest, index)
        for item in attempt_inputs.inputs:
            await self._bring(at, item, work, room, owner, bytes_told)
        if attempt_inputs.checkpoint:
            saved = folder / "checkpoint"
            await self._carrier.fetch(
                at, attempt_inputs.checkpoint, saved, bytes_max=room, owner=_owner_of(saved), told=bytes_told
            )

    async def _bring(
        self,
        at: AttemptAccess,
        item: Input,
        work: Path,
        room: int,
        owner: tuple[int, int],
        told: Callable[[int, int], None],
    ) -> None:
        place = work / INPUTS
        if not patiently(place.exists):
            place.mkdir(mode=0o755)
            os.chown(place, *owner)
        target = place / item.name
        if patiently(target.is_symlink) or patiently(place.is_symlink):
            raise Unprepared(Failure(FailureCode.DATA, f"the package has a symbolic link at the input {item.name}"))
        if item.manifest:
            await self._carrier.fetch(at, item.manifest, target, bytes_max=room, owner=owner, told=told)
            return
        in_s3 = item.url.startswith("s3://")
        await web_inputs.fetch(
            item.url,
            target,
            signed=(lambda: self._carrier.input_link(at, item.name)) if in_s3 else None,
            bytes_max=min(item.bytes_max or room, room),
            seconds_max=FETCH_S_MAX,
            sha256=item.sha256,
            private=self._private,
            progress=told,
        )
        os.chown(target, *owner)


def _text_in(work: Path, path: str) -> str:
    """Read a file of the package. The package is untrusted: no link is followed out of it."""
    try:
        with Beneath(work) as tree:
            descriptor = tree.open_file(path)
            with open(descriptor, "rb") as file:
                return patiently(file.read, TEXT_BYTES_MAX + 1).decode()
    except (OSError, NotAFile, UnicodeDecodeError) as wrong:
        raise_if_passing(wrong)
        raise Unprepared(Failure(FailureCode.BUILD, f"the requirements {path} cannot be read: {wrong}")) from None


def remember_package(folder: Path, manifest: Manifest, index: BlobIndex) -> None:
    """Raises DiskFull if the job's disk has no space for it, OSError if the machine's has none."""
    try:
        durable_write(_lists(folder) / PACKAGE_FILE, manifest.to_bytes())
        durable_write(_lists(folder) / INDEX_FILE, index.to_bytes())
    except OSError as wrong:
        if wrong.errno == errno.ENOSPC and scratch.is_own(str(folder), child.LISTS):
            raise DiskFull("the list of its files has no space beside them") from None
        raise


def _lists(folder: Path) -> Path:
    """An attempt that an earlier version prepared has no folder for them."""
    return folder / child.LISTS if (folder / child.LISTS).is_dir() else folder


def recall_package(folder: Path) -> tuple[Manifest | None, BlobIndex]:
    """What was put there before the body started."""
    folder = _lists(folder)
    try:
        manifest = Manifest.from_bytes(patiently((folder / PACKAGE_FILE).read_bytes))
    except (OSError, ManifestRefused) as wrong:
        raise_if_passing(wrong)  # without it, every file of the package would pass for a result
        return None, BlobIndex()
    try:
        return manifest, BlobIndex.from_bytes(patiently((folder / INDEX_FILE).read_bytes))
    except OSError:
        return manifest, BlobIndex()


def errno_name(wrong: OSError) -> str:
    return errno.errorcode.get(wrong.errno or 0, "")


def _owner_of(folder: Path) -> tuple[int, int]:
    status = patiently(folder.stat)
    return status.st_uid, status.st_gid


def _blamed(wrong: BlobError, order: Order) -> Failure:
    """Content that does not fit is the owner's fault. Content that was verified when it was stored, and is lost or does
    not match its hash now, is the network's, as everything else is."""
    match wrong:
        case DiskFull():
            asked = order.resources.get("disk_mib", 0)
            return Failure(FailureCode.DISK_QUOTA, f"the files do not fit into the {asked} MiB asked for: {wrong.says}")
        case ManifestRefused() | Mismatch() | BlobMissing():
            return Failure(FailureCode.DAMAGED, wrong.says)
        case InTheWay():
            return Failure(FailureCode.DATA, wrong.says)
        case _:
            return Failure(FailureCode.NETWORK, wrong.says)
