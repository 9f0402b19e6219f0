"""Real stores and a real door for tests of content: S3 servers as processes, and a folder store behind HTTP."""

import asyncio
import contextlib
import secrets
import subprocess
import sysconfig
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx
import uvicorn

from holdfast.blobs import (
    Blob,
    BlobStore,
    FolderStore,
    LinkSigner,
    accept,
    incoming_key,
    missing,
    owned_key,
    owner_hash,
)
from holdfast.blobs.errors import BlobError, BlobMissing, LinkRefused, Mismatch, StoreFull
from holdfast.blobs.s3 import S3Place
from holdfast.testing.processes import free_port, wait_for

SCRIPTS = Path(sysconfig.get_path("scripts"))
ACCESS, SECRET = "holdfastaccess", "holdfastsecretkey"
OWNER = owner_hash("ann")
UPLOADER = "att_0123456789abcd.1"


@contextlib.contextmanager
def process(words: list[str], log: Path, ready: Callable[[], bool]) -> Iterator[subprocess.Popen[bytes]]:
    """A server of our own, stopped by its process."""
    with log.open("ab") as out:
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        wait_for(ready, lambda: f"{words[0]} to answer: {log.read_text()[-500:]}", timeout_s=60)
        yield server
    finally:
        server.kill()
        server.wait()


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, timeout=5).status_code > 0
    return False


@contextlib.contextmanager
def rclone(folder: Path, port: int | None = None) -> Iterator[S3Place]:
    """An S3 server that knows no create-only writes."""
    port = port or free_port()
    (folder / "data" / "bucket").mkdir(parents=True, exist_ok=True)
    words = [
        str(SCRIPTS / "rclone"), "serve", "s3", "--auth-key", f"{ACCESS},{SECRET}",
        "--config", str(folder / "none.conf"),
        "--addr", f"127.0.0.1:{port}", "--vfs-cache-mode", "off", str(folder / "data"),
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with process(words, folder / "rclone.log", lambda: answers(url)):
        yield S3Place(bucket="bucket", endpoint=url, access_key_id=ACCESS, secret_access_key=SECRET, timeout_s=60)


@contextlib.contextmanager
def moto(folder: Path) -> Iterator[S3Place]:
    """An S3 server that is strict about conditions."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{port}"
    words = [str(SCRIPTS / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with process(words, folder / "moto.log", lambda: answers(url)):
        assert httpx.put(f"{url}/bucket", timeout=60).status_code == 200  # the first makes it load half of its code
        yield S3Place(
            bucket="bucket",
            endpoint=url,
            access_key_id=ACCESS,
            secret_access_key=SECRET,
            timeout_s=60,
            prefix="some/where",
        )


class StoreDoor:
    """What the orchestrator does for uploaders and fetchers, without the orchestrator."""

    def __init__(self, store: BlobStore, *, uploader: str = UPLOADER, expires_s: int = 600) -> None:
        self.store = store
        self.uploader = uploader
        self.expires_s = expires_s
        self.asked: list[tuple[str, int]] = []

    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        return await missing(self.store, self.uploader, OWNER, blobs)

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        self.asked.append((method, len(blobs)))
        return {
            b.sha: await self.store.sign(method, self.key(method, b.sha), size=b.size, expires_s=self.expires_s)
            for b in blobs
        }

    def key(self, method: str, sha: str) -> str:
        return incoming_key(self.uploader, sha) if method == "PUT" else owned_key(OWNER, sha)

    async def accept(self, name: str) -> Any:
        return await accept(self.store, self.uploader, OWNER, name)


Fault = Callable[[str, str], Awaitable[int]]
"""Given method and key: 0 to go on, or a status to answer with. May take its time, or raise to cut the line."""


async def held_up(seconds: float) -> None:
    """The fault itself: a server that takes its time."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)


class CutTheLine(Exception):
    """The connection ends in the middle of the answer."""


class FolderDoor:
    """A folder store behind HTTP, as the orchestrator serves it, with faults on demand."""

    def __init__(self, root: Path) -> None:
        self.port = free_port()
        self.secret = secrets.token_bytes(32)
        self.signer = LinkSigner(self.secret, f"http://127.0.0.1:{self.port}/blobs")
        self.store = FolderStore(root, self.signer)
        self.fault: Fault | None = None
        self.served: list[tuple[str, str, int]] = []
        """(method, hash, status) of every request."""
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        asyncio.run(self.store.probe())
        config = uvicorn.Config(
            self._app, "127.0.0.1", self.port, log_level="critical", lifespan="off", interface="asgi3"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_for(lambda: self._server is not None and self._server.started, "the door to open")

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(60)
            assert not self._thread.is_alive()
            self._server = None

    async def _app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        method, key = scope["method"], scope["path"].removeprefix("/blobs/")
        query = dict(parse_qsl(scope["query_string"].decode()))
        status, data = await self._answer(method, key, query, receive)
        self.served.append((method, key[-64:], status))
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(data))]}
        )
        if status == 200 and self.fault is not None and method == "GET":
            try:
                await self.fault("BODY", key)
            except CutTheLine:
                await send({"type": "http.response.body", "body": data[: len(data) // 2], "more_body": True})
                raise
        await send({"type": "http.response.body", "body": data})

    async def _answer(self, method: str, key: str, query: dict[str, str], receive: Any) -> tuple[int, bytes]:
        if self.fault is not None and (status := await self.fault(method, key)):
            return status, b""
        try:
            grant = self.signer.check(method, key, query, time.time())
            if method == "PUT":
                await self.store.receive(grant, _body(receive))
                return 200, b""
            return 200, await self.store.get(key, bytes_max=grant.size)
        except BlobError as error:
            statuses = {LinkRefused: 403, Mismatch: 422, BlobMissing: 404, StoreFull: 507}
            return next((s for kind, s in statuses.items() if isinstance(error, kind)), 503), error.code.encode()


async def _body(receive: Any) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Mismatch("the line was cut")
        yield message.get("body", b"")
        if not message.get("more_body"):
            return
