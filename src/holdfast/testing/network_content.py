"""Folders in a network for tests: what is missing, where it goes, what is taken over, where it lies. Kept in memory."""

from hashlib import sha256

from holdfast.blobs.errors import ManifestRefused
from holdfast.blobs.manifest import File, Manifest
from holdfast.orchestrator.asked import BadRequest
from holdfast.testing.network_door import Asked
from holdfast.testing.network_rows import NotThere
from holdfast.testing.network_world import Belongings
from holdfast.wire.http import BlobsRequest, LinksRequest, ManifestView, Missing, TakeRequest, Urls


class ContentAnswers:
    def __init__(self, kept: Belongings) -> None:
        self._kept = kept

    def missing(self, asked: Asked) -> Missing:
        return Missing([ref.sha256 for ref in asked.body(BlobsRequest).blobs if ref.sha256 not in self._kept.blobs])

    def places(self, asked: Asked) -> Urls:
        return Urls({ref.sha256: f"/blobs/{ref.sha256}" for ref in asked.body(BlobsRequest).blobs})

    def put_blob(self, asked: Asked, sha: str) -> None:
        if sha256(asked.content).hexdigest() != sha:
            raise BadRequest(f"the bytes of blob {sha[:64]} do not have that hash", code="blob_mismatch")
        self._kept.blobs[sha] = asked.content

    def get_blob(self, asked: Asked, sha: str) -> bytes:
        if sha not in self._kept.blobs:
            raise NotThere(f"there is no blob {sha[:64]}")
        return self._kept.blobs[sha]

    def take(self, asked: Asked) -> ManifestView:
        name = asked.body(TakeRequest).manifest
        found = self._manifest(name)
        missing = [blob.sha for blob in found.blobs if blob.sha not in self._kept.blobs]
        if not missing:
            self._kept.taken.add(name)
        files = sum(isinstance(entry, File) for entry in found.entries)
        return ManifestView(name, files, found.total_bytes, missing)

    def manifest(self, asked: Asked, name: str) -> bytes:
        return self._manifest(name).to_bytes()

    def links(self, asked: Asked, name: str) -> Urls:
        ours = {blob.sha for blob in self._manifest(name).blobs}
        wanted = asked.body(LinksRequest).blobs
        if strange := [sha for sha in wanted if sha not in ours]:
            raise NotThere(f"{strange[0][:64]} is not in manifest {name[:64]}")
        return Urls({sha: f"/blobs/{sha}" for sha in wanted})

    def _manifest(self, name: str) -> Manifest:
        if name not in self._kept.blobs:
            raise NotThere(f"there is no manifest {name[:64]}")
        try:
            return Manifest.from_bytes(self._kept.blobs[name], name=name)
        except ManifestRefused as wrong:
            raise BadRequest(wrong.says, wrong.hint, wrong.code) from None
