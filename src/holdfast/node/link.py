"""The node's line to its orchestrator: dials, proves who it is, carries words both ways, dials again.

Decides nothing: what is said comes from the core, what is heard goes to it. The only module of a node that
knows gRPC; it is imported after the launcher was started.
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
from holdfast.node.door import Door
from holdfast.node.logs import Courier, SilentOrchestrator
from holdfast.policy.backoff import backoff_ms
from holdfast.wire import convert
from holdfast.wire.checks import BadMessage, UnknownMessage
from holdfast.wire.convert import Admitted, Challenge, LogDurable, LogPiece
from holdfast.wire.limits import BULK_KEY_METADATA, client_options
from holdfast.wire.node_pb2_grpc import NodeLinkStub

CHALLENGE_S_MAX = 20.0
"""An orchestrator whose whole fleet comes back at once lets it in one after another. Waiting in that line costs
nothing; leaving it would throw away the connection and lengthen the line. A dead address fails sooner."""
WELCOME_S_MAX = 20.0
"""Admission waits for a commit; an orchestrator that rebuilds its state may take a while."""
SAYINGS_MAX = 256
"""Words waiting to be sent. More means that nobody reads: the session is over."""
REDIAL_MS = 100
REDIAL_MS_MAX = 1_000
"""An orchestrator that starts again has a grace for its nodes; they must not sleep through it."""
AWAY_S = 60.0
AWAY_REDIAL_MS_MAX = 5_000
"""Once it was away this long, seconds no longer matter, and a fleet must not knock on a door all day."""
CROWD_REDIAL_MS = 5_000
"""Told that there is no room in the line, a node stays away for a while: each try costs the orchestrator a handshake,
and thousands of nodes that try every second would leave it time for nothing else."""
APART_REDIAL_MS = 120_000
"""Told that the releases do not work together, a node of this network asks again only every one to two minutes: first a
person has to act. That is well within the hour for which its work goes on without contact."""
STEADY_S = 10.0
"""A session that stood this long was a good one: back-off starts anew."""
GOODBYE_S = 2.0

log = logging.getLogger("holdfast.node")


class SessionOver(Exception):
    """The session ended; the text says why."""


class Crowded(SessionOver):
    """So many nodes are dialling that this one was not even put in line."""


class RefusedForGood(HoldfastError):
    """The orchestrator does not want this node as it is; dialling again would not help."""

    exit_code = 3


class Hears(Protocol):
    """Whoever the link works for."""

    def hello(self) -> Hello: ...
    def connected(self, welcome: Welcome, door: Door | None) -> None: ...
    def told(self, command: Start | Go | Discard | Renewed | Ping | Save | Drained) -> None: ...
    def disconnected(self, why: str) -> None: ...


class Link:
    def __init__(self, address: str, ticket: Ticket | None, key: NodeKey, hears: Hears, courier: Courier) -> None:
        """Misconfigured where the address may only be dialled with a token that pins a certificate."""
        self.address = address
        self.trouble = ""
        """Why there is no session; empty while there is one, and before the first was tried."""
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
        """Send in the session that stands; lost where none does."""
        if not self._up:
            return
        try:
            self._sayings.put_nowait(message)
        except asyncio.QueueFull:
            self.hang_up("the orchestrator takes nothing any more")

    def hang_up(self, why: str) -> None:
        if self._hung_up is not None and not self._hung_up.done():
            self._hung_up.set_result(why)

    def say_goodbye(self) -> None:
        """Send what was said, close the session in good order, and do not dial again."""
        self._goodbye = True
        if self._up:
            with contextlib.suppress(asyncio.QueueFull):
                self._sayings.put_nowait(None)

    async def run(self) -> None:
        """Hold a session until goodbye is said. RefusedForGood or Untrusted where that is hopeless.

        A node that belongs to the network sits out an orchestrator of another release: it was perhaps started by
        mistake, and a fleet that had ended itself by then would have to be started by hand, machine by machine.
        """
        failures = 0
        known = False
        last = ""
        clock = asyncio.get_running_loop().time
        met = clock()
        while not self._goodbye:
            begun = clock()
            crowded = apart = False
            try:
                why = await self._session()
            except RefusedForGood as wrong:
                if wrong.code != "version" or not (known or self._belongs()):
                    raise
                why, apart = f"{wrong.says}; asked again every {APART_REDIAL_MS / 60_000:g} min", True
            except Untrusted as wrong:
                # Once the orchestrator was there, a stranger at its address is an attack or a mishap to sit out.
                if not known:
                    raise
                why = wrong.says
            except (SessionOver, HoldfastError, BadMessage, TimeoutError, OSError, grpc.aio.AioRpcError) as wrong:
                why, crowded = _words(wrong), isinstance(wrong, Crowded)
            if self._up:
                known, met = True, clock()
            self._close(why)
            failures = 1 if clock() - begun > STEADY_S else failures + 1
            if why != last and not self._goodbye:
                log.warning("no session with %s: %s", self.address, why)
            last = self.trouble = why
            if not self._goodbye:
                draw = secrets.randbits(64)
                wait_ms = redial_ms(failures, clock() - met, crowded, draw)
                if apart:
                    wait_ms = backoff_ms(1, APART_REDIAL_MS, APART_REDIAL_MS, draw)
                await asyncio.sleep(wait_ms / 1000)

    def _belongs(self) -> bool:
        """Whether this node had a session before, if only an earlier agent's: its home tells."""
        hello = self._hears.hello()
        return self._up or hello.epoch_seen > 0 or bool(hello.held)

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
            log.info("session with %s stands (epoch %s)", self.address, admitted.welcome.epoch)
            self._hung_up = asyncio.get_running_loop().create_future()
            self._up, self.trouble = True, ""
            self._hears.connected(admitted.welcome, self._door(admitted))
            return await self._converse(stub, call, frames, admitted.bulk_key)
        finally:
            await channel.close()

    def _door(self, admitted: Admitted) -> Door | None:
        """Where files go in this session. A door without a host is at the address that was dialled."""
        if not admitted.data_url:
            return None
        scheme, _, place = admitted.data_url.partition("://")
        url = f"{scheme}://{self._host}{place}" if place.startswith(":") else admitted.data_url
        return Door(url, admitted.bulk_key, self._pem)

    async def _channel(self) -> grpc.aio.Channel:
        if not self._pin:
            return grpc.aio.insecure_channel(self.address, options=client_options())
        if self._pem is None:
            host = self._host.strip("[]")
            self._pem = await asyncio.to_thread(fetch_pinned, host, self._port, self._pin)
        credentials = client_credentials(self._pem)
        return grpc.aio.secure_channel(self.address, credentials, options=client_options(SERVER_NAME))

    async def _handshake(self, call: Any, frames: AsyncIterator[Any]) -> Admitted:
        async with asyncio.timeout(CHALLENGE_S_MAX):
            challenge = convert.challenge_from_frame(await _next(frames))
        if isinstance(challenge, Refusal):
            raise _refused(challenge)
        await _write(call, self._answer(challenge))
        async with asyncio.timeout(WELCOME_S_MAX):
            answer = convert.answer_from_frame(await _next(frames))
        if isinstance(answer, Refusal):
            raise _refused(answer)
        return answer

    def _answer(self, challenge: Challenge) -> Any:
        hello = self._hears.hello()
        signature = proof.prove(self._key, challenge.nonce, hello.node, hello.instance, self._pin)
        secret = self._ticket.secret if self._ticket else b""
        return convert.hello_to_frame(hello, challenge.protocol, signature, secret)

    async def _converse(self, stub: Any, call: Any, frames: AsyncIterator[Any], bulk_key: str) -> str:
        assert self._hung_up is not None
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._hear(frames)),
            asyncio.ensure_future(self._speak(call)),
            asyncio.ensure_future(self._carry_logs(stub, bulk_key)),
            self._hung_up,
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return str(self._hung_up.result()) if self._hung_up.done() else "the stream ended"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear(self, frames: AsyncIterator[Any]) -> None:
        while True:
            try:
                message = convert.orchestrator_from_frame(await _next(frames))
            except UnknownMessage:
                continue
            if isinstance(message, Refusal):
                raise _refused(message)
            self._hears.told(message)

    async def _speak(self, call: Any) -> None:
        while (message := await self._sayings.get()) is not None:
            try:
                await _write(call, convert.node_to_frame(message))
            except BadMessage as wrong:
                log.error("something could not be said: %s", wrong)
        # Cutting the stream could overtake the last words on their way.
        await call.done_writing()
        await asyncio.sleep(GOODBYE_S)

    async def _carry_logs(self, stub: Any, bulk_key: str) -> None:
        """The bulk stream may break and be opened again by itself; the session does not depend on it."""
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


