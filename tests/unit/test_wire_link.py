"""The node protocol over a real gRPC server on loopback, with TLS and the pin."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError

from holdfast.errors import Untrusted
from holdfast.identity import keys, proof, tokens
from holdfast.identity.certificates import (
    SERVER_NAME,
    Certificate,
    client_credentials,
    fetch_pinned,
    server_credentials,
)
from holdfast.model import Hardware, Resources
from holdfast.model.messages import Hello, Pong, Refusal, Report, Welcome
from holdfast.wire import convert, limits
from holdfast.wire import node_pb2 as pb
from holdfast.wire.checks import BadMessage
from holdfast.wire.node_pb2_grpc import NodeLinkStub, add_NodeLinkServicer_to_server

pytestmark = pytest.mark.spec("N1", "N5", "N6")

BULK_KEY = "k" * 43
NODE = keys.node_id("12345678-1234-5678-1234-567812345678")
ATTEMPT = "att_" + "0" * 14 + ".1"
DEADLINE_S = 20


class Link:
    """The least orchestrator that keeps to the protocol: it lets anyone in who proves a key, and takes logs."""

    def __init__(self, pin: str) -> None:
        self.pin = pin
        self.hellos: list[Hello] = []
        self.reports: list[Report] = []

    async def Control(self, frames: AsyncIterator[pb.NodeFrame], context: grpc.aio.ServicerContext):
        nonce = proof.new_nonce()
        yield convert.challenge_to_frame(nonce, "0.1.0")
        try:
            said = convert.hello_from_frame(await anext(frames))
            hello = said.hello
            if not proof.proven(hello.public_key, said.signature, nonce, hello.node, hello.instance, self.pin):
                raise BadMessage("bad_signature", "the signature does not fit key and challenge")
            self.hellos.append(hello)
            yield convert.welcome_to_frame(Welcome(hello.node, 1, 30_000, 1_000, 15_000, 1, 1), BULK_KEY)
            async for frame in frames:
                message = convert.node_from_frame(frame)
                if isinstance(message, Report):
                    self.reports.append(message)
                elif isinstance(message, Pong):
                    return
        except BadMessage as bad:
            yield convert.orchestrator_to_frame(bad.refusal())
        except DecodeError:
            yield convert.orchestrator_to_frame(Refusal("garbled", "that was no frame", final=True))

    async def Bulk(self, chunks: AsyncIterator[pb.LogChunk], context: grpc.aio.ServicerContext):
        if dict(context.invocation_metadata() or ()).get(limits.BULK_KEY_METADATA) != BULK_KEY:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "this bulk key belongs to no session")
        async for chunk in chunks:
            piece = convert.chunk_from_wire(chunk)
            yield convert.ack_to_wire(convert.LogDurable(piece.attempt, piece.stream, piece.offset + len(piece.data)))


@asynccontextmanager
async def serving(link: Link, certificate: Certificate | None) -> AsyncIterator[int]:
    server = grpc.aio.server(options=limits.server_options())
    add_NodeLinkServicer_to_server(link, server)
    if certificate is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", server_credentials(certificate))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@asynccontextmanager
async def dialling(port: int, ticket: tokens.Ticket) -> AsyncIterator[NodeLinkStub]:
    """As a node does it: the pin first, then the channel that trusts what was pinned."""
    if ticket.pin:
        pem = await asyncio.to_thread(fetch_pinned, "127.0.0.1", port, ticket.pin, DEADLINE_S)
        channel = grpc.aio.secure_channel(
            f"127.0.0.1:{port}", client_credentials(pem), options=limits.client_options(SERVER_NAME)
        )
    else:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=limits.client_options())
    async with channel:
        yield NodeLinkStub(channel)


def hello_of(key: keys.NodeKey, ticket: tokens.Ticket) -> Hello:
    return Hello(
        node=NODE,
        instance="i1",
        public_key=key.public_hex,
        version="0.1.0",
        hardware=Hardware(),
        offered=Resources(1000, 512, 1024),
        isolation="bubblewrap",
        token_id=ticket.id,
    )


async def join(stub: NodeLinkStub, ticket: tokens.Ticket, signed_for: str | None = None):
    """The handshake. `signed_for`: the pin that is signed, if not the ticket's."""
    key = keys.NodeKey.make()
    call = stub.Control(timeout=DEADLINE_S)
    challenge = convert.challenge_from_frame(await call.read())
    assert isinstance(challenge, convert.Challenge)
    pin = ticket.pin if signed_for is None else signed_for
    signature = proof.prove(key, challenge.nonce, NODE, "i1", pin)
    await call.write(convert.hello_to_frame(hello_of(key, ticket), challenge.protocol, signature, ticket.secret))
    return call, convert.answer_from_frame(await call.read())


