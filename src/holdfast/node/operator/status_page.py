"""Serves the node's status to people and programs on this machine: `GET /status` on loopback, as JSON (SPEC N8).

Answers one request and accepts no commands. The status is passed in.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import Misconfigured

_HEAD_BYTES_MAX = 8 * 1024
_HEAD_S_MAX = 5.0
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Only these Host headers are accepted: a web page that resolves its own name to this machine sends its own name, and
gets nothing."""


async def serve_status(port: int, snapshot: Callable[[], dict[str, Any]]) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_HEAD_S_MAX):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                status, body = _answer(head, snapshot)
                headers = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
                writer.write(f"HTTP/1.1 {status}\r\n{headers}\r\n\r\n".encode() + body)
                await writer.drain()
        writer.close()

    try:
        return await asyncio.start_server(answer, "127.0.0.1", port, limit=_HEAD_BYTES_MAX)
    except OSError as wrong:
        raise Misconfigured(
            f"the local status cannot be served on port {port}: {os.strerror(wrong.errno or 0)}",
            hint="Set PNODE_PORT to a free port, or to 0 for no local status.",
            code="port_unusable",
        ) from None


def _answer(head: str, snapshot: Callable[[], dict[str, Any]]) -> tuple[str, bytes]:
    first, *lines = head.split("\r\n")
    method, _, rest = first.partition(" ")
    path = rest.partition(" ")[0]
    names = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("host:")]
    host = names[0] if names else ""
    if (host if host in _HOSTS else host.rpartition(":")[0]) not in _HOSTS:
        return "403 Forbidden", b'{"code":"wrong_host"}'
    if method != "GET":
        return "405 Method Not Allowed", b'{"code":"only_get"}'
    if path != "/status":
        return "404 Not Found", b'{"code":"not_found","says":"there is only /status"}'
    return "200 OK", msgspec.json.encode(snapshot())
