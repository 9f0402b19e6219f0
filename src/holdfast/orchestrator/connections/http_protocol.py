"""HTTP on one connection, with limits on everything that a stranger can send: the time and size of headers, the pace of
bodies, and what is sent after the answer.

A body is not read before the application asks for it, which it does once the caller is authenticated. Every refusal
says why, and ends the connection.
"""

import asyncio
from typing import Any, Protocol

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from holdfast.orchestrator.api_error import RETRY_AFTER_S
from holdfast.orchestrator.connection_limits import ConnectionLimits
from holdfast.orchestrator.connections.admission import Standing
from holdfast.orchestrator.connections.recognition import CONNECTION, Recognizable
from holdfast.wire.errors import ErrorView

PACE_S = 10.0
"""How long a body may be slower than the limit."""
UNREAD_STRANGER_BYTES, UNREAD_STRANGER_S = 1024 * 1024, 2.0
UNREAD_KNOWN_BYTES, UNREAD_KNOWN_S = 256 * 1024 * 1024, 10.0
"""What may follow after a request was answered without reading its body. Most clients send the whole body before they
read the answer; a connection that is closed before may lose it."""
STALLED_S_MAX = 60.0
"""How long a client may not read what it is sent. One that comes back later asks again."""
LINGER_S = 0.5
"""How long a refused connection stays open without being read. If it were closed while bytes of it are unread, it would
be reset, and its client might not get the reason."""
PIPELINED_MAX = 16
"""Requests that wait for the answer to the one before."""


class HttpRefusal(msgspec.Struct, frozen=True):
    status: int
    says: str
    hint: str
    code: str = "bad_request"

    @property
    def answer(self) -> bytes:
        body = msgspec.json.encode(ErrorView(self.code, self.says, self.hint))
        again = b"retry-after: %d\r\n" % RETRY_AFTER_S if self.status == 503 else b""
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        return STATUS_LINE[self.status] + again + head + body


MALFORMED = HttpRefusal(400, "this is no HTTP request", "Send HTTP/1.1.")
SLOW_HEAD = HttpRefusal(408, "the request's headers did not arrive in time", "Send the request at once.")
SLOW_BODY = HttpRefusal(408, "the body arrived too slowly", "Try again over a better connection.")
NO_LENGTH = HttpRefusal(411, "the body has no declared length", "Send Content-Length.")
LARGE_HEAD = HttpRefusal(431, "the request's headers are too large or too many", "Send fewer and shorter headers.")
FULL = HttpRefusal(503, "there are too many connections; nothing was done", "Try again in a moment.", "busy")
PIPELINED = HttpRefusal(400, "too many requests were sent before the first was answered", "Send one at a time.")


class OpenConnection(Recognizable, Protocol):
    """What the server knows of a connection."""

    known: bool

    def stands(self, standing: Standing) -> None: ...

    def refused(self, status: int) -> None: ...

    def lost(self) -> None: ...


class _Refused(Exception):
    """Ends the parser's work on this connection."""


