"""A small orchestrator that speaks the wire and decides nothing, and an agent as a real process beside it."""

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import holdfast
from holdfast.identity import proof
from holdfast.identity.certificates import Certificate, server_credentials
from holdfast.model import AttemptId, JobSpec, Need, NodeId, Resources, job_of
from holdfast.model.messages import (
    Discard,
    Go,
    Held,
    HeldPhase,
    Hello,
    Leaving,
    Ping,
    Pong,
    Refusal,
    Renewed,
    Report,
    Start,
    Welcome,
)
from holdfast.testing.processes import free_port
from holdfast.wire import convert
from holdfast.wire.convert import LogDurable
from holdfast.wire.limits import BULK_KEY_METADATA, server_options
from holdfast.wire.node_pb2_grpc import NodeLinkServicer, add_NodeLinkServicer_to_server

DEADLINE_S = 60.0
TREE = Path(holdfast.__file__).resolve().parent.parent
"""The tree under test. An agent with a fresh environment would else import whatever is installed."""
LEASE_MS = 3_500
"""An agent that is held up for some seconds does not lose one."""
ENTRY = (
    "import os, sys; from holdfast.node.config import load_config; from holdfast.node.run import run_node;"
    " sys.exit(run_node(load_config({}, os.environ)))"
)


UNTIL_LET_GO = "while [ ! -e end ]; do sleep 0.05; done; rm -f end"
"""A body that runs for as long as its story wants it to."""


