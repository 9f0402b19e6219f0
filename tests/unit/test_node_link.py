"""The node's line to its orchestrator, where gRPC behaves in a way one would not guess."""

import asyncio
import secrets
from collections import Counter
from typing import Any

import grpc.aio
import pytest

from holdfast.identity.keys import NodeKey
from holdfast.model.messages import Refusal
from holdfast.node import link
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
    monkeypatch.setattr(link, "REDIAL_MS", 1)
    monkeypatch.setattr(link, "REDIAL_MS_MAX", 1)
    monkeypatch.setattr(link, "CROWD_REDIAL_MS", 1_000)

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
        line.say_goodbye()
        await asyncio.wait_for(dialling, 20)
        await server.stop(0)

    asyncio.run(story())


@pytest.mark.spec("A11")
def test_nodes_that_lost_their_orchestrator_together_do_not_come_back_together() -> None:
    # given many nodes whose first tries have failed, when each draws how long it waits
    waits = [link.redial_ms(5, 3.0, False, secrets.randbits(64)) for _ in range(2_000)]
    # then they are spread over half a second: no tenth of that time gets more than twice its share
    low, high = min(waits), max(waits)
    assert high <= link.REDIAL_MS_MAX and high - low >= 0.45 * link.REDIAL_MS_MAX
    shares = Counter((wait - low) * 10 // (high - low + 1) for wait in waits)
    assert max(shares.values()) < 2 * len(waits) / 10
    # and the first try of all comes at once, for it may save a job from being moved
    assert link.redial_ms(1, 0.0, False, secrets.randbits(64)) <= 100
