"""The node's connection to its orchestrator: connects, authenticates, transports messages both ways, reconnects.

Decides nothing: messages to send come from the core, received ones go to it, and `core.redial` decides when to connect.
The only module of a node that uses gRPC; it is imported after the launcher was started.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc
import grpc.aio

from holdfast.errors import HoldfastError, Misconfigured, Untrusted
from holdfast.identity import proof
from holdfast.identity.certificates import SERVER_NAME, client_credentials, fetch_pinned, needs_tls
from holdfast.identity.keys import NodeKey
from holdfast.identity.tokens import Ticket
from holdfast.model.messages import (
    Discard,
    Drained,
    Go,
    Hello,
    Leaving,
    Offers,
    Ping,
    Pong,
    Refusal,
    Renewed,
    Report,
    Save,
    Start,
    Welcome,
)
from holdfast.node.core.redial import (
    APART_REDIAL_MS,
    CHALLENGE_MS_MAX,
    REDIAL_MS,
    REDIAL_MS_MAX,
    WELCOME_MS_MAX,
    DialEnd,
    Redial,
    belongs,
    ending_of,
)
from holdfast.node.log_sender import Courier, SilentOrchestrator
from holdfast.node.node_files_client import NodeFilesEndpoint
from holdfast.policy.backoff import backoff_ms
from holdfast.tasks import TaskScope
from holdfast.wire import convert
from holdfast.wire.checks import BadMessage, UnknownMessage
from holdfast.wire.convert import Admitted, Challenge, LogDurable, LogPiece
from holdfast.wire.limits import BULK_KEY_METADATA, client_options
from holdfast.wire.node_pb2_grpc import NodeLinkStub

SAYINGS_MAX = 256
"""Messages waiting to be sent. More means that the orchestrator does not read: the session is over."""
GOODBYE_S = 2.0

log = logging.getLogger("holdfast.node")


class SessionOver(Exception):
    """The session ended; the text explains why."""


class DialRefused(SessionOver):
    """The orchestrator refuses this node, for now or permanently."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"the orchestrator refuses this node: {refusal.says}")
        self.refusal = refusal


class RefusedForGood(HoldfastError):
    """The orchestrator refuses this node as it is; connecting again would not help."""

    exit_code = 3


class Hears(Protocol):
    """The callbacks of a link."""

    def hello(self) -> Hello: ...
    def connected(self, welcome: Welcome, door: NodeFilesEndpoint | None) -> None: ...
    def told(self, command: Start | Go | Discard | Renewed | Ping | Save | Drained) -> None: ...
    def disconnected(self, why: str) -> None: ...


