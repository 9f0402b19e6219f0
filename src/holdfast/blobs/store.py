"""The interface of a blob store, and the steps that are the same for every store. Knows no HTTP.

A store keeps bytes under keys (see `keys`). Only the orchestrator holds one. Everyone else accesses single keys through
short-lived signed URLs, and what they wrote does not count until `promote` has verified it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from enum import StrEnum
from typing import Protocol, TypeVar

import msgspec

from holdfast.blobs.errors import BlobMissing, LinkRefused, ManifestTooLarge, Mismatch
from holdfast.blobs.keys import Incoming, Owned, Stored, incoming_key, owned_key, parse_key, sha_of
from holdfast.blobs.manifest import Blob, Manifest, ManifestLimits, Outline
from holdfast.tasks import TaskScope

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 8
"""Concurrent requests to the store for one task."""


class Abilities(msgspec.Struct, frozen=True):
    """The result of a probe."""

    create_only: bool
    """Whether a create-only write is refused if the key exists."""


class Condition(StrEnum):
    """The result of reading owned content and comparing it with its name."""

    SOUND = "sound"
    DAMAGED = "damaged"
    ABSENT = "absent"


class BlobStore(Protocol):
    """Raises BlobStoreError and its subclasses. Every call has its own time limit."""

    on_damage: Callable[[str], None]
    """Called with the key of owned content that was found damaged, from any thread."""

    def now_ms(self) -> int:
        """The time by the clock that dates what is stored: ages of content are counted by it alone."""
        ...

    async def probe(self) -> Abilities:
        """Write, read and delete something. Raises if the store cannot be used."""
        ...

    async def put(self, key: str, data: bytes, *, create_only: bool = False) -> None:
        """Under an owned key it is durable when this returns. `create_only`: raises BlobExists if the key exists; see
        `probe`."""
        ...

    async def get(self, key: str, *, bytes_max: int) -> bytes:
        """Owned content is verified: raises Damaged if it is not what its name says, and then frees the key."""
        ...

    async def scrub(self, key: str) -> Condition:
        """Read owned content and compare it with its name. If it is damaged, its key is free afterwards, so that it
        counts as missing and the next upload replaces it."""
        ...

    async def head(self, key: str) -> Stored | None: ...

    def list(self, prefix: str) -> AsyncIterator[Sequence[Stored]]:
        """In batches, in no particular order."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Keys that do not exist are not an error."""
        ...

    async def delete_while(self, keys: Sequence[str], may: Callable[[], bool], lasts_s: int) -> None:
        """Delete one after the other for as long as `may` returns True. It may be called in another thread.

        A process that is frozen between that check and the request must not delete when it resumes: either the request
        expires after `lasts_s` seconds, or `deleting` reports it as in progress. Returns when every request was
        answered.
        """
        ...

    async def deleting(self) -> bool:
        """Whether a request of `delete_while` without an expiry, by any process, may be in progress."""
        ...

    async def promote(self, incoming: str, owned: str, size: int) -> None:
        """Verify size and hash, then store exactly the verified bytes under the owned key and delete the incoming
        one."""
        ...

    async def sign(self, method: str, key: str, *, size: int, expires_s: int, incoming_max: int = 0) -> str:
        """A URL that gives access to one key for one method, for that many seconds.

        `incoming_max`: for PUT, the bytes that its uploader may have in the incoming area; 0: any number. A store that
        serves its own URLs enforces it.
        """
        ...


def same_sha(incoming: str, owned: str) -> str:
    """The hash that both keys of a promotion name."""
    source, target = parse_key(incoming), parse_key(owned)
    if not isinstance(source, Incoming) or not isinstance(target, Owned) or source.sha != target.sha:
        raise LinkRefused(f"cannot promote from {incoming[:160]!r} to {owned[:160]!r}")
    return target.sha


async def each(items: Iterable[T], do: Callable[[T], Awaitable[R]], at_once: int = AT_ONCE) -> list[R]:
    """The results in order; at most `at_once` at a time. The first error ends all."""
    todo = enumerate(items)
    answers: dict[int, R] = {}

    async def work() -> None:
        for number, item in todo:
            answers[number] = await do(item)

    async with TaskScope() as tasks:
        for worker in range(at_once):
            tasks.start(f"each blob, worker {worker}", work())
        await tasks.join()
    return [answers[n] for n in range(len(answers))]


Hold = Callable[[str], AbstractContextManager[Callable[[], bool] | None]]
"""Keeps the owner's blob of this hash from being deleted while the block checks whether it exists: `Collector.looking`.
Gives what pledges it, to be called once it is found to exist; False: it cannot be relied on. None: it is being
deleted."""


def unheld(sha: str) -> AbstractContextManager[Callable[[], bool] | None]:
    """For stores of which nothing is deleted."""
    return nullcontext(lambda: True)


MayUse = Callable[[str], bool]
"""Whether an uploader may rely on the owner's blob of this hash without sending it. Whoever knows a hash must not get
the content by naming it: an attempt may rely on what it was given and on what it sent before."""


