"""Serves the signed URLs of a blob store in a folder: uploads and downloads of single blobs. Plain ASGI.

The signature is the only authorization; no token is needed. Bytes go straight to and from the disk.
"""

import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send

from holdfast.blobs.errors import (
    BlobError,
    BlobMissing,
    LinkExpired,
    LinkRefused,
    Mismatch,
    OverQuota,
    StoreFull,
    StoreGone,
    StoreSlow,
)
from holdfast.blobs.folder import FolderStore
from holdfast.blobs.signing import LinkSigner
from holdfast.orchestrator.api_error import ApiError
from holdfast.orchestrator.connections.bodies import declared_length
from holdfast.orchestrator.connections.recognition import recognized
from holdfast.wire.errors import ErrorView

PREFIX = "/blobs/"
_STATUS: list[tuple[type[BlobError], int]] = [
    (LinkExpired, 403),
    (LinkRefused, 403),
    (BlobMissing, 404),
    (Mismatch, 422),
    (OverQuota, 429),
    (StoreFull, 507),
    (StoreSlow, 503),
    (StoreGone, 503),
]

log = logging.getLogger("holdfast.blobs")


class BlobTransferApp:
    """Answers requests below /blobs/ and passes all others on."""

    def __init__(self, app: ASGIApp, store: FolderStore, signer: LinkSigner) -> None:
        self._app = app
        self._store = store
        self._signer = signer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        try:
            await self._serve(scope, receive, send)
        except BlobError as wrong:
            status = next((status for kind, status in _STATUS if isinstance(wrong, kind)), 500)
            if status >= 500:
                log.error("a blob could not be served: %s", wrong)
            body = msgspec.json.encode(ErrorView(wrong.code, wrong.says, wrong.hint))
            await _answer(send, status, body, b"application/json")
        except ApiError as wrong:
            again = [(name.lower().encode(), value.encode()) for name, value in wrong.headers.items()]
            await _answer(send, wrong.status, msgspec.json.encode(wrong.told), b"application/json", again)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = unquote(scope["path"].removeprefix(PREFIX))
        query = dict(parse_qsl(bytes(scope["query_string"]).decode("latin-1")))
        method: str = scope["method"]  # pyright: ignore[reportGeneralTypeIssues]
        grant = self._signer.check(method, key, query, self._signer.now_s())
        recognized(scope)
        if grant.method == "PUT":
            declared = declared_length(scope)
            if declared != grant.size:
                raise Mismatch(f"{declared} bytes are declared, and {grant.size} were granted")
            await self._store.receive(grant, _body(receive))
            await _answer(send, 201)
            return
        # At most a chunk: read it whole first, so that the announced length is right.
        await _answer(send, 200, await self._store.get(grant.key, bytes_max=grant.size), b"application/octet-stream")


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message: Any = await receive()
        if message["type"] == "http.disconnect":
            raise Mismatch("the sender went away in the middle")
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


async def _answer(
    send: Send,
    status: int,
    body: bytes = b"",
    kind: bytes = b"text/plain",
    more: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    length = str(len(body)).encode()
    headers = [(b"content-length", length), (b"content-type", kind), (b"cache-control", b"no-store"), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})  # pyright: ignore
    await send({"type": "http.response.body", "body": body, "more_body": False})
