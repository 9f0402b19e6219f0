"""Transfers whole folders between the attempts of this node and the network, through the files endpoint.

Knows blobs and endpoints, not what a folder means for a job. Waits while the endpoint is closed or the store is away;
callers set the time limit, or cancel.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.blobs import (
    Blob,
    BlobCache,
    BlobIndex,
    BytesSource,
    FirstOf,
    FolderSource,
    Manifest,
    Scan,
    Source,
    Unpacking,
    sha_of,
    transfer,
)
from holdfast.blobs.errors import BlobMissing
from holdfast.node.node_files_client import AttemptAccess, NodeFilesClient

PATIENCE = transfer.TransferPatience(give_up_s=3600.0, at_once=4)
"""Long, because the orchestrator limits every phase: if the node gave up earlier, the work would only be repeated."""
SENDINGS_MAX = 3
"""How often incomplete content is sent again."""

CopyProgress = Callable[[int, int], None]
"""Bytes done, total bytes."""


class TransferredFolder(msgspec.Struct, frozen=True):
    manifest: str
    files: int
    bytes: int
    moved: int
    """Bytes sent over the network; the rest was there already."""


class ContentTransfer:
    def __init__(self, door: NodeFilesClient, cache: BlobCache) -> None:
        self._door = door
        self._cache = cache

    async def fetch(
        self,
        at: AttemptAccess,
        name: str,
        into: Path,
        *,
        bytes_max: int,
        owner: tuple[int, int] | None,
        told: CopyProgress = lambda done, total: None,
    ) -> tuple[Manifest, BlobIndex]:
        """Unpack a manifest into a folder. Raises BlobError if the content is wrong or does not fit."""
        data = await self._door.manifest(at, name)
        # Content that is too large for this disk is a different error than an invalid manifest: unpacking checks the
        # space.
        manifest = await asyncio.to_thread(Manifest.from_bytes, data, name=name)
        unpacking = Unpacking(into, manifest, bytes_max=bytes_max, owner=owner)
        wanted = await asyncio.to_thread(unpacking.prepare)
        async with self._door.mover() as http:
            await transfer.download(
                wanted,
                unpacking.put,
                _Fetching(self._door, at, name),
                http,
                cache=self._cache,
                patience=PATIENCE,
                progress=lambda p: told(p.bytes_done, p.bytes_total),
            )
        return manifest, await asyncio.to_thread(unpacking.finish)

    async def input_link(self, at: AttemptAccess, name: str) -> str:
        """The URL to fetch an input in S3 from; valid now."""
        return await self._door.input_link(at, name)

    async def send(
        self,
        at: AttemptAccess,
        folder: Path,
        scanned: Scan,
        stash: Source | None = None,
        told: CopyProgress = lambda done, total: None,
    ) -> TransferredFolder:
        """Send the content of a scan and its manifest. Raises NodeFilesRefused or BlobError if it is refused or
        incomplete."""
        manifest = scanned.manifest
        data = await asyncio.to_thread(manifest.to_bytes)
        name = sha_of(data)
        blobs = (*manifest.blobs, Blob(name, len(data)))
        source = FirstOf(BytesSource({name: data}), *([stash] if stash else []), FolderSource(folder, manifest))
        moved = lost = 0
        for _ in range(SENDINGS_MAX):
            async with self._door.mover() as http:
                sent = await transfer.upload(
                    blobs,
                    source,
                    _Sending(self._door, at),
                    http,
                    patience=PATIENCE,
                    progress=lambda p: told(p.bytes_done, p.bytes_total),
                )
            moved += sent.bytes_moved
            view = await self._door.take(at, name)
            if not view.missing:
                return TransferredFolder(name, view.files, view.bytes, moved)
            lost = len(view.missing)
        raise BlobMissing(f"{lost} blobs of {name} did not arrive whole in {SENDINGS_MAX} tries")


class _Fetching:
    def __init__(self, door: NodeFilesClient, at: AttemptAccess, manifest: str) -> None:
        self._door, self._at, self._manifest = door, at, manifest

    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        return ()

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        return await self._door.links(self._at, self._manifest, blobs)


class _Sending:
    def __init__(self, door: NodeFilesClient, at: AttemptAccess) -> None:
        self._door, self._at = door, at

    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        return await self._door.missing(self._at, blobs)

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        return await self._door.places(self._at, blobs)
