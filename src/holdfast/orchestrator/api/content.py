"""Content for people who submit jobs: missing blobs, upload URLs, accepting a manifest, download URLs."""

from holdfast.blobs.keys import client_uploader, is_sha
from holdfast.blobs.manifest import Blob, File, ManifestLimits
from holdfast.blobs.store import Accepted
from holdfast.orchestrator.api.call import NO_STORE, ApiCall, Reply
from holdfast.orchestrator.api_error import ApiError
from holdfast.wire.files import BlobRef, BlobsRequest, LinksRequest, ManifestView, Missing, TakeRequest, Urls

MANIFEST_TYPE = "application/vnd.holdfast.manifest+json"


def blobs_of(refs: list[BlobRef]) -> list[Blob]:
    """The blobs that a caller names, validated. Manifests are blobs too, and may be larger than content."""
    most = ManifestLimits().manifest_bytes
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
    files = sum(isinstance(entry, File) for entry in manifest.entries)
    return ManifestView(name, files, manifest.total_bytes, [blob.sha for blob in accepted.missing])


def manifest_answer(data: bytes) -> Reply:
    return Reply(data, MANIFEST_TYPE, NO_STORE)


async def missing(call: ApiCall, data: BlobsRequest) -> Missing:
    context = call.context
    owner = call.principal.name
    return Missing(await context.content.missing(owner, client_uploader(owner), blobs_of(data.blobs)))


async def places(call: ApiCall, data: BlobsRequest) -> Urls:
    context = call.context
    return Urls(await context.content.places(client_uploader(call.principal.name), blobs_of(data.blobs)))


async def take(call: ApiCall, data: TakeRequest) -> ManifestView:
    context = call.context
    owner, name = call.principal.name, name_of(data.manifest)
    return taken_view(name, await context.content.take(owner, client_uploader(owner), name))


async def manifest(call: ApiCall, name: str) -> Reply:
    context = call.context
    return manifest_answer((await context.content.manifest(call.principal.name, name_of(name))).to_bytes())


async def links(call: ApiCall, name: str, data: LinksRequest) -> Urls:
    context = call.context
    return Urls(await context.content.links(call.principal.name, name_of(name), data.blobs))
