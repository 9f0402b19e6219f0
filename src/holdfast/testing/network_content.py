"""The content of a test network, in memory, behind the interface that the API handlers use: see
`orchestrator/content/service.py`.
"""

from collections.abc import Iterable, Sequence

from holdfast.blobs.keys import incoming_key, sha_of
from holdfast.blobs.manifest import Blob, Manifest, blobs_in
from holdfast.blobs.store import Accepted
from holdfast.orchestrator.api_error import ApiError
from holdfast.orchestrator.content.s3_inputs import S3Inputs
from holdfast.orchestrator.content.service import bounded, sizes_of
from holdfast.orchestrator.content.uploaders import Uploader
from holdfast.testing.network_world import owned_by

PREFIX = "/blobs/"


class VirtualContent:
    def __init__(self, blobs: dict[str, bytes]) -> None:
        self._blobs = blobs
        self.inputs = S3Inputs()

    # --- content by key ---

    def put(self, key: str, data: bytes) -> None:
        self._blobs[key] = data

    def get(self, key: str) -> bytes:
        if key not in self._blobs:
            raise ApiError("blob_missing", f"the store holds nothing under {key[:160]!r}")
        return self._blobs[key]

    # --- for the API ---

    def _has(self, key: str, size: int) -> bool:
        return key in self._blobs and len(self._blobs[key]) == size

    async def missing(self, owner: str, uploader: Uploader, blobs: Sequence[Blob]) -> list[str]:
        bounded(len(blobs))
        return [
            blob.sha
            for blob in blobs
            if not self._has(owned_by(owner, blob.sha), blob.size)
            and not self._has(incoming_key(uploader.id, blob.sha), blob.size)
        ]

    async def places(self, uploader: Uploader, blobs: Sequence[Blob]) -> dict[str, str]:
        bounded(len(blobs))
        return {blob.sha: PREFIX + incoming_key(uploader.id, blob.sha) for blob in blobs}

    async def take(self, owner: str, uploader: Uploader, name: str) -> Accepted:
        data = self._blobs.get(owned_by(owner, name)) or self._blobs.get(incoming_key(uploader.id, name))
        if data is None:
            raise ApiError("not_found", f"no manifest {name[:64]} was sent")
        manifest = Manifest.from_bytes(data, uploader.limits, name=name)
        lacking = tuple(blob for blob in manifest.blobs if not self._taken(owner, uploader.id, blob))
        if not lacking:
            self._blobs[owned_by(owner, name)] = data
        return Accepted(manifest.outline, lacking)

    def _taken(self, owner: str, uploader: str, blob: Blob) -> bool:
        owned = owned_by(owner, blob.sha)
        if not self._has(owned, blob.size):
            data = self._blobs.pop(incoming_key(uploader, blob.sha), None)
            if data is None or len(data) != blob.size or sha_of(data) != blob.sha:
                return False
            self._blobs[owned] = data
        return True

    async def manifest(self, owner: str, name: str) -> bytes:
        data = self._blobs.get(owned_by(owner, name))
        if data is None:
            raise ApiError("not_found", f"there is no manifest {name[:64]}")
        return data

    async def links(self, owner: str, name: str, shas: Sequence[str]) -> dict[str, str]:
        bounded(len(shas))
        sizes_of(blobs_in(await self.manifest(owner, name)), name, shas)
        return {sha: PREFIX + owned_by(owner, sha) for sha in shas}

    async def ready(self, owner: str, name: str) -> bool:
        return owned_by(owner, name) in self._blobs

    whole = ready

    def may_name(self, owner: str, names: Iterable[str]) -> bool:
        return True
