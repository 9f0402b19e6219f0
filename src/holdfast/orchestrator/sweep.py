"""Lets go of what no job needs any more: reads what is referred to, lists the store, deletes what may be deleted.

What may be is decided by `holdfast.blobs.garbage`, which is pure; its duties for a caller are kept here. Only the
leader sweeps, and a new one waits until the pledges of its predecessor have run out.
"""

import asyncio
import logging
from collections.abc import Iterable

from holdfast.blobs.errors import BlobError
from holdfast.blobs.garbage import Root
from holdfast.blobs.keys import Stored, owner_hash
from holdfast.orchestrator.asked import BadRequest
from holdfast.orchestrator.clock import wall_ms
from holdfast.orchestrator.content import Content
from holdfast.orchestrator.loop import Leader
from holdfast.state import Snapshot, Store, StoreError

SWEEP_S = 1800.0
"""Nothing is urgent here: what is collected was useless for hours."""
PREFIXES = ("incoming/", "owned/")

log = logging.getLogger("holdfast.sweep")


def roots_of(live: Snapshot, kept: Iterable[tuple[str, tuple[str, ...]]]) -> dict[Root, str]:
    """Every manifest that something refers to, with the owner's name: live jobs, what their attempts started from, and
    what is kept of ended ones."""
    named: list[tuple[str, str]] = []
    for job in live.jobs:
        spec = job.spec
        mine = [spec.package, *(item.manifest for item in spec.inputs)]
        mine += [job.checkpoint.manifest] if job.checkpoint is not None else []
        named += [(job.owner, manifest) for manifest in mine]
    for attempt in live.attempts:
        mine = [attempt.resumed.manifest] if attempt.resumed is not None else []
        mine += [attempt.result.manifest] if attempt.result is not None else []
        named += [(attempt.owner, manifest) for manifest in mine]
    for owner, manifests in kept:
        named += [(owner, manifest) for manifest in manifests]
    return {Root(owner_hash(owner), manifest): owner for owner, manifest in named if manifest}


class Sweeper:
    def __init__(self, content: Content, store: Store, leader: Leader) -> None:
        self._content = content
        self._store = store
        self._leader = leader

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            if self._leader.trouble:
                continue
            try:
                deleted = await self.sweep()
                if deleted:
                    log.info("%s keys that nothing refers to were deleted", deleted)
            except (BlobError, StoreError, OSError) as wrong:
                log.warning("nothing was collected: %s", wrong)

    async def sweep(self) -> int:
        """One round; how many keys were deleted."""
        read_ms = wall_ms()
        live, kept = await asyncio.to_thread(self._referred)
        roots = roots_of(live, kept)
        named = await self._named(roots)
        listing: list[Stored] = []
        for prefix in PREFIXES:
            async for batch in self._content.store.list(prefix):
                listing += batch
        uploading = {attempt.id for attempt in live.attempts}
        collector = self._content.collector
        doomed = collector.condemn(listing, roots, named, uploading, roots_read_ms=read_ms, now_ms=wall_ms())
        try:
            self._content.forget(doomed)
            # A process that was frozen since it decided must not act on it: another may have pledged these since.
            if doomed and not self._leader.trouble and collector.may_delete(wall_ms()):
                await self._content.store.delete(doomed)
        finally:
            collector.buried(wall_ms())
        return len(doomed)

    def _referred(self) -> tuple[Snapshot, list[tuple[str, tuple[str, ...]]]]:
        """What lives first, then what is kept: a job that ends in between is found in one of the two, or in both."""
        live = self._store.load_live()
        kept = [(str(keep.owner), keep.manifests) for keep in self._store.keeps(wall_ms())]
        return live, kept

    async def _named(self, roots: dict[Root, str]) -> dict[str, list[str]]:
        named: dict[str, list[str]] = {}
        for root, owner in roots.items():
            try:
                manifest = await self._content.manifest(owner, root.manifest)
            except BadRequest:
                continue  # not there: then its owner loses nothing, as the collector sees to
            named[root.manifest] = [blob.sha for blob in manifest.blobs]
        return named
