"""Folders to and from the network: sends missing content, downloads new content, resumes interrupted transfers. As
steps, which the clients run."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

import msgspec

from holdfast.blobs import (
    Blob,
    BlobIndex,
    BytesSource,
    FirstOf,
    FolderSource,
    Ignore,
    Manifest,
    ManifestLimits,
    Scan,
    Unpacking,
    scan,
    sha_of,
    transfer,
)
from holdfast.blobs.errors import BlobMissing
from holdfast.client.async_transport import AsyncTransport
from holdfast.client.folders import check, there
from holdfast.client.selection import FolderRules, NotSent, SearchingSelection, left_out_line
from holdfast.client.steps import Ask, MoveContent, Steps, Work
from holdfast.durable import atomic_write
from holdfast.wire.files import BlobRef, BlobsRequest, LinksRequest, ManifestView, Missing, TakeRequest, Urls

SENDINGS_MAX = 3
"""How often content that arrived damaged or incomplete is sent again."""

Told = Callable[[transfer.TransferProgress], None]


class Sent(msgspec.Struct, frozen=True):
    """A folder that the network now holds."""

    manifest: str
    files: int
    bytes: int
    moved: int
    """Bytes sent; the network already had the rest."""
    left_out: tuple[NotSent, ...] = ()
    """What was not sent: secrets first, then the largest. History and caches are not listed."""


def send(
    folder: str | Path,
    *,
    index_file: str | Path | None = None,
    ignore: Ignore | None = None,
    include: Sequence[str] = (),
    gitignore: bool = True,
    told: Told = lambda progress: None,
    read: Callable[[int], None] | None = None,
) -> Steps[Sent]:
    root = Path(folder)
    rules = FolderRules(include, gitignore)

    def look() -> tuple[Scan, tuple[NotSent, ...]]:
        selection = SearchingSelection(there(root), rules, ignore)
        found = scan(root, ignore=selection, index=_read_index(index_file), strict=True, progress=read)
        return found, selection.told()

    found, left_out = yield Work(look)
    sent = yield MoveContent(lambda line: _send(line, root, found.manifest, told))
    yield Work(lambda: _write_index(index_file, found.index))
    return msgspec.structs.replace(sent, left_out=left_out)


def send_along(folder: str | Path, instead: str, rules: FolderRules) -> Steps[Sent]:
    """Send the folder of a job. Rejects a folder that was surely given by accident; `instead` says what to do then."""
    yield Work(lambda: check(Path(folder), instead, rules))
    sent = yield from send(folder, include=rules.include, gitignore=rules.gitignore)
    if line := left_out_line(sent.left_out, "include=[PATH] sends a file all the same"):
        warnings.warn(line, UserWarning, stacklevel=2)
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
    return Manifest.from_bytes(data, ManifestLimits(), name=name)


def fetch(name: str, into: str | Path, *, only: str = "", told: Told = lambda progress: None) -> Steps[Manifest]:
    found = yield from manifest(name)
    if only:
        found = Manifest.of((one for one in found.entries if one.path.startswith(f"{only}/")), found.blobs)
    unpacking = Unpacking(Path(into), found)
    wanted = yield Work(unpacking.prepare)
    yield MoveContent(lambda line: _fetch(line, name, unpacking, wanted, told))
    yield Work(lambda: unpacking.finish(durable=True))
    return found


async def _fetch(line: AsyncTransport, name: str, unpacking: Unpacking, wanted: Sequence[Blob], told: Told) -> None:
    async with line.mover() as http:
        await transfer.download(wanted, unpacking.put, _Fetching(line, name), http, progress=told)


class _BlobLinks:
    def __init__(self, line: AsyncTransport) -> None:
        self._line = line

    async def _ask(self, kind: Any, path: str, body: Any) -> Any:
        return await self._line.ask(Ask(kind, "POST", path, body=body))

    def _absolute(self, found: Urls) -> dict[str, str]:
        base = self._line.endpoint.url
        return {sha: url if "://" in url else urljoin(base, url) for sha, url in found.urls.items()}


class _Sending(_BlobLinks):
    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        return (await self._ask(Missing, "/v1/blobs/missing", _refs(blobs))).missing

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        return self._absolute(await self._ask(Urls, "/v1/blobs/links", _refs(blobs)))


class _Fetching(_BlobLinks):
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


def _read_index(file: str | Path | None) -> BlobIndex:
    try:
        return BlobIndex.from_bytes(Path(file).read_bytes()) if file is not None else BlobIndex()
    except OSError:
        return BlobIndex()


def _write_index(file: str | Path | None, index: BlobIndex) -> None:
    """Only a cache for the next call: failing to write it is no error."""
    if file is None:
        return
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, index.to_bytes())
    except OSError:
        return
