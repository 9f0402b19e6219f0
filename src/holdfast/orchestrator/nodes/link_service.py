"""The gRPC service for nodes: turns their streams into events and sessions. It verifies who a node is, nothing else.

Control: challenge, signed hello, `NodeJoined`; the kernel's answer comes back as a send like any other. Then every
frame is an event, and so is the end of the stream. Bulk: pieces of logs, acknowledged when durable.

Any stranger can connect here. Until the hello is verified, streams are limited in time and in number, in all and per
address. After that, a node that sends too much is read more slowly, and one that sends invalid messages is
disconnected.
"""

import asyncio
import logging
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc.aio import EOF  # pyright: ignore[reportAttributeAccessIssue]

import holdfast
from holdfast.identity.proof import new_nonce, proven
from holdfast.kernel.events import NodeBroke, NodeJoined, NodeSaid
from holdfast.model import NodeId
from holdfast.model.messages import Hello, Leaving, Pong, Refusal, Report
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.connections.networks import network_of, peer_address
from holdfast.orchestrator.connections.node_port import NodePort, NodeStream
from holdfast.orchestrator.failpoints import failpoint
from holdfast.orchestrator.leader.loop import Leader
from holdfast.orchestrator.metrics import Metrics
from holdfast.orchestrator.nodes.fleet import Fleet
from holdfast.orchestrator.nodes.handshake_queue import HandshakeQueue, HandshakeQueueFull
from holdfast.orchestrator.nodes.log_receiver import LogIntake, why_unwanted
from holdfast.orchestrator.nodes.probing import probes
from holdfast.orchestrator.nodes.sessions import SESSIONS_MAX, Session, Sessions
from holdfast.state import StoreError
from holdfast.tasks import TaskScope
from holdfast.wire import convert, limits, versions
from holdfast.wire.checks import BadMessage, UnknownMessage
from holdfast.wire.convert import LogDurable, LogPiece

log = logging.getLogger("holdfast.nodes")

HELLO_S_MAX = 5.0
"""Limit from the challenge to the hello, in seconds. A node has its hello ready before it connects."""
ANSWER_S_MAX = 30.0
HANDSHAKES_MAX = 512
HANDSHAKES_PER_ADDRESS_MAX = 128
"""Handshakes at the same time from one address. Enough that a slow connection (200 ms round trip) delays no other node;
a single attacker cannot take every place."""
WAITING_MAX = SESSIONS_MAX // 2
WAITING_PER_ADDRESS_MAX = WAITING_MAX // 2
"""Nodes of one address that may wait: a whole fleet, or a whole site behind one address, may come back at once. A
waiting node costs only a connection."""
FRAMES_PER_SECOND_MAX = 200
"""A node reports once a second and once per change; a full node that ends everything at once stays below this."""
FLUSH_S_MAX = 2.0
PIECES_IN_FLIGHT_MAX = 16
UNWANTED_MAX = 64
"""Pieces of logs of attempts that the node does not hold, before its bulk stream is closed."""


