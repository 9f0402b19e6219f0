"""What the generators share: connections that are opened, told something, and kept open until the time is up.

It connects to loopback only, prints `begun` when it begins, and at the end how often it connected and how often it was
closed.
"""

import contextlib
import ipaddress
import json
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable

OPENED_AT_ONCE = 64
LOOK_S = 0.05

Part = bytes | memoryview


class Line:
    """One connection. It sends its parts one after the other, and waits for an answer in between."""

    def __init__(self, place: tuple[str, int], parts: list[Part]) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.socket.connect(place)
        self.left = [memoryview(part) for part in parts]

    def send(self) -> None:
        """Send the present part, or raise BlockingIOError."""
        while self.left and len(self.left[0]):
            self.left[0] = self.left[0][self.socket.send(self.left[0]) :]

    def hear(self) -> bool:
        """Read an answer, and go on with the next part. False: the other side has closed the connection."""
        if not self.socket.recv(65_536):
            return False
        if self.left and not len(self.left[0]):
            self.left.pop(0)
            self.send()
        return True


def flood(make: Callable[[], list[Part]], arguments: list[str], *, again: bool = False) -> None:
    """`make`: the parts that a new connection sends. `again`: it is replaced when its last part was answered."""
    host, port, seconds, count = arguments[0], int(arguments[1]), float(arguments[2]), int(arguments[3])
    assert ipaddress.ip_address(host).is_loopback, "attacks go to this machine only"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    lines: dict[int, Line] = {}
    opened = closed = 0
    until = time.monotonic() + seconds
    print("begun", flush=True)
    with selectors.EpollSelector() as selector:
        while time.monotonic() < until:
            for _ in range(min(OPENED_AT_ONCE, count - len(lines))):
                line = Line((host, port), make())
                lines[line.socket.fileno()] = line
                selector.register(line.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
                opened += 1
            for key, events in selector.select(LOOK_S):
                line = lines[key.fd]
                if not _served(line, events, selector, again):
                    selector.unregister(line.socket)
                    line.socket.close()
                    del lines[key.fd]
                    closed += 1
    print(json.dumps({"opened": opened, "closed": closed, "held": len(lines)}))


def _served(line: Line, events: int, selector: selectors.BaseSelector, again: bool) -> bool:
    try:
        if events & selectors.EVENT_READ:
            if not line.hear():
                return False
            if again and len(line.left) <= 1:
                return False
        if events & selectors.EVENT_WRITE:
            line.send()
            selector.modify(line.socket, selectors.EVENT_READ)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def main(make: Callable[[], list[Part]], *, again: bool = False) -> None:
    flood(make, sys.argv[1:], again=again)
