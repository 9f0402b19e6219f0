"""Deletes content that no job needs any more: reads what is referred to, lists the store, deletes the rest.

`holdfast.blobs.garbage`, which is pure, decides what may be deleted; this module and `service` fulfil the duties of its
caller. Only the leader sweeps, and a new leader waits until the pledges of its predecessor have expired. A round is
recorded in a note before its first delete request is sent: docs/decisions/0014 says why, and what a crash at each point
leaves behind.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

import msgspec

from holdfast.blobs.errors import BlobError, Damaged, ManifestRefused
from holdfast.blobs.garbage import ROUND_MS, Collector, Root
from holdfast.blobs.keys import INCOMING, Incoming, Stored, owner_hash, parse_key
from holdfast.boottime import boottime_ms
from holdfast.orchestrator.api_error import ApiError, Unavailable
from holdfast.orchestrator.content.service import ContentService
from holdfast.orchestrator.content.upload_counts import STALE_MS
from holdfast.orchestrator.leader.loop import Leader
from holdfast.state import Snapshot, Store, StoreError
from holdfast.tasks import TaskScope

SWEEP_S = 1800.0
"""Interval between sweeps, in seconds. Not urgent: only content that was unused for hours is deleted."""
BEAT_S = 60.0
"""Interval, in seconds, of the checks whether this process was frozen and whether a failed round is over."""
NOTE = "deleting"
"""The subject of the note of a round."""
PREFIXES = ("incoming/", "owned/")

log = logging.getLogger("holdfast.sweep")


def roots_of(live: Snapshot, kept: Iterable[tuple[str, tuple[str, ...]]]) -> dict[Root, str]:
    """Every manifest that is referred to, with the owner's name: by live jobs, by their checkpoints and the ancestors
    of these, by what their attempts delivered, and by the kept files of ended jobs."""
    named: list[tuple[str, str]] = []
    for job in live.jobs:
        spec = job.spec
        mine = [spec.package, *(item.manifest for item in spec.inputs)]
        mine += [saved.manifest for saved in job.checkpoint.line] if job.checkpoint is not None else []
        named += [(job.owner, manifest) for manifest in mine]
    for attempt in live.attempts:
        mine = [attempt.resumed.manifest] if attempt.resumed is not None else []
        mine += attempt.delivered
        mine += [attempt.result.manifest] if attempt.result is not None else []
        named += [(attempt.owner, manifest) for manifest in mine]
    for owner, manifests in kept:
        named += [(owner, manifest) for manifest in manifests]
    return {Root(owner_hash(owner), manifest): owner for owner, manifest in named if manifest}


def left_behind(live: Snapshot) -> list[str]:
    """The keys that the previous leader may still be deleting. Fails if the note cannot be read."""
    return msgspec.json.decode(live.notes.get(NOTE, "[]"), type=list[str])


def abandoned(found: Iterable[Stored], attempts: Collection[str], sending: Collection[str], now_ms: int) -> list[str]:
    """The keys of incoming content that nobody will ask about: its attempt is not among `attempts`, which have not
    ended, or its sender not among those that are `sending`. A leader that has just begun does not know all people who
    send: what they sent is left until its URL has expired."""
    doomed: list[str] = []
    for stored in found:
        key = parse_key(stored.key)
        if not isinstance(key, Incoming):
            continue
        if key.uploader.startswith("att_"):
            over = key.uploader not in attempts
        else:
            over = key.uploader not in sending and now_ms - stored.modified_ms >= STALE_MS
        doomed += [stored.key] if over else []
    return doomed


class Sweeper:
    def __init__(self, content: ContentService, store: Store, leader: Leader) -> None:
        self._content = content
        self._store = store
        self._leader = leader

    async def run(self) -> None:
        async with TaskScope() as tasks:
            tasks.start("look whether this process was frozen", self._beat())
            tasks.start("sweep", self._sweep_for_ever())
            await tasks.join()

    async def _beat(self) -> None:
        while True:
            self._content.collector.awake(boottime_ms())
            await asyncio.sleep(BEAT_S)

    async def _sweep_for_ever(self) -> None:
        swept_s = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(BEAT_S)
            now_s = asyncio.get_running_loop().time()
            if self._leader.trouble or (now_s - swept_s < SWEEP_S and not self._content.collector.condemned):
                continue
            try:
                swept_s = now_s
                deleted = await self.sweep()
                if deleted:
                    log.info("%s keys that nothing refers to were deleted", deleted)
            except (BlobError, StoreError, OSError, Unavailable) as wrong:
                log.warning("nothing was collected, or not all: %s", getattr(wrong, "says", wrong))

    async def sweep(self) -> int:
        """Run one round, and return the number of keys to delete. A failed round is ended first, once that is safe."""
        epoch, collector = self._leader.epoch, self._content.collector
        if collector.condemned and not await self._end(collector, epoch):
            return 0
        if await self._content.store.deleting():
            return 0  # deletions are under way, or a backup forbids them: condemn nothing that would have to wait
        read_ms = boottime_ms()
        live, kept = await asyncio.to_thread(self._referred, self._leader.served_ms())
        roots = roots_of(live, kept)
        named = await self._named(roots)
        listing: list[Stored] = []
        for prefix in PREFIXES:
            async for batch in self._content.store.list(prefix):
                listing += batch
        uploading = {*(attempt.id for attempt in live.attempts), *self._content.uploading()}
        store_ms = self._content.store.now_ms()
        doomed = collector.condemn(
            listing, roots, named, uploading, roots_read_ms=read_ms, now_ms=boottime_ms(), store_ms=store_ms
        )
        if doomed:
            await self._delete(collector, epoch, doomed)
        return len(doomed)

    async def clear_abandoned(self) -> int:
        """Delete what was sent for attempts that have ended, and by people who stopped sending, now. Returns the number
        of keys.

        No commit is needed for that, so it works while the store cannot write: incoming content was promised to nobody,
        and if somebody counts on it after all, it is reported as missing and sent again."""
        found: list[Stored] = []
        async for batch in self._content.store.list(INCOMING):
            found += batch
        # Read after the listing: an attempt that begins to send meanwhile is not in the listing.
        live = await asyncio.to_thread(self._store.load_live)
        store = self._content.store
        doomed = abandoned(found, {attempt.id for attempt in live.attempts}, self._content.uploading(), store.now_ms())
        await store.delete(doomed)
        return len(doomed)

    async def _delete(self, collector: Collector, epoch: int, doomed: Sequence[str]) -> None:
        # If this fails, the note may still be written. Nothing was requested of the store yet, and the next sweep ends
        # the round by clearing the note.
        await self._leader.leave_note(NOTE, msgspec.json.encode(doomed).decode(), epoch)
        self._content.forget(doomed)

        def may() -> bool:
            # A process that froze after its decision must not act on it: another may have pledged these keys since.
            return self._leader.epoch == epoch and not self._leader.trouble and collector.may_delete(boottime_ms())

        try:
            await self._content.store.delete_while(doomed, may, ROUND_MS // 1000)
        except BaseException:
            # Also when this task is cancelled: a thread or the store may still carry out the requests.
            collector.unsure(boottime_ms())
            raise
        finally:
            self._content.forget(doomed)
        await self._end(collector, epoch)

    async def _end(self, collector: Collector, epoch: int) -> bool:
        """Clear the note and release its keys, if no deletion of them can still be in progress."""
        if not collector.may_bury(boottime_ms()) or await self._content.store.deleting():
            return False
        await self._leader.leave_note(NOTE, "[]", epoch)
        return collector.buried(boottime_ms())

    def _referred(self, served_ms: int) -> tuple[Snapshot, list[tuple[str, tuple[str, ...]]]]:
        """Live rows first, then kept files: a job that ends in between is found in at least one of the two."""
        live = self._store.load_live()
        kept = [(str(keep.owner), keep.manifests) for keep in self._store.keeps(served_ms)]
        return live, kept

    async def _named(self, roots: dict[Root, str]) -> dict[str, list[str]]:
        named: dict[str, list[str]] = {}
        for root, owner in roots.items():
            try:
                blobs = await self._content.blobs(owner, root.manifest)
            except (ApiError, Damaged, ManifestRefused):
                continue  # it does not exist or is damaged; the collector then deletes nothing of its owner
            named[root.manifest] = [blob.sha for blob in blobs]
        return named
