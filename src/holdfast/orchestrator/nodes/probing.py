"""Asks a node over its own stream whether it is there, and waits a moment for its answer (SPEC H5).

A node that is frozen, or behind a line that went dead, still looks connected for a while. Only an answer to a question
asked now shows that it is well now. Nothing is decided from it: the kernel has its own ways to suspect a node.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from holdfast.kernel.decision import ToSession
from holdfast.model import NodeId
from holdfast.model.messages import Ping
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.nodes.fleet import Fleet

PROBE_S = 1.5
"""A line around the world answers in a third of this; whoever waits at a prompt waits no longer."""
FIRST_NONCE = 2**61
"""Probes of probation count up from 1; whatever answers a number above this one is no news for the kernel."""
WATCHERS_MAX = 64
CHECKS_WAITING_MAX = WATCHERS_MAX + 32
REST = 3
"""For so many times as long as a check took the leader, it is asked no other: checks get a quarter of it at most."""


class Probe(msgspec.Struct, frozen=True):
    """What came of asking one node."""

    answered: bool
    round_trip_ms: int | None
    silent_ms: int | None
    """Since its last word of any kind; None: it is not connected."""


def probes(nonce: int) -> bool:
    """Whether this is the number of a probe of ours, and not of one of the kernel's."""
    return nonce > FIRST_NONCE


class Checks:
    """Bounds what checks cost the leader, however many are asked and watched."""

    def __init__(self) -> None:
        self.watchers = 0
        """Checks that are being watched: each asks a node every second."""
        self._turn = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def turn(self, cost_s: Callable[[], float]) -> AsyncIterator[None]:
        """One check at a time asks the leader, and few wait for that. `cost_s`: what the last one took of its time."""
        if self._waiting >= CHECKS_WAITING_MAX:
            raise Unavailable("busy", f"{self._waiting} checks wait to be answered already")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            # Whoever was answered need not wait for the rest that the leader gets.
            asyncio.get_running_loop().call_later(REST * cost_s(), self._turn.release)


class Probes:
    def __init__(self, tell: Callable[[ToSession], None], fleet: Fleet) -> None:
        self._tell = tell
        self._fleet = fleet
        self._nonce = FIRST_NONCE
        self._asked: dict[tuple[str, int], asyncio.Future[float]] = {}
        self.checks = Checks()
        self._under_way: dict[str, asyncio.Task[Probe]] = {}

    async def ask(self, node: str, epoch: int, timeout_s: float = PROBE_S) -> Probe:
        """Whether the node answers now. Who asks while somebody else does, hears the same answer."""
        task = self._under_way.get(node)
        if task is None:
            task = self._under_way[node] = asyncio.ensure_future(self._ask(node, epoch, timeout_s))
            task.add_done_callback(lambda _: self._under_way.pop(node, None))
        return await asyncio.shield(task)

    async def _ask(self, node: str, epoch: int, timeout_s: float) -> Probe:
        session = self._fleet.session_of(node)
        if session is None:
            return Probe(False, None, None)
        self._nonce += 1
        key = (node, self._nonce)
        loop = asyncio.get_running_loop()
        answer = self._asked[key] = loop.create_future()
        began = loop.time()
        self._tell(ToSession(session, NodeId(node), Ping(epoch, self._nonce)))
        try:
            async with asyncio.timeout(timeout_s):
                came = await answer
            return Probe(True, max(0, round((came - began) * 1000)), self._fleet.silent_ms(node))
        except TimeoutError:
            return Probe(False, None, self._fleet.silent_ms(node))
        finally:
            self._asked.pop(key, None)

    def answered(self, node: str, nonce: int) -> None:
        """Only the node that was asked can answer: another one that guesses the number says nothing about it."""
        waiting = self._asked.get((node, nonce))
        if waiting is not None and not waiting.done():
            waiting.set_result(asyncio.get_running_loop().time())
