"""Forwards connections of a build to the package indexes of this node, and to nothing else.

An HTTP proxy for one sandbox that has no network of its own. It connects only to hosts and ports on its list, under
the name that is on the list, and passes bytes on: it ends no TLS and reads no content. What it refused and what it
could not reach is the evidence for blame. Knows no pip and no job.
"""

import asyncio
import base64
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from holdfast.tasks import TaskScope

_HEAD_BYTES_MAX = 32 * 1024
_HEAD_S_MAX = 30.0
_CONNECT_S_MAX = 20.0
_IDLE_S_MAX = 120.0
_CONNECTIONS_MAX = 32
_CHUNK_BYTES = 64 * 1024
_NOTED_MAX = 20
_HOP = (b"proxy-", b"connection:", b"keep-alive:", b"te:", b"upgrade:")
"""Headers that concern this hop only."""

Target = tuple[str, int]
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _BadRequest(Exception):
    """The request is not one that this proxy understands."""


@dataclass(frozen=True)
class ParentProxy:
    """The proxy through which the node itself reaches a target."""

    url: str

    async def open(self) -> Pair:
        parts = urlsplit(self.url)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        return await asyncio.open_connection(parts.hostname, parts.port or (443 if secure else 80), ssl=secure)

    @property
    def authorization(self) -> bytes:
        parts = urlsplit(self.url)
        if not parts.username:
            return b""
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        return b"Proxy-Authorization: Basic " + base64.b64encode(secret) + b"\r\n"


def target_of(url: str) -> Target | None:
    """Host and port of an http or https URL; None: it is no such URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return parts.hostname.lower().rstrip("."), port or (443 if parts.scheme == "https" else 80)


def _authority(text: str) -> Target:
    found = target_of(f"https://{text}")
    if found is None or "@" in text or "/" in text:
        raise _BadRequest
    return found


@dataclass
class IndexProxy:
    """`parents`: the parent proxy of a target, if the node has one. `kib_s`: limit of both directions together; 0:
    none."""

    allowed: frozenset[Target]
    parents: Callable[[Target], ParentProxy | None] = lambda target: None
    kib_s: int = 0
    refused: list[str] = field(default_factory=list[str])
    unreachable: list[str] = field(default_factory=list[str])
    _open: int = 0
    _free_at: float = 0.0

    async def serve(self, door: socket.socket) -> asyncio.Server:
        return await asyncio.start_server(self._guest, sock=door, limit=_HEAD_BYTES_MAX)

    async def _guest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > _CONNECTIONS_MAX:
                await _answer(writer, "503 Service Unavailable")
                return
            await self._forward(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # one side is gone, or sent too much or nothing
        except _BadRequest:
            await _answer(writer, "400 Bad Request")
        finally:
            self._open -= 1
            await _close(writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_S_MAX):
            head = await reader.readuntil(b"\r\n\r\n")
        first, _, rest = head.partition(b"\r\n")
        words = first.decode("latin-1").split(" ")
        if len(words) != 3:
            raise _BadRequest
        method, where, _ = words
        tunnel = method == "CONNECT"
        target = _authority(where) if tunnel else target_of(where)
        if target is None or not (tunnel or (method in ("GET", "HEAD") and where.startswith("http://"))):
            raise _BadRequest
        if target not in self.allowed:
            _note(self.refused, target)
            await _answer(writer, "403 Forbidden")
            return
        try:
            far = await self._connect(target, tunnel)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as wrong:
            _note(self.unreachable, target)
            await _answer(writer, "504 Gateway Timeout" if isinstance(wrong, TimeoutError) else "502 Bad Gateway")
            return
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await self._both_ways((reader, writer), far)
            else:
                far[1].write(self._request(method, where, target, rest))
                await self._pump(far[0], writer)
        finally:
            await _close(far[1])

    def _request(self, method: str, where: str, target: Target, rest: bytes) -> bytes:
        """The request as the index gets it: one per connection, so that each is checked."""
        lines = [line for line in rest.split(b"\r\n") if line and not line.lower().startswith(_HOP)]
        parent = self.parents(target)
        parts = urlsplit(where)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        first = f"{method} {where if parent else path} HTTP/1.1\r\n".encode("latin-1")
        own = parent.authorization if parent else b""
        return first + own + b"".join(line + b"\r\n" for line in lines) + b"Connection: close\r\n\r\n"

    async def _connect(self, target: Target, tunnel: bool) -> Pair:
        async with asyncio.timeout(_CONNECT_S_MAX):
            parent = self.parents(target)
            if parent is None:
                return await asyncio.open_connection(*target)
            far = await parent.open()
            if tunnel:
                host, port = target
                name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                far[1].write(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n".encode() + parent.authorization + b"\r\n")
                head = await far[0].readuntil(b"\r\n\r\n")
                if head.split(b" ", 2)[1:2] != [b"200"]:
                    await _close(far[1])
                    raise ConnectionRefusedError("the proxy of this node refused the connection")
            return far

    async def _both_ways(self, near: Pair, far: Pair) -> None:
        """A tunnel ends with either direction."""
        async with TaskScope() as pumps:
            there = pumps.start("send to an index", self._pump(near[0], far[1]))
            back = pumps.start("receive from an index", self._pump(far[0], near[1]))
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(_IDLE_S_MAX):
                chunk = await source.read(_CHUNK_BYTES)
            if not chunk:
                return
            await self._pace(len(chunk))
            sink.write(chunk)
            async with asyncio.timeout(_IDLE_S_MAX):
                await sink.drain()

    async def _pace(self, size: int) -> None:
        if self.kib_s:
            now = asyncio.get_running_loop().time()
            self._free_at = max(now, self._free_at) + size / (self.kib_s * 1024)
            await asyncio.sleep(self._free_at - now)


async def _answer(writer: asyncio.StreamWriter, status: str) -> None:
    with contextlib.suppress(OSError):
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            await writer.wait_closed()


def _note(place: list[str], target: Target) -> None:
    host, port = target
    name = f"{host}:{port}"
    if name not in place and len(place) < _NOTED_MAX:
        place.append(name)
