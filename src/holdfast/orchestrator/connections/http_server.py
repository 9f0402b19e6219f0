"""Accepts HTTP connections and serves them with uvicorn. Decides with `Admission` which ones stay.

The connections are accepted here and not by the event loop, because one counts from the first moment: it may never
finish its TLS handshake.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from litestar.types import ASGIApp

from holdfast.identity.certificates import Certificate
from holdfast.orchestrator.connection_limits import ConnectionLimits
from holdfast.orchestrator.connections.admission import Admission, ConnectionBounds, Standing
from holdfast.orchestrator.connections.early_answers import Early, no_answers
from holdfast.orchestrator.connections.first_bytes import FirstBytes
from holdfast.orchestrator.connections.http_protocol import (
    FULL,
    LARGE_HEAD,
    LINGER_S,
    SLOW_HEAD,
    BoundedHttp,
    HttpRefusal,
)
from holdfast.orchestrator.connections.networks import network_of
from holdfast.orchestrator.connections.reports import ConnectionReports, FewLines
from holdfast.orchestrator.metrics import Metrics
from holdfast.tasks import OwnedTasks

log = logging.getLogger("holdfast.connections")

KEEP_ALIVE_S = 15
"""How long an idle connection is kept, in seconds: longer than clients keep theirs (httpx: 5 s). Otherwise one may be
closed just as a request is sent, and the client cannot know whether the request was carried out."""
STOP_S = 3
ACCEPTED_AT_ONCE = 32
"""Connections accepted in one step of the event loop, so that requests in progress are served in between."""
LOOKED_EVERY = 8
"""Connections accepted between two looks at what the others have sent."""
CHECK_TICKS = 5
"""Ticks of uvicorn (100 ms) between two checks for slow connections."""
NO_DESCRIPTOR_S = 0.1
OVERLOADED_S = 0.005
LINGERING_MAX = 256
"""Refused connections that are not closed yet. Beyond this, the oldest one is closed."""
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class HttpConnection:
    """One accepted connection."""

    def __init__(self, server: "HttpServer", line: socket.socket, network: str, since_s: float) -> None:
        self.known = False
        self.line = line
        self.network = network
        self.since_s = since_s
        self.idle = False
        """It was answered, and nothing of its next request has arrived."""
        self._server = server

    # --- before it is served ---

    def answered(self, found: bytes) -> bool:
        early = None if self._server.tls else self._server.early(found)
        if early is None:
            return False
        with contextlib.suppress(OSError):
            if self.line.recv(len(found)) == found and self.line.send(early.data) == len(early.data):
                if early.closes:
                    self._server.waits_no_more(self)
                    self.close_soon()
                else:
                    self.idle, self.since_s = True, self._server.now_s()
                    self.stands(Standing.IDLE)
                return True
        self._server.waits_no_more(self)
        self.gone()
        return True

    def half_sent(self) -> None:
        if self.idle:
            self.idle, self.since_s = False, self._server.now_s()
        self.stands(Standing.HALF_SENT)

    def too_large(self) -> None:
        self.turn_away(LARGE_HEAD)

    def turn_away(self, refusal: HttpRefusal) -> None:
        """Refuse it in plain text, and close it a moment later. Inside TLS there is nothing to say it in yet."""
        self.refused(refusal.status)
        if self._server.tls:
            self.gone()
            return
        with contextlib.suppress(OSError):
            self.line.send(refusal.answer)
        self.close_soon()

    def close_soon(self) -> None:
        self.end(socket.SHUT_WR)
        self._server.lingers(self)

    def gone(self) -> None:
        self.lost()
        self.line.close()

    # --- served ---

    def recognize(self) -> bool:
        self.known = self._server.admission.known(self)
        return self.known

    def stands(self, standing: Standing) -> None:
        self._server.admission.stands(self, standing)

    def refused(self, status: int) -> None:
        self._server.reports.closed(self.network, str(status) if status else "slow")

    def lost(self) -> None:
        self._server.admission.closed(self)

    def end(self, how: int = socket.SHUT_RDWR) -> None:
        """Shut it down: its transport notices the end, and closes the socket, also in a TLS handshake."""
        with contextlib.suppress(OSError):
            self.line.shutdown(how)


class HttpServer(uvicorn.Server):
    def __init__(
        self,
        name: str,
        app: ASGIApp,
        certificate: Certificate | None,
        limits: ConnectionLimits,
        metrics: Metrics,
        early: Early = no_answers,
    ) -> None:
        """`name`: of the listener, for its log and metrics."""
        super().__init__(_config(app, certificate))
        self.early = early
        self._limits = limits
        self._tasks = OwnedTasks(failed=None)
        self._first_bytes: FirstBytes[HttpConnection] | None = None
        self._lingering: deque[tuple[float, HttpConnection]] = deque()
        """Refused connections, and when they were refused."""
        self.reports = ConnectionReports(name, metrics)
        self.admission: Admission[HttpConnection] = Admission(
            ConnectionBounds(
                all=limits.connections_max,
                known_per_network=limits.connections_per_address_max,
                strangers=limits.strangers_max,
                strangers_per_network=limits.strangers_per_address_max,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process handles signals, not the HTTP server."""
        yield

    @property
    def tls(self) -> bool:
        return self.config.ssl is not None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self._limits.head_bytes_max:
            self._first_bytes = FirstBytes[HttpConnection](self.tls, self._limits.head_bytes_max, self._begin)
        self.servers = [_Acceptor(line, self._accepted, self._before_more) for line in sockets or ()]  # pyright: ignore
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        if counter % CHECK_TICKS == 0:
            self._check(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def _check(self, now_s: float) -> None:
        """End what is too slow."""
        for one in list(self.server_state.connections):
            if isinstance(one, BoundedHttp):
                one.check(now_s)
        if self._first_bytes is not None and self._limits.head_ms_max:
            for waiting in self._first_bytes.all():
                if waiting.idle:
                    if now_s - waiting.since_s > KEEP_ALIVE_S:
                        self._first_bytes.drop(waiting)
                        waiting.gone()
                elif (now_s - waiting.since_s) * 1000 > self._limits.head_ms_max:
                    self._first_bytes.drop(waiting)
                    waiting.turn_away(SLOW_HEAD)
        while self._lingering and now_s - self._lingering[0][0] > LINGER_S:
            self._lingering.popleft()[1].gone()
        self.reports.report(now_s)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def waits_no_more(self, connection: HttpConnection) -> None:
        if self._first_bytes is not None:
            self._first_bytes.drop(connection)

    def lingers(self, connection: HttpConnection) -> None:
        """It was refused, and is closed soon. Its bytes were not read: if it were closed at once, the kernel would
        reset it, and the reason might not arrive."""
        self._lingering.append((self.now_s(), connection))
        if len(self._lingering) > LINGERING_MAX:
            self._lingering.popleft()[1].gone()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._first_bytes is not None:
            self._first_bytes.close()
        while self._lingering:
            self._lingering.popleft()[1].gone()
        await super().shutdown(sockets)
        await self._tasks.close()

    def _accepted(self, line: socket.socket, address: str) -> None:
        connection = HttpConnection(self, line, network_of(address), asyncio.get_running_loop().time())
        closed = self.admission.opened(connection, connection.network, self._spared)
        if closed is connection:
            connection.turn_away(FULL)
            return
        if closed is not None:
            self._evict(closed)
        if self._first_bytes is not None:
            self._first_bytes.add(connection)
        else:
            self._begin(connection)

    def _before_more(self) -> bool:
        """Called before some connections are accepted. False: there are too many requests to accept any now."""
        if self._first_bytes is not None:
            self._first_bytes.look()  # whom to close for a new one is decided by what the others have sent by now
        return not self._overloaded()

    def _overloaded(self) -> bool:
        """Whether so many strangers' requests are being answered that new ones wait. They are answered soon: whoever
        waits is not refused."""
        return 0 < self._limits.strangers_per_address_max < 2 * self.admission.busy

    def _spared(self, connection: HttpConnection) -> bool:
        """Whoever has sent a request is not closed for others, though nobody has read it yet."""
        return self._first_bytes is not None and self._first_bytes.spared(connection)

    def _evict(self, connection: HttpConnection) -> None:
        self.reports.closed(connection.network, "too_many")
        if self._first_bytes is not None and self._first_bytes.drop(connection):
            connection.gone()
        else:
            connection.end()

    def _begin(self, connection: HttpConnection) -> None:
        # Its request is here; in TLS, only the first message of the handshake is.
        connection.stands(Standing.IDLE if self.tls else Standing.BUSY)
        self._tasks.start("begin a connection", self._transport(connection))

    async def _transport(self, connection: HttpConnection) -> None:
        timeout_s = self._limits.head_ms_max / 1000 or None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(connection),
                connection.line,
                ssl=self.config.ssl,
                ssl_handshake_timeout=timeout_s if self.tls else None,
            )
        except (OSError, asyncio.CancelledError):
            # It went away, or spoke no TLS, or took too long for it.
            connection.gone()

    def _protocol(self, connection: HttpConnection) -> BoundedHttp:
        state: dict[str, Any] = self.lifespan.state
        return BoundedHttp(self.config, self.server_state, state, self._limits, connection)


