"""Gets an attempt ready: its folder, its files, what it goes on from, and what it runs in (SPEC J1, J6). Then the body
may start. Decides nothing but whose fault it is when something cannot be had.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from holdfast.blobs import Index, Manifest
from holdfast.blobs.beneath import Beneath, NotAFile
from holdfast.blobs.errors import BlobError, DiskFull, InTheWay, ManifestRefused, Mismatch
from holdfast.model import Failure, FailureCode, Input
from holdfast.model.messages import Progress
from holdfast.node import fetching
from holdfast.node.carrying import Carrier
from holdfast.node.core.stimuli import Luggage
from holdfast.node.core.verdicts import spawn_failure
from holdfast.node.core.warden import Order
from holdfast.node.door import DoorRefused, Held
from holdfast.node.home import write_durably
from holdfast.node.image_names import NoImage
from holdfast.node.images import Images
from holdfast.node.runtimes.runtime import runtime_named
from holdfast.node.venvs import TEXT_BYTES_MAX, VenvFailed, Venvs

PACKAGE_FILE = "package.manifest"
INDEX_FILE = "package.index"
"""What was put into `work/`, beside it: the difference at the end is what the job made."""
INPUTS = "inputs"
FETCH_S_MAX = 12 * 60.0
"""One address. Below the orchestrator's bound for getting ready, so that the reason reaches the owner."""

Told = Callable[[Progress], None]


class Unprepared(Exception):
    """It cannot be made ready here; `failure` says why and whose fault it is."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class Preparer:
    def __init__(
        self, carrier: Carrier, venvs: Venvs, images: Images | None = None, *, private_inputs: bool = False
    ) -> None:
        """`images`: None where there is no container engine. `private_inputs`: jobs may name addresses inside the
        node's own network."""
        self._carrier = carrier
        self._venvs = venvs
        self._images = images
        self._private = private_inputs

    async def prepare(self, folder: Path, order: Order, luggage: Luggage, told: Told) -> Order:
        """The order as it can be carried out now. Unprepared where it cannot be; then the folder may be half full."""
        try:
            await asyncio.to_thread(runtime_named(order.runtime).prepare, order, str(folder))
            await self._furnish(folder, order, luggage, told)
            return await self._surround(folder, order, luggage, told)
        except Unprepared:
            raise
        except VenvFailed as wrong:
            raise Unprepared(wrong.failure) from None
        except NoImage as wrong:
            raise Unprepared(wrong.failure) from None
        except fetching.Unfetched as wrong:
            raise Unprepared(wrong.failure) from None
        except DoorRefused as wrong:
            raise Unprepared(Failure(FailureCode.DATA, f"the files could not be had: {wrong.says}")) from None
        except BlobError as wrong:
            raise Unprepared(_blamed(wrong, order)) from None
        except OSError as wrong:
            name = errno_name(wrong)
            raise Unprepared(spawn_failure(name, f"its folder could not be made: {wrong.strerror}")) from None

    def adopt(self, order: Order) -> None:
        """An attempt that an earlier agent made ready still uses what it was given."""
        if self._images is not None and order.image:
            self._images.hold(order.image, order.attempt)

    async def release(self, attempt: str) -> None:
        """Nothing of the attempt is left."""
        if self._images is not None:
            await self._images.release(attempt)

    async def close(self) -> None:
        if self._images is not None:
            await self._images.close()

    async def _surround(self, folder: Path, order: Order, luggage: Luggage, told: Told) -> Order:
        """What its body runs in: a Python environment, or an image."""
        work = folder / "work"
        if luggage.requirements:
            told(Progress("build"))
            text = await asyncio.to_thread(_text_in, work, luggage.requirements)
            return replace(order, venv=str(await asyncio.to_thread(self._venvs.take, order.attempt, text)))
        if not luggage.image and not luggage.dockerfile:
            return order
        if self._images is None:
            raise Unprepared(Failure(FailureCode.REFUSED, "this node has no container engine"))

        def stage_told(stage: str, done: int, total: int) -> None:
            told(Progress(stage, done, total))

        if luggage.image:
            image = await self._images.ensure(luggage.image, order.attempt, stage_told)
        else:
            image = await self._images.build(work, order.attempt, luggage.dockerfile, told=stage_told)
        return replace(order, image=image.id)

    async def _furnish(self, folder: Path, order: Order, luggage: Luggage, told: Told) -> None:
        at = Held(order.attempt, order.fence)
        room = order.resources.get("disk_mib", 0) << 20
        work = folder / "work"
        owner = _owner_of(work)

        def bytes_told(done: int, total: int) -> None:
            told(Progress("data", done, total))

        if luggage.package:
            manifest, index = await self._carrier.fetch(
                at, luggage.package, work, bytes_max=room, owner=owner, told=bytes_told
            )
            await asyncio.to_thread(remember_package, folder, manifest, index)
        for item in luggage.inputs:
            await self._bring(at, item, work, room, owner, bytes_told)
        if luggage.checkpoint:
            saved = folder / "checkpoint"
            await self._carrier.fetch(
                at, luggage.checkpoint, saved, bytes_max=room, owner=_owner_of(saved), told=bytes_told
            )

    async def _bring(
        self, at: Held, item: Input, work: Path, room: int, owner: tuple[int, int], told: Callable[[int, int], None]
    ) -> None:
        place = work / INPUTS
        if not place.exists():
            place.mkdir(mode=0o755)
            os.chown(place, *owner)
        target = place / item.name
        if target.is_symlink() or place.is_symlink():
            raise Unprepared(Failure(FailureCode.DATA, f"the package has a link where the input {item.name} belongs"))
        if item.manifest:
            await self._carrier.fetch(at, item.manifest, target, bytes_max=room, owner=owner, told=told)
            return
        in_s3 = item.url.startswith("s3://")
        await fetching.fetch(
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
    """A file of the package, which a stranger made: no link is followed out of it."""
    try:
        with Beneath(work) as tree:
            descriptor = tree.open_file(path)
            with open(descriptor, "rb") as file:
                return file.read(TEXT_BYTES_MAX + 1).decode()
    except (OSError, NotAFile, UnicodeDecodeError) as wrong:
        raise Unprepared(Failure(FailureCode.BUILD, f"the requirements {path} cannot be read: {wrong}")) from None


def remember_package(folder: Path, manifest: Manifest, index: Index) -> None:
    write_durably(folder / PACKAGE_FILE, manifest.to_bytes())
    write_durably(folder / INDEX_FILE, index.to_bytes())


def recall_package(folder: Path) -> tuple[Manifest | None, Index]:
    """What was put there before the body started."""
    try:
        manifest = Manifest.from_bytes((folder / PACKAGE_FILE).read_bytes())
    except (OSError, ManifestRefused):
        return None, Index()
    try:
        return manifest, Index.from_bytes((folder / INDEX_FILE).read_bytes())
    except OSError:
        return manifest, Index()


def errno_name(wrong: OSError) -> str:
    import errno

    return errno.errorcode.get(wrong.errno or 0, "")


def _owner_of(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_uid, status.st_gid


def _blamed(wrong: BlobError, order: Order) -> Failure:
    """Content that does not fit, or is not what its hash says, is the owner's; everything else the network's."""
    match wrong:
        case DiskFull():
            asked = order.resources.get("disk_mib", 0)
            return Failure(FailureCode.DISK_QUOTA, f"the files do not fit into the {asked} MiB asked for: {wrong.says}")
        case ManifestRefused() | Mismatch() | InTheWay():
            return Failure(FailureCode.DATA, wrong.says)
        case _:
            return Failure(FailureCode.NETWORK, wrong.says)
