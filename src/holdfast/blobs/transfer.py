"""Transfers blobs between this machine and a store, through signed URLs, with retries.

Only missing blobs are transferred, so an interrupted transfer continues where it was. Each blob has its own time limit;
a store that is full, slow or unavailable is retried until the overall patience ends; every received byte is hashed
before it is passed on. Knows neither the kind of store nor the orchestrator: a `BlobBroker` represents both.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

import httpx
import msgspec

from holdfast.blobs.cache import BlobCache
from holdfast.blobs.errors import (
    BlobError,
    BlobMissing,
    Damaged,
    LinkExpired,
    LinkRefused,
    Mismatch,
    StoreFull,
    StoreGone,
    StoreSlow,
    TransferExpired,
)
from holdfast.blobs.lines import INTO
from holdfast.blobs.manifest import CHUNK_BYTES, Blob
from holdfast.blobs.signing import shown_link
from holdfast.blobs.source import Source
from holdfast.blobs.verified import VerifiedBytes, verify
from holdfast.passing import raise_if_lasting
from holdfast.tasks import TaskScope

LINKS_AT_ONCE = 64
"""How many URLs are requested in one call. They are short-lived: more would expire unused."""
ASKED_AT_ONCE = 2_000
WRONG_TIMES_MAX = 3
"""How often one blob may arrive damaged, be missing, or be refused under a new URL."""


class BlobBroker(Protocol):
    """Knows what the store has and can sign URLs: the orchestrator, as seen from here."""

    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        """The hashes of those that must be sent."""
        ...

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        """A new signed URL for each, by hash."""
        ...


class TransferProgress(msgspec.Struct, frozen=True):
    bytes_done: int
    bytes_total: int
    blobs_done: int
    blobs_total: int
    bytes_moved: int
    """Over the network. The rest was there already."""


class TransferPatience(msgspec.Struct, frozen=True, kw_only=True):
    give_up_s: float = 120.0
    """Time without a single blob arriving. A store that is unavailable for a minute is waited for."""
    deadline_s: float | None = None
    """For the whole transfer, even if it makes progress."""
    blob_s: float = 60.0
    """For the first try of one blob; each further try gets twice as long, up to eight times: connections may be
    slow."""
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0
    at_once: int = 4
    """Concurrent blobs. Each is held in memory."""


async def upload(
    blobs: Sequence[Blob],
    source: Source,
    door: BlobBroker,
    http: httpx.AsyncClient,
    *,
    patience: TransferPatience | None = None,
    progress: Callable[[TransferProgress], None] | None = None,
) -> TransferProgress:
    """Send what the store lacks. Raises TransferExpired, FolderChanged and what the broker raises."""
    flight = _Flight("PUT", blobs, door, http, patience or TransferPatience(), progress)
    lacking: set[str] = set()
    for start in range(0, len(blobs), ASKED_AT_ONCE):
        lacking |= set(await door.missing(blobs[start : start + ASKED_AT_ONCE]))

    async def send(blob: Blob) -> bool:
        data = await asyncio.to_thread(source.read, blob.sha)
        await flight.put(await flight.link(blob), data)
        return True

    return await flight.run([b for b in blobs if b.sha in lacking], send)


async def download(
    blobs: Sequence[Blob],
    put: Callable[[str, VerifiedBytes], None],
    door: BlobBroker,
    http: httpx.AsyncClient,
    *,
    cache: BlobCache | None = None,
    patience: TransferPatience | None = None,
    progress: Callable[[TransferProgress], None] | None = None,
) -> TransferProgress:
    """Fetch these and pass each to `put` (in a thread, verified, in no particular order). Raises TransferExpired,
    BlobMissing, Mismatch, and what `put` and the broker raise."""
    flight = _Flight("GET", blobs, door, http, patience or TransferPatience(), progress)

    def from_cache(blob: Blob) -> bool:
        found = cache.find(blob.sha) if cache is not None else None
        if found is not None:
            put(blob.sha, found)
        return found is not None

    def keep(blob: Blob, data: bytes | memoryview) -> None:
        found = verify(blob.sha, blob.size, data)
        if cache is not None:
            cache.put(blob.sha, data)
        put(blob.sha, found)

    async def fetch(blob: Blob) -> bool:
        if cache is not None and await asyncio.to_thread(from_cache, blob):
            return False
        data = await flight.get(await flight.link(blob), blob)
        await asyncio.to_thread(keep, blob, data)
        flight.used(data)
        return True

    return await flight.run(blobs, fetch)


Move = Callable[[Blob], Awaitable[bool]]
"""Transfers one blob; returns whether that took a request."""


class _Body(httpx.AsyncByteStream):
    """The bytes of one request."""

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.data  # type: ignore[misc]


class _Flight:
    """One transfer in progress."""

    def __init__(
        self,
        method: str,
        blobs: Sequence[Blob],
        door: BlobBroker,
        http: httpx.AsyncClient,
        patience: TransferPatience,
        progress: Callable[[TransferProgress], None] | None,
    ) -> None:
        self._method = method
        self._door = door
        self._http = http
        self._patience = patience
        self._tell = progress
        self._sizes = {b.sha: b.size for b in blobs}
        self._bytes_total = sum(self._sizes.values())
        self._began = self._alive = time.monotonic()
        self._links: dict[str, str] = {}
        self._asking = asyncio.Lock()
        self._to_do: list[Blob] = []
        self._bytes_done = self._bytes_moved = self._blobs_done = 0
        self._rooms: list[bytearray] = []
        """Reusable receive buffers. A buffer that may still be read or written is not in this list."""

    async def run(self, wanted: Sequence[Blob], move: Move) -> TransferProgress:
        unique = {b.sha: b for b in wanted}
        self._to_do = list(unique.values())[::-1]
        there = self._sizes.keys() - unique.keys()
        self._bytes_done = sum(self._sizes[sha] for sha in there)
        self._blobs_done = len(there)
        self._told()
        async with TaskScope() as tasks:
            for number in range(min(self._patience.at_once, len(unique))):
                tasks.start(f"{self._method} blobs, worker {number}", self._work(move))
            await tasks.join()
        return self._progress()

    async def _work(self, move: Move) -> None:
        while self._to_do:
            blob = self._to_do.pop()
            moved = await self._insist(blob, move)
            self._alive = time.monotonic()
            self._bytes_done += blob.size
            self._bytes_moved += blob.size if moved else 0
            self._blobs_done += 1
            self._told()

    async def _insist(self, blob: Blob, move: Move) -> bool:
        """Transfer one blob, with retries until it is hopeless."""
        tries = wrong = 0
        trouble: BlobError | None = None
        while True:
            limit_s, left_s = self._patience.blob_s * min(8, 2**tries), self._left()
            try:
                async with asyncio.timeout(min(limit_s, left_s)):
                    return await move(blob)
            except LinkExpired as error:
                self._links.clear()  # the others expire at the same time
                trouble = error
            except (BlobMissing, Mismatch, LinkRefused) as error:
                wrong += 1
                if wrong >= WRONG_TIMES_MAX:
                    raise
                trouble = error
            except (StoreFull, StoreGone, StoreSlow) as error:
                trouble = error
            except TimeoutError:
                # If only our patience ended, the previous error is the better reason.
                if trouble is None or limit_s < left_s:
                    trouble = StoreSlow(f"blob {blob.sha} was not transferred within {min(limit_s, left_s):.3g} s")
            except httpx.TransportError as error:
                trouble = StoreGone(f"the store did not answer: {type(error).__name__}")
            except OSError as error:
                raise_if_lasting(error)
                trouble = StoreGone(f"this machine cannot ask the store now: {error.strerror}")
            self._links.pop(blob.sha, None)
            tries += 1
            wait_s = min(self._patience.longest_wait_s, self._patience.first_wait_s * 2 ** min(tries - 1, 16))
            if self._left() <= 0:
                raise self._expired(blob, trouble)
            await asyncio.sleep(min(self._left(), wait_s * (0.5 + random.random() / 2)))

    def _left(self) -> float:
        """Seconds of patience left."""
        now = time.monotonic()
        left = self._patience.give_up_s - (now - self._alive)
        if self._patience.deadline_s is not None:
            left = min(left, self._patience.deadline_s - (now - self._began))
        return max(0.0, left)

    def _expired(self, blob: Blob, trouble: BlobError) -> TransferExpired:
        done = self._progress()
        return TransferExpired(
            f"{done.bytes_done} of {done.bytes_total} bytes were transferred; blob {blob.sha} failed: {trouble.says}",
            hint="Try again: what arrived is not sent twice.",
            code=trouble.code if isinstance(trouble, StoreFull | StoreGone | StoreSlow) else None,
        )

    async def link(self, blob: Blob) -> str:
        """A signed URL, used once: each retry asks for another."""
        async with self._asking:
            if blob.sha not in self._links:
                upcoming = self._to_do[-LINKS_AT_ONCE + 1 :] if not self._links else []
                self._links |= await self._door.links(self._method, [blob, *upcoming])
            if blob.sha not in self._links:
                raise BlobMissing(f"no URL was given for blob {blob.sha}")
            return self._links.pop(blob.sha)

    # --- HTTP ---

    async def put(self, url: str, data: bytes | bytearray) -> None:
        body = _Body(data)
        headers = {"content-length": str(len(data)), "content-type": "application/octet-stream"}
        try:
            response = await self._http.put(url, content=body, headers=headers, timeout=None, follow_redirects=False)
        finally:
            body.data = b""  # a reference cycle with the response must not keep the bytes alive
        _judge(response.status_code, url)

    async def get(self, url: str, blob: Blob) -> bytes | memoryview:
        """Receive the bytes. They may be in a reusable buffer: call `used` when they are no longer needed, and only
        then."""
        room = memoryview(self._rooms.pop() if self._rooms else bytearray(CHUNK_BYTES))
        request = self._http.build_request(
            "GET", url, headers={"accept-encoding": "identity"}, timeout=None, extensions={INTO: room}
        )
        parts: list[bytes] = []
        size = 0
        response = await self._http.send(request, stream=True, follow_redirects=False)
        try:
            if response.status_code == 422:
                raise Damaged(f"the store's copy of blob {blob.sha} is damaged")
            _judge(response.status_code, url)
            async for part in response.aiter_raw():
                size += len(part)
                if size > blob.size:
                    raise Mismatch(f"more than {blob.size} bytes were received for blob {blob.sha}")
                parts.append(part)
        finally:
            await response.aclose()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def used(self, data: bytes | memoryview) -> None:
        if isinstance(data, memoryview) and isinstance(data.obj, bytearray) and len(data.obj) == CHUNK_BYTES:
            self._rooms.append(data.obj)

    def _progress(self) -> TransferProgress:
        return TransferProgress(
            self._bytes_done, self._bytes_total, self._blobs_done, len(self._sizes), self._bytes_moved
        )

    def _told(self) -> None:
        if self._tell is not None:
            self._tell(self._progress())


def _judge(status: int, url: str) -> None:
    """Translate an answer's status into an error. The URL is shown without its signature."""
    if 200 <= status < 300:
        return
    where = shown_link(url)
    if status in (401, 403, 410):
        raise LinkExpired(f"{where} is no longer valid ({status})")
    if status == 404:
        raise BlobMissing(f"{where} has no content")
    if status == 507:
        raise StoreFull(f"the store behind {where} is full")
    if status in (408, 425, 429) or status >= 500:
        raise StoreGone(f"{where} answered {status}")
    if status in (409, 412, 413, 422):
        raise Mismatch(f"{where} refused the bytes ({status})")
    raise LinkRefused(f"{where} answered {status}")