def redial_ms(failures: int, away_s: float, crowded: bool, draw: int) -> int:
    """How long to wait before dialling again. `away_s`: since the last session; `draw`: 64 random bits.

    Quick after the first break (a second contender may be about to start), and soon spread over half a second and more:
    the nodes of a fleet lose their orchestrator in the same moment.
    """
    if crowded:
        return backoff_ms(1, CROWD_REDIAL_MS, CROWD_REDIAL_MS, draw)
    return backoff_ms(failures, REDIAL_MS, REDIAL_MS_MAX if away_s < AWAY_S else AWAY_REDIAL_MS_MAX, draw)


async def _write(call: Any, frame: Any) -> None:
    """gRPC calls it a wrong state, not a lost connection, when the stream ended before the write."""
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


def _refused(refusal: Refusal) -> Exception:
    says = f"the orchestrator refuses this node: {refusal.says}"
    if refusal.final:
        return RefusedForGood(says, code=refusal.code)
    return Crowded(says) if refusal.code == "busy" else SessionOver(says)


def _words(wrong: BaseException) -> str:
    if isinstance(wrong, grpc.aio.AioRpcError):
        told = str(wrong.details())
        if "failed to connect to all addresses" in told:
            # gRPC names every layer that it went through; what the machine said stands at the end.
            return f"it cannot be reached: {told.rpartition(': ')[2]}"
        return f"{wrong.code().name.lower()}: {told}"
    if isinstance(wrong, TimeoutError):
        return "the orchestrator did not answer in time"
    return str(wrong)
