"""Remembers which content was found damaged, and re-reads what a node calls damaged. Nobody's word alone counts: a node
that is right is not to blame, and a node that is wrong is.
"""

import asyncio
import logging
import threading
from collections import OrderedDict

from holdfast.blobs.errors import BlobError, Damaged, ManifestRefused
from holdfast.blobs.garbage import GRACE_MS
from holdfast.blobs.keys import owned_key, owner_hash
from holdfast.blobs.store import Condition
from holdfast.boottime import boottime_ms
from holdfast.kernel.decision import Inspect
from holdfast.kernel.events import Inspected
from holdfast.orchestrator.api_error import ApiError, Unavailable
from holdfast.orchestrator.content.service import ContentService
from holdfast.orchestrator.content.verify import AGAIN_S
from holdfast.orchestrator.leader.loop import Leader
from holdfast.orchestrator.metrics import Metrics
from holdfast.tasks import OwnedTasks

KEYS_MAX = 10_000
"""Keys that are remembered."""

log = logging.getLogger("holdfast.damage")


class DamageRecord:
    """What the store found damaged. Called from any thread."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._found: OrderedDict[str, int] = OrderedDict()
        self.total = 0
        """Since this process started."""

    def found(self, key: str) -> None:
        log.error("%s is damaged; it is set aside, and the next upload of the same content replaces it", key)
        self._metrics.damaged.inc()
        with self._lock:
            self.total += 1
            self._found[key] = boottime_ms()
            self._found.move_to_end(key)
            if len(self._found) > KEYS_MAX:
                self._found.popitem(last=False)

    def lately(self, key: str) -> bool:
        """Whether it was damaged within the last hours: a node may have read it before it was replaced."""
        with self._lock:
            at = self._found.get(key)
        return at is not None and boottime_ms() - at <= GRACE_MS


class Inspector:
    """Carries out `Inspect`. One at a time: each may read as much as a job was given."""

    def __init__(self, content: ContentService, record: DamageRecord) -> None:
        self._content = content
        self._record = record
        self._one = asyncio.Lock()
        self._running = OwnedTasks()

    def begin(self, send: Inspect, leader: Leader) -> None:
        self._running.start(f"inspect what {send.attempt} was given", self._inspect(send, leader))

    async def _inspect(self, send: Inspect, leader: Leader) -> None:
        epoch = leader.epoch
        while leader.epoch == epoch:
            try:
                async with self._one:
                    damaged = [name for name in send.manifests if await self._damaged(send.owner, name)]
                leader.tell(Inspected(send.attempt, send.fence, tuple(damaged)))
                return
            except BlobError as cause:
                log.error("what %s was given cannot be read yet: %s", send.attempt, cause)
            except Unavailable:
                log.info("%s was inspected for a leader that is gone", send.attempt)
                return
            await asyncio.sleep(AGAIN_S)

    async def _damaged(self, owner: str, name: str) -> bool:
        """Whether the manifest or any content that it names is damaged or lost, or was so lately."""
        store, whose = self._content.store, owner_hash(owner)
        if not await self._sound(owned_key(whose, name)):
            return True
        try:
            blobs = await self._content.blobs(owner, name)
        except (ApiError, Damaged, ManifestRefused):
            return True
        keys = [owned_key(whose, blob.sha) for blob in blobs]
        if any(self._record.lately(key) for key in keys):
            return True
        for key in keys:
            if await store.scrub(key) is not Condition.SOUND:
                return True
        return False

    async def _sound(self, key: str) -> bool:
        return not self._record.lately(key) and await self._content.store.scrub(key) is Condition.SOUND

    async def close(self) -> None:
        await self._running.close()