class FakeOrchestrator(NodeLinkServicer):
    """Welcomes every node that proves its key, writes down what it hears, says what a test tells it to."""

    def __init__(self, certificate: Certificate | None = None) -> None:
        self.certificate = certificate
        self.epoch = 3
        self.refusal: Refusal | None = None
        self.hellos: list[Hello] = []
        self.heard: list[Report | Pong | Leaving] = []
        self.logs: dict[tuple[str, str], bytearray] = {}
        self.hold_logs = False
        self.sessions = 0
        self._say: asyncio.Queue[Any] | None = None
        self._news = asyncio.Condition()
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        """Also again, where it was before: nobody else is given that port meanwhile."""
        self.port = self.port or free_port()
        self._server = grpc.aio.server(options=server_options())
        add_NodeLinkServicer_to_server(self, self._server)
        if self.certificate is None:
            self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        else:
            self._server.add_secure_port(f"127.0.0.1:{self.port}", server_credentials(self.certificate))
        await self._server.start()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    # --- what a test does and waits for ---

    def say(self, message: Start | Go | Discard | Renewed | Ping | Refusal) -> None:
        assert self._say is not None
        self._say.put_nowait(message)

    async def until(self, holds: Callable[[], Any], what: str) -> Any:
        async def wait() -> Any:
            async with self._news:
                while not (found := holds()):
                    await self._news.wait()
                return found

        try:
            return await asyncio.wait_for(wait(), DEADLINE_S)
        except TimeoutError:
            raise AssertionError(f"{what} did not happen; heard {self.heard[-5:]}") from None

    def held(self, attempt: AttemptId) -> list[Held]:
        """Everything that was ever said of an attempt."""
        reports = [message for message in self.heard if isinstance(message, Report)]
        return [held for report in reports for held in report.held if held.attempt == attempt]

    async def until_phase(self, attempt: AttemptId, phase: HeldPhase) -> Held:
        def reached() -> Held | None:
            return next((held for held in self.held(attempt) if held.phase is phase), None)

        return await self.until(reached, f"{attempt} {phase}")

    async def _note(self) -> None:
        async with self._news:
            self._news.notify_all()

    # --- the wire ---

    async def Control(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        nonce = proof.new_nonce()
        yield convert.challenge_to_frame(nonce, "test")
        signed = convert.hello_from_frame(await anext(request_iterator))
        hello = signed.hello
        pin = self.certificate.pin if self.certificate else ""
        assert proof.proven(hello.public_key, signed.signature, nonce, hello.node, hello.instance, pin)
        if self.refusal is not None:
            yield convert.orchestrator_to_frame(self.refusal)
            return
        self.hellos.append(hello)
        self.sessions += 1
        said = self._say = asyncio.Queue()
        yield convert.welcome_to_frame(welcome(hello.node, self.epoch), f"session-key-{self.sessions:08}")
        listening = asyncio.ensure_future(self._listen(request_iterator, said))
        await self._note()
        try:
            while (message := await said.get()) is not None:
                yield convert.orchestrator_to_frame(message)
        finally:
            listening.cancel()

    async def _listen(self, frames: AsyncIterator[Any], said: asyncio.Queue[Any]) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
            async for frame in frames:
                message = convert.node_from_frame(frame)
                self.heard.append(message)
                if isinstance(message, Report) and message.renew:
                    said.put_nowait(Renewed(self.epoch, message.seq, message.renew))
                await self._note()
        said.put_nowait(None)

    async def Bulk(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        metadata = dict(context.invocation_metadata())
        assert metadata[BULK_KEY_METADATA] == f"session-key-{self.sessions:08}"
        async for said in request_iterator:
            piece = convert.chunk_from_wire(said)
            kept = self.logs.setdefault((piece.attempt, piece.stream), bytearray())
            if piece.offset <= len(kept) and not self.hold_logs:
                kept[piece.offset :] = piece.data if piece.data else kept[piece.offset :]
            yield convert.ack_to_wire(LogDurable(piece.attempt, piece.stream, len(kept)))
            await self._note()


def welcome(node: NodeId, epoch: int) -> Welcome:
    return Welcome(node, epoch, heartbeat_ms=500, keepalive_ms=200, lease_ms=LEASE_MS, orphan_ms_max=60_000,
                   stop_grace_ms=500)  # fmt: skip


def start(attempt: AttemptId, *argv: str, epoch: int = 3, fence: int = 7, lease_ms: int = 0) -> Start:
    spec = JobSpec(argv, need=Need(Resources(100, 16, 16)))
    return Start(epoch, attempt, fence, job_of(attempt), spec, 60_000, lease_ms)


class AgentProcess:
    """An agent as an operator would start it."""

    def __init__(self, home: Path, port: int, **environ: str) -> None:
        self.home = home
        self.environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(TREE),
            "HOME": str(home),
            "HOLDFAST_NODE_HOME": str(home / "node"),
            "ORCHESTRATOR_ADDRESS": f"127.0.0.1:{port}",
            "PNODE_UUID": str(uuid.uuid5(uuid.NAMESPACE_URL, str(home))),
            **environ,
        }
        self.process: asyncio.subprocess.Process | None = None
        self.attempts = home / "node" / "attempts"

    async def open(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ENTRY, env=self.environ, stderr=asyncio.subprocess.PIPE, start_new_session=True
        )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def let_go(self, attempt: AttemptId) -> None:
        """What waits for it with UNTIL_LET_GO goes on."""
        (self.attempts / attempt / "work" / "end").touch()

    async def end(self) -> tuple[int, str]:
        """Its exit code and what it wrote to stderr."""
        assert self.process is not None
        _, words = await asyncio.wait_for(self.process.communicate(), DEADLINE_S)
        assert self.process.returncode is not None
        return self.process.returncode, words.decode()

    async def close(self) -> None:
        """Leave nothing running: the agent and every shim of its home."""
        from holdfast.node.attempt.attempt_folders import until_ended

        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        if self.attempts.exists():
            for folder in self.attempts.iterdir():
                await until_ended(folder)


@contextlib.asynccontextmanager
async def stage(
    home: Path, certificate: Certificate | None = None, **environ: str
) -> AsyncIterator[tuple[FakeOrchestrator, AgentProcess]]:
    """An orchestrator that listens, and an agent that was started."""
    orchestrator = FakeOrchestrator(certificate)
    await orchestrator.open()
    agent = AgentProcess(home, orchestrator.port, **environ)
    await agent.open()
    try:
        yield orchestrator, agent
    finally:
        await agent.close()
        await orchestrator.close()