class NodeLinkService:
    """The gRPC servicer of NodeLink."""

    def __init__(
        self,
        leader: Leader,
        sessions: Sessions,
        fleet: Fleet,
        intake: LogIntake,
        metrics: Metrics,
        port: NodePort,
        pin: str = "",
    ) -> None:
        """`pin`: of the certificate that this server presents; empty without TLS."""
        self._leader = leader
        self._sessions = sessions
        self._fleet = fleet
        self._intake = intake
        self._metrics = metrics
        self._port = port
        self._pin = pin
        self._line = HandshakeQueue(HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS_MAX, WAITING_MAX, WAITING_PER_ADDRESS_MAX)

    def crowded(self) -> bool:
        """Whether nodes wait for their handshake."""
        return self._line.waiting > 0

    # --- control ---

    async def Control(self, request_iterator: Any, context: Any) -> None:
        with self._port.stream(context.peer()) as stream:
            await self._control(context, stream)

    async def _control(self, context: Any, stream: NodeStream) -> None:
        busy = Refusal("busy", "too many nodes are dialling in; try again soon", final=False)
        if len(self._sessions) >= SESSIONS_MAX:
            await self._refuse(context, busy)
            return
        try:
            async with self._line.turn(network_of(peer_address(context.peer())[0])):
                hello = await self._prove(context)
        except HandshakeQueueFull:
            await self._refuse(context, busy)
            return
        if hello is not None:
            stream.recognized()
            await self._serve(hello, context)

    async def _prove(self, context: Any) -> Hello | None:
        """Ask the node for its identity and verify the answer. None: it was refused, or did not answer."""
        nonce = new_nonce()
        try:
            async with asyncio.timeout(HELLO_S_MAX):
                await context.write(convert.challenge_to_frame(nonce, holdfast.__version__))
                frame = await _heard(context)
            if frame is EOF:
                return None
            signed = convert.hello_from_frame(frame)
        except TimeoutError:
            await self._refuse(context, Refusal("too_slow", "no hello came in time", final=False))
            return None
        except BadMessage as bad:
            await self._refuse(context, bad.refusal())
            return None
        hello = signed.hello
        skewed = versions.skewed(hello.version, holdfast.__version__)
        if skewed is not None:
            await self._refuse(context, skewed)
            return None
        if not proven(hello.public_key, signed.signature, nonce, hello.node, hello.instance, self._pin):
            says = "the signature does not prove the key: it was made for another challenge, or with another key"
            await self._refuse(context, Refusal("bad_signature", says, final=True))
            return None
        return hello

    async def _refuse(self, context: Any, refusal: Refusal) -> None:
        self._metrics.handshakes_refused.labels(refusal.code).inc()
        try:
            async with asyncio.timeout(FLUSH_S_MAX):
                await context.write(convert.orchestrator_to_frame(refusal))
        except TimeoutError:
            log.debug("a refused stream does not read")

    async def _serve(self, hello: Hello, context: Any) -> None:
        session = self._sessions.open(hello.node)
        about = f"session {session.number} with {hello.node}"
        told = False
        async with TaskScope() as tasks:
            writer = tasks.start(f"write to {about}", self._write(session, context))
            reader = tasks.start(f"read from {about}", self._read(session, hello.node, context))
            try:
                bound = await self._bound_key(hello.node)
                failpoint("session.before_joined")
                self._leader.tell(NodeJoined(session.number, hello, network_of(peer_address(context.peer())[0]), bound))
                told = True
                closed = tasks.start(f"close of {about}", session.closed.wait())
                await asyncio.wait({reader, writer, closed}, return_when="FIRST_COMPLETED")
                if session.closed.is_set():
                    # Frames sent before closing, such as the reason for a refusal, should still arrive.
                    await asyncio.wait({writer}, timeout=FLUSH_S_MAX)
            except Unavailable as unavailable:
                await self._refuse(context, Refusal(unavailable.code, unavailable.says, final=False))
            finally:
                tasks.cancel()
                self._end(session, hello.node, told, reader)

    async def _bound_key(self, node: NodeId) -> str:
        """Fingerprint of the key to which the id of a node that is not known is bound; empty: to none. Raises
        Unavailable if there is no space for another node."""
        if self._leader.knows_node(node):
            return ""
        self._leader.need_space()
        try:
            deleted = await asyncio.to_thread(self._leader.store.deleted_node, node)
        except StoreError as wrong:
            raise Unavailable("store_unavailable", wrong.says) from None
        return "" if deleted is None else deleted.key_sha256

    def _end(self, session: Session, node: NodeId, told: bool, reader: "asyncio.Future[str]") -> None:
        stands = told and not session.by_us
        ended = reader.result() if reader.done() and not reader.cancelled() and not reader.exception() else ""
        why = session.why or ended or "the connection was lost"
        self._sessions.forget(session)
        if not stands or ended == GOODBYE:
            return
        failpoint("session.before_broke")
        try:
            self._leader.tell(NodeBroke(session.number, node, why))
        except Unavailable:
            log.debug("session %d ended with its leader", session.number)

    async def _write(self, session: Session, context: Any) -> None:
        while True:
            frame = await session.outgoing.get()
            if frame is None:
                return
            await _written(context, frame)

    async def _read(self, session: Session, node: NodeId, context: Any) -> str:
        """Turn frames into events until the stream ends; returns why it ended."""
        async with asyncio.timeout(ANSWER_S_MAX):
            await session.answered.wait()
        rate_limit = _RateLimit(FRAMES_PER_SECOND_MAX)
        while not session.closed.is_set():
            try:
                frame = await _heard(context)
                if frame is EOF:
                    return "the node ended the stream"
                message = convert.node_from_frame(frame)
            except UnknownMessage:
                await rate_limit.wait()
                continue
            except BadMessage as bad:
                session.push(convert.orchestrator_to_frame(bad.refusal()))
                session.close(f"it sent something that cannot be meant: {bad.says}", by_us=False)
                return session.why
            self._sessions.heard(session, message)
            if isinstance(message, Report):
                self._fleet.said(node, message)
            if isinstance(message, Pong) and probes(message.nonce):
                # An answer to a probe for a person: the kernel's view of the node must not depend on it.
                await rate_limit.wait()
                continue
            try:
                await self._leader.room()
                self._leader.tell(NodeSaid(session.number, node, message))
            except Unavailable as unavailable:
                session.close(unavailable.says)
                return session.why
            if isinstance(message, Leaving) and message.done:
                return GOODBYE
            await rate_limit.wait()
        return session.why

    # --- bulk ---

    async def Bulk(self, request_iterator: Any, context: Any) -> None:
        metadata = dict(context.invocation_metadata() or ())
        session = self._sessions.of_bulk_key(str(metadata.get(limits.BULK_KEY_METADATA, "")))
        if session is None or not session.welcome:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no session has this bulk key")
            return
        with self._port.stream(context.peer()) as stream:
            stream.recognized()
            await self._bulk(session, context)

    async def _bulk(self, session: Session, context: Any) -> None:
        replaced = session.new_bulk()
        acks: asyncio.Queue[asyncio.Future[LogDurable]] = asyncio.Queue(PIECES_IN_FLIGHT_MAX)
        about = f"session {session.number} with {session.node}"
        async with TaskScope() as tasks:
            parts = (
                tasks.start(f"read logs from {about}", self._take(session, context, acks)),
                tasks.start(f"acknowledge logs to {about}", self._acknowledge(context, acks)),
            )
            closed = tasks.start(f"close of {about}, for its logs", session.closed.wait())
            newer = tasks.start(f"newer log stream of {about}", replaced.wait())
            await asyncio.wait((*parts, closed, newer), return_when="FIRST_COMPLETED")
        if context.done():
            return
        faults = [part.exception() for part in parts if not part.cancelled()]
        match next((fault for fault in faults if isinstance(fault, Exception)), None):
            case None if session.closed.is_set() or replaced.is_set():
                await context.abort(grpc.StatusCode.ABORTED, "the session ended, or a newer stream took its place")
            case None:
                return
            case BadMessage() as bad:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, bad.says)
            case OSError():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "logs cannot be stored now; try again")
            case fault:
                log.debug("a bulk stream was lost: %s", fault)
                await context.abort(grpc.StatusCode.ABORTED, "the stream was lost")

    async def _take(self, session: Session, context: Any, acks: "asyncio.Queue[asyncio.Future[LogDurable]]") -> None:
        unwanted = 0
        while True:
            said = await _heard(context)
            if said is EOF:
                await acks.join()
                return
            piece = convert.chunk_from_wire(said)
            why = await self._why_unwanted(session, piece)
            if not why:
                await acks.put(await self._intake.put(piece))
                continue
            unwanted += 1
            if unwanted > UNWANTED_MAX:
                raise BadMessage("unexpected", "too many logs of attempts that this node does not hold")
            refused: asyncio.Future[LogDurable] = asyncio.get_running_loop().create_future()
            refused.set_result(LogDurable(piece.attempt, piece.stream, 0, why))
            await acks.put(refused)

    async def _why_unwanted(self, session: Session, piece: LogPiece) -> str:
        if session.holds.get(piece.attempt) == piece.fence:
            return ""
        why = await asyncio.to_thread(why_unwanted, self._leader.store, session, piece)
        if not why:
            session.holds[piece.attempt] = piece.fence
        return why

    async def _acknowledge(self, context: Any, acks: "asyncio.Queue[asyncio.Future[LogDurable]]") -> None:
        while True:
            durable = await acks.get()
            await _written(context, convert.ack_to_wire(await durable))
            acks.task_done()


GOODBYE = "goodbye"


class _RateLimit:
    """Lets this many frames through in each second, and delays the rest until the next one."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._since = 0.0
        self._count = 0

    async def wait(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._since >= 1.0:
            self._since, self._count = now, 0
        self._count += 1
        if self._count > self._per_second:
            await asyncio.sleep(1.0 - (now - self._since))


async def _heard(context: Any) -> Any:
    """The next frame, or EOF. Bytes that cannot be decoded count as a bad message, not as an internal error."""
    try:
        return await context.read()
    except DecodeError:
        raise BadMessage("bad_bytes", "what was sent cannot be read as a message") from None


async def _written(context: Any, frame: Any) -> None:
    """Send a frame. A caller that cancels this must wait until the frame is out: if a stream is ended in the middle of
    a frame, gRPC never sends its end, and the node would wait for it for ever."""
    writing = asyncio.create_task(context.write(frame), name="write a frame")
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait({writing}, timeout=FLUSH_S_MAX)
        if writing.done() and not writing.cancelled():
            writing.exception()  # the node was lost meanwhile, so there is no one to report to
        raise
