"""Types of the generated gRPC code, for the asynchronous API. Written by hand: the generator makes none."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc.aio

from holdfast.wire import node_pb2

class NodeLinkStub:
    Control: grpc.aio.StreamStreamMultiCallable
    Bulk: grpc.aio.StreamStreamMultiCallable
    def __init__(self, channel: grpc.aio.Channel) -> None: ...

class _Servicer(Protocol):
    def Control(
        self, request_iterator: AsyncIterator[node_pb2.NodeFrame], context: Any
    ) -> AsyncIterator[node_pb2.OrchestratorFrame] | Any: ...
    def Bulk(
        self, request_iterator: AsyncIterator[node_pb2.LogChunk], context: Any
    ) -> AsyncIterator[node_pb2.LogAck] | Any: ...

class NodeLinkServicer:
    def Control(self, request_iterator: Any, context: Any) -> Any: ...
    def Bulk(self, request_iterator: Any, context: Any) -> Any: ...

def add_NodeLinkServicer_to_server(servicer: _Servicer, server: grpc.aio.Server) -> None: ...
