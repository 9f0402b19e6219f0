"""The transport of `AsyncClient`: runs steps over httpx in the running event loop.

It makes no decisions: what is requested, when it is repeated and what a response means is defined in `steps`,
`answers` and `requests`. Only disk I/O runs in threads.
"""

import asyncio
import os
import random
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import httpx
import msgspec

from holdfast.client.answers import CONNECT_S, QUIET_S, STEADY, Connection, Following, retry_after_s, trust
from holdfast.client.endpoint import Endpoint
from holdfast.client.retry import Patience
from holdfast.client.sse import ServerEvent
from holdfast.client.steps import Answer, Ask, MoveContent, NewKey, Now, Pause, Send, Steps, Together, Work
from holdfast.errors import HoldfastError, Misuse
from holdfast.tasks import TaskScope

T = TypeVar("T")
_Place = tuple[int, asyncio.AbstractEventLoop]


def _here() -> _Place:
    """The process and its loop: a forked process has the parent's loop, and must not use connections of the parent."""
    return os.getpid(), asyncio.get_running_loop()


class AsyncTransport(Connection):
    """Each event loop gets its own connections. `wire`: an httpx transport to use in place of the default. `local`: it
    serves every address, including those of content."""

    def __init__(
        self,
        endpoint: Endpoint,
        patience: Patience = STEADY,
        *,
        answer_s: float = 30.0,
        wire: httpx.AsyncBaseTransport | None = None,
        local: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
        new_key: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        super().__init__(endpoint, patience, clock=clock, draw=draw, new_key=new_key)
        self._sleep = sleep
        self._wire = wire
        self._local = local
        self._answer_s = answer_s
        self._closed = False
        self._pools: dict[_Place, httpx.AsyncClient] = {}

    @property
    def _http(self) -> httpx.AsyncClient:
        """The HTTP client of the running loop. A connection belongs to the loop that opened it and dies with that
        loop."""
        place = _here()
        pool = self._pools.get(place)
        if pool is None:
            # Changed in place: loops of other threads do the same.
            for other in [one for one in list(self._pools) if one[1].is_closed()]:
                self._pools.pop(other, None)
            pool = self._pools[place] = httpx.AsyncClient(
                base_url=self.endpoint.url,
                headers=self.headers(),
                timeout=httpx.Timeout(self._answer_s, connect=CONNECT_S),
                verify=trust(self.endpoint) if self._wire is None else False,
                transport=self._wire,
                trust_env=False,
            )
        return pool

    async def close(self) -> None:
        self._closed = True
        here, pools = _here(), self._pools
        self._pools = {}
        for (process, loop), pool in pools.items():
            if (process, loop) == here:
                await pool.aclose()
            elif process == here[0] and loop.is_running():
                asyncio.run_coroutine_threadsafe(pool.aclose(), loop)
        if not pools and self._wire is not None:
            await self._wire.aclose()

    async def run(self, steps: Steps[T]) -> T:
        """Run the steps of a request and return its result."""
        go: Callable[[Any], Any] = steps.send
        given: Any = None
        while True:
            try:
                step = go(given)
            except StopIteration as done:
                return done.value
            try:
                go, given = steps.send, await self._do(step)
            except BaseException as wrong:
                # The steps handle every exception, including a cancellation.
                go, given = steps.throw, wrong

    async def _do(self, step: Any) -> Any:
        match step:
            case Ask():
                return await self.run(self.insist(step))
            case Send(method, path, params, content, headers):
                self._need_open()
                got = await self._http.request(method, path, params=params, content=content, headers=headers)
                return Answer(got.status_code, got.content, retry_after_s(got.headers))
            case Pause(seconds):
                return await self._sleep(seconds)
            case Now():
                return self._clock()
            case NewKey():
                return self._new_key()
            case Work(do):
                return await asyncio.to_thread(do)
            case MoveContent(carry):
                return await carry(self)
            case Together():
                return await self._together(step)
            case _:
                raise TypeError(f"no step: {step!r}")

    async def ask(self, ask: Ask) -> Any:
        return await self.run(self.insist(ask))

    async def follow(
        self, path: str, params: dict[str, Any], body: Any = None, after: str = ""
    ) -> AsyncIterator[ServerEvent]:
        """The events of a stream, each once, over any number of connections. `body`: sent with POST. `after`: the id of
        the event before the first."""
        method, content = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
        self._need_open()
        stream = Following(self, path, params, after)
        timeout = httpx.Timeout(QUIET_S, connect=CONNECT_S)
        while True:
            cause: httpx.TransportError | httpx.DecodingError | Answer | None = None
            try:
                async with self._http.stream(
                    method, path, params=stream.params, content=content, headers=stream.connection(), timeout=timeout
                ) as got:
                    if got.status_code != 200:
                        cause = Answer(got.status_code, await got.aread(), retry_after_s(got.headers))
                    else:
                        async for chunk in got.aiter_bytes():
                            for event in stream.heard(chunk):
                                yield event
                            if stream.ended:
                                return
            except (httpx.TransportError, httpx.DecodingError) as error:
                cause = error
            await self._sleep(stream.broke(cause))

    async def _together(self, step: Together) -> None:
        turns = asyncio.Semaphore(step.at_once)

        async def one(place: int) -> None:
            async with turns:
                try:
                    answer = await self.run(step.questions[place]())
                except HoldfastError as trouble:
                    answer = trouble
                step.heard(place, answer)

        async with TaskScope() as tasks:
            for place in range(len(step.questions)):
                tasks.start(f"question {place} of {len(step.questions)}", one(place))
            await tasks.join()

    def _need_open(self) -> None:
        if self._closed:
            raise Misuse("this client is closed", hint="Use it before it is closed, or make another one.")

    def mover(self) -> httpx.AsyncClient:
        """For signed addresses: trusts the orchestrator's certificate at its own address, and public authorities
        elsewhere."""
        from holdfast.blobs.lines import ThreadTransport

        if self._local:
            return httpx.AsyncClient(trust_env=False, transport=_Lent(self._wire))
        mounts: dict[str, httpx.AsyncBaseTransport | None] = {}
        if isinstance(pinned := trust(self.endpoint), ssl.SSLContext):
            mounts[self.endpoint.url] = ThreadTransport(pinned)
        return httpx.AsyncClient(trust_env=False, mounts=mounts, transport=ThreadTransport())


class _Lent(httpx.AsyncBaseTransport):
    """A transport that belongs to the caller and is not closed here."""

    def __init__(self, wire: httpx.AsyncBaseTransport | None) -> None:
        assert wire is not None
        self._wire = wire

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._wire.handle_async_request(request)
