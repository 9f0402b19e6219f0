"""The network's files: decides who may upload what where, and accepts uploads. Moves no bytes.

Uploaders get signed URLs for single keys; an upload counts once every blob of its manifest is verified and owned
(holdfast.blobs.store.accept). Content that this service reports as present stays for a while even if no row names it
yet: the garbage collector is given a pledge (holdfast.blobs.garbage, whose rules this service follows).
"""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from holdfast.blobs.errors import BlobError, BlobMissing, Damaged, ManifestRefused, ManifestTooLarge
from holdfast.blobs.garbage import GRACE_MS, PLEDGED_MAX, Collector, Root
from holdfast.blobs.keys import incoming_key, owned_key, owner_hash
from holdfast.blobs.manifest import Blob, ManifestLimits, blobs_in
from holdfast.blobs.store import Accepted, BlobStore, MayUse, accept, each, missing
from holdfast.boottime import boottime_ms
from holdfast.orchestrator.api_error import ApiError, Unavailable
from holdfast.orchestrator.content.fair_queue import FairQueue
from holdfast.orchestrator.content.manifest_checks import ManifestChecks
from holdfast.orchestrator.content.s3_inputs import S3Inputs
from holdfast.orchestrator.content.sent_hashes import SentHashes
from holdfast.orchestrator.content.upload_counts import RETRY_S, UploadCounts
from holdfast.orchestrator.content.uploaders import Uploader

LINK_S = 15 * 60
"""How long a signed URL is valid, in seconds: enough for a chunk of 4 MiB over the slowest line worth using."""
ASKED_MAX = 4_096
"""Blobs per request."""
NAMED_MAX = 32
"""Manifests whose blobs are kept as sets: enough for the attempts that send at the same time."""
MANIFESTS_KEPT_BYTES = 64 * 1024 * 1024
"""Limit of the lists of blobs in memory, estimated from their lengths."""
REFUSED_MAX = 4_096
TAKEN_AT_ONCE = 32
TAKEN_AT_ONCE_EACH = 2
"""Manifests whose content is verified at a time, in all and for one party."""


