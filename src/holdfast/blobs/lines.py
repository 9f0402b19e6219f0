"""HTTP connections for bulk data, used through httpx: blocking sockets in threads, large reads and writes.

httpx's own transport moves 64 KiB at a time through several layers of Python; for bulk content that is most of the
work. Here a thread blocks in the kernel and copies once, so receiving, hashing and writing run in parallel on several
cores. HTTP/1.1 to one server at a time, no redirects, no proxies. Knows no blobs.

A caller may provide memory for the answer, as the request's extension `INTO`: allocating new memory for every part can
cost more than receiving it. The thread of a cancelled request may still write there, so such memory must not be reused.
"""

import asyncio
import contextlib
import http.client
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import ParamSpec, TypeVar, cast

import httpx

P = ParamSpec("P")
R = TypeVar("R")

AT_ONCE = 32
"""Threads of one transport; most of the time they are waiting."""
PART_BYTES = 4 * 1024 * 1024
"""How much is read at a time: a whole chunk, so that it is copied once."""
INTO = "holdfast.into"
"""A request's extension: a writable memoryview. The first part, if it fits, is stored there and returned as a view."""
QUIET_S = 120.0
"""For a single read or write. Callers have their own limits; this one only frees threads of dead connections."""

Origin = tuple[str, str, int]


class ThreadTransport(httpx.AsyncBaseTransport):
    """`httpx.AsyncClient(transport=ThreadTransport(context))`. `verify`: whom to trust at https URLs; by default the
    system's authorities."""

    def __init__(self, verify: ssl.SSLContext | None = None, *, connect_s: float = 10.0) -> None:
        self._verify = verify
        self._connect_s = connect_s
        self._idle: dict[Origin, list[http.client.HTTPConnection]] = {}
        self._turn = Lock()
        self._threads = ThreadPoolExecutor(AT_ONCE, "holdfast-line")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = [part async for part in request.stream]  # type: ignore[union-attr]
        origin = (request.url.scheme, request.url.host, request.url.port or {"http": 80}.get(request.url.scheme, 443))
        line = self._kept(origin)
        if line is not None:
            # The server may have closed the kept connection meanwhile; then nothing of the request reached it.
            with contextlib.suppress(httpx.TransportError):
                return await self._ask(line, origin, request, body)
        return await self._ask(self._new(origin), origin, request, body)

    async def aclose(self) -> None:
        with self._turn:
            lines = [line for lines in self._idle.values() for line in lines]
            self._idle.clear()
        for line in lines:
            line.close()
        self._threads.shutdown(wait=False)

    # --- connections ---

    def _kept(self, origin: Origin) -> http.client.HTTPConnection | None:
        with self._turn:
            lines = self._idle.get(origin)
            return lines.pop() if lines else None

    def _keep(self, origin: Origin, line: http.client.HTTPConnection) -> None:
        with self._turn:
            self._idle.setdefault(origin, []).append(line)

    def _new(self, origin: Origin) -> http.client.HTTPConnection:
        scheme, host, port = origin
        if scheme == "https":
            if self._verify is None:
                self._verify = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._connect_s, context=self._verify)
        return http.client.HTTPConnection(host, port, timeout=self._connect_s)

    # --- requests ---

    async def _ask(
        self, line: http.client.HTTPConnection, origin: Origin, request: httpx.Request, body: list[bytes]
    ) -> httpx.Response:
        answer = await self._in_thread(line, _ask, line, request, body)
        into: memoryview | None = request.extensions.get(INTO)
        return httpx.Response(
            answer.status, headers=answer.getheaders(), stream=_Stream(self._parts(line, origin, answer, into))
        )

    async def _parts(
        self,
        line: http.client.HTTPConnection,
        origin: Origin,
        answer: http.client.HTTPResponse,
        into: memoryview | None,
    ) -> AsyncIterator[bytes]:
        whole = False
        try:
            while part := await self._in_thread(line, _read, answer, into):
                into = None
                yield part
            whole = answer.isclosed() and not answer.will_close
        finally:
            if whole:
                self._keep(origin, line)
            else:
                line.close()

    async def _in_thread(
        self, line: http.client.HTTPConnection, do: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run it in a thread. A caller that stops waiting closes the connection, so that the thread is freed."""
        work = asyncio.get_running_loop().run_in_executor(self._threads, lambda: do(*args, **kwargs))
        try:
            return await work
        except asyncio.CancelledError:
            _cut(line)
            raise
        except TimeoutError:
            line.close()
            raise httpx.ReadTimeout("no data was received for too long") from None
        except (OSError, http.client.HTTPException) as error:
            line.close()
            raise httpx.ReadError(type(error).__name__) from None


class _Stream(httpx.AsyncByteStream):
    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def aclose(self) -> None:
        close = getattr(self._parts, "aclose", None)
        if close is not None:
            await close()


def _ask(line: http.client.HTTPConnection, request: httpx.Request, body: list[bytes]) -> http.client.HTTPResponse:
    if line.sock is None:
        line.connect()
        cast(socket.socket, line.sock).settimeout(QUIET_S)
    line.putrequest(request.method, request.url.raw_path.decode("ascii"), skip_host=True, skip_accept_encoding=True)
    for name, value in request.headers.raw:
        line.putheader(name, value)
    line.endheaders(body or None)  # type: ignore[arg-type]
    return line.getresponse()


def _read(answer: http.client.HTTPResponse, into: memoryview | None) -> bytes:
    """The next part. Not really bytes: converting it would mean copying it."""
    size = 0 if answer.length == 0 else min(PART_BYTES, answer.length or PART_BYTES)
    room = into[:size] if into is not None and size <= len(into) else memoryview(bytearray(size))
    done = 0
    while done < size and (got := answer.readinto(room[done:])):
        done += got
    if done < size and answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    if answer.length == 0:
        answer.close()
    return cast(bytes, room[:done])


def _cut(line: http.client.HTTPConnection) -> None:
    """Shut down a connection that a thread may be waiting on: closing it alone would not wake the thread."""
    with contextlib.suppress(OSError, AttributeError):
        line.sock.shutdown(socket.SHUT_RDWR)
    line.close()
