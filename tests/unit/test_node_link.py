"""The node's line to its orchestrator, where gRPC behaves in a way one would not guess."""

import asyncio
from typing import Any

import grpc.aio
import pytest

from holdfast.node import link
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