class ContentService:
    def __init__(self, store: BlobStore, inputs: S3Inputs | None = None) -> None:
        """`inputs`: the S3 buckets that jobs may read."""
        self.store = store
        self.inputs = inputs or S3Inputs()
        self.collector = Collector(boottime_ms())
        self._epoch = 0
        self.counts = UploadCounts(store)
        self._checks = ManifestChecks()
        self._taking = FairQueue(TAKEN_AT_ONCE, TAKEN_AT_ONCE_EACH)
        self._refused: OrderedDict[str, None] = OrderedDict()
        """Attempts whose manifest was refused: others of theirs that already wait are not checked."""
        self._uploads: dict[str, int] = {}
        """Uploader -> when it last made a request."""
        self._sent = SentHashes()
        self._named: OrderedDict[tuple[str, str], frozenset[str]] = OrderedDict()
        """The blobs of manifests that attempts were given lately."""
        self._manifests: OrderedDict[tuple[str, str], tuple[Blob, ...]] = OrderedDict()
        self._kept = 0

    def led(self, epoch: int, left: Collection[str]) -> None:
        """This process leads from now on. It knows all pledges only if no other process has led since it last did.

        `left`: keys that the previous leader may still be deleting."""
        if epoch != self._epoch + 1 or not self._epoch:
            self.collector = Collector(boottime_ms(), left=left)
            self._manifests.clear()
            self._kept = 0
        self._epoch = epoch

    def uploading(self) -> set[str]:
        """Uploaders that made a request recently. Signed URLs expire soon, so an active uploader asks again."""
        since = boottime_ms() - GRACE_MS
        self._uploads = {uploader: at for uploader, at in self._uploads.items() if at >= since}
        return set(self._uploads)

    @contextlib.contextmanager
    def _hold(self, whose: str, sha: str) -> Iterator[Callable[[], bool] | None]:
        # If another process led in between, the collector is a new one when the blob was found.
        with self.collector.looking(whose, [sha]) as kept:
            yield (lambda: bool(self.collector.pledge(whose, [sha], boottime_ms()))) if kept else None

    def _need_pledges(self, whose: str) -> None:
        """Raises Unavailable if the owner has so many pledges that it must wait for some to expire."""
        if self.collector.pledged(whose, boottime_ms()) >= PLEDGED_MAX:
            says = (
                f"more than {PLEDGED_MAX} blobs of this owner were found or sent within {GRACE_MS // 3_600_000} hours"
            )
            raise Unavailable("over_quota", says, RETRY_S)

    async def missing(
        self, owner: str, uploader: Uploader, blobs: Sequence[Blob], given: Collection[str] | None = None
    ) -> list[str]:
        """Which of the blobs must be uploaded. `given`: the manifests that an attempt was given or has delivered; None:
        the uploader is the owner, who may use everything."""
        bounded(len(blobs))
        whose = owner_hash(owner)
        self._uploads[uploader.id] = boottime_ms()
        self._need_pledges(whose)
        may_use = await self._may_use(owner, uploader.id, given)
        return await missing(self.store, uploader.id, whose, blobs, partial(self._hold, whose), may_use)

    async def _may_use(self, owner: str, uploader: str, given: Collection[str] | None) -> MayUse | None:
        if given is None:
            return None
        known: list[Collection[str]] = [given, self._sent.of(uploader)]
        for name in given:
            with contextlib.suppress(ApiError, BlobError):
                known.append(self._shas(owner, name, await self.blobs(owner, name)))
        return lambda sha: any(sha in some for some in known)

    def _shas(self, owner: str, name: str, blobs: Sequence[Blob]) -> frozenset[str]:
        found = self._named.get((owner, name))
        if found is None:
            found = self._named[owner, name] = frozenset(blob.sha for blob in blobs)
            if len(self._named) > NAMED_MAX:
                self._named.popitem(last=False)
        return found

    async def places(self, uploader: Uploader, blobs: Sequence[Blob]) -> dict[str, str]:
        """The upload URL of each blob. Raises ApiError `over_quota` if the uploader would have sent too much."""
        bounded(len(blobs))
        self._uploads[uploader.id] = boottime_ms()
        await self.counts.grant(uploader, blobs)

        async def sign(blob: Blob) -> str:
            key, most = incoming_key(uploader.id, blob.sha), uploader.incoming_bytes_max
            return await self.store.sign("PUT", key, size=blob.size, expires_s=LINK_S, incoming_max=most)

        return dict(zip((blob.sha for blob in blobs), await each(blobs, sign), strict=True))

    async def take(self, owner: str, uploader: Uploader, name: str, given: Collection[str] | None = None) -> Accepted:
        """Accept the content uploaded under a manifest. `given`: as for `missing`. Raises ManifestRefused, ApiError if
        it was not uploaded, and Unavailable if the uploader is over its quota or content is being deleted."""
        async with self._taking.turn(uploader.party):
            if uploader.id in self._refused:
                raise ApiError("manifest_refused", f"an earlier manifest of {uploader.id} was refused")
            self.counts.need_accepted(uploader, boottime_ms())
            try:
                return await self._take(owner, uploader, name, given)
            except ManifestRefused as refused:
                if uploader.one_refusal and not isinstance(refused, ManifestTooLarge):
                    self._refused[uploader.id] = None
                    if len(self._refused) > REFUSED_MAX:
                        self._refused.popitem(last=False)
                raise

    async def _take(self, owner: str, uploader: Uploader, name: str, given: Collection[str] | None) -> Accepted:
        whose = owner_hash(owner)
        self._need_pledges(whose)
        began_ms = boottime_ms()
        collector = self.collector
        turn = self._checks.turns_of(uploader.party)
        try:
            may_use = await self._may_use(owner, uploader.id, given)
            took = None if given is None else partial(self._sent.add, uploader.id)
            accepted = await accept(
                self.store,
                uploader.id,
                whose,
                name,
                hold=partial(self._hold, whose),
                may_use=may_use,
                took=took,
                limits=uploader.limits,
                turn=turn,
            )
        except BlobMissing:
            raise ApiError("not_found", f"no manifest {name[:64]} was sent") from None
        self.counts.accepted(uploader, accepted.promoted_bytes, boottime_ms())
        if any(collector.condemns(whose, blob.sha) for blob in accepted.missing):
            raise Unavailable("busy", "some of these files are just being cleared away as unused; nothing is lost", 5)
        if not accepted.missing:
            self._keep(owner, name, accepted.manifest.blobs)
            if collector is self.collector:
                collector.seen(Root(whose, name), began_ms)
        return accepted

    async def ready(self, owner: str, name: str) -> bool:
        """Whether a row may name this manifest soon: it was accepted and is complete. The store is checked only if that
        was not done recently."""
        return self.collector.still_seen(Root(owner_hash(owner), name), boottime_ms()) or await self.whole(owner, name)

    def may_name(self, owner: str, names: Iterable[str]) -> bool:
        """Whether a row that names these manifests may be committed. Call it in the step that begins the commit. False:
        the last check is too old; check again."""
        whose, now_ms = owner_hash(owner), boottime_ms()
        return all(self.collector.may_name(Root(whose, name), now_ms) for name in names)

    async def whole(self, owner: str, name: str) -> bool:
        """Whether a manifest was accepted, and all its content exists and will exist until a row names it."""
        whose = owner_hash(owner)
        try:
            blobs = await self.blobs(owner, name)
        except (ApiError, Damaged):
            return False
        shas = [name, *(blob.sha for blob in blobs)]
        collector, began_ms = self.collector, boottime_ms()
        with collector.looking(whose, shas) as kept:
            if len(kept) < len(set(shas)):
                return False

            async def there(blob: Blob) -> bool:
                stored = await self.store.head(owned_key(whose, blob.sha))
                return stored is not None and stored.size == blob.size

            # Check the manifest itself too: it may be cached here and gone from the store.
            named = await self.store.head(owned_key(whose, name))
            found = named is not None and all(await each(blobs, there))
            if found:
                collector.pledge(whose, shas, boottime_ms())
                collector.seen(Root(whose, name), began_ms)
            return found

    async def manifest(self, owner: str, name: str) -> bytes:
        """An accepted manifest: it was checked before it was stored, and the store compares its hash. Raises ApiError
        `not_found` if there is none, Damaged if the stored one is damaged."""
        try:
            return await self.store.get(owned_key(owner_hash(owner), name), bytes_max=ManifestLimits().manifest_bytes)
        except BlobMissing:
            raise ApiError("not_found", f"there is no manifest {name[:64]}") from None

    async def blobs(self, owner: str, name: str) -> tuple[Blob, ...]:
        """The blobs of an accepted manifest. Raises as `manifest` does."""
        known = self._manifests.get((owner, name))
        if known is not None:
            self._manifests.move_to_end((owner, name))
            return known
        blobs = blobs_in(await self.manifest(owner, name))
        self._keep(owner, name, blobs)
        return blobs

    async def links(self, owner: str, name: str, shas: Sequence[str]) -> dict[str, str]:
        """Download URLs of blobs of a manifest. Only blobs of the manifest get one."""
        bounded(len(shas))
        sizes = sizes_of(await self.blobs(owner, name), name, shas)
        whose = owner_hash(owner)

        async def sign(sha: str) -> str:
            return await self.store.sign("GET", owned_key(whose, sha), size=sizes[sha], expires_s=LINK_S)

        return dict(zip(shas, await each(shas, sign), strict=True))

    def forget(self, keys: Iterable[str]) -> None:
        """Remove keys from the cache that were deleted or are about to be."""
        gone = set(keys)
        for owner, name in list(self._manifests):
            if owned_key(owner_hash(owner), name) in gone:
                self._kept -= _weight(self._manifests.pop((owner, name)))

    def _keep(self, owner: str, name: str, blobs: tuple[Blob, ...]) -> None:
        if (owner, name) in self._manifests:
            return
        self._manifests[owner, name] = blobs
        self._kept += _weight(blobs)
        while self._kept > MANIFESTS_KEPT_BYTES and len(self._manifests) > 1:
            _, oldest = self._manifests.popitem(last=False)
            self._kept -= _weight(oldest)


def bounded(asked: int) -> None:
    if asked > ASKED_MAX:
        raise ApiError("bad_request", f"{asked} blobs were asked about; {ASKED_MAX} are answered at a time")


def sizes_of(blobs: Iterable[Blob], name: str, shas: Sequence[str]) -> dict[str, int]:
    """The sizes of the blobs of a manifest. Raises ApiError if one of `shas` is not among them."""
    sizes = {blob.sha: blob.size for blob in blobs}
    strange = [sha for sha in shas if sha not in sizes]
    if strange:
        raise ApiError("not_found", f"{strange[0][:64]} is not in manifest {name[:64]}")
    return sizes


def _weight(blobs: Sequence[Blob]) -> int:
    return 200 * (1 + len(blobs))