def run(story) -> None:
    asyncio.run(asyncio.wait_for(story, 2 * DEADLINE_S))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.load_or_make(tmp_path_factory.mktemp("tls"), ["127.0.0.1"])


@pytest.fixture
def ticket(certificate: Certificate) -> tokens.Ticket:
    return tokens.make(certificate.pin, 0, 1)[0]


def test_with_the_right_pin_a_node_joins_reports_and_delivers_logs(
    certificate: Certificate, ticket: tokens.Ticket
) -> None:
    async def story() -> None:
        link = Link(certificate.pin)
        async with serving(link, certificate) as port, dialling(port, ticket) as stub:
            call, answer = await join(stub, ticket)
            assert isinstance(answer, convert.Admitted)
            assert (link.hellos[0].token_id, link.hellos[0].token_sha256) == (ticket.id, ticket.secret_sha256)

            bulk = stub.Bulk(timeout=DEADLINE_S, metadata=((limits.BULK_KEY_METADATA, answer.bulk_key),))
            full = convert.LogPiece(ATTEMPT, 1, "stdout", 5, os.urandom(limits.LOG_DATA_BYTES_MAX))
            await bulk.write(convert.chunk_to_wire(full))
            receipt = convert.ack_from_wire(await bulk.read())
            assert receipt == convert.LogDurable(ATTEMPT, "stdout", 5 + limits.LOG_DATA_BYTES_MAX)

            await call.write(convert.node_to_frame(Report(1, True, ())))
            await call.write(convert.node_to_frame(Pong(1)))
            assert await call.read() is grpc.aio.EOF
            assert link.reports == [Report(1, True, ())]
            bulk.cancel()

    run(story())


def test_on_plain_loopback_a_node_joins_without_pin() -> None:
    async def story() -> None:
        ticket, _ = tokens.make("", 0, 1)
        async with serving(Link(""), None) as port, dialling(port, ticket) as stub:
            call, answer = await join(stub, ticket)
            assert isinstance(answer, convert.Admitted)
            call.cancel()

    run(story())


def test_with_a_wrong_pin_nothing_is_said_at_all(certificate: Certificate, tmp_path: Path) -> None:
    async def story() -> None:
        link = Link(certificate.pin)
        other = Certificate.load_or_make(tmp_path)
        ticket, _ = tokens.make(other.pin, 0, 1)
        async with serving(link, certificate) as port:
            with pytest.raises(Untrusted) as refused:
                async with dialling(port, ticket) as stub:
                    await join(stub, ticket)
            assert refused.value.code == "pin_mismatch"
            assert link.hellos == []

            # Whoever swaps the server after the pin was compared fails all the same: the channel trusts the
            # pinned certificate only.
            async with grpc.aio.secure_channel(
                f"127.0.0.1:{port}", client_credentials(other.pem), options=limits.client_options(SERVER_NAME)
            ) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await join(NodeLinkStub(channel), ticket)
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            assert link.hellos == []

    run(story())


def test_a_proof_made_for_one_orchestrator_is_worthless_at_another(
    certificate: Certificate, ticket: tokens.Ticket
) -> None:
    async def story() -> None:
        async with serving(Link(certificate.pin), certificate) as port, dialling(port, ticket) as stub:
            for elsewhere in ("ab" * 32, ""):
                _, answer = await join(stub, ticket, signed_for=elsewhere)
                assert isinstance(answer, Refusal)
                assert (answer.code, answer.final) == ("bad_signature", True)

    run(story())


