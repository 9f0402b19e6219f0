"""Bounds the connections to the node port. gRPC accepts them itself and tells nobody, so this looks at the process's
own sockets, and shuts down those that must go. gRPC then notices their end. Bytes of nodes do not pass here.

gRPC's own limit refuses all further connections once it is reached, so a stranger could keep every node out. This keeps
strangers below it: see `Admission`. A connection without a stream is closed after a while.
"""

import asyncio
import logging
import os
import socket
import stat
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address

import msgspec

from holdfast.orchestrator.connection_limits import ConnectionLimits
from holdfast.orchestrator.connections.admission import Admission, ConnectionBounds, Standing
from holdfast.orchestrator.connections.networks import network_of, peer_address
from holdfast.orchestrator.connections.reports import ConnectionReports
from holdfast.orchestrator.metrics import Metrics

LOOK_S_MIN, LOOK_S_MAX = 0.1, 2.0
LOOK_SHARE = 50
"""Looking takes at most this part of a processor's time."""
HEADROOM = 8
"""This part of gRPC's own limit stays free, so that a new connection is accepted before another is closed for it."""
log = logging.getLogger("holdfast.connections")

OPEN_FILES = "/proc/self/fd"

Peer = tuple[str, int]
"""Address and port."""


class NodeConnection(msgspec.Struct, frozen=True):
    descriptor: int
    inode: int
    """Tells a socket from another one that got its descriptor later."""
    peer: Peer


class NodeStream:
    """A stream of a connection, while it lasts."""

    def __init__(self, known: "Counter[Peer]", peer: Peer) -> None:
        self._known = known
        self._peer = peer
        self.known = False

    def recognized(self) -> None:
        """The node proved who it is."""
        if not self.known:
            self.known = True
            self._known[self._peer] += 1


class NodePort:
    def __init__(self, limits: ConnectionLimits, metrics: Metrics) -> None:
        most = limits.node_connections_max
        bounds = ConnectionBounds(
            all=most - most // HEADROOM,
            strangers=limits.node_strangers_max,
            strangers_per_network=limits.node_strangers_per_address_max,
        )
        self._silent_s_max = limits.head_ms_max / 1000
        self._admission: Admission[NodeConnection] = Admission(bounds)
        self._reports = ConnectionReports("nodes", metrics)
        self._port = 0
        self._streams: Counter[Peer] = Counter()
        self._known: Counter[Peer] = Counter()
        self._sockets: dict[tuple[int, int], NodeConnection | None] = {}
        """All sockets of this process, by descriptor and inode. None: not of the node port."""
        self._silent_since: dict[NodeConnection, float] = {}

    def listens(self, port: int) -> None:
        self._port = port

    @contextmanager
    def stream(self, peer: str) -> Iterator[NodeStream]:
        """A stream began. `peer`: as gRPC names it."""
        address, port = peer_address(peer)
        which = (_plain(address), port)
        stream = NodeStream(self._known, which)
        self._streams[which] += 1
        try:
            yield stream
        finally:
            _less(self._streams, which)
            if stream.known:
                _less(self._known, which)

    async def run(self) -> None:
        """Look at the connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                found, took_s = await asyncio.to_thread(self._timed_look)
            except OSError as wrong:
                # Too many open files, for example. Connections are judged by the next look.
                log.warning("connections to the node port cannot be looked at: %s", wrong)
                await asyncio.sleep(LOOK_S_MAX)
                continue
            self._judge(found, loop.time())
            self._reports.report(loop.time())
            await asyncio.sleep(min(max(took_s * LOOK_SHARE, LOOK_S_MIN), LOOK_S_MAX))

    def _judge(self, found: "dict[tuple[int, int], NodeConnection | None]", now_s: float) -> None:
        before, self._sockets = self._sockets, found
        for socket_id in before.keys() - found.keys():
            gone = before[socket_id]
            if gone is not None:
                self._forget(gone)
        # First what is known of the old ones: one that proved itself meanwhile must not go for a new one.
        for socket_id in found.keys() & before.keys():
            old = found[socket_id]
            if old is not None:
                self._rank(old, now_s)
        for socket_id in found.keys() - before.keys():
            new = found[socket_id]
            if new is not None:
                closed = self._admission.opened(new, network_of(new.peer[0]))
                if closed is not None:
                    self._end(closed, "too_many")
                self._rank(new, now_s)

    def _rank(self, connection: NodeConnection, now_s: float) -> None:
        if connection.peer in self._known:
            self._admission.known(connection)
            self._silent_since.pop(connection, None)
            return
        self._admission.unknown(connection)
        if connection.peer in self._streams:
            # It waits for its handshake or is in it; the queue of handshakes bounds both.
            self._admission.stands(connection, Standing.IDLE)
            self._silent_since.pop(connection, None)
            return
        self._admission.stands(connection, Standing.SILENT)
        since_s = self._silent_since.setdefault(connection, now_s)
        if 0 < self._silent_s_max < now_s - since_s:
            self._end(connection, "slow")

    def _end(self, connection: NodeConnection, why: str) -> None:
        self._forget(connection)
        self._reports.closed(network_of(connection.peer[0]), why)
        shut_down(connection)

    def _forget(self, connection: NodeConnection) -> None:
        self._admission.closed(connection)
        self._silent_since.pop(connection, None)

    def _timed_look(self) -> "tuple[dict[tuple[int, int], NodeConnection | None], float]":
        """With the processor time it took. The time on the clock would grow with the load, and looks become rare just
        when strangers are many."""
        began_s = time.thread_time()
        return self._look(), time.thread_time() - began_s

    def _look(self) -> "dict[tuple[int, int], NodeConnection | None]":
        """All sockets. Runs in a thread: only reads what the last look found."""
        before, found = self._sockets, dict[tuple[int, int], NodeConnection | None]()
        for name in os.listdir(OPEN_FILES):
            descriptor = int(name)
            try:
                about = os.fstat(descriptor)
            except OSError:
                continue  # closed meanwhile
            if not stat.S_ISSOCK(about.st_mode):
                continue
            which = (descriptor, about.st_ino)
            found[which] = before[which] if which in before else self._read(*which)
        return found

    def _read(self, descriptor: int, inode: int) -> NodeConnection | None:
        with _borrowed(descriptor, inode) as line:
            try:
                if line is None or line.family not in (socket.AF_INET, socket.AF_INET6):
                    return None
                if line.getsockname()[1] != self._port:
                    return None
                address, port = line.getpeername()[:2]
            except OSError:
                return None  # it listens, or is not connected any more
            return NodeConnection(descriptor, inode, (_plain(address), port))


def shut_down(connection: NodeConnection) -> None:
    """End a connection without closing a descriptor that belongs to somebody else."""
    with _borrowed(connection.descriptor, connection.inode) as line:
        if line is not None:
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it has ended by itself


@contextmanager
def _borrowed(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """The socket under a descriptor of its own, so that its owner may close it meanwhile. None: it is another one."""
    try:
        own = os.dup(descriptor)
    except OSError:
        yield None
        return
    if os.fstat(own).st_ino != inode:
        os.close(own)
        yield None
        return
    with socket.socket(fileno=own) as line:
        yield line


def _less(counts: "Counter[Peer]", peer: Peer) -> None:
    counts[peer] -= 1
    if not counts[peer]:
        del counts[peer]


def _plain(address: str) -> str:
    """The same text for every spelling of an address."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)
