"""The wire of `Client`: carries out steps over httpx, one after the other, in the thread that asks.

It decides nothing: what is asked, when it is asked again and what an answer means stands in `steps`, `answers` and the
questions. It runs no event loop, so it works where one runs already (a notebook). Moving a folder is the exception:
that engine is asynchronous for everybody, and gets a loop of its own for as long as it takes.
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

from holdfast.client.answers import CONNECT_S, QUIET_S, STEADY, Following, Line, retry_after_s, trust
from holdfast.client.endpoint import Endpoint
from holdfast.client.retry import Patience
from holdfast.client.sse import ServerEvent
from holdfast.client.steps import Answer, Ask, Move, NewKey, Now, Pause, Send, Steps, Together, Work
from holdfast.errors import HoldfastError, Misuse

if TYPE_CHECKING:
    from holdfast.client.async_transport import AsyncTransport

T = TypeVar("T")

LOOK_UP_S = 0.2
"""Whoever waits for a thread looks up this often: a signal that comes just before a wait without end is not seen."""


class Transport(Line):
    """Safe to share between threads, and with a process that was forked: that gets connections of its own. `wire`: in
    place of a connection, for tests and networks in this process."""

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
        """Of this process. Two that read from one connection would get each other's answers."""
        owner, http = self._pool
        if owner != os.getpid():
            # What the parent opened is left alone: a lock in it may be held by a thread that was not forked along.
            self._pool = _, http = self._new_pool()
        return http

    def close(self) -> None:
        self._closed = True
        owner, http = self._pool
        if owner == os.getpid():
            http.close()

    def run(self, steps: Steps[T]) -> T:
        """Carry out a question and return its answer."""
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
                # Whatever happened, an interruption too, is the question's to judge.
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
            case Move(carry):
                return _in_a_loop(self._moved(carry))
            case Together():
                return self._together(step)
            case _:
                raise TypeError(f"no step: {step!r}")

    def follow(self, path: str, params: dict[str, Any], body: Any = None, after: str = "") -> Iterator[ServerEvent]:
        """The events of a stream, each once, across any number of connections. `body`: what is asked for with POST.
        `after`: the id of the event before the first."""
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
            raise Misuse("this client was closed", hint="Ask before it is closed, or make another one.")

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
        """One for the same network that is used with `await`. `wire`: over this one, if none is given for tests."""
        from holdfast.client.async_transport import AsyncTransport

        if isinstance(self._wire, httpx.AsyncBaseTransport):
            return AsyncTransport(self.endpoint, self.patience, wire=self._wire, local=True)
        return AsyncTransport(self.endpoint, self.patience, wire=wire)

    async def _moved(self, carry: "Callable[[AsyncTransport], Coroutine[Any, Any, T]]") -> T:
        from holdfast.blobs.lines import ThreadTransport

        # What moves the content is loaded anyway; httpx's own wire would take longer to load than most folders to move.
        pinned = trust(self.endpoint)
        line = self.awaited(ThreadTransport(None if isinstance(pinned, bool) else pinned))
        try:
            return await carry(line)
        finally:
            await line.close()


def _in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """From code that is not asynchronous, also where a loop runs already (a notebook): then in a thread, whose work
    ends as soon as whoever waits for it is interrupted."""
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
            # What has not begun cannot any more; what has is cancelled, unless it has ended by itself.
            if not begun.cancel():
                loop, task = begun.result()
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(task.cancel if task is not None else loop.stop)
            raise