def test_garbage_on_the_port_disturbs_nobody(certificate: Certificate, ticket: tokens.Ticket) -> None:
    garbage = [os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(512), b""]

    async def story() -> None:
        link = Link(certificate.pin)
        async with serving(link, certificate) as port, dialling(port, ticket) as stub:
            call, answer = await join(stub, ticket)
            assert isinstance(answer, convert.Admitted)
            strangers = [socket.create_connection(("127.0.0.1", port), DEADLINE_S) for _ in range(20)]
            for n, stranger in enumerate(strangers):
                stranger.sendall(garbage[n % len(garbage)])
            # The one who was there first is still served, and so is the next who comes.
            await call.write(convert.node_to_frame(Report(1, True, ())))
            await call.write(convert.node_to_frame(Pong(1)))
            assert await call.read() is grpc.aio.EOF
            assert link.reports == [Report(1, True, ())]
            again, answer = await join(stub, ticket)
            assert isinstance(answer, convert.Admitted)
            again.cancel()
            for stranger in strangers:
                stranger.close()

    run(story())


def test_a_frame_of_garbage_ends_its_own_session_with_a_reason(certificate: Certificate, ticket: tokens.Ticket) -> None:
    async def story() -> None:
        pem = certificate.pem
        async with (
            serving(Link(certificate.pin), certificate) as port,
            grpc.aio.secure_channel(
                f"127.0.0.1:{port}", client_credentials(pem), options=limits.client_options(SERVER_NAME)
            ) as channel,
            dialling(port, ticket) as stub,
        ):
            standing, answer = await join(stub, ticket)
            assert isinstance(answer, convert.Admitted)
            raw = channel.stream_stream("/holdfast.v1.NodeLink/Control")(timeout=DEADLINE_S)
            await raw.read()
            await raw.write(b"\xff" * 200)
            refusal = convert.answer_from_frame(pb.OrchestratorFrame.FromString(await raw.read()))
            assert isinstance(refusal, Refusal) and refusal.code == "garbled"
            await standing.write(convert.node_to_frame(Pong(1)))
            assert await standing.read() is grpc.aio.EOF

    run(story())


def test_a_control_frame_over_the_limit_is_refused_by_name(certificate: Certificate, ticket: tokens.Ticket) -> None:
    async def story() -> None:
        link = Link(certificate.pin)
        async with serving(link, certificate) as port, dialling(port, ticket) as stub:
            call, _ = await join(stub, ticket)
            await call.write(pb.NodeFrame(report=pb.Report(renew=["x" * (limits.CONTROL_BYTES_MAX + 1)])))
            refusal = convert.orchestrator_from_frame(await call.read())
            assert isinstance(refusal, Refusal)
            assert refusal.code == "too_large" and str(limits.CONTROL_BYTES_MAX) in refusal.says
            assert link.reports == []

    run(story())


def test_a_message_that_the_transport_does_not_take_has_a_clear_status(certificate: Certificate) -> None:
    async def story() -> None:
        generous = [o for o in limits.client_options(SERVER_NAME) if o[0] != "grpc.max_send_message_length"]
        huge = pb.LogChunk(attempt=ATTEMPT, fence=1, stream=1, data=b"x" * (limits.TRANSPORT_BYTES_MAX + 1))
        metadata = ((limits.BULK_KEY_METADATA, BULK_KEY),)
        async with (
            serving(Link(certificate.pin), certificate) as port,
            grpc.aio.secure_channel(
                f"127.0.0.1:{port}", client_credentials(certificate.pem), options=generous
            ) as channel,
        ):
            call = NodeLinkStub(channel).Bulk(timeout=DEADLINE_S, metadata=metadata)
            # The refusal may arrive before the last byte has left; the status is what counts.
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call.write(huge)
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert str(limits.TRANSPORT_BYTES_MAX) in (await call.details() or "")

    run(story())


def test_logs_without_the_sessions_key_are_refused(certificate: Certificate, ticket: tokens.Ticket) -> None:
    async def story() -> None:
        async with serving(Link(certificate.pin), certificate) as port, dialling(port, ticket) as stub:
            for metadata in ((), ((limits.BULK_KEY_METADATA, "stolen"),)):
                call = stub.Bulk(timeout=DEADLINE_S, metadata=metadata)
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED

    run(story())


def test_two_orchestrators_cannot_share_a_port(certificate: Certificate) -> None:
    async def story() -> None:
        async with serving(Link(""), None) as port:
            second = grpc.aio.server(options=limits.server_options())
            with pytest.raises(RuntimeError):
                second.add_insecure_port(f"127.0.0.1:{port}")

    run(story())
