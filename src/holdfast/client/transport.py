"""The transport of `Client`: runs steps over httpx, one after the other, in the caller's thread.

It makes no decisions: what is requested, when it is repeated and what a response means is defined in `steps`, `answers`
and `requests`. It runs no event loop, so it works where one is already running (a notebook). Moving a folder is the
exception: that code is asynchronous for both clients, and gets its own loop for as long as it takes.
"""

import os
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import msgspec

from holdfast.client.answers import CONNECT_S, QUIET_S, STEADY, Connection, Following, retry_after_s, trust
from holdfast.client.endpoint import Endpoint
from holdfast.client.retry import Patience
from holdfast.client.sse import ServerEvent
from holdfast.client.steps import Answer, Ask, MoveContent, NewKey, Now, Pause, Send, Steps, Together, Work
from holdfast.errors import HoldfastError, Misuse

if TYPE_CHECKING:
    from holdfast.client.async_transport import AsyncTransport

T = TypeVar("T")

LOOK_UP_S = 0.2
"""How often a wait for a thread is interrupted: a signal just before an unlimited wait would not be noticed."""


class Transport(Connection):
    """Safe to share between threads, and with forked processes, which get connections of their own. `wire`: an httpx
    transport in place of a connection, for tests and networks in this process."""

    def __init__(
        self,
        endpoint: Endpoint,
        patience: Patience = STEADY,
        *,
        answer_s: float = 30.0,
        wire: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
        new_key: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        super().__init__(endpoint, patience, clock=clock, draw=draw, new_key=new_key)
        self._sleep = sleep
        self._wire = wire
        self._answer_s = answer_s
        self._closed = False
        self._pool = self._new_pool()

    def _new_pool(self) -> tuple[int, httpx.Client]:
        http = httpx.Client(
            base_url=self.endpoint.url,
            headers=self.headers(),
            timeout=httpx.Timeout(self._answer_s, connect=CONNECT_S),
            verify=trust(self.endpoint),
            transport=self._wire,
            trust_env=False,
        )
        return os.getpid(), http

    @property
    def _http(self) -> httpx.Client:
        """The HTTP client of this process. Two processes that read from one connection would get each other's
        responses."""
        owner, http = self._pool
        if owner != os.getpid():
            # The parent's connections are left alone: a lock in them may be held by a thread that was not forked.
            self._pool = _, http = self._new_pool()
        return http

    def close(self) -> None:
        self._closed = True
        owner, http = self._pool
        if owner == os.getpid():
            http.close()

    def run(self, steps: Steps[T]) -> T:
        """Run the steps of a request and return its result."""
        go: Callable[[Any], Any] = steps.send
        given: Any = None
        while True:
            try:
                step = go(given)
            except StopIteration as done:
                return done.value
            try:
                go, given = steps.send, self._do(step)
            except BaseException as wrong:
                # The steps handle every exception, including an interruption.
                go, given = steps.throw, wrong

    def _do(self, step: Any) -> Any:
        match step:
            case Ask():
                return self.run(self.insist(step))
            case Send(method, path, params, content, headers):
                self._need_open()
                got = self._http.request(method, path, params=params, content=content, headers=headers)
                return Answer(got.status_code, got.content, retry_after_s(got.headers))
            case Pause(seconds):
                return self._sleep(seconds)
            case Now():
                return self._clock()
            case NewKey():
                return self._new_key()
            case Work(do):
                return do()
            case MoveContent(carry):
                return _in_a_loop(self._moved(carry))
            case Together():
                return self._together(step)
            case _:
                raise TypeError(f"no step: {step!r}")

    def follow(self, path: str, params: dict[str, Any], body: Any = None, after: str = "") -> Iterator[ServerEvent]:
        """The events of a stream, each once, over any number of connections. `body`: sent with POST. `after`: the id of
        the event before the first."""
        method, content = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
        self._need_open()
        stream = Following(self, path, params, after)
        timeout = httpx.Timeout(QUIET_S, connect=CONNECT_S)
        while True:
            cause: httpx.TransportError | httpx.DecodingError | Answer | None = None
            here = os.getpid()
            try:
                with self._http.stream(
                    method, path, params=stream.params, content=content, headers=stream.connection(), timeout=timeout
                ) as got:
                    if got.status_code != 200:
                        cause = Answer(got.status_code, got.read(), retry_after_s(got.headers))
                    else:
                        for chunk in got.iter_bytes():
                            yield from stream.heard(chunk)
                            if stream.ended:
                                return
                            if here != os.getpid():
                                break
            except (httpx.TransportError, httpx.DecodingError) as error:
                cause = error
            if here == os.getpid():
                self._sleep(stream.broke(cause))

    def _need_open(self) -> None:
        if self._closed:
            raise Misuse("this client is closed", hint="Use it before it is closed, or make another one.")

    def _together(self, step: Together) -> None:
        from concurrent.futures import ThreadPoolExecutor, as_completed

        with ThreadPoolExecutor(step.at_once, thread_name_prefix="holdfast") as threads:
            asked = {threads.submit(self.run, ask()): place for place, ask in enumerate(step.questions)}
            try:
                for done in as_completed(asked):
                    try:
                        answer = done.result()
                    except HoldfastError as trouble:
                        answer = trouble
                    step.heard(asked[done], answer)
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def awaited(self, wire: httpx.AsyncBaseTransport | None = None) -> "AsyncTransport":
        """An asynchronous transport for the same network. `wire`: the httpx transport to use, unless a test has set
        one."""
        from holdfast.client.async_transport import AsyncTransport

        if isinstance(self._wire, httpx.AsyncBaseTransport):
            return AsyncTransport(self.endpoint, self.patience, wire=self._wire, local=True)
        return AsyncTransport(self.endpoint, self.patience, wire=wire)

    async def _moved(self, carry: "Callable[[AsyncTransport], Coroutine[Any, Any, T]]") -> T:
        from holdfast.blobs.lines import ThreadTransport

        # The code that moves content is loaded anyway; httpx's default transport would take longer to load than most
        # folders to move.
        pinned = trust(self.endpoint)
        line = self.awaited(ThreadTransport(None if isinstance(pinned, bool) else pinned))
        try:
            return await carry(line)
        finally:
            await line.close()


def _in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code. If a loop is already running (a notebook), in a thread, whose work is
    cancelled as soon as the waiting caller is interrupted."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    from concurrent.futures import Future, ThreadPoolExecutor, wait

    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def aside() -> T:
        begun.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await work

    with ThreadPoolExecutor(1, "holdfast-content") as thread:
        try:
            running = thread.submit(lambda: asyncio.run(aside()))
            while not wait([running], timeout=LOOK_UP_S).done:
                pass
            return running.result()
        except BaseException:
            # Work that has not begun can no longer begin; work that has is cancelled, unless it has already ended.
            if not begun.cancel():
                loop, task = begun.result()
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(task.cancel if task is not None else loop.stop)
            raise
