"""Two network namespaces and a cable between them: a machine with a node, and another far away with a server."""

import contextlib
import ctypes
import http.server
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
NODE, FAR = "203.0.114.1", "203.0.114.2"
"""Public addresses, because jobs are refused all others. Nothing leaves the namespaces."""


class FarNetwork:
    """`node` and `far` are the names of the namespaces."""

    def __init__(self) -> None:
        mine = f"{os.getpid()}-{secrets.token_hex(3)}"  # a number alone may come again, and find what another left
        self.node, self.far = f"hf-node-{mine}", f"hf-far-{mine}"
        self._servers: list[http.server.ThreadingHTTPServer] = []

    def __enter__(self) -> "FarNetwork":
        for name in (self.node, self.far):
            _ip("netns", "add", name)
        _ip("-n", self.node, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", self.far)
        for name, address in ((self.node, NODE), (self.far, FAR)):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
            for link in ("veth0", "lo"):
                _ip("-n", name, "link", "set", link, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for name in (self.node, self.far):
            _ip("netns", "delete", name)

    def address(self, name: str, address: str) -> None:
        """One more address there."""
        _ip("-n", name, "addr", "add", address, "dev", "veth0")

    def route(self, name: str, to: str, through: str) -> None:
        _ip("-n", name, "route", "add", to, "via", through)

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """This thread, and what it starts, are in that namespace."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{name}", os.O_RDONLY)
        try:
            assert _libc.setns(there, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            yield
        finally:
            assert _libc.setns(here, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            os.close(here)
            os.close(there)

    def serve(self, name: str, address: str, answer: bytes, *, port: int = 0, location: str = "") -> str:
        """A server there that answers this to whoever asks, or sends them on to `location`; its URL."""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(302 if location else 200)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        with self.inside(name):
            server = http.server.ThreadingHTTPServer((address, port), Handler)
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://{address}:{server.server_port}/"

    def reaches(self, name: str, url: str) -> bool:
        """Whether something that is there, and not confined, gets an answer."""
        host, _, port = url.split("/")[2].partition(":")
        with self.inside(name), contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), timeout=20).close()
            return True
        return False


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=60)
