"""Waits on new connections until a whole request head, or the first message of TLS, has arrived. Until then one costs a
socket and an entry here. Nothing is consumed, except what is answered here: whoever serves the connection reads the
same bytes.

Most attacks on a listener never get past this point, and a server that makes its transport, parser or TLS state for
each of them has no time for anybody else.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

LOOKED_AT_ONCE = 128
"""Connections looked at in one step of the event loop, so that requests in progress are served in between."""
TLS_RECORD_HEAD = 5
TLS_HANDSHAKE = 0x16


class Waiting(Protocol):
    line: socket.socket

    def answered(self, found: bytes) -> bool:
        """Answer the head, if it is known what to answer, and wait for the next one."""
        ...

    def half_sent(self) -> None: ...

    def too_large(self) -> None: ...

    def gone(self) -> None: ...


W = TypeVar("W", bound=Waiting)


class FirstBytes(Generic[W]):
    def __init__(self, tls: bool, bytes_max: int, ready: Callable[[W], None]) -> None:
        self._tls = tls
        self._bytes_max = bytes_max
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, W] = {}
        # A set of its own, because it reports each arrival once. The event loop would report bytes that stay unread
        # for ever.
        self._epoll = select.epoll()
        self._loop.add_reader(self._epoll.fileno(), self.look)

    def add(self, connection: W) -> None:
        # Often everything is there already: the connection waited to be accepted.
        found = _peeked(connection.line, self._bytes_max) or b""
        if _whole(found, self._tls) and not connection.answered(found):
            self._ready(connection)
            return
        if connection.line.fileno() < 0:
            return  # answered and closed
        self._waiting[connection.line.fileno()] = connection
        self._epoll.register(connection.line, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def drop(self, connection: W) -> bool:
        """Stop waiting. False: it was not waited for."""
        descriptor = connection.line.fileno()
        if self._waiting.get(descriptor) is not connection:
            return False
        del self._waiting[descriptor]
        self._epoll.unregister(connection.line)
        return True

    def spared(self, connection: W) -> bool:
        """Whether its request has arrived, though nobody has looked since. Then it is served."""
        if self._waiting.get(connection.line.fileno()) is not connection:
            return False
        if not _whole(_peeked(connection.line, self._bytes_max) or b"", self._tls):
            return False
        self._look_at(connection, ended=False)
        return True

    def all(self) -> list[W]:
        return list(self._waiting.values())

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        for connection in self.all():
            self.drop(connection)
            connection.gone()
        self._epoll.close()

    def look(self) -> None:
        """Look at those of which something arrived."""
        for descriptor, event in self._epoll.poll(0, LOOKED_AT_ONCE):
            connection = self._waiting.get(descriptor)
            if connection is not None:
                self._look_at(connection, ended=bool(event & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR)))

    def _look_at(self, connection: W, *, ended: bool) -> None:
        found = _peeked(connection.line, self._bytes_max)
        if found is None:
            return
        if _whole(found, self._tls):
            if not connection.answered(found):
                self.drop(connection)
                self._ready(connection)
        elif ended or not found:
            self.drop(connection)
            connection.gone()
        elif len(found) >= self._bytes_max:
            self.drop(connection)
            connection.too_large()
        else:
            connection.half_sent()


def _peeked(line: socket.socket, bytes_max: int) -> bytes | None:
    """What has arrived. None: nothing yet. Empty: it ended."""
    try:
        return line.recv(bytes_max, socket.MSG_PEEK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _whole(found: bytes, tls: bool) -> bool:
    return whole_tls(found) if tls else whole_head(found)


def whole_head(found: bytes) -> bool:
    """Whether an HTTP head is complete. Empty lines before it do not count."""
    found = found.lstrip(b"\r\n")
    return b"\r\n\r\n" in found or b"\n\n" in found


def whole_tls(found: bytes) -> bool:
    """Whether the first TLS record is complete. What is no TLS needs no waiting: it is refused."""
    if found and found[0] != TLS_HANDSHAKE:
        return True
    if len(found) < TLS_RECORD_HEAD:
        return False
    return len(found) >= TLS_RECORD_HEAD + int.from_bytes(found[3:5], "big")