class BoundedHttp(HttpToolsProtocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        limits: ConnectionLimits,
        connection: OpenConnection,
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state)
        self._limits = limits
        self._connection = connection
        self._refusal = MALFORMED
        self._ended = False
        self._lingers_since: float | None = None
        """When it was refused."""
        self._head_since: float | None = None
        """When the wait for the present head began."""
        self._head_bytes = 0
        """Of a head that is not complete yet."""
        self._headers_bytes = 0
        """Of the headers that are complete."""
        self._begun = False
        """Something of the present head has arrived."""
        self._advanced = False
        """The last bytes completed a head, or belonged to a body."""
        self._body_open = False
        self._body_bytes = 0
        self._pace_since = 0.0
        self._unread_until: float | None = None
        self._unread_bytes = 0
        self._stalled_since: float | None = None
        """Since when its client reads nothing of what waits to be sent."""
        self._stalled_bytes = 0

    # --- connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._connection.lost()

    def shutdown(self) -> None:
        if self._lingers_since is not None:
            self.transport.abort()
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_since, self._stalled_bytes = self.loop.time(), self.transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_since = None

    # --- what arrives ---

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._advanced = False
        super().data_received(data)
        if self._ended or self.transport.is_closing():
            return
        if self._unread_until is not None:
            self._unread_bytes -= len(data)
            if self._unread_bytes < 0:
                self._give_up()
        elif not self._advanced:
            self._head_arrives(len(data))

    def _head_arrives(self, size: int) -> None:
        """Bytes of a head that is not complete, or empty lines before one."""
        self._begun = True
        if self._head_since is None:
            self._head_since = self.loop.time()
        self._head_bytes += size
        if 0 < self._limits.head_bytes_max < self._head_bytes:
            self._refuse(LARGE_HEAD)
        elif not self._in_progress:
            self._connection.stands(Standing.HALF_SENT)

    @property
    def _in_progress(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # --- the parser's calls ---

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self._connection  # pyright: ignore[reportGeneralTypeIssues]
        self._headers_bytes = 0
        self._begun = True
        if self._head_since is None:
            self._head_since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._headers_bytes += len(name) + len(value)
        if (
            0 < self._limits.headers_max < len(self.headers)
            or 0 < self._limits.head_bytes_max < len(self.url) + self._headers_bytes
        ):
            self._stop(LARGE_HEAD)

    def on_headers_complete(self) -> None:
        names = dict(self.headers)
        if b"transfer-encoding" in names:
            self._stop(NO_LENGTH)
        if len(self.pipeline) >= PIPELINED_MAX:
            self._stop(PIPELINED)
        self._advanced, self._begun = True, False
        self._head_since, self._head_bytes = None, 0
        self._body_open = True
        self._body_bytes, self._pace_since = 0, self.loop.time()
        self._connection.stands(Standing.BUSY)
        super().on_headers_complete()
        if names.get(b"content-length", b"0") != b"0":
            # Reading goes on when the application asks for the body, or has answered without it.
            self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        self._advanced = True
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._advanced = True
        self._body_open = False
        super().on_message_complete()
        if self._unread_until is not None:
            self._unread_until = None
            self._connection.stands(Standing.IDLE)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or self._in_progress:
            return
        if self._body_open:
            known = self._connection.known
            self._unread_bytes = UNREAD_KNOWN_BYTES if known else UNREAD_STRANGER_BYTES
            self._unread_until = self.loop.time() + (UNREAD_KNOWN_S if known else UNREAD_STRANGER_S)
        else:
            self._connection.stands(Standing.HALF_SENT if self._begun else Standing.IDLE)

    # --- limits of time ---

    def check(self, now_s: float) -> None:
        """Ends the connection if it was too slow. Called every now and then."""
        if self._lingers_since is not None and now_s - self._lingers_since > LINGER_S:
            self.transport.abort()
        if self._ended or self.transport is None or self.transport.is_closing():
            return
        if self._head_since is not None and 0 < self._limits.head_ms_max < (now_s - self._head_since) * 1000:
            if self._begun:
                self._refuse(SLOW_HEAD)
            else:
                self._give_up()
        elif self._over_time(now_s):
            self._give_up()
        elif self._in_progress and self._body_open:
            self._check_pace(now_s)

    def _over_time(self, now_s: float) -> bool:
        unread = self._unread_until is not None and now_s > self._unread_until
        return unread or self._stalled(now_s)

    def _stalled(self, now_s: float) -> bool:
        if self._stalled_since is None:
            return False
        waiting = self.transport.get_write_buffer_size()
        if waiting < self._stalled_bytes:
            self._stalled_since, self._stalled_bytes = now_s, waiting  # it reads, however slowly
        return now_s - self._stalled_since > STALLED_S_MAX

    def _check_pace(self, now_s: float) -> None:
        if self.flow.read_paused:
            self._body_bytes, self._pace_since = 0, now_s
            return
        waited_s = now_s - self._pace_since
        if waited_s < PACE_S:
            return
        if self._body_bytes < self._limits.body_bytes_per_second_min * waited_s:
            self._refuse(SLOW_BODY)
        self._body_bytes, self._pace_since = 0, now_s

    # --- refusals ---

    def _stop(self, refusal: HttpRefusal) -> None:
        """Refuse from within the parser."""
        self._refusal = refusal
        raise _Refused

    def send_400_response(self, msg: str) -> None:
        """The parser failed, or was stopped."""
        self._refuse(self._refusal)

    def _refuse(self, refusal: HttpRefusal) -> None:
        self._ended = True
        self._connection.refused(refusal.status)
        if self.transport.is_closing():
            return
        if self._in_progress and (self.cycle.response_started or refusal is not SLOW_BODY):
            # Another answer is being sent, or comes first.
            self.transport.abort()
            return
        self.transport.write(refusal.answer)
        self.transport.pause_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._lingers_since = self.loop.time()

    def _give_up(self) -> None:
        self._ended = True
        self._connection.refused(0)
        self.transport.abort()
