"""The node's line to its orchestrator, where gRPC behaves in a way one would not guess."""

import asyncio
import secrets
from collections import Counter
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from holdfast.identity.keys import NodeKey
from holdfast.model.messages import Refusal
from holdfast.node import link
from holdfast.node.core import redial
from holdfast.wire import convert
from holdfast.wire import node_pb2 as pb
from holdfast.wire.node_pb2_grpc import NodeLinkServicer, NodeLinkStub, add_NodeLinkServicer_to_server


class HangsUp(NodeLinkServicer):
    async def Control(self, request_iterator: Any, context: Any) -> None:
        return None


@pytest.mark.spec("J5", "J14")
def test_a_word_said_after_the_stream_ended_ends_the_session_and_not_the_agent() -> None:
    async def story() -> None:
        # given a stream that the orchestrator has ended
        server = grpc.aio.server()
        add_NodeLinkServicer_to_server(HangsUp(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = NodeLinkStub(channel).Control()
            while await call.read() is not grpc.aio.EOF:
                pass
            # when the node says something, then its session is over: it will dial again
            with pytest.raises(link.SessionOver):
                await link._write(call, pb.NodeFrame())
        await server.stop(0)

    asyncio.run(story())


class Full(NodeLinkServicer):
    """An orchestrator whose line is full. It notes when it was dialled."""

    def __init__(self) -> None:
        self.dialled_s: list[float] = []
        self.twice = asyncio.Event()

    async def Control(self, request_iterator: Any, context: Any) -> None:
        self.dialled_s.append(asyncio.get_running_loop().time())
        await context.write(convert.orchestrator_to_frame(Refusal("busy", "too many nodes dial", final=False)))
        if len(self.dialled_s) == 2:
            self.twice.set()


class Nobody:
    """Hears nothing: there never is a session."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called without a session")


@pytest.mark.spec("A11")
def test_a_node_that_finds_the_line_full_stays_away_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redial, "REDIAL_MS", 1)
    monkeypatch.setattr(redial, "REDIAL_MS_MAX", 1)
    monkeypatch.setattr(redial, "CROWD_REDIAL_MS", 1_000)

    async def story() -> None:
        # given an orchestrator that has no room even for waiting
        server = grpc.aio.server()
        full = Full()
        add_NodeLinkServicer_to_server(full, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        nobody: Any = Nobody()
        line = link.Link(f"127.0.0.1:{port}", None, NodeKey.make(), nobody, nobody)
        # when a node dials it, then it dials again, but not as soon as it would dial one that is gone
        dialling = asyncio.create_task(line.run())
        await asyncio.wait_for(full.twice.wait(), 20)
        assert full.dialled_s[1] - full.dialled_s[0] >= 0.5
        assert "too many nodes dial" in line.trouble  # and its owner can be told why there is no session
        line.say_goodbye()
        await asyncio.wait_for(dialling, 20)
        await server.stop(0)

    asyncio.run(story())


class Refuses(NodeLinkServicer):
    """An orchestrator that refuses everybody for good. It counts how often it was dialled."""

    def __init__(self, code: str) -> None:
        self._code = code
        self.dialled = 0
        self.often = asyncio.Event()

    async def Control(self, request_iterator: Any, context: Any) -> None:
        self.dialled += 1
        await context.write(convert.orchestrator_to_frame(Refusal(self._code, "go away", final=True)))
        if self.dialled == 3:
            self.often.set()


async def dial(code: str, epoch_seen: int, held: tuple[Any, ...]) -> int:
    """How often a node with such a home dialled until it gave up (RefusedForGood) or was seen to go on."""
    server, refuses = grpc.aio.server(), Refuses(code)
    add_NodeLinkServicer_to_server(refuses, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    agent: Any = SimpleNamespace(hello=lambda: SimpleNamespace(epoch_seen=epoch_seen, held=held))
    line = link.Link(f"127.0.0.1:{port}", None, NodeKey.make(), agent, agent)
    dialling = asyncio.create_task(line.run())
    often = asyncio.create_task(refuses.often.wait())
    try:
        await asyncio.wait((dialling, often), timeout=20, return_when=asyncio.FIRST_COMPLETED)
        line.say_goodbye()
        await asyncio.wait_for(dialling, 20)
    finally:
        often.cancel()
        await server.stop(0)
    return refuses.dialled


@pytest.mark.spec("N9", "N12")
@pytest.mark.parametrize(("epoch_seen", "held"), [(1, ()), (0, ("an attempt",))])
def test_a_node_of_the_network_sits_out_an_orchestrator_of_another_release(
    epoch_seen: int, held: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given a node that had a session before, or finds work of its own
    monkeypatch.setattr(redial, "APART_REDIAL_MS", 20)
    # when it is told, again and again, that its release does not fit, then it goes on asking, and says so once
    assert asyncio.run(dial("version", epoch_seen, held)) >= 3
    assert len([line for line in caplog.messages if "go away" in line]) == 1


@pytest.mark.spec("N12")
@pytest.mark.parametrize(("code", "epoch_seen"), [("version", 0), ("token_revoked", 1)])
def test_a_new_node_of_another_release_gives_up_and_so_does_any_that_is_not_wanted(code: str, epoch_seen: int) -> None:
    with pytest.raises(link.RefusedForGood, match="go away"):
        asyncio.run(dial(code, epoch_seen, ()))


@pytest.mark.spec("A11")
def test_nodes_that_lost_their_orchestrator_together_do_not_come_back_together() -> None:
    # given many nodes whose first tries have failed, when each draws how long it waits
    waits = [redial.redial_ms(5, 3_000, False, secrets.randbits(64)) for _ in range(2_000)]
    # then they are spread over half a second: no tenth of that time gets more than twice its share
    low, high = min(waits), max(waits)
    assert high <= redial.REDIAL_MS_MAX and high - low >= 0.45 * redial.REDIAL_MS_MAX
    shares = Counter((wait - low) * 10 // (high - low + 1) for wait in waits)
    assert max(shares.values()) < 2 * len(waits) / 10
    # and the first try of all comes at once, for it may save a job from being moved
    assert redial.redial_ms(1, 0, False, secrets.randbits(64)) <= 100


@pytest.mark.spec("N8")
def test_that_nobody_listens_is_said_in_the_machines_own_words() -> None:
    async def story() -> None:
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            call = NodeLinkStub(channel).Control()
            with pytest.raises(grpc.aio.AioRpcError) as wrong:
                await call.read()
        assert link._words(wrong.value) == "it cannot be reached: Connection refused"

    asyncio.run(story())
