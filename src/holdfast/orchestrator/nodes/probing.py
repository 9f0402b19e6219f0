"""Probes a node over its own stream and waits a moment for its answer (SPEC H5).

A node that is frozen, or whose connection is dead, still looks connected for a while. Only an answer to a probe sent
now shows that it is alive now. No decision depends on it: the kernel has its own ways to suspect a node.
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
from holdfast.tasks import OwnedTasks

PROBE_S = 1.5
"""Limit for an answer, in seconds: three times the round trip around the world, and short enough for a person who
waits."""
FIRST_NONCE = 2**61
"""The kernel's probes of probation count up from 1; an answer to a number above this one does not concern the
kernel."""
WATCHERS_MAX = 64
CHECKS_WAITING_MAX = WATCHERS_MAX + 32
REST = 3
"""After a check, the leader gets no other for this many times as long as it took: checks use at most a quarter of its
time."""


class Probe(msgspec.Struct, frozen=True):
    """The result of probing one node."""

    answered: bool
    round_trip_ms: int | None
    silent_ms: int | None
    """Milliseconds since the node last sent anything; None: it is not connected."""


def probes(nonce: int) -> bool:
    """Whether this is the number of a probe from here, and not of one from the kernel."""
    return nonce > FIRST_NONCE


class Checks:
    """Limits what checks cost the leader, however many are requested and watched."""

    def __init__(self) -> None:
        self.watchers = 0
        """Checks that are being watched: each probes a node every second."""
        self._turn = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def turn(self, cost_s: Callable[[], float]) -> AsyncIterator[None]:
        """Lets one check at a time use the leader, and few wait. `cost_s`: how much of the leader's time the last one
        took."""
        if self._waiting >= CHECKS_WAITING_MAX:
            raise Unavailable("busy", f"{self._waiting} checks are already waiting")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            # The caller has its answer and need not wait for the leader's pause.
            asyncio.get_running_loop().call_later(REST * cost_s(), self._turn.release)


class Probes:
    def __init__(self, tell: Callable[[ToSession], None], fleet: Fleet) -> None:
        self._tell = tell
        self._fleet = fleet
        self._nonce = FIRST_NONCE
        self._asked: dict[tuple[str, int], asyncio.Future[float]] = {}
        self.checks = Checks()
        self._under_way: dict[str, asyncio.Task[Probe]] = {}
        self._tasks = OwnedTasks(failed=None)

    async def ask(self, node: str, epoch: int, timeout_s: float = PROBE_S) -> Probe:
        """Whether the node answers now. Concurrent callers share one probe."""
        task = self._under_way.get(node)
        if task is None:
            task = self._under_way[node] = self._tasks.start(f"probe {node}", self._ask(node, epoch, timeout_s))
            task.add_done_callback(lambda _: self._under_way.pop(node, None))
        return await asyncio.shield(task)

    async def close(self) -> None:
        await self._tasks.close()

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
        """Only the probed node can answer: a number that another node guesses does not count."""
        waiting = self._asked.get((node, nonce))
        if waiting is not None and not waiting.done():
            waiting.set_result(asyncio.get_running_loop().time())
