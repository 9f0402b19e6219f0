"""Content over HTTP, for people who send jobs: what is missing, where it goes, what is taken over, where it lies."""

from typing import Any

from litestar import Request, Response, get, post
from litestar.datastructures import State

from holdfast.blobs.keys import client_uploader, is_sha
from holdfast.blobs.manifest import Blob, File, Limits
from holdfast.blobs.store import Accepted
from holdfast.orchestrator.asked import BadRequest
from holdfast.orchestrator.front import Front, acting_for
from holdfast.wire.http import BlobRef, BlobsRequest, LinksRequest, ManifestView, Missing, TakeRequest, Urls

MANIFEST_TYPE = "application/vnd.holdfast.manifest+json"


def blobs_of(refs: list[BlobRef]) -> list[Blob]:
    """What a stranger calls blobs, if it can be meant. Manifests are blobs, too, and may be larger than content."""
    most = Limits().manifest_bytes
    for ref in refs:
        if not is_sha(ref.sha256) or not 1 <= ref.size <= most:
            raise BadRequest(f"{ref.sha256[:64]!r} with {ref.size} bytes is no blob: 64 hex digits, 1 to {most} bytes")
    return [Blob(ref.sha256, ref.size) for ref in refs]


def name_of(text: str) -> str:
    if not is_sha(text):
        raise BadRequest(f"{text[:64]!r} is no manifest's name: 64 hex digits")
    return text


def taken_view(name: str, accepted: Accepted) -> ManifestView:
    manifest = accepted.manifest
    files = sum(isinstance(entry, File) for entry in manifest.entries)
    return ManifestView(name, files, manifest.total_bytes, [blob.sha for blob in accepted.missing])


def manifest_answer(data: bytes) -> Response[bytes]:
    return Response(data, media_type=MANIFEST_TYPE, headers={"Cache-Control": "no-store"})


def _whose(request: Request[Any, Any, Any]) -> str:
    return acting_for(request) or "admin"


@post("/v1/blobs/missing", status_code=200)
async def missing(data: BlobsRequest, request: Request, state: State) -> Missing:
    front: Front = state.front
    owner = _whose(request)
    return Missing(await front.content.missing(owner, client_uploader(owner), blobs_of(data.blobs)))


@post("/v1/blobs/links", status_code=200)
async def places(data: BlobsRequest, request: Request, state: State) -> Urls:
    front: Front = state.front
    return Urls(await front.content.places(client_uploader(_whose(request)), blobs_of(data.blobs)))


@post("/v1/manifests", status_code=200)
async def take(data: TakeRequest, request: Request, state: State) -> ManifestView:
    front: Front = state.front
    owner, name = _whose(request), name_of(data.manifest)
    return taken_view(name, await front.content.take(owner, client_uploader(owner), name))


@get("/v1/manifests/{name:str}")
async def manifest(name: str, request: Request, state: State) -> Response[bytes]:
    front: Front = state.front
    return manifest_answer((await front.content.manifest(_whose(request), name_of(name))).to_bytes())


@post("/v1/manifests/{name:str}/links", status_code=200)
async def links(name: str, data: LinksRequest, request: Request, state: State) -> Urls:
    front: Front = state.front
    return Urls(await front.content.links(_whose(request), name_of(name), data.blobs))


ROUTES = [missing, places, take, manifest, links]
