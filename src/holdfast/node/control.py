"""The socket between an agent and a shim: newline-delimited JSON. Transports messages, decides nothing.

`Control` is the shim's side and serves any number of agents at a time; `dial` is the agent's side.
"""

import json
import os
import socket
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector
from typing import Any

NAME = "control.sock"
_LINE_BYTES_MAX = 64 * 1024
_CLIENTS_MAX = 16


def dial(home: str) -> socket.socket:
    """Connect to the shim of the attempt in folder `home`. Raises OSError if there is none.

    Connects through the folder's descriptor, because a socket path may have at most 107 bytes.
    """
    folder = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.connect(f"/proc/self/fd/{folder}/{NAME}")
    except OSError:
        line.close()
        raise
    finally:
        os.close(folder)
    return line


class _Client:
    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.heard = b""
        self.unsent = b""
        self.stale = True
        """The current status has not been sent yet. A slow reader may miss statuses in between, but never the last."""


class Control:
    """Listens in the current folder. `status` returns the line to send; `said` is called with each message."""

    def __init__(
        self, selector: BaseSelector, status: Callable[[], dict[str, Any]], said: Callable[[dict[str, Any]], None]
    ) -> None:
        self._selector = selector
        self._status = status
        self._said = said
        self._clients: set[_Client] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(NAME)
        os.chmod(NAME, 0o600)
        self._listener.listen(_CLIENTS_MAX)
        selector.register(self._listener, EVENT_READ, self._accept)

    def tell_all(self) -> None:
        """Send the changed status to all clients."""
        for client in list(self._clients):
            client.stale = True
            self._send(client)

    def close(self) -> None:
        for client in list(self._clients):
            self._drop(client)
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        try:
            line, _ = self._listener.accept()
        except OSError:
            return
        if len(self._clients) >= _CLIENTS_MAX:
            line.close()
            return
        line.setblocking(False)
        client = _Client(line)
        self._clients.add(client)
        self._selector.register(line, EVENT_READ, lambda: self._serve(client))
        self._send(client)

    def _drop(self, client: _Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._selector.unregister(client.line)
            client.line.close()

    def _serve(self, client: _Client) -> None:
        try:
            chunk = client.line.recv(_LINE_BYTES_MAX)
        except BlockingIOError:
            chunk = None
        except OSError:
            chunk = b""
        if chunk == b"":
            self._drop(client)
            return
        *lines, client.heard = (client.heard + (chunk or b"")).split(b"\n")
        for line in lines:
            self._hear(client, line)
        if len(client.heard) > _LINE_BYTES_MAX:
            self._drop(client)
        self._send(client)

    def _hear(self, client: _Client, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):  # not a client of ours
            self._drop(client)
        elif message.get("do") == "ping":
            client.stale = True
        else:
            self._said(message)

    def _send(self, client: _Client) -> None:
        if client not in self._clients:
            return
        try:
            while client.unsent or client.stale:
                if not client.unsent:
                    client.stale = False
                    client.unsent = json.dumps(self._status(), separators=(",", ":")).encode() + b"\n"
                client.unsent = client.unsent[client.line.send(client.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        waiting = EVENT_READ | EVENT_WRITE if client.unsent else EVENT_READ
        self._selector.modify(client.line, waiting, lambda: self._serve(client))
