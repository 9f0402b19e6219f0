"""The network's files, as the orchestrator sees them: who may send what where, and what is taken over. Moves no bytes.

Uploaders get signed addresses for single keys; what they sent counts once every blob of a manifest is verified and
owned (holdfast.blobs.store.accept). Whatever this service says is there stays there for a while even if nothing names
it yet: that is a pledge to the garbage collector (holdfast.blobs.garbage, whose rules are kept here).
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence

from holdfast.blobs.errors import BlobMissing
from holdfast.blobs.garbage import GRACE_MS, Collector, Root
from holdfast.blobs.keys import incoming_key, owned_key, owner_hash
from holdfast.blobs.manifest import Blob, Manifest, ManifestLimits
from holdfast.blobs.store import Accepted, BlobStore, accept, each, fetch_manifest, missing
from holdfast.boottime import boottime_ms
from holdfast.orchestrator.api_error import ApiError, Unavailable
from holdfast.orchestrator.content.s3_inputs import S3Inputs

LINK_S = 15 * 60
"""How long an address opens its key: a chunk of 4 MiB over the slowest line worth using."""
ASKED_MAX = 4_096
MANIFESTS_KEPT_BYTES = 64 * 1024 * 1024
"""Of manifests in memory, by the size of their blob lists."""


class ContentService:
    def __init__(self, store: BlobStore, inputs: S3Inputs | None = None) -> None:
        """`inputs`: the buckets of others that jobs may read."""
        self.store = store
        self.inputs = inputs or S3Inputs()
        self.collector = Collector(boottime_ms())
        self._epoch = 0
        self._uploads: dict[str, int] = {}
        """Uploader -> when it last asked for something."""
        self._manifests: OrderedDict[tuple[str, str], Manifest] = OrderedDict()
        self._kept = 0

    def led(self, epoch: int, left: Collection[str]) -> None:
        """This process leads from now on. Only if nobody did since it last led does it know of all pledges.

        `left`: keys that the leader before it may still be deleting."""
        if epoch != self._epoch + 1 or not self._epoch:
            self.collector = Collector(boottime_ms(), left=left)
            self._manifests.clear()
            self._kept = 0
        self._epoch = epoch

    def uploading(self) -> set[str]:
        """Uploaders that have given a sign of life: an address opens for so short a time that they ask again soon."""
        since = boottime_ms() - GRACE_MS
        self._uploads = {uploader: at for uploader, at in self._uploads.items() if at >= since}
        return set(self._uploads)

    def _hold(self, whose: str) -> Callable[[str], bool]:
        return lambda sha: self.collector.may_promote(whose, sha, boottime_ms())

    async def missing(self, owner: str, uploader: str, blobs: Sequence[Blob]) -> list[str]:
        """Which of the blobs must be sent."""
        bounded(len(blobs))
        whose = owner_hash(owner)
        self._uploads[uploader] = boottime_ms()
        return await missing(self.store, uploader, whose, blobs, self._hold(whose))

    async def places(self, uploader: str, blobs: Sequence[Blob]) -> dict[str, str]:
        """Where each of them goes."""
        bounded(len(blobs))
        self._uploads[uploader] = boottime_ms()

        async def sign(blob: Blob) -> str:
            key = incoming_key(uploader, blob.sha)
            return await self.store.sign("PUT", key, size=blob.size, expires_s=LINK_S)

        return dict(zip((blob.sha for blob in blobs), await each(blobs, sign), strict=True))

    async def take(self, owner: str, uploader: str, name: str, limits: ManifestLimits | None = None) -> Accepted:
        """Take over what was sent under a manifest. ApiError where nothing was sent under that name; Unavailable
        while something of it is being deleted."""
        whose = owner_hash(owner)
        began_ms = boottime_ms()
        collector = self.collector
        try:
            accepted = await accept(self.store, uploader, whose, name, hold=self._hold(whose), limits=limits)
        except BlobMissing:
            raise ApiError("not_found", f"no manifest {name[:64]} was sent") from None
        if any(collector.condemns(whose, blob.sha) for blob in accepted.missing):
            raise Unavailable("busy", "some of these files are just being cleared away as unused; nothing is lost", 5)
        if not accepted.missing:
            self._keep(owner, name, accepted.manifest)
            if collector is self.collector:
                collector.seen(Root(whose, name), began_ms)
        return accepted

    async def ready(self, owner: str, name: str) -> bool:
        """Whether a row may name this manifest soon: it was taken over and is all there. Looked for only where nobody
        has lately."""
        return self.collector.still_seen(Root(owner_hash(owner), name), boottime_ms()) or await self.whole(owner, name)

    def may_name(self, owner: str, names: Iterable[str]) -> bool:
        """Whether a row that names these manifests may be committed, to be asked in the step that begins the commit.
        False: much has happened since they were looked for; look again."""
        whose, now_ms = owner_hash(owner), boottime_ms()
        return all(self.collector.may_name(Root(whose, name), now_ms) for name in names)

    async def whole(self, owner: str, name: str) -> bool:
        """Whether a manifest was taken over, and everything it names is there and will be until a row names it."""
        whose = owner_hash(owner)
        try:
            manifest = await self.manifest(owner, name)
        except ApiError:
            return False
        shas = [name, *(blob.sha for blob in manifest.blobs)]
        collector, pledged_ms = self.collector, boottime_ms()
        if len(collector.pledge(whose, shas, pledged_ms)) < len(set(shas)):
            return False

        async def there(blob: Blob) -> bool:
            stored = await self.store.head(owned_key(whose, blob.sha))
            return stored is not None and stored.size == blob.size

        # The manifest itself too: what is remembered here may be gone there.
        named = await self.store.head(owned_key(whose, name))
        found = named is not None and all(await each(manifest.blobs, there))
        if found:
            collector.seen(Root(whose, name), pledged_ms)
        return found

    async def manifest(self, owner: str, name: str) -> Manifest:
        """One that was taken over. ApiError `not_found` where there is none."""
        known = self._manifests.get((owner, name))
        if known is not None:
            self._manifests.move_to_end((owner, name))
            return known
        try:
            # No uploader has an empty name: only what is owned is found.
            manifest = await fetch_manifest(self.store, "nobody", owner_hash(owner), name)
        except BlobMissing:
            raise ApiError("not_found", f"there is no manifest {name[:64]}") from None
        self._keep(owner, name, manifest)
        return manifest

    async def links(self, owner: str, name: str, shas: Sequence[str]) -> dict[str, str]:
        """Where blobs of a manifest can be fetched. Nothing but its blobs is ever linked to."""
        bounded(len(shas))
        sizes = sizes_of(await self.manifest(owner, name), name, shas)
        whose = owner_hash(owner)

        async def sign(sha: str) -> str:
            return await self.store.sign("GET", owned_key(whose, sha), size=sizes[sha], expires_s=LINK_S)

        return dict(zip(shas, await each(shas, sign), strict=True))

    def forget(self, keys: Iterable[str]) -> None:
        """These are about to be deleted, or were: what is remembered of them must not outlive them."""
        gone = set(keys)
        for owner, name in list(self._manifests):
            if owned_key(owner_hash(owner), name) in gone:
                self._kept -= _weight(self._manifests.pop((owner, name)))

    def _keep(self, owner: str, name: str, manifest: Manifest) -> None:
        if (owner, name) in self._manifests:
            return
        self._manifests[owner, name] = manifest
        self._kept += _weight(manifest)
        while self._kept > MANIFESTS_KEPT_BYTES and len(self._manifests) > 1:
            _, oldest = self._manifests.popitem(last=False)
            self._kept -= _weight(oldest)


def bounded(asked: int) -> None:
    if asked > ASKED_MAX:
        raise ApiError("bad_request", f"{asked} blobs were asked about; {ASKED_MAX} are answered at a time")


def sizes_of(manifest: Manifest, name: str, shas: Sequence[str]) -> dict[str, int]:
    """Of the blobs of a manifest. ApiError where one of these is not among them."""
    sizes = {blob.sha: blob.size for blob in manifest.blobs}
    strange = [sha for sha in shas if sha not in sizes]
    if strange:
        raise ApiError("not_found", f"{strange[0][:64]} is not in manifest {name[:64]}")
    return sizes


def _weight(manifest: Manifest) -> int:
    return 200 * (len(manifest.entries) + len(manifest.blobs))
