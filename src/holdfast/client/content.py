"""Folders to and from the network: sends what is missing, fetches what is new, resumes what was cut.

client.content   send · fetch · manifest
"""

import asyncio
import ssl
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin

import httpx
import msgspec

from holdfast.blobs import (
    Blob,
    BytesSource,
    FirstOf,
    FolderSource,
    Ignore,
    Index,
    LeftOut,
    Limits,
    Manifest,
    Unpacking,
    scan,
    sha_of,
    transfer,
)
from holdfast.blobs.errors import BlobMissing
from holdfast.blobs.lines import ThreadTransport
from holdfast.client.transport import Transport, trust
from holdfast.wire.http import BlobRef, BlobsRequest, LinksRequest, ManifestView, Missing, TakeRequest, Urls

SENDINGS_MAX = 3
"""How often what did not arrive whole is sent again."""

T = TypeVar("T")
Told = Callable[[transfer.Progress], None]


class Sent(msgspec.Struct, frozen=True):
    """A folder that the network now has."""

    manifest: str
    files: int
    bytes: int
    moved: int
    """Over the wire; the rest was there already."""
    left_out: tuple[LeftOut, ...] = ()


class Content:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def send(
        self,
        folder: str | Path,
        *,
        index_file: str | Path | None = None,
        ignore: Ignore | None = None,
        told: Told = lambda progress: None,
        read: Callable[[int], None] | None = None,
    ) -> Sent:
        """Send a folder; what the network has already is not sent. `index_file`: remembers what was read, so that
        unchanged files are not read the next time. `read` is told of bytes as they are read, from several threads;
        `told` of those that are sent."""
        root = Path(folder)
        index = _read_index(index_file)
        found = scan(root, ignore=ignore or Ignore.of_folder(root), index=index, strict=True, progress=read)
        sent = _run(self._send(root, found.manifest, told))
        _write_index(index_file, found.index)
        return msgspec.structs.replace(sent, left_out=found.left_out)

    async def _send(self, root: Path, manifest: Manifest, told: Told) -> Sent:
        data = manifest.to_bytes()
        name = sha_of(data)
        blobs = (*manifest.blobs, Blob(name, len(data)))
        source = FirstOf(BytesSource({name: data}), FolderSource(root, manifest))
        moved = lost = 0
        for _ in range(SENDINGS_MAX):
            async with self._mover() as http:
                progress = await transfer.upload(blobs, source, _Sending(self._transport), http, progress=told)
            moved += progress.bytes_moved
            view = await asyncio.to_thread(
                self._transport.ask, ManifestView, "POST", "/v1/manifests", body=TakeRequest(name)
            )
            if not view.missing:
                return Sent(name, view.files, view.bytes, moved)
            lost = len(view.missing)
        raise BlobMissing(f"{lost} blobs of {root} did not arrive whole in {SENDINGS_MAX} tries")

    def manifest(self, name: str) -> Manifest:
        """The list of a folder's content: verified to be what the hash names, and to keep every rule."""
        data = self._transport.ask(bytes, "GET", f"/v1/manifests/{name}")
        return Manifest.from_bytes(data, Limits(), name=name)

    def fetch(self, manifest: str, into: str | Path, *, only: str = "", told: Told = lambda progress: None) -> Manifest:
        """Put the content of a manifest into a folder: verified, nothing outside of it touched, resumed where an
        earlier try was cut. `only`: what lies in this folder of it, and nothing else."""
        found = self.manifest(manifest)
        if only:
            found = Manifest.of((one for one in found.entries if one.path.startswith(f"{only}/")), found.blobs)
        unpacking = Unpacking(Path(into), found)
        wanted = unpacking.prepare()
        _run(self._fetch(manifest, unpacking, wanted, told))
        unpacking.finish(durable=True)
        return found

    async def _fetch(self, manifest: str, unpacking: Unpacking, wanted: Sequence[Blob], told: Told) -> None:
        async with self._mover() as http:
            door = _Fetching(self._transport, manifest)
            await transfer.download(wanted, unpacking.put, door, http, progress=told)

    def _mover(self) -> httpx.AsyncClient:
        """For signed addresses: at the orchestrator with its certificate, elsewhere with those the world trusts."""
        endpoint = self._transport.endpoint
        mounts: dict[str, httpx.AsyncBaseTransport | None] = {}
        if isinstance(pinned := trust(endpoint), ssl.SSLContext):
            mounts[endpoint.url] = ThreadTransport(pinned)
        return httpx.AsyncClient(trust_env=False, mounts=mounts, transport=ThreadTransport())


class _Door:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def _ask(self, kind: type[T], path: str, body: Any) -> T:
        return await asyncio.to_thread(self._transport.ask, kind, "POST", path, body=body)

    def _absolute(self, found: Urls) -> dict[str, str]:
        base = self._transport.endpoint.url
        return {sha: url if "://" in url else urljoin(base, url) for sha, url in found.urls.items()}


class _Sending(_Door):
    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        return (await self._ask(Missing, "/v1/blobs/missing", _refs(blobs))).missing

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        return self._absolute(await self._ask(Urls, "/v1/blobs/links", _refs(blobs)))


class _Fetching(_Door):
    def __init__(self, transport: Transport, manifest: str) -> None:
        super().__init__(transport)
        self._manifest = manifest

    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        return ()

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        body = LinksRequest([blob.sha for blob in blobs])
        return self._absolute(await self._ask(Urls, f"/v1/manifests/{self._manifest}/links", body))


def _refs(blobs: Sequence[Blob]) -> BlobsRequest:
    return BlobsRequest([BlobRef(blob.sha, blob.size) for blob in blobs])


def _run(work: Coroutine[Any, Any, T]) -> T:
    """From code that is not asynchronous, also where a loop runs already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def _read_index(file: str | Path | None) -> Index:
    try:
        return Index.from_bytes(Path(file).read_bytes()) if file is not None else Index()
    except OSError:
        return Index()


def _write_index(file: str | Path | None, index: Index) -> None:
    """A short cut for the next time: not worth an error."""
    if file is None:
        return
    path = Path(file)
    draft = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(index.to_bytes())
        draft.replace(path)
    except OSError:
        return