class Link:
    def __init__(self, address: str, ticket: Ticket | None, key: NodeKey, hears: Hears, courier: Courier) -> None:
        """Raises Misconfigured if the address requires a token that pins a certificate."""
        self.address = address
        self.trouble = ""
        """Why there is no session; empty while there is one, and before the first attempt to connect."""
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._ticket = ticket
        self._pin = ticket.pin if ticket else ""
        self._key = key
        self._hears = hears
        self._courier = courier
        self._pem: bytes | None = None
        self._sayings: asyncio.Queue[Report | Pong | Leaving | Offers | None] = asyncio.Queue(SAYINGS_MAX)
        self._goodbye = False
        self._hung_up: asyncio.Future[str] | None = None
        self._up = False
        if not self._pin and needs_tls(self._host):
            raise Misconfigured(
                f"the orchestrator at {address} is on another machine, and nothing says how to recognise it",
                hint="Give --token with the join token or invitation that its operator hands out.",
                code="no_pin",
            )

    @property
    def up(self) -> bool:
        return self._up

    def say(self, message: Report | Pong | Leaving | Offers) -> None:
        """Send a message in the current session; it is dropped if there is none."""
        if not self._up:
            return
        try:
            self._sayings.put_nowait(message)
        except asyncio.QueueFull:
            self.hang_up("the orchestrator no longer reads")

    def hang_up(self, why: str) -> None:
        if self._hung_up is not None and not self._hung_up.done():
            self._hung_up.set_result(why)

    def say_goodbye(self) -> None:
        """Send what is queued, close the session cleanly, and do not reconnect."""
        self._goodbye = True
        if self._up:
            with contextlib.suppress(asyncio.QueueFull):
                self._sayings.put_nowait(None)

    async def run(self) -> None:
        """Keep a session open until goodbye is said. Raises RefusedForGood or Untrusted if that is hopeless.

        A node that belongs to the network keeps trying if it meets an orchestrator of another release: that one may
        have been started by mistake, and nodes that gave up would have to be restarted by hand, machine by machine.
        """
        last = ""
        redial = Redial(_monotonic_ms())
        while not self._goodbye:
            redial.dialled(_monotonic_ms())
            end, why, wrong = await self._try()
            ours = end is DialEnd.APART and belongs(self._hears.hello())
            wait_ms = redial.ended(end, _monotonic_ms(), secrets.randbits(64), welcomed=self._up, belongs=ours)
            if wait_ms is None and wrong is not None:
                raise wrong
            self._close(why)
            if why != last and not self._goodbye:
                log.warning("no session with %s: %s", self.address, why)
            last = self.trouble = why
            if not self._goodbye:
                await asyncio.sleep((wait_ms or 0) / 1000)

    async def _try(self) -> tuple[DialEnd, str, Exception | None]:
        """Run one session, or fail to: returns how it ended, why, and what to raise if reconnecting is hopeless."""
        try:
            return DialEnd.LOST, await self._session(), None
        except DialRefused as wrong:
            end, why = ending_of(wrong.refusal), str(wrong)
            again = f"; trying again every {APART_REDIAL_MS / 60_000:g} min" if end is DialEnd.APART else ""
            return end, why + again, RefusedForGood(why, code=wrong.refusal.code)
        except Untrusted as wrong:
            return DialEnd.UNTRUSTED, wrong.says, wrong
        except (SessionOver, HoldfastError, BadMessage, TimeoutError, OSError, grpc.aio.AioRpcError) as wrong:
            return DialEnd.LOST, _words(wrong), wrong

    def _close(self, why: str) -> None:
        if self._up:
            self._up = False
            self._hears.disconnected(why)
        self._sayings = asyncio.Queue(SAYINGS_MAX)

    # --- one session ---

    async def _session(self) -> str:
        channel = await self._channel()
        try:
            stub = NodeLinkStub(channel)
            call = stub.Control()
            frames = aiter(call)
            admitted = await self._handshake(call, frames)
            log.info("session with %s established (epoch %s)", self.address, admitted.welcome.epoch)
            self._hung_up = asyncio.get_running_loop().create_future()
            self._up, self.trouble = True, ""
            self._hears.connected(admitted.welcome, self._door(admitted))
            return await self._converse(stub, call, frames, admitted.bulk_key)
        finally:
            await channel.close()

    def _door(self, admitted: Admitted) -> NodeFilesEndpoint | None:
        """Where files go in this session. A URL without a host refers to the address that was dialled."""
        if not admitted.data_url:
            return None
        scheme, _, place = admitted.data_url.partition("://")
        url = f"{scheme}://{self._host}{place}" if place.startswith(":") else admitted.data_url
        return NodeFilesEndpoint(url, admitted.bulk_key, self._pem)

    async def _channel(self) -> grpc.aio.Channel:
        if not self._pin:
            return grpc.aio.insecure_channel(self.address, options=client_options())
        if self._pem is None:
            host = self._host.strip("[]")
            self._pem = await asyncio.to_thread(fetch_pinned, host, self._port, self._pin)
        credentials = client_credentials(self._pem)
        return grpc.aio.secure_channel(self.address, credentials, options=client_options(SERVER_NAME))

    async def _handshake(self, call: Any, frames: AsyncIterator[Any]) -> Admitted:
        async with asyncio.timeout(CHALLENGE_MS_MAX / 1000):
            challenge = convert.challenge_from_frame(await _next(frames))
        if isinstance(challenge, Refusal):
            raise DialRefused(challenge)
        await _write(call, self._answer(challenge))
        async with asyncio.timeout(WELCOME_MS_MAX / 1000):
            answer = convert.answer_from_frame(await _next(frames))
        if isinstance(answer, Refusal):
            raise DialRefused(answer)
        return answer

    def _answer(self, challenge: Challenge) -> Any:
        hello = self._hears.hello()
        signature = proof.prove(self._key, challenge.nonce, hello.node, hello.instance, self._pin)
        secret = self._ticket.secret if self._ticket else b""
        return convert.hello_to_frame(hello, challenge.protocol, signature, secret)

    async def _converse(self, stub: Any, call: Any, frames: AsyncIterator[Any], bulk_key: str) -> str:
        assert self._hung_up is not None
        async with TaskScope() as tasks:
            parts: list[asyncio.Future[Any]] = [
                tasks.start("read from the orchestrator", self._hear(frames)),
                tasks.start("write to the orchestrator", self._speak(call)),
                tasks.start("deliver logs", self._carry_logs(stub, bulk_key)),
                self._hung_up,
            ]
            try:
                done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                for part in done:
                    part.result()
                return str(self._hung_up.result()) if self._hung_up.done() else "the stream ended"
            finally:
                self._hung_up.cancel()

    async def _hear(self, frames: AsyncIterator[Any]) -> None:
        while True:
            try:
                message = convert.orchestrator_from_frame(await _next(frames))
            except UnknownMessage:
                continue
            if isinstance(message, Refusal):
                raise DialRefused(message)
            self._hears.told(message)

    async def _speak(self, call: Any) -> None:
        while (message := await self._sayings.get()) is not None:
            try:
                await _write(call, convert.node_to_frame(message))
            except BadMessage as wrong:
                log.error("a message could not be sent: %s", wrong)
        # Cancelling the stream could drop the last messages on their way.
        await call.done_writing()
        await asyncio.sleep(GOODBYE_S)

    async def _carry_logs(self, stub: Any, bulk_key: str) -> None:
        """The bulk stream may break and be reopened by itself; the session does not depend on it."""
        failures = 0
        while True:
            call = stub.Bulk(metadata=((BULK_KEY_METADATA, bulk_key),))

            async def send(piece: LogPiece, call: Any = call) -> None:
                await _write(call, convert.chunk_to_wire(piece))

            try:
                await self._courier.carry(send, _acks(call))
                why = "the stream ended"
            except (SessionOver, grpc.aio.AioRpcError, BadMessage) as wrong:
                why = _words(wrong)
            except SilentOrchestrator as silent:
                raise SessionOver(str(silent)) from None
            finally:
                call.cancel()
            failures += 1
            log.info("the log stream broke: %s", why)
            await asyncio.sleep(backoff_ms(failures, REDIAL_MS, REDIAL_MS_MAX, secrets.randbits(64)) / 1000)


def _monotonic_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


async def _write(call: Any, frame: Any) -> None:
    """gRPC reports a stream that ended before the write as a wrong state, not as a lost connection."""
    try:
        await call.write(frame)
    except asyncio.InvalidStateError:
        raise SessionOver("the stream had ended") from None


async def _next(frames: AsyncIterator[Any]) -> Any:
    try:
        return await anext(frames)
    except StopAsyncIteration:
        raise SessionOver("the orchestrator ended the stream") from None


async def _acks(call: Any) -> AsyncIterator[LogDurable]:
    async for said in call:
        yield convert.ack_from_wire(said)


def _words(wrong: BaseException) -> str:
    if isinstance(wrong, grpc.aio.AioRpcError):
        told = str(wrong.details())
        if "failed to connect to all addresses" in told:
            # gRPC lists every layer; the system's own error is at the end.
            return f"it cannot be reached: {told.rpartition(': ')[2]}"
        return f"{wrong.code().name.lower()}: {told}"
    if isinstance(wrong, TimeoutError):
        return "the orchestrator did not answer in time"
    return str(wrong)