class _Acceptor:
    """Accepts connections from a listening socket until it is closed."""

    def __init__(
        self,
        listening: socket.socket,
        accepted: Callable[[socket.socket, str], None],
        before_more: Callable[[], bool],
    ) -> None:
        """`before_more`: called before a few are accepted; False: none is now."""
        self._listening = listening
        self._accepted = accepted
        self._before_more = before_more
        self._loop = asyncio.get_running_loop()
        self._closed = False
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._listening)

    async def wait_closed(self) -> None:
        """Connections end by themselves."""

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._loop.call_later(seconds, self._resume)

    def _accept(self) -> None:
        for number in range(ACCEPTED_AT_ONCE):
            if number % LOOKED_EVERY == 0 and not self._before_more():
                self._pause(OVERLOADED_S)
                return
            try:
                line, address = self._listening.accept()
            except OSError as wrong:
                if wrong.errno in _NO_DESCRIPTOR:
                    log.warning("no connection can be accepted now: %s", wrong.strerror)
                    self._pause(NO_DESCRIPTOR_S)
                return
            line.setblocking(False)
            self._accepted(line, address[0])


def _config(app: ASGIApp, certificate: Certificate | None) -> uvicorn.Config:
    lines = logging.getLogger("uvicorn.error")
    lines.filters = [FewLines()]
    return uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType]
        log_config=None,
        access_log=False,
        lifespan="on",
        http=BoundedHttp,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        server_header=False,
        ssl_certfile=str(certificate.cert_path) if certificate else None,
        ssl_keyfile=str(certificate.key_path) if certificate else None,
    )
