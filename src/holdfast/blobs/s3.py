"""A blob store in an S3 bucket, at any endpoint: URLs are pre-signed by S3's own rules.

Such a URL binds neither size nor hash, so `promote` reads the object and writes exactly the bytes it verified: a copy
inside the store could pick up what was uploaded a moment later.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Literal, TypeVar, cast

import httpx
import msgspec
import obstore
from obstore import exceptions
from obstore.store import S3Store as Bucket

from holdfast.blobs.errors import (
    BlobExists,
    BlobMissing,
    BlobStoreError,
    Damaged,
    LinkRefused,
    Mismatch,
    StoreFull,
    StoreGone,
    StoreRefused,
    StoreSlow,
)
from holdfast.blobs.keys import Owned, Stored, incoming_key, parse_key, sha_of
from holdfast.blobs.manifest import ManifestLimits
from holdfast.blobs.signing import METHODS
from holdfast.blobs.store import Abilities, Condition, each, same_sha
from holdfast.blobs.verified import verify

T = TypeVar("T")

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_FULL = {"InsufficientStorage", "QuotaExceeded", "StorageFull", "XMinioStorageFull"}
_REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket", "PermanentRedirect"}
_SKEWED = "RequestTimeTooSkewed"
_DELETED_AT_ONCE = 1_000


class S3Place(msgspec.Struct, frozen=True, kw_only=True):
    """The bucket, and the credentials for it."""

    bucket: str
    endpoint: str = ""
    """Empty: the region's default."""
    region: str = "us-east-1"
    access_key_id: str = ""
    """Empty: from the environment, as usual for S3 programs."""
    secret_access_key: str = ""
    prefix: str = ""
    timeout_s: float = 30.0

    def __repr__(self) -> str:
        return f"S3Place(bucket={self.bucket!r}, endpoint={self.endpoint!r}, prefix={self.prefix!r})"


