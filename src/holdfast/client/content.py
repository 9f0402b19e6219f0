"""Folders to and from the network: sends what is missing, fetches what is new, resumes what was cut. Questions only:
the clients carry them out."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

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
from holdfast.client.async_transport import AsyncTransport
from holdfast.client.folders import Going, check, there
from holdfast.client.steps import Ask, Move, Steps, Work
from holdfast.wire.http import BlobRef, BlobsRequest, LinksRequest, ManifestView, Missing, TakeRequest, Urls

SENDINGS_MAX = 3
"""How often what did not arrive whole is sent again."""

Told = Callable[[transfer.Progress], None]


class Sent(msgspec.Struct, frozen=True):
    """A folder that the network now has."""

    manifest: str
    files: int
    bytes: int
    moved: int
    """Over the wire; the rest was there already."""
    left_out: tuple[LeftOut, ...] = ()
    """Folders with keys of Holdfast, which stay here. What an ignore file names is not among these."""


def send(
    folder: str | Path,
    *,
    index_file: str | Path | None = None,
    ignore: Ignore | None = None,
    told: Told = lambda progress: None,
    read: Callable[[int], None] | None = None,
) -> Steps[Sent]:
    root = Path(folder)

    def look() -> Any:
        going = Going(there(root), ignore)
        found = scan(root, ignore=going, index=_read_index(index_file), strict=True, progress=read)
        return msgspec.structs.replace(found, left_out=(*found.left_out, *going.kept.values()))

    found = yield Work(look)
    sent = yield Move(lambda line: _send(line, root, found.manifest, told))
    yield Work(lambda: _write_index(index_file, found.index))
    return msgspec.structs.replace(sent, left_out=found.left_out)


def send_along(folder: str | Path, instead: str) -> Steps[Sent]:
    """The folder of a job. Refused where it was surely taken by accident; `instead` says what to do if it was not."""
    yield Work(lambda: check(Path(folder), instead))
    sent = yield from send(folder)
    for kept in sent.left_out:
        warnings.warn(f"{kept.path} stays here: it {kept.why}", UserWarning, stacklevel=2)
    return sent


async def _send(line: AsyncTransport, root: Path, manifest: Manifest, told: Told) -> Sent:
    data = manifest.to_bytes()
    name = sha_of(data)
    blobs = (*manifest.blobs, Blob(name, len(data)))
    source = FirstOf(BytesSource({name: data}), FolderSource(root, manifest))
    moved = lost = 0
    for _ in range(SENDINGS_MAX):
        async with line.mover() as http:
            progress = await transfer.upload(blobs, source, _Sending(line), http, progress=told)
        moved += progress.bytes_moved
        view = await line.ask(Ask(ManifestView, "POST", "/v1/manifests", body=TakeRequest(name)))
        if not view.missing:
            return Sent(name, view.files, view.bytes, moved)
        lost = len(view.missing)
    raise BlobMissing(f"{lost} blobs of {root} did not arrive whole in {SENDINGS_MAX} tries")


def manifest(name: str) -> Steps[Manifest]:
    data = yield Ask(bytes, "GET", f"/v1/manifests/{quote(name, safe='') or '-'}")
    return Manifest.from_bytes(data, Limits(), name=name)


def fetch(name: str, into: str | Path, *, only: str = "", told: Told = lambda progress: None) -> Steps[Manifest]:
    found = yield from manifest(name)
    if only:
        found = Manifest.of((one for one in found.entries if one.path.startswith(f"{only}/")), found.blobs)
    unpacking = Unpacking(Path(into), found)
    wanted = yield Work(unpacking.prepare)
    yield Move(lambda line: _fetch(line, name, unpacking, wanted, told))
    yield Work(lambda: unpacking.finish(durable=True))
    return found


async def _fetch(line: AsyncTransport, name: str, unpacking: Unpacking, wanted: Sequence[Blob], told: Told) -> None:
    async with line.mover() as http:
        await transfer.download(wanted, unpacking.put, _Fetching(line, name), http, progress=told)


class _Door:
    def __init__(self, line: AsyncTransport) -> None:
        self._line = line

    async def _ask(self, kind: Any, path: str, body: Any) -> Any:
        return await self._line.ask(Ask(kind, "POST", path, body=body))

    def _absolute(self, found: Urls) -> dict[str, str]:
        base = self._line.endpoint.url
        return {sha: url if "://" in url else urljoin(base, url) for sha, url in found.urls.items()}


class _Sending(_Door):
    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        return (await self._ask(Missing, "/v1/blobs/missing", _refs(blobs))).missing

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        return self._absolute(await self._ask(Urls, "/v1/blobs/links", _refs(blobs)))


class _Fetching(_Door):
    def __init__(self, line: AsyncTransport, name: str) -> None:
        super().__init__(line)
        self._name = name

    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        return ()

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        body = LinksRequest([blob.sha for blob in blobs])
        return self._absolute(await self._ask(Urls, f"/v1/manifests/{self._name}/links", body))


def _refs(blobs: Sequence[Blob]) -> BlobsRequest:
    return BlobsRequest([BlobRef(blob.sha, blob.size) for blob in blobs])


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
