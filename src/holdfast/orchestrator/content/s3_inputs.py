"""Inputs in S3: decides which buckets jobs may read, and signs URLs for single objects there. Moves no content.

Only the orchestrator has the key to the buckets. A node that is about to fetch an input asks for a signed URL, which
allows reading one object for a few minutes and is stored nowhere. Everyone who may submit jobs can read what a bucket
holds, so only buckets that the operator named are read, and never the place where the network keeps the files of all
its users.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from datetime import timedelta
from typing import NamedTuple, TypeVar

import obstore
from obstore import exceptions
from obstore.store import S3Store as Bucket

from holdfast.blobs.errors import StoreGone
from holdfast.blobs.s3 import S3Place
from holdfast.errors import Misconfigured
from holdfast.orchestrator.api_error import ApiError

LINK_S = 5 * 60
"""How long a signed URL is valid, in seconds: a fetch begins at once, and every further try asks for a new one."""
ANSWER_S = 10.0
"""Time limit of a request to a bucket, in seconds. If it is exceeded, a job is accepted without a size check."""
KEY_BYTES_MAX = 1024
SCHEME = "s3://"

T = TypeVar("T")


class Object(NamedTuple):
    bucket: str
    key: str

    @property
    def url(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


def parsed(url: str) -> Object:
    """Parses `s3://BUCKET/KEY`; the key is not decoded. Raises ApiError if it does not name a single object."""
    bucket, _, key = url.removeprefix(SCHEME).partition("/")
    if not url.startswith(SCHEME) or not bucket or not key:
        raise ApiError("bad_request", f"{url[:200]!r} names no object", "Write s3://BUCKET/KEY.")
    if any(part in ("", ".", "..") for part in key.split("/")) or len(key.encode()) > KEY_BYTES_MAX:
        raise ApiError(
            "bad_request", f"{url[:200]!r} names no single object", "A key has no empty parts, no `.` and no `..`."
        )
    return Object(bucket, key)


class S3Inputs:
    """`places`: the buckets that may be read, each with or without a prefix."""

    def __init__(self, places: Iterable[S3Place] = ()) -> None:
        self._places = list(places)
        self._buckets: dict[str, Bucket] = {}

    def check(self, item: Object) -> S3Place:
        """The place that contains the object. Raises ApiError if the operator has allowed none."""
        for place in self._places:
            if item.bucket == place.bucket and f"{item.key}/".startswith(f"{place.prefix}/" if place.prefix else ""):
                return place
        allowed = ", ".join(f"{SCHEME}{place.bucket}/{place.prefix}".rstrip("/") for place in self._places) or "none"
        raise ApiError(
            "bucket_not_allowed",
            f"this network does not read from {SCHEME}{item.bucket}; it reads from: {allowed}",
            f"Ask its operator for `holdfast up --s3-inputs {SCHEME}{item.bucket}`, or give an https:// address.",
        )

    async def size_of(self, url: str) -> int | None:
        """Size of the object; None if the bucket does not answer. Raises ApiError if it cannot be read."""
        item = parsed(url)
        place = self.check(item)
        try:
            return (await _within(obstore.head_async(self._bucket(place), item.key)))["size"]
        except FileNotFoundError:
            raise ApiError("not_found", f"there is nothing at {item.url}", "Check the bucket and the key.") from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
            raise ApiError(
                "bucket_refused",
                f"the bucket {item.bucket} does not let this network read {item.key}",
                "Check the key; if it is right, the network's operator needs the right to read it.",
            ) from None
        except (exceptions.BaseError, TimeoutError):
            return None

    async def address(self, url: str) -> str:
        """A URL to read this object for a few minutes. Raises StoreGone if it cannot be signed now."""
        item = parsed(url)
        place = self.check(item)
        signed = obstore.sign_async(self._bucket(place), "GET", item.key, timedelta(seconds=LINK_S))
        try:
            return await _within(signed)
        except (exceptions.BaseError, TimeoutError):
            # The text of the error may contain the credentials.
            raise StoreGone(f"a URL for an object in the bucket {item.bucket} cannot be signed right now") from None

    def _bucket(self, place: S3Place) -> Bucket:
        if place.bucket not in self._buckets:
            options: dict[str, object] = {"region": place.region}
            if place.endpoint:
                options["endpoint"] = place.endpoint
            if place.access_key_id:
                options |= {"access_key_id": place.access_key_id, "secret_access_key": place.secret_access_key}
            self._buckets[place.bucket] = Bucket(
                place.bucket,
                client_options={
                    "allow_http": place.endpoint.startswith("http://"),
                    "timeout": timedelta(seconds=ANSWER_S),
                    "connect_timeout": timedelta(seconds=5),
                },
                retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=ANSWER_S)},
                **options,  # type: ignore[arg-type]
            )
        return self._buckets[place.bucket]


async def _within(asked: Awaitable[T]) -> T:
    async with asyncio.timeout(ANSWER_S):
        return await asked


def check_apart(inputs: Iterable[S3Place], own: S3Place | None) -> None:
    """Raises Misconfigured if jobs could read the files that the network keeps for all its users."""
    for place in inputs:
        if own is None or place.bucket != own.bucket:
            continue
        ours, theirs = f"{own.prefix}/".lstrip("/"), f"{place.prefix}/".lstrip("/")
        if ours.startswith(theirs) or theirs.startswith(ours):
            raise Misconfigured(
                f"--s3-inputs {SCHEME}{place.bucket}/{place.prefix} would let every job read the files of all users",
                hint="Name another bucket or prefix than that of --blobs.",
            )
