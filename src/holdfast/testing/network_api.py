"""The HTTP API of a test network, answered in this process by the route table that an orchestrator serves.

It is a transport for httpx, so the real `Client` uses it. Virtual time passes while an answer is computed.
"""

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from threading import RLock
from typing import Any, TypeVar

import httpx

from holdfast.orchestrator.api.authentication import Authentication
from holdfast.orchestrator.api.call import EventStream
from holdfast.orchestrator.api.context import ApiContext, NothingMore
from holdfast.orchestrator.api.dispatch import ApiRequest, answered, response_to
from holdfast.orchestrator.api.routes import ROUTES
from holdfast.orchestrator.api.streams import END
from holdfast.orchestrator.api_error import ApiError
from holdfast.testing.network_content import PREFIX, VirtualContent

T = TypeVar("T")


def finished(answer: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that awaits only virtual operations, which are complete when they return."""
    hooks = sys.get_asyncgen_hooks()
    # The streams of this network must not be registered with the event loop that their reader may run in.
    sys.set_asyncgen_hooks(None, None)
    try:
        answer.send(None)
    except StopIteration as done:
        return done.value
    finally:
        sys.set_asyncgen_hooks(*hooks)
    answer.close()
    raise RuntimeError("a handler of the API waits for something that is not in its context")


class NetworkApi(httpx.BaseTransport, httpx.AsyncBaseTransport):
    def __init__(
        self,
        context: ApiContext,
        authentication: Authentication,
        content: VirtualContent,
        need_open: Callable[[], None],
        leads: Callable[[], bool],
    ) -> None:
        self._context = context
        self._authentication = authentication
        self._content = content
        self._need_open = need_open
        self._leads = leads
        self._turn = RLock()
        """Serializes requests: threads may share a client, and there is only one world behind it."""
        self.lost = 0
        """How many of the next answers are lost on their way to the client."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self._handle(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return self._handle(request)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        with self._turn:
            self._need_open()
            answer = self._answered(request)
            if self.lost > 0:
                self.lost -= 1
                raise httpx.ReadError("the answer was lost", request=request)
            return answer

    def _answered(self, request: httpx.Request) -> httpx.Response:
        try:
            if not self._leads():
                # Takes the place of a refused connection.
                raise ApiError("busy", "no orchestrator leads now", "Try again in a moment.")
            if request.url.path.startswith(PREFIX):
                return self._blob(request)
            principal = self._authentication.principal(request.url.path, request.headers, ROUTES)
        except ApiError as wrong:
            response = response_to(wrong)
        else:
            asked = ApiRequest(
                request.method, request.url.path, request.url.query.decode(), request.headers, request.content
            )
            response = finished(answered(self._context, principal, asked))
        headers = {"Content-Type": response.content_type, **response.headers}
        if isinstance(response.body, EventStream):
            pieces = _Pieces(response.body.pieces, self._turn, self._need_open)
            return httpx.Response(response.status, headers=headers, stream=pieces)
        return httpx.Response(response.status, headers=headers, stream=httpx.ByteStream(response.body))

    def _blob(self, request: httpx.Request) -> httpx.Response:
        """Upload or download the content behind an address that the API gave out."""
        key = request.url.path.removeprefix(PREFIX)
        if request.method == "PUT":
            self._content.put(key, request.content)
            return httpx.Response(201)
        return httpx.Response(200, stream=httpx.ByteStream(self._content.get(key)))


class _Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream that is computed while it is read: waiting for the next piece lets virtual time pass."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], turn: RLock, need_open: Callable[[], None]) -> None:
        self._pieces = pieces
        self._turn = turn
        self._need_open = need_open
        self._over = False

    def _next(self) -> bytes | None:
        with self._turn:
            self._need_open()
            if self._over:
                return None
            try:
                return finished(_next_of(self._pieces))
            except StopAsyncIteration:
                self._over = True
                return None
            except NothingMore:
                self._over = True
                return END

    def close(self) -> None:
        with self._turn:
            self._over = True
            finished(self._pieces.aclose())

    async def aclose(self) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        while (piece := self._next()) is not None:
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := self._next()) is not None:
            yield piece


async def _next_of(pieces: AsyncIterator[bytes]) -> bytes:
    return await anext(pieces)
