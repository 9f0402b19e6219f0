"""The SDK's transports over a test network in this process: the same steps, but waiting lets virtual time pass."""

from typing import TYPE_CHECKING, Any

import httpx

from holdfast.client.answers import STEADY
from holdfast.client.async_transport import AsyncTransport
from holdfast.client.endpoint import Endpoint
from holdfast.client.steps import Pause
from holdfast.client.transport import Transport

if TYPE_CHECKING:
    from holdfast.testing.network import Network


class VirtualTransport(Transport):
    def __init__(self, network: "Network", endpoint: Endpoint) -> None:
        super().__init__(
            endpoint,
            STEADY,
            wire=network.door,
            clock=lambda: network.now_s,
            sleep=network.pass_time,
            draw=lambda: 1.0,
            new_key=network.new_key,
        )
        self._network = network

    def awaited(self, wire: httpx.AsyncBaseTransport | None = None) -> "VirtualAsyncTransport":
        return VirtualAsyncTransport(self._network, self.endpoint)

    def _do(self, step: Any) -> Any:
        if isinstance(step, Pause):
            return self._network.pass_time(step.seconds, step.idle_s)
        return super()._do(step)


class VirtualAsyncTransport(AsyncTransport):
    def __init__(self, network: "Network", endpoint: Endpoint) -> None:
        async def sleep(seconds: float) -> None:
            network.pass_time(seconds)

        super().__init__(
            endpoint,
            STEADY,
            wire=network.door,
            local=True,
            clock=lambda: network.now_s,
            sleep=sleep,
            draw=lambda: 1.0,
            new_key=network.new_key,
        )
        self._network = network

    async def _do(self, step: Any) -> Any:
        if isinstance(step, Pause):
            return self._network.pass_time(step.seconds, step.idle_s)
        return await super()._do(step)
