"""`Client` and `AsyncClient` under one set of tests: what is awaited is awaited here, in an event loop of the test.

pytest_plugins = ["both_clients"]

@pytest.fixture
def client(either: Any, network: Network) -> Any:
    return either(network.client, network.async_client)
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.client.async_client import AsyncClient
from holdfast.client.client import Client
from holdfast.client.objects import AsyncArray, AsyncJob, AsyncNode, Page

Either = Callable[[Callable[[], Client], Callable[[], AsyncClient]], Any]


@pytest.fixture(params=["Client", "AsyncClient"])
def either(request: pytest.FixtureRequest) -> Iterator[Either]:
    """One of two clients, asked as a `Client` is; a test runs once with each. What was made is closed at its end."""
    loop = asyncio.new_event_loop()
    made: list[Any] = []

    def one(plain: Callable[[], Client], awaited: Callable[[], AsyncClient]) -> Any:
        made.append(plain() if request.param == "Client" else Driven(awaited(), loop))
        return made[-1]

    yield one
    for client in made:
        client.close()
    loop.close()


class Driven:
    """An `AsyncClient`, or something that one handed out, asked as a `Client` is."""

    def __init__(self, asked: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._asked = asked
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._asked, name)
        if type(value).__module__ == "holdfast.client.async_client":
            return Driven(value, self._loop)
        if not inspect.ismethod(value):
            return value
        return lambda *args, **kwargs: self._answered(value(*args, **kwargs))

    def _answered(self, said: Any) -> Any:
        if inspect.isasyncgen(said):
            return self._each(said)
        if inspect.isawaitable(said):
            return self._wrapped(self._loop.run_until_complete(said))
        return said

    def _each(self, events: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._loop.run_until_complete(anext(events))
            except StopAsyncIteration:
                return

    def _wrapped(self, said: Any) -> Any:
        if isinstance(said, AsyncArray | AsyncJob | AsyncNode):
            return Driven(said, self._loop)
        if isinstance(said, list | Page):
            return [self._wrapped(one) for one in said]
        return said
