"""Carries content between the attempts of this node and the network: whole folders, through the data door.

Knows blobs and doors, not what a folder means for a job. Waits out doors that are shut and stores that are away;
whoever calls bounds it in time, or cancels it.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.blobs import (
    Blob,
    BlobCache,
    BytesSource,
    FirstOf,
    FolderSource,
    Index,
    Manifest,
    Scan,
    Source,
    Unpacking,
    sha_of,
    transfer,
)
from holdfast.blobs.errors import BlobMissing
from holdfast.node.door import DataDoor, Held

PATIENCE = transfer.Patience(give_up_s=3600.0, at_once=4)
"""The orchestrator bounds every phase; a node that gave up before would only make the work be done again."""
SENDINGS_MAX = 3
"""How often what did not arrive whole is sent again."""

Told = Callable[[int, int], None]
"""Bytes done, bytes in all."""


class Carried(msgspec.Struct, frozen=True):
    manifest: str
    files: int
    bytes: int
    moved: int
    """Over the wire; the rest was there already."""


class Carrier:
    def __init__(self, door: DataDoor, cache: BlobCache) -> None:
        self._door = door
        self._cache = cache

    async def fetch(
        self,
        at: Held,
        name: str,
        into: Path,
        *,
        bytes_max: int,
        owner: tuple[int, int] | None,
        told: Told = lambda done, total: None,
    ) -> tuple[Manifest, Index]:
        """Put the content of a manifest into a folder. BlobError where it is not what it should be, or has no room."""
        data = await self._door.manifest(at, name)
        # What is too much for this disk is told apart from what cannot be meant: unpacking asks for the room.
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

    async def input_link(self, at: Held, name: str) -> str:
        """Where an input in S3 can be fetched, now."""
        return await self._door.input_link(at, name)

    async def send(
        self, at: Held, folder: Path, scanned: Scan, stash: Source | None = None, told: Told = lambda done, total: None
    ) -> Carried:
        """Send what a scan found, manifest and all; DoorRefused or BlobError where it is not wanted or not whole."""
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
                return Carried(name, view.files, view.bytes, moved)
            lost = len(view.missing)
        raise BlobMissing(f"{lost} blobs of {name} did not arrive whole in {SENDINGS_MAX} tries")


class _Fetching:
    def __init__(self, door: DataDoor, at: Held, manifest: str) -> None:
        self._door, self._at, self._manifest = door, at, manifest

    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        return ()

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        return await self._door.links(self._at, self._manifest, blobs)


class _Sending:
    def __init__(self, door: DataDoor, at: Held) -> None:
        self._door, self._at = door, at

    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        return await self._door.missing(self._at, blobs)

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        return await self._door.places(self._at, blobs)
