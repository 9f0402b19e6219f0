"""Holds uploaders to their quotas (`uploaders`): counts what they have been granted, have sent and have had accepted.

What an uploader has in the incoming area is read from the store, and URLs that were given since then are added. So the
count is never too low, and it is read again before anything is refused. A store that serves its own URLs enforces the
quota exactly, as bytes arrive; S3 does not (docs/decisions/0025). Accepted bytes are counted in memory: a new leader
starts from zero.
"""

from collections.abc import Sequence

from holdfast.blobs.keys import INCOMING, Stored
from holdfast.blobs.manifest import Blob
from holdfast.blobs.store import BlobStore
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.content.uploaders import ACCEPTED_MS, Uploader

STALE_MS = 15 * 60_000
"""Incoming content of this age may be deleted to make room for other content of the same uploader: the URL that it was
sent to has expired, and if it is still wanted, it is sent again."""
PERIODS = 36
"""Accepted bytes are counted in this many periods of `ACCEPTED_MS`."""
RETRY_S = 60
UPLOADERS_MAX = 4_096
"""Counts of incoming bytes that are remembered; a forgotten one is read again."""


class UploadCounts:
    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._incoming: dict[str, int] = {}
        """Uploader -> bytes in the incoming area, at most."""
        self._accepted: dict[str, dict[int, int]] = {}
        """Uploader -> bytes by period."""

    async def grant(self, uploader: Uploader, blobs: Sequence[Blob]) -> None:
        """Count blobs that may be sent from now on. Raises Unavailable `over_quota` if they would be too many."""
        asked, most = sum(blob.size for blob in blobs), uploader.incoming_bytes_max
        known = self._incoming.get(uploader.id)
        if known is None or known + asked > most:
            known = await self._measure(uploader.id, most - asked)
        if known + asked > most:
            raise Unavailable(
                "over_quota",
                f"{known} bytes are waiting to be accepted; with {asked} more there would be over {most}",
                RETRY_S,
            )
        if len(self._incoming) >= UPLOADERS_MAX:
            self._incoming.clear()
        self._incoming[uploader.id] = known + asked

    async def _measure(self, uploader: str, wanted: int) -> int:
        """What there is. If that is more than `wanted`, the oldest part that is stale is deleted first."""
        found: list[Stored] = []
        async for batch in self._store.list(f"{INCOMING}{uploader}/"):
            found += batch
        total, now_ms = sum(one.size for one in found), self._store.now_ms()
        stale: list[str] = []
        for one in sorted(found, key=lambda one: one.modified_ms):
            if total <= wanted or now_ms - one.modified_ms < STALE_MS:
                break
            stale.append(one.key)
            total -= one.size
        if stale:
            await self._store.delete(stale)
        return total

    def need_accepted(self, uploader: Uploader, now_ms: int) -> None:
        """Raises Unavailable `over_quota` if the uploader has had more accepted than it may."""
        since = _period(now_ms) - PERIODS
        counts = {period: size for period, size in self._accepted.get(uploader.id, {}).items() if period > since}
        if sum(counts.values()) > uploader.accepted_bytes_max:
            raise Unavailable(
                "over_quota",
                f"more than {uploader.accepted_bytes_max} bytes were accepted within {ACCEPTED_MS // 3_600_000} hours",
                RETRY_S,
            )

    def accepted(self, uploader: Uploader, size: int, now_ms: int) -> None:
        """Content of this size became the owner's."""
        if not size:
            return
        period = _period(now_ms)
        if uploader.id not in self._accepted:
            # Forget those that had nothing accepted for so long that nothing counts any more.
            self._accepted = {id: each for id, each in self._accepted.items() if max(each) > period - PERIODS}
        counts = self._accepted.setdefault(uploader.id, {})
        counts[period] = counts.get(period, 0) + size
        for old in [old for old in counts if old <= period - PERIODS]:
            del counts[old]


def _period(now_ms: int) -> int:
    return now_ms * PERIODS // ACCEPTED_MS