class S3Store:
    def __init__(self, place: S3Place) -> None:
        self._place = place
        self.on_damage: Callable[[str], None] = lambda key: None
        options: dict[str, object] = {"region": place.region}
        if place.endpoint:
            options["endpoint"] = place.endpoint
        if place.access_key_id:
            options |= {"access_key_id": place.access_key_id, "secret_access_key": place.secret_access_key}
        self._bucket = Bucket(
            place.bucket,
            prefix=place.prefix or None,
            client_options={
                "allow_http": place.endpoint.startswith("http://"),
                "timeout": timedelta(seconds=place.timeout_s),
                "connect_timeout": timedelta(seconds=min(5.0, place.timeout_s)),
            },
            # The caller retries: it knows for how long that makes sense.
            retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=place.timeout_s)},
            **options,  # type: ignore[arg-type]
        )

    def now_ms(self) -> int:
        """The bucket's clock cannot be read; this machine's should show the same. It decides only about content that
        nobody refers to (see `garbage`)."""
        return time.time_ns() // 1_000_000

    async def probe(self) -> Abilities:
        data = b"holdfast looks whether this store can be used"
        key = incoming_key("probe", sha_of(data))
        await self.delete([key])
        await self.put(key, data)
        if await self.get(key, bytes_max=len(data)) != data:
            raise StoreGone(f"bucket {self._place.bucket} does not return what was stored")
        try:
            await self.put(key, data, create_only=True)
            create_only = False
        except BlobExists:
            create_only = True
        except BlobStoreError:
            create_only = False  # the store does not support the condition
        await self.delete([key])
        return Abilities(create_only)

    async def put(self, key: str, data: bytes, *, create_only: bool = False) -> None:
        mode: Literal["create", "overwrite"] = "create" if create_only else "overwrite"
        # One request: a multipart upload would need several round trips, and leave parts if interrupted.
        await self._ask(obstore.put_async(self._bucket, _key(key), data, mode=mode, use_multipart=False), key)

    async def get(self, key: str, *, bytes_max: int) -> bytes:
        data = await self._read(key, bytes_max)
        parsed = parse_key(key)
        if isinstance(parsed, Owned) and await asyncio.to_thread(sha_of, data) != parsed.sha:
            if await self.scrub(key) is not Condition.SOUND:
                raise Damaged(f"the store's copy of {key} is damaged")
            data = await self._read(key, bytes_max)
        return data

    async def scrub(self, key: str) -> Condition:
        """Two reads must agree that content is damaged. Only this process writes owned keys."""
        parsed = parse_key(key)
        if not isinstance(parsed, Owned):
            raise LinkRefused(f"{key[:160]!r} is not the key of owned content")
        try:
            for _ in range(2):
                data = await self._read(key, ManifestLimits().manifest_bytes)
                if await asyncio.to_thread(sha_of, data) == parsed.sha:
                    return Condition.SOUND
        except BlobMissing:
            return Condition.ABSENT
        except Mismatch:
            pass  # larger than anything that is stored
        await self.delete([key])
        self.on_damage(key)
        return Condition.DAMAGED

    async def _read(self, key: str, bytes_max: int) -> bytes:
        answer = await self._ask(obstore.get_async(self._bucket, _key(key)), key)
        if answer.meta["size"] > bytes_max:
            raise Mismatch(f"{key} holds more than {bytes_max} bytes")
        return bytes(await self._ask(answer.bytes_async(), key))

    async def head(self, key: str) -> Stored | None:
        try:
            meta = await self._ask(obstore.head_async(self._bucket, _key(key)), key)
        except BlobMissing:
            return None
        return Stored(key, meta["size"], int(meta["last_modified"].timestamp() * 1000))

    async def list(self, prefix: str) -> AsyncIterator[Sequence[Stored]]:
        # Lists everything below the last folder of the prefix, because prefixes match whole path components here.
        listing = aiter(obstore.list(self._bucket, prefix.rpartition("/")[0] or None))
        while True:
            try:
                batch = await self._ask(anext(listing), prefix)
            except StopAsyncIteration:
                return
            found = [Stored(m["path"], m["size"], int(m["last_modified"].timestamp() * 1000)) for m in batch]
            if wanted := [s for s in found if s.key.startswith(prefix) and parse_key(s.key) is not None]:
                yield wanted

    async def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            some = [_key(key) for key in keys[start : start + _DELETED_AT_ONCE]]
            try:
                await self._ask(obstore.delete_async(self._bucket, some), some[0])
            except BlobMissing:
                if len(some) > 1:
                    for key in some:
                        await self.delete([key])

    async def delete_while(self, keys: Sequence[str], may: Callable[[], bool], lasts_s: int) -> None:
        """Through signed URLs: the store itself refuses them when they have expired, even if this process was frozen.
        Signed first and checked afterwards, so that no time passes between the check and the date of the request."""
        async with httpx.AsyncClient(timeout=self._place.timeout_s) as http:

            async def let_go(key: str) -> None:
                expires = timedelta(seconds=lasts_s)
                address = await self._ask(obstore.sign_async(self._bucket, "DELETE", _key(key), expires), key)
                if not may():
                    return
                try:
                    answer = await http.delete(address)
                except httpx.HTTPError as error:
                    # The error may quote the URL, which is a secret.
                    what = type(error).__name__
                    raise StoreGone(f"bucket {self._place.bucket} could not be asked to delete: {what}") from None
                if not answer.is_success and answer.status_code != 404:
                    raise StoreGone(f"bucket {self._place.bucket} did not delete: it answered {answer.status_code}")

            await each(keys, let_go)

    async def deleting(self) -> bool:
        return False  # every such request expires

    async def promote(self, incoming: str, owned: str, size: int) -> None:
        sha = same_sha(incoming, owned)
        data = await self.get(incoming, bytes_max=size)
        await asyncio.to_thread(verify, sha, size, data)
        await self.put(owned, data)
        await self.delete([incoming])

    async def sign(self, method: str, key: str, *, size: int, expires_s: int, incoming_max: int = 0) -> str:
        """S3 binds neither the size nor the quota to a URL: both are compared with what the bucket holds before the
        next URL is signed (docs/decisions/0025)."""
        if method not in METHODS:
            raise LinkRefused(f"no URL is signed for {method[:16]!r}")
        signed = obstore.sign_async(
            self._bucket, cast(Literal["GET", "PUT"], method), _key(key), timedelta(seconds=expires_s)
        )
        return await self._ask(signed, key)

    async def _ask(self, asked: Awaitable[T], key: str) -> T:
        try:
            async with asyncio.timeout(self._place.timeout_s * 2):
                return await asked
        except TimeoutError:
            raise StoreSlow(f"bucket {self._place.bucket} did not answer within {self._place.timeout_s:g} s") from None
        except FileNotFoundError:
            raise BlobMissing(f"the store holds nothing under {key}") from None
        except exceptions.AlreadyExistsError:
            raise BlobExists(f"{key} already exists") from None
        except exceptions.BaseError as error:
            raise self._trouble(error) from None

    def _trouble(self, error: exceptions.BaseError) -> BlobStoreError:
        """The library has one class for most errors; the rest is in its message, which is never shown as it is."""
        text, where = str(error), f"bucket {self._place.bucket}"
        status, code = _first(_STATUS, text), _first(_CODE, text)
        if code == _SKEWED:
            # Not a refusal: it passes when the clock is right, and nothing of the content is wrong.
            return StoreGone(
                f"{where} and this machine differ in the time by more than S3 tolerates",
                hint="Set the clock of the orchestrator's machine: requests and URLs of S3 carry its date.",
            )
        denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
        if denied or code in _REFUSED:
            return StoreRefused(f"{where} denies access", hint="Check the key, its rights and the bucket's name.")
        if status == "507" or code in _FULL:
            return StoreFull(f"{where} is full", hint="Give it more room, or delete old results.")
        if "TimedOut" in text:
            return StoreSlow(f"{where} did not answer within {self._place.timeout_s:g} s")
        answered = f"it answered {status} {code}".rstrip() if status else "nobody answers there"
        return StoreGone(f"{where} cannot be used right now: {answered}")


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _key(key: str) -> str:
    if parse_key(key) is None:
        raise LinkRefused(f"{key[:160]!r} is not a key")
    return key
