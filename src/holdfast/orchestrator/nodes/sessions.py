"""The current sessions: the messages that wait for each, and the attempts whose logs it may deliver.

Messages wait in a bounded queue per session. A node that does not read them is disconnected rather than waited for:
every message can be derived again when it returns. Nothing here judges a node; it carries out what was committed.
"""

import asyncio
import logging
import secrets

from holdfast.kernel.decision import CloseSession, ToSession
from holdfast.model.messages import Discard, Pong, Refusal, Start, Welcome
from holdfast.orchestrator.metrics import Metrics
from holdfast.orchestrator.nodes.fleet import Fleet
from holdfast.orchestrator.nodes.probing import Probes
from holdfast.wire import convert
from holdfast.wire import node_pb2 as pb
from holdfast.wire.checks import BadMessage

log = logging.getLogger("holdfast.sessions")

OUTGOING_MAX = 1_024
"""Messages that may wait for one node: four times the attempts that a node can hold, so that only a node that stopped
reading reaches it."""
SESSIONS_MAX = 20_000


class Session:
    def __init__(self, number: int, node: str) -> None:
        self.number = number
        self.node = node
        self.bulk_key = secrets.token_urlsafe(32)
        self.outgoing: asyncio.Queue[pb.OrchestratorFrame | None] = asyncio.Queue(OUTGOING_MAX)
        """None: close after the frames before it."""
        self.answered = asyncio.Event()
        """Welcomed or refused: the handshake is over."""
        self.welcome = False
        self.closed = asyncio.Event()
        self.why = ""
        self.by_us = False
        """Closed from this side, so its end is not reported to the kernel."""
        self.holds: dict[str, int] = {}
        """attempt -> fence: the attempts whose logs it may deliver."""

        self._bulk_replaced = asyncio.Event()

    def new_bulk(self) -> asyncio.Event:
        """A session has one bulk stream: a new one ends the one before, by setting the event that it got."""
        self._bulk_replaced.set()
        self._bulk_replaced = asyncio.Event()
        return self._bulk_replaced

    def push(self, frame: pb.OrchestratorFrame) -> None:
        try:
            self.outgoing.put_nowait(frame)
        except asyncio.QueueFull:
            # The kernel hears of this end: it must not wait for an answer to a message that was dropped here.
            self.close("it does not take what it is told", by_us=False)

    def close(self, why: str, by_us: bool = True) -> None:
        if self.closed.is_set():
            return
        self.why, self.by_us = why, by_us
        self.closed.set()
        self.answered.set()
        try:
            self.outgoing.put_nowait(None)
        except asyncio.QueueFull:
            self.outgoing = asyncio.Queue(1)
            self.outgoing.put_nowait(None)


class Sessions:
    def __init__(self, fleet: Fleet, metrics: Metrics) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self.data_url = ""
        """Where nodes fetch and deliver files; set once that server listens."""
        self._sessions: dict[int, Session] = {}
        self._by_bulk_key: dict[str, Session] = {}
        self._numbers = 0
        self.probes = Probes(self.tell, fleet)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, node: str) -> Session:
        self._numbers += 1
        session = Session(self._numbers, node)
        self._sessions[session.number] = session
        self._by_bulk_key[session.bulk_key] = session
        self._metrics.sessions.set(len(self._sessions))
        return session

    def forget(self, session: Session) -> None:
        session.close("ended")
        self._sessions.pop(session.number, None)
        self._by_bulk_key.pop(session.bulk_key, None)
        self._fleet.left(session.node, session.number)
        self._metrics.sessions.set(len(self._sessions))

    def of_bulk_key(self, key: str) -> Session | None:
        return self._by_bulk_key.get(key)

    def heard(self, session: Session, message: object) -> None:
        """A message arrived from a node."""
        self._fleet.heard(session.node)
        if isinstance(message, Pong):
            self.probes.answered(session.node, message.nonce)

    def tell(self, send: ToSession) -> None:
        """Send a message to a session, if it is still open."""
        session = self._sessions.get(send.session)
        if session is None or session.closed.is_set():
            return
        message = send.message
        try:
            if isinstance(message, Welcome):
                session.push(convert.welcome_to_frame(message, session.bulk_key, self.data_url))
                session.welcome = True
                session.answered.set()
                self._fleet.connected(session.node, session.number)
                return
            session.push(convert.orchestrator_to_frame(message))
        except BadMessage as unsayable:
            log.error("cannot say %s to %s: %s", type(message).__name__, session.node, unsayable)
            return
        match message:
            case Start():
                session.holds[message.attempt] = message.fence
            case Discard():
                session.holds.pop(message.attempt, None)
            case Refusal():
                self._metrics.handshakes_refused.labels(message.code).inc()
                session.close(f"{message.code}: {message.says}")
            case _:
                pass

    def close(self, send: CloseSession) -> None:
        session = self._sessions.get(send.session)
        if session is not None:
            session.close(send.why)

    def close_all(self, why: str) -> None:
        for session in list(self._sessions.values()):
            session.close(why)
