"""A client for container engines: HTTP over a Unix socket, standard library only. Docker and Podman accept the same
requests. Knows no job; returns the engine's answer, or that there was none.

Each request is HTTP/1.0 on a connection of its own: an answer ends with its connection, so only the head has to be
parsed, and a JSON answer that was cut off does not parse.
"""

import json
import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

API_LEAST = (1, 40)
"""Docker 19.03, Podman 3: the first that support `Init`, `DeviceRequests` and `PidsLimit` in the same way."""
ANSWER_S_MAX = 60.0
"""An engine that takes longer for a short answer counts as gone."""
_ANSWER_BYTES_MAX = 16 << 20
_SOCKETS = ("/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock")


class EngineGone(OSError):
    """No answer at the socket, or the answer was cut off: the request may have been carried out or not."""


class EngineError(OSError):
    """The engine answered with an error. `status` is its HTTP status."""

    def __init__(self, status: int, says: str) -> None:
        super().__init__(5, says)  # EIO: as the kernel reports a failing device
        self.status = status
        self.says = says


def find_engine(configured: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """The socket of this machine's engine: the configured one, that of DOCKER_HOST, or the first of the usual ones that
    exists. Empty: there is none."""
    named = configured or environ.get("DOCKER_HOST", "")
    if named:
        return named.removeprefix("unix://")
    own = environ.get("XDG_RUNTIME_DIR", "")
    places = (*_SOCKETS, *((f"{own}/docker.sock", f"{own}/podman/podman.sock") if own else ()))
    return next((place for place in places if os.path.exists(place)), "")


def query(**words: object) -> str:
    """`?a=1&b=…`; a dict is written as JSON, as engines expect their filters."""
    texts = {key: json.dumps(word) if isinstance(word, dict) else str(word) for key, word in words.items()}
    return "?" + urlencode(texts)


class EngineAnswer:
    """A pending answer: its socket can be waited for."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._said = b""

    def fileno(self) -> int:
        return self._line.fileno()

    def close(self) -> None:
        self._line.close()

    def receive(self) -> bool:
        """Read what has arrived, or wait for more; True: the answer is complete."""
        try:
            chunk = self._line.recv(1 << 16)
        except OSError as error:
            self.close()
            raise EngineGone(error.errno or 5, f"the engine stopped answering: {error}") from None
        if not chunk:
            self.close()
        self._said += chunk
        if len(self._said) > _ANSWER_BYTES_MAX:
            self.close()
            raise EngineGone(5, "the engine's answer has no end")
        return not chunk

    def all(self) -> tuple[int, str, bytes]:
        """Status, head and body of the complete answer. Closes the connection."""
        while self._line.fileno() >= 0 and not self.receive():
            pass
        self.close()
        head, _, body = self._said.partition(b"\r\n\r\n")
        words = head.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
            raise EngineGone(5, "the engine closed the connection without an answer")
        return int(words[1]), head.decode("latin-1"), body

    def is_from_podman(self) -> bool:
        """By the Server header of every answer. Closes the connection."""
        return "libpod/" in self.all()[1].lower()

    def json(self) -> Any:
        """The body (None: empty). Raises EngineError if the engine declines. Closes the connection."""
        status, _, said = self.all()
        try:
            answer = json.loads(said) if said.strip() else None
        except ValueError:
            if status < 400:
                raise EngineGone(5, "the engine's answer was cut off") from None
            answer = None
        if status >= 400:
            says = answer.get("message", "") if isinstance(answer, dict) else ""
            raise EngineError(status, str(says or said.decode(errors="replace")).strip()[:2000] or f"status {status}")
        return answer


class Engine:
    """An engine, identified by its socket."""

    def __init__(self, path: str) -> None:
        self.path = path

    def ask(self, method: str, where: str, body: object = None, timeout_s: float = ANSWER_S_MAX) -> EngineAnswer:
        """Send a request. `body`: bytes as they are, anything else as JSON. Raises EngineGone if nothing listens."""
        kind, content = "application/json", b""
        if isinstance(body, bytes):
            kind, content = "application/x-tar", body
        elif body is not None:
            content = json.dumps(body).encode()
        head = f"{method} {where} HTTP/1.0\r\nHost: engine\r\nContent-Type: {kind}\r\n"
        head += f"Content-Length: {len(content)}\r\n\r\n"
        line = socket.socket(socket.AF_UNIX)
        try:
            line.settimeout(timeout_s)
            line.connect(self.path)
            line.sendall(head.encode() + content)
        except OSError as error:
            line.close()
            raise EngineGone(error.errno or 5, f"no engine answers at {self.path}: {error.strerror or error}") from None
        return EngineAnswer(line)

    def call(self, method: str, where: str, body: object = None, timeout_s: float = ANSWER_S_MAX) -> Any:
        """Send a request, and wait for the answer."""
        return self.ask(method, where, body, timeout_s).json()

    # --- containers, by id or name ---

    def create(self, name: str, config: dict[str, Any]) -> str:
        return str(self.call("POST", "/containers/create" + query(name=name), config)["Id"])

    def start(self, container: str) -> None:
        self.call("POST", f"/containers/{quote(container)}/start")

    def inspect(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/containers/{quote(container)}/json")
        return found

    def wait(self, container: str) -> EngineAnswer:
        """An answer that arrives when the container has ended."""
        return self.ask("POST", f"/containers/{quote(container)}/wait", timeout_s=ANSWER_S_MAX)

    def kill(self, container: str, signal_number: int) -> None:
        """Send a signal to the container's first process. If it does not run, that is not an error."""
        try:
            self.call("POST", f"/containers/{quote(container)}/kill" + query(signal=signal_number))
        except EngineError as error:
            if error.status not in (404, 409, 500) or (error.status == 500 and "running" not in error.says):
                raise

    def remove(self, container: str) -> None:
        """Remove it, running or not, with the volumes created for it. If it does not exist, that is not an error; if it
        is already being removed, the request is repeated until it is gone."""
        try:
            self.call("DELETE", f"/containers/{quote(container)}" + query(force=1, v=1))
        except EngineError as error:
            if error.status != 404:
                raise

    def containers(self, label: str) -> list[dict[str, Any]]:
        """All containers with this label (`key` or `key=value`), including ended ones."""
        found: list[dict[str, Any]] = self.call("GET", "/containers/json" + query(all=1, filters={"label": [label]}))
        return found or []

    # --- the engine itself ---

    def version(self) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", "/version")
        return found