async def missing(
    store: BlobStore,
    uploader: str,
    owner: str,
    blobs: Sequence[Blob],
    hold: Hold = unheld,
    may_use: MayUse | None = None,
) -> list[str]:
    """Which of these an uploader must send: those that it did not upload before, and that the owner does not have or
    that it may not use. `may_use`: None: all of the owner's."""

    async def absent(blob: Blob) -> bool:
        if may_use is None or may_use(blob.sha):
            with hold(blob.sha) as pledge:
                if pledge is not None and await _there(store, owned_key(owner, blob.sha), blob) and pledge():
                    return False
        return not await _there(store, incoming_key(uploader, blob.sha), blob)

    absences = await each(blobs, absent)
    return [blob.sha for blob, gone in zip(blobs, absences, strict=True) if gone]


async def _there(store: BlobStore, key: str, blob: Blob) -> bool:
    found = await store.head(key)
    return found is not None and found.size == blob.size


CheckManifest = Callable[[bytes, ManifestLimits], Awaitable[Outline]]
"""Checks an untrusted manifest whose hash was compared. Raises ManifestRefused."""


ManifestTurn = Callable[[int], AbstractAsyncContextManager[CheckManifest]]
"""Waits for the turn to read and check a manifest of this many bytes, so that one sender does not hold up others."""


@asynccontextmanager
async def at_once(size: int) -> AsyncIterator[CheckManifest]:
    """For callers with one sender: shares the threads and the memory of this process."""

    async def check(data: bytes, limits: ManifestLimits) -> Outline:
        return await asyncio.to_thread(lambda: Manifest.from_bytes(data, limits).outline)

    yield check


class Accepted(msgspec.Struct, frozen=True):
    """A manifest all of whose blobs are verified and owned; or the blobs that are missing."""

    manifest: Outline
    missing: tuple[Blob, ...] = ()
    """To be sent (again). While this is not empty, nothing is accepted."""
    promoted_bytes: int = 0


async def accept(
    store: BlobStore,
    uploader: str,
    owner: str,
    name: str,
    *,
    hold: Hold = unheld,
    may_use: MayUse | None = None,
    took: Callable[[str], None] | None = None,
    limits: ManifestLimits | None = None,
    turn: ManifestTurn = at_once,
    progress: Callable[[int], None] | None = None,
) -> Accepted:
    """Accept what an uploader sent: every blob of the manifest `name`, and the manifest itself last.

    So a manifest under an owned key has all its blobs under owned keys. May be repeated after any interruption. A blob
    that does not match its name is deleted and counts as missing (the manifest too), and so does one that cannot be
    pledged now. `took` is called with the hash of everything that the uploader sent. Raises ManifestRefused for an
    invalid manifest, BlobMissing if it was not sent, Damaged if the owner's copy is damaged and the uploader sent none.
    """
    limits = limits or ManifestLimits()
    found = await _find_manifest(store, uploader, owner, name, limits, may_use)
    own = Blob(name, found.size)
    async with turn(found.size) as check:
        data = await store.get(found.key, bytes_max=found.size)
        if await asyncio.to_thread(sha_of, data) != name:
            await store.delete([incoming_key(uploader, name)])
            return Accepted(Outline((), 0, 0), (own,))
        manifest = await check(data, limits)
        del data  # it may be large, and what follows may take long
    promoted = 0

    async def take(blob: Blob) -> bool:
        with hold(blob.sha) as pledge:
            return pledge is not None and await own_it(blob) and pledge()

    async def own_it(blob: Blob) -> bool:
        nonlocal promoted
        key = owned_key(owner, blob.sha)
        if not ((may_use is None or may_use(blob.sha)) and await _there(store, key, blob)):
            incoming = incoming_key(uploader, blob.sha)
            try:
                await store.promote(incoming, key, blob.size)
            except Mismatch:
                await store.delete([incoming])
                return False
            except BlobMissing:
                return False
            promoted += blob.size
            if took is not None:
                took(blob.sha)
        if progress is not None and blob is not own:
            progress(blob.size)
        return True

    taken = await each(manifest.blobs, take)
    lacking = tuple(blob for blob, ok in zip(manifest.blobs, taken, strict=True) if not ok)
    if not lacking:
        if not await take(own):
            return Accepted(manifest, (own,), promoted)
        await store.delete([incoming_key(uploader, name)])
    return Accepted(manifest, lacking, promoted)


async def _find_manifest(
    store: BlobStore, uploader: str, owner: str, name: str, limits: ManifestLimits, may_use: MayUse | None
) -> Stored:
    """Where the manifest is: in the uploader's content, or in the owner's. Raises BlobMissing, and ManifestTooLarge
    before anything is read."""
    keys = [incoming_key(uploader, name)]
    if may_use is None or may_use(name):
        keys.append(owned_key(owner, name))
    for key in keys:
        found = await store.head(key)
        if found is None:
            continue
        if found.size > limits.manifest_bytes:
            raise ManifestTooLarge(f"a manifest of {found.size} bytes is over the limit of {limits.manifest_bytes}")
        return found
    raise BlobMissing(f"the store holds no manifest {name}")
