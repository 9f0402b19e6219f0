"""Content for people who submit jobs: missing blobs, upload URLs, accepting a manifest, download URLs."""

from holdfast.blobs.keys import is_sha
from holdfast.blobs.manifest import Blob
from holdfast.blobs.store import Accepted
from holdfast.orchestrator.api.call import NO_STORE, ApiCall, Reply
from holdfast.orchestrator.api_error import ApiError
from holdfast.orchestrator.content.uploaders import Uploader, owner_uploader
from holdfast.wire.files import BlobRef, BlobsRequest, LinksRequest, ManifestView, Missing, TakeRequest, Urls

MANIFEST_TYPE = "application/vnd.holdfast.manifest+json"


def blobs_of(refs: list[BlobRef], uploader: Uploader) -> list[Blob]:
    """The blobs that a caller names, validated. Manifests are blobs too, and may be larger than content."""
    most = uploader.blob_bytes_max
    for ref in refs:
        if not is_sha(ref.sha256) or not 1 <= ref.size <= most:
            raise ApiError(
                "bad_request", f"{ref.sha256[:64]!r} with {ref.size} bytes is no blob: 64 hex digits, 1 to {most} bytes"
            )
    return [Blob(ref.sha256, ref.size) for ref in refs]


def name_of(text: str) -> str:
    if not is_sha(text):
        raise ApiError("bad_request", f"{text[:64]!r} is not the name of a manifest: 64 hex digits")
    return text


def taken_view(name: str, accepted: Accepted) -> ManifestView:
    manifest = accepted.manifest
    return ManifestView(name, manifest.files, manifest.total_bytes, [blob.sha for blob in accepted.missing])


def manifest_answer(data: bytes) -> Reply:
    return Reply(data, MANIFEST_TYPE, NO_STORE)


def _uploader(call: ApiCall) -> Uploader:
    return owner_uploader(call.principal.name, call.context.leader.settings)


async def missing(call: ApiCall, data: BlobsRequest) -> Missing:
    context = call.context
    owner, uploader = call.principal.name, _uploader(call)
    return Missing(await context.content.missing(owner, uploader, blobs_of(data.blobs, uploader)))


async def places(call: ApiCall, data: BlobsRequest) -> Urls:
    uploader = _uploader(call)
    return Urls(await call.context.content.places(uploader, blobs_of(data.blobs, uploader)))


async def take(call: ApiCall, data: TakeRequest) -> ManifestView:
    context = call.context
    owner, name = call.principal.name, name_of(data.manifest)
    return taken_view(name, await context.content.take(owner, _uploader(call), name))


async def manifest(call: ApiCall, name: str) -> Reply:
    context = call.context
    return manifest_answer(await context.content.manifest(call.principal.name, name_of(name)))


async def links(call: ApiCall, name: str, data: LinksRequest) -> Urls:
    context = call.context
    return Urls(await context.content.links(call.principal.name, name_of(name), data.blobs))
