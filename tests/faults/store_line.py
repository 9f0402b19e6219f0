"""The line between a network and its blob store, in the hands of a test: slow, cut in the middle, and counted.

Speaks just enough HTTP to tell one request from the next; each gets a connection of its own to the store.
"""

import contextlib
import re
import socket
import threading
import time
from types import TracebackType
from typing import NamedTuple, Self

HEAD_BYTES_MAX = 1 << 16
PIECE = 1 << 14


class Request(NamedTuple):
    method: str
    path: str
    """Without its query: a second try of the same comes to the same path."""
    head: bytes
    body: bytes
    """What came with the head already."""
    length: int


class StoreLine:
    """Listens on `url`; whoever speaks there speaks with the store."""

    def __init__(self, store_port: int) -> None:
        self._store = ("127.0.0.1", store_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.bytes_per_s = 0
        """Of all uploads of nodes together; 0: as fast as it goes."""
        self.cut_first = False
        """Cut the first try of everything that is put there in its middle, whoever puts it."""
        self.cut: set[str] = set()
        self.unanswered = 0
        """Requests that the store did not answer."""
        self.carried = 0
        """Bytes of nodes' uploads that went through."""
        self._turn = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(caller,), daemon=True).start()

    def _carry(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError):
            request = _read(caller)
            if request is None:
                return
            try:
                with socket.create_connection(self._store, timeout=60) as store:
                    self._exchange(request, caller, store)
            except OSError:
                self.unanswered += 1

    def _exchange(self, request: Request, caller: socket.socket, store: socket.socket) -> None:
        store.sendall(request.head)
        left = request.length - len(request.body)
        piece = request.body
        if self.cut_first and request.method == "PUT" and request.path not in self.cut:
            self.cut.add(request.path)
            store.sendall(piece[: max(1, request.length // 2)])
            return
        while True:
            self._wait_for(len(piece) if request.method == "PUT" and "/incoming/" in request.path else 0)
            store.sendall(piece)
            if left <= 0:
                break
            piece = caller.recv(min(left, PIECE))
            if not piece:
                return
            left -= len(piece)
        answered = False
        while answer := store.recv(1 << 16):
            answered = True
            caller.sendall(answer)
        self.unanswered += not answered

    def _wait_for(self, count: int) -> None:
        """A line carries one thing after the other."""
        with self._turn:
            through = time.monotonic() + (count / self.bytes_per_s if self.bytes_per_s else 0.0)
            while (left := through - time.monotonic()) > 0:
                time.sleep(left)
            self.carried += count

    def close(self) -> None:
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read(caller: socket.socket) -> Request | None:
    """The head of a request, asking for its connection to be closed after the answer."""
    caller.settimeout(60)
    data = b""
    while b"\r\n\r\n" not in data:
        more = caller.recv(PIECE)
        if not more or len(data) > HEAD_BYTES_MAX:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    method, path, _ = lines[0].decode("latin-1").split(" ", 2)
    found = re.search(rb"(?im)^content-length: *(\d+)", head)
    whole = b"\r\n".join([*lines, b"Connection: close", b"", b""])
    return Request(method, path.partition("?")[0], whole, body, int(found[1]) if found else 0)
