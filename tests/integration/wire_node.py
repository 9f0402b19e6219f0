"""A small node for tests of the orchestrator: speaks the wire, holds attempts, prints what it is told to print.

It runs no process. Each attempt "prints" the words of its command; `hold_back` keeps it running until `let_go`.
It redials like a real agent and keeps what it holds over any number of sessions.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from uuid import uuid4

import grpc

from holdfast.identity import tokens
from holdfast.identity.certificates import SERVER_NAME, client_credentials
from holdfast.identity.keys import NodeKey, node_id
from holdfast.identity.proof import prove
from holdfast.model import Hardware, NodeId, Resources, Result
from holdfast.model.messages import Discard, Go, Held, HeldPhase, Hello, Ping, Pong, Refusal, Renewed, Report, Start
from holdfast.testing.processes import wait_for
from holdfast.wire import convert, limits
from holdfast.wire import node_pb2 as pb
from holdfast.wire.convert import Admitted, LogPiece
from holdfast.wire.node_pb2_grpc import NodeLinkStub

OFFER = Resources(cpu_milli=8_000, memory_mib=16_000, disk_mib=100_000)
Output = Callable[[Start], bytes]


def words(start: Start) -> bytes:
    return (" ".join(start.spec.argv) + "\n").encode()


class Line:
    """One Control stream, opened and closed by hand."""

    def __init__(self, address: str, polite: bool = True, pem: bytes | None = None, lasts_s: float | None = 60) -> None:
        """`polite`: keeps to the limits of a message; else the orchestrator has to. `pem`: TLS, and whom to trust.
        `lasts_s`: then it breaks by itself, so that a test that listens in vain ends."""
        if pem is not None:
            options = limits.client_options(SERVER_NAME)
            self.channel = grpc.secure_channel(address, client_credentials(pem), options=options)
        else:
            options = limits.client_options() if polite else [("grpc.use_local_subchannel_pool", 1)]
            self.channel = grpc.insecure_channel(address, options=options)
        self.stub = NodeLinkStub(self.channel)  # pyright: ignore[reportArgumentType]
        self._out: queue.Queue[pb.NodeFrame | None] = queue.Queue()
        self.call = self.stub.Control(self._frames(), timeout=lasts_s)

    def _frames(self) -> Iterator[pb.NodeFrame]:
        while (frame := self._out.get()) is not None:
            yield frame

    def say(self, frame: pb.NodeFrame) -> None:
        self._out.put(frame)

    def hear(self) -> pb.OrchestratorFrame:
        return next(self.call)

    def close(self) -> None:
        self._out.put(None)
        self.call.cancel()
        self.channel.close()


class WireNode:
    def __init__(
        self,
        address: str,
        token: str = "",
        *,
        name: str = "",
        key: NodeKey | None = None,
        node: NodeId | None = None,
        output: Output = words,
        hold_back: bool = False,
    ) -> None:
        self.address = address
        self.ticket = tokens.parse(token) if token else None
        self.name = name
        self.key = key or NodeKey.make()
        self.id = node or node_id(uuid4().hex)
        self.instance = sha256(self.key.public_hex.encode()).hexdigest()[:16]
        self.output = output
        self.offered = OFFER
        self.released = threading.Event()
        if not hold_back:
            self.released.set()
        self.held: dict[str, Held] = {}
        self.starts: list[Start] = []
        self.repeated: list[Start] = []
        """Starts of what it held already."""
        self.discards: list[Discard] = []
        self.renewed: list[Renewed] = []
        self.sessions = 0
        self.reported = 0
        """How often it reported by its own clock."""
        self._mute = False
        self.refusal: Refusal | None = None
        self.undelivered = 0
        """Bulk calls that the orchestrator broke off."""
        self.acked: dict[tuple[str, str], int] = {}
        self._seq = 0
        self._epoch = 0
        self._lock = threading.RLock()
        self._bulk = threading.Lock()
        """A session has one bulk stream: attempts that opened one each would break off each other's for ever."""
        self._stopped = threading.Event()
        self._dialled: Line | None = None
        self._line: Line | None = None
        """The one that was dialled, once it was welcome there."""
        self.bulk_key = ""
        self._threads: list[threading.Thread] = []

    # --- living ---

    def start(self) -> "WireNode":
        self._spawn(self._redial)
        self._spawn(self._report_often)
        return self

    def stop(self) -> None:
        """Vanish: the streams break."""
        self._stopped.set()
        self.released.set()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)

    def hang_up(self) -> None:
        line = self._dialled
        if line is not None:
            line.close()

    def mute(self) -> None:
        """Say nothing more, with all streams open, and dial no more: what a frozen machine looks like."""
        self._mute = True

    def let_go(self) -> None:
        self.released.set()

    def __enter__(self) -> "WireNode":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_welcome(self, sessions: int = 1) -> None:
        wait_for(lambda: self.sessions >= sessions, f"session {sessions} of the node")

    def _spawn(self, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _redial(self) -> None:
        while not self._stopped.is_set():
            try:
                if not self._mute:
                    self._session()
            except (grpc.RpcError, StopIteration, ValueError):
                pass
            finally:
                self._line = None
                self.bulk_key = ""
            self._stopped.wait(0.05)

    def _report_often(self) -> None:
        while not self._stopped.wait(0.1):
            self.reported += 1
            self.report()

    # --- one session ---

    def hello(self) -> Hello:
        ticket = self.ticket
        with self._lock:
            return Hello(
                node=self.id,
                instance=self.instance,
                public_key=self.key.public_hex,
                version="test",
                hardware=Hardware(total=self.offered, hostname="wire"),
                offered=self.offered,
                isolation="none",
                token_id=ticket.id if ticket else "",
                name=self.name,
                held=tuple(self.held.values()),
                epoch_seen=self._epoch,
            )

    def introduce(self, line: Line, pin: str = "") -> Admitted | Refusal:
        """Answer the challenge on a line; the orchestrator's answer."""
        challenge = convert.challenge_from_frame(line.hear())
        if isinstance(challenge, Refusal):
            return challenge
        signature = prove(self.key, challenge.nonce, self.id, self.instance, pin)
        secret = self.ticket.secret if self.ticket else b""
        line.say(convert.hello_to_frame(self.hello(), challenge.protocol, signature, secret))
        return convert.answer_from_frame(line.hear())

    def _session(self) -> None:
        line = self._dialled = Line(self.address, lasts_s=None)
        try:
            if self._stopped.is_set():
                return  # whoever stopped it may have looked for this line before it was there
            answer = self.introduce(line)
            if isinstance(answer, Refusal):
                self.refusal = answer
                return
            with self._lock:
                self.bulk_key, self._epoch, self._seq = answer.bulk_key, answer.welcome.epoch, 0
                self._line = line
            self.sessions += 1
            self.report()
            while True:
                self._obey(convert.orchestrator_from_frame(line.hear()))
        finally:
            line.close()

    def _obey(self, message: object) -> None:
        match message:
            case Start():
                # What is not yet reported may be said again: it is the same start. And whoever sees that it has come
                # and declares its end must not be overtaken by the declaration that it runs.
                with self._lock:
                    if message.attempt in self.held:
                        self.repeated.append(message)
                    else:
                        self.starts.append(message)
                        self.declare(message, HeldPhase.READY if message.lease_ms else HeldPhase.RUNNING)
                        if not message.lease_ms:
                            self._spawn(lambda: self._perform(message))
            case Go():
                start = next(s for s in self.starts if s.attempt == message.attempt)
                with self._lock:
                    held = self.held.get(start.attempt)
                    waiting = held is not None and held.phase is HeldPhase.READY
                    if waiting:
                        self.declare(start, HeldPhase.RUNNING)
                if waiting:
                    self._spawn(lambda: self._perform(start))
            case Discard():
                self.discards.append(message)
                with self._lock:
                    self.held.pop(message.attempt, None)
                    self._say(Report(self._next(), False, (Held(message.attempt, message.fence, HeldPhase.GONE),)))
            case Renewed():
                self.renewed.append(message)
            case Ping():
                self._say(Pong(message.nonce))
            case Refusal():
                self.refusal = message

    def _perform(self, start: Start) -> None:
        """Print, wait to be let go, deliver, declare."""
        printed = self.output(start)
        if printed:
            self.deliver(start, printed[: len(printed) // 2])
        self.released.wait()
        if self.deliver(start, printed):
            self.declare(start, HeldPhase.FINISHED, Result(sha256(printed).hexdigest(), len(printed)))

    # --- saying ---

    def declare(self, start: Start, phase: HeldPhase, result: Result | None = None) -> None:
        with self._lock:
            self.held[start.attempt] = Held(start.attempt, start.fence, phase, result)
        self.report()

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def report(self) -> None:
        with self._lock:
            leased = {s.attempt for s in self.starts if s.lease_ms}
            renew = tuple(h.attempt for h in self.held.values() if h.attempt in leased and h.phase is HeldPhase.RUNNING)
            self._say(Report(self._next(), True, tuple(self.held.values()), renew=renew))

    def _say(self, message: Report | Pong) -> None:
        line = self._line
        if line is not None and not self._mute:
            line.say(convert.node_to_frame(message))

    def deliver(self, start: Start, printed: bytes, stream: str = "stdout") -> bool:
        """Send output until all of it is durable, over any number of sessions. False: it was refused."""
        while not self._stopped.is_set():
            line, key = self._line, self.bulk_key
            try:
                if line is not None and key:
                    with self._bulk:
                        ack = send_logs(line, key, start.attempt, start.fence, printed, stream)
                    self.acked[(start.attempt, stream)] = ack.durable_offset
                    if ack.refused or ack.durable_offset >= len(printed):
                        return not ack.refused
            except (grpc.RpcError, StopIteration, ValueError, IndexError):
                self.undelivered += 1
            time.sleep(0.02)
        return False


def send_logs(
    line: Line, key: str, attempt: str, fence: int, data: bytes, stream: str = "stdout"
) -> convert.LogDurable:
    """One bulk call with all of the data from its start; the last acknowledgement."""
    step = limits.LOG_DATA_BYTES_MAX
    pieces = [
        convert.chunk_to_wire(LogPiece(convert.AttemptId(attempt), fence, stream, at, data[at : at + step]))
        for at in range(0, len(data) or 1, step)
    ]
    acks = list(line.stub.Bulk(iter(pieces), timeout=20, metadata=((limits.BULK_KEY_METADATA, key),)))
    return convert.ack_from_wire(acks[-1])
