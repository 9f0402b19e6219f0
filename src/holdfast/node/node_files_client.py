"""The node's client for the files endpoint: asks where content is uploaded to and fetched from.

An endpoint belongs to a session, and its key expires with the session; calls in progress wait for the next one. Moves
no content itself and decides nothing: the signed URLs it returns are for `holdfast.blobs.transfer`.
"""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar, cast
from urllib.parse import urljoin

import httpx
import msgspec

from holdfast.blobs.lines import ThreadTransport
from holdfast.blobs.manifest import Blob
from holdfast.errors import HoldfastError
from holdfast.identity.certificates import https_context
from holdfast.passing import raise_if_lasting
from holdfast.policy.backoff import backoff_ms
from holdfast.tasks import OwnedTasks
from holdfast.wire.errors import ErrorView
from holdfast.wire.files import BlobRef, BlobsRequest, LinksRequest, ManifestView, Missing, SavedView, TakeRequest, Urls

ANSWER_S = 60.0
"""A manifest is verified before the answer, which may mean reading everything it names."""
AGAIN_MS, AGAIN_MS_MAX = 200, 5_000
T = TypeVar("T")
log = logging.getLogger("holdfast.node")


class NodeFilesEndpoint(msgspec.Struct, frozen=True):
    """The files endpoint of one session."""

    url: str
    key: str
    pem: bytes | None

    def __repr__(self) -> str:
        return f"NodeFilesEndpoint({self.url})"  # the key must not reach a log


class AttemptAccess(msgspec.Struct, frozen=True):
    """An attempt whose files this node may access."""

    attempt: str
    fence: int


class NodeFilesRefused(HoldfastError):
    """The orchestrator permanently refuses this request of the node."""


class NodeFilesClient:
    """Outlives sessions. Every call waits for an open endpoint and is repeated until it is answered; callers set the
    time limit."""

    def __init__(self) -> None:
        self._http: httpx.AsyncClient | None = None
        self._door: NodeFilesEndpoint | None = None
        """The last one that was open: it tells which certificate to trust at its URL."""
        self._open = asyncio.Event()
        self._closing = OwnedTasks()

    def open(self, door: NodeFilesEndpoint | None) -> None:
        self.shut()
        if door is None:
            return
        self._door = door
        self._http = httpx.AsyncClient(
            base_url=door.url,
            headers={"Authorization": f"Bearer {door.key}"},
            timeout=httpx.Timeout(ANSWER_S, connect=5.0),
            verify=https_context(door.pem) if door.pem is not None else _world(),
            trust_env=False,
        )
        self._open.set()

    def shut(self) -> None:
        self._open.clear()
        old, self._http = self._http, None
        if old is not None:
            self._closing.start("close connections of an ended session", old.aclose())

    async def close(self) -> None:
        self.shut()
        await self._closing.close()

    def mover(self) -> httpx.AsyncClient:
        """A client for the signed URLs: trusts the endpoint's own certificate at the endpoint, and the system's
        authorities anywhere else."""
        mounts: dict[str, httpx.AsyncBaseTransport | None] = {}
        if self._door is not None and self._door.pem is not None:
            mounts[self._door.url] = ThreadTransport(https_context(self._door.pem))
        return httpx.AsyncClient(trust_env=False, mounts=mounts, transport=ThreadTransport(_world()))

    # --- requests ---

    async def missing(self, at: "AttemptAccess", blobs: Sequence[Blob]) -> list[str]:
        """Which of these must be sent."""
        return (await self._ask(Missing, "POST", at, "missing", _refs(blobs))).missing

    async def places(self, at: "AttemptAccess", blobs: Sequence[Blob]) -> dict[str, str]:
        """The URL to upload each of them to."""
        return self._absolute(await self._ask(Urls, "POST", at, "links", _refs(blobs)))

    async def links(self, at: "AttemptAccess", manifest: str, blobs: Sequence[Blob]) -> dict[str, str]:
        """The URLs to fetch blobs of a manifest from."""
        body = LinksRequest([blob.sha for blob in blobs])
        return self._absolute(await self._ask(Urls, "POST", at, f"manifests/{manifest}/links", body))

    async def manifest(self, at: "AttemptAccess", name: str) -> bytes:
        return await self._ask(bytes, "GET", at, f"manifests/{name}")

    async def take(self, at: "AttemptAccess", manifest: str) -> ManifestView:
        """Have the manifest and everything it names verified and stored, after they were uploaded."""
        return await self._ask(ManifestView, "POST", at, "manifests", TakeRequest(manifest))

    async def save(self, at: "AttemptAccess", manifest: str) -> SavedView:
        """Likewise, and make it the job's checkpoint."""
        return await self._ask(SavedView, "POST", at, "checkpoint", TakeRequest(manifest))

    async def input_link(self, at: "AttemptAccess", name: str) -> str:
        """The URL to fetch an input in S3 from; valid now."""
        found = (await self._ask(Urls, "POST", at, f"inputs/{name}/link")).urls.get(name)
        if found is None:
            raise NodeFilesRefused(f"no URL was given for the input {name}")
        return found

    # --- sending requests ---

    def _absolute(self, found: Urls) -> dict[str, str]:
        base = str(self._http.base_url) if self._http is not None else ""
        return {sha: url if "://" in url else urljoin(base, url) for sha, url in found.urls.items()}

    async def _ask(self, kind: type[T], method: str, at: "AttemptAccess", path: str, body: Any = None) -> T:
        content = None if body is None else msgspec.json.encode(body)
        failures = 0
        while True:
            await self._open.wait()
            http = self._http
            if http is not None:
                answer = await self._try(http, method, f"/node/v1/attempts/{at.attempt}/{path}", at.fence, content)
                if answer is not None:
                    return cast(T, answer.content) if kind is bytes else msgspec.json.decode(answer.content, type=kind)
            failures += 1
            await asyncio.sleep(backoff_ms(failures, AGAIN_MS, AGAIN_MS_MAX, secrets.randbits(64)) / 1000)

    async def _try(
        self, http: httpx.AsyncClient, method: str, path: str, fence: int, content: bytes | None
    ) -> httpx.Response | None:
        """The answer; None if it makes sense to ask again. Raises NodeFilesRefused if it does not."""
        try:
            answer = await http.request(method, path, params={"fence": fence}, content=content)
        except (httpx.TransportError, RuntimeError) as wrong:  # RuntimeError: the client was closed meanwhile
            log.debug("%s was not answered: %s", path, wrong)
            return None
        except OSError as wrong:
            raise_if_lasting(wrong)
            log.warning("%s cannot be asked for now: %s", path, wrong)
            return None
        if answer.status_code < 300:
            return answer
        if answer.status_code in (401, 429, 502, 503, 504, 507):
            # 401: the key's session has ended; the next session brings another key. 507: the store has no space now.
            return None
        try:
            view = msgspec.json.decode(answer.content, type=ErrorView)
        except msgspec.DecodeError:
            return None
        raise NodeFilesRefused(view.says, hint=view.hint, code=view.code)


@cache
def _world() -> ssl.SSLContext:
    """The authorities that this machine trusts. Loaded once, because loading takes longer than most transfers."""
    return ssl.create_default_context()


def _refs(blobs: Sequence[Blob]) -> BlobsRequest:
    return BlobsRequest([BlobRef(blob.sha, blob.size) for blob in blobs])
