"""Provides what the API handlers need in a test network. Every wait here lets virtual time pass and then returns."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.identity.admin import AdminToken
from holdfast.kernel.decision import Answer
from holdfast.kernel.events import AnyEvent, Submitted
from holdfast.model import AccessId, AccessToken, Attempt, AttemptId, Job, JobId, Settings, WallTimes
from holdfast.model.messages import Load, Progress
from holdfast.orchestrator.api.access import AccessService
from holdfast.orchestrator.api.context import ApiContext, NothingMore
from holdfast.orchestrator.api.submissions import Submissions
from holdfast.orchestrator.api.tokens import TokenService
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.logs.log_files import need_log_name
from holdfast.orchestrator.metrics import Metrics
from holdfast.orchestrator.nodes.probing import PROBE_S, Probe
from holdfast.testing.network_content import VirtualContent
from holdfast.testing.network_queries import VirtualQueries, VirtualRows
from holdfast.wire.http import DoctorView, Finding

if TYPE_CHECKING:
    from holdfast.testing.network import Network


def context_of(network: "Network", admin: AdminToken, content: VirtualContent) -> ApiContext:
    queries = VirtualQueries(network.store)
    return ApiContext(
        leader=VirtualLeader(network),
        queries=queries,
        fleet=VirtualFleet(network, queries.store),
        logs=VirtualOutput(network),
        log_retention=VirtualRetention(),
        content=content,
        wakeups=VirtualWakeups(network),
        metrics=Metrics(),
        probes=VirtualProbes(network),
        submissions=Submissions(),
        tokens=TokenService(admin),
        access=VirtualAccess(network),
        access_tokens=AccessService(admin),
        self_check=_well,
        pin="",
        stopping=lambda: False,
        time=VirtualTime(network),
    )


async def _well() -> DoctorView:
    return DoctorView(True, [Finding("network for tests", True, "it is what the test made of it")])


class VirtualLeader:
    question_s: Mapping[type, float] = {}

    def __init__(self, network: "Network") -> None:
        self._network = network

    @property
    def settings(self) -> Settings:
        return self._network.settings

    @property
    def epoch(self) -> int:
        return self._network.store.epoch

    @property
    def trouble(self) -> str:
        return "" if self._network.leads else "no orchestrator leads now"

    @property
    def wall_times(self) -> WallTimes:
        found = self._network.store.rows.get(("wall", 0))
        return found if isinstance(found, WallTimes) else WallTimes()

    def served_ms(self) -> int:
        return self._network.served_ms

    async def ask(self, event: AnyEvent) -> Answer:
        return (await self.ask_all([event]))[0][0]

    async def ask_all(self, events: Sequence[AnyEvent]) -> tuple[list[Answer], dict[JobId, Job]]:
        answers = self._network.ask(events)
        if answers is None:
            raise Unavailable("store_unavailable", "the store did not confirm in time; asking again is safe", 5)
        rows = self._network.store.rows
        asked = {event.job for event in events if isinstance(event, Submitted)}
        found = ((id, rows.get(("job", id))) for id in asked)
        return answers, {id: job for id, job in found if isinstance(job, Job)}

    @asynccontextmanager
    async def turn(self, jobs: Set[JobId], /) -> AsyncIterator[None]:
        """A virtual network answers one request at a time, so no request has to wait for its turn."""
        yield


class VirtualFleet:
    def __init__(self, network: "Network", rows: VirtualRows) -> None:
        self._network = network
        self._rows = rows
        self.held_by = rows.held_by
        self.is_connected = network.is_connected

    def attempts_of(self, job: Job) -> list[Attempt]:
        rows = self._network.store.rows
        found = (rows.get(("attempt", job.nth_attempt(count))) for count in range(1, job.attempts_made + 1))
        return [one for one in found if isinstance(one, Attempt) and one.live]

    def load_of(self, node: str) -> Load | None:
        return None

    def silent_ms(self, node: str) -> int | None:
        return 0 if self._network.is_connected(node) else None

    def progress_of(self, attempt: str) -> Progress | None:
        return None


class VirtualAccess:
    def __init__(self, network: "Network") -> None:
        self._network = network

    def get(self, id: AccessId) -> AccessToken | None:
        found = self._network.store.rows.get(("access", id))
        return found if isinstance(found, AccessToken) else None

    def all(self) -> list[AccessToken]:
        return [row for row in self._network.store.rows.values() if isinstance(row, AccessToken)]

    def valid(self, id: AccessId) -> AccessToken | None:
        token = self.get(id)
        return token if token is not None and token.valid(self._network.served_ms) else None


class VirtualOutput:
    def __init__(self, network: "Network") -> None:
        self._network = network

    def read(self, attempt: str, stream: str, offset: int, limit: int) -> bytes:
        """The whole log once the attempt's logs are delivered; nothing before."""
        need_log_name(attempt, stream)
        arrived = AttemptId(attempt) in self._network.store.delivered
        printed = self._network.belongings.printed.get((attempt, stream), b"") if arrived else b""
        return printed[offset : offset + limit]


class VirtualRetention:
    def gone(self, job: Job, served_ms: int) -> str:
        """A test network never deletes logs."""
        return ""


class VirtualWakeups:
    def __init__(self, network: "Network") -> None:
        self._network = network

    @contextmanager
    def listen(self, *topics: str) -> "Iterator[VirtualWakeups]":
        yield self

    def clear(self) -> None: ...

    async def woken(self, within_s: float, /) -> bool:
        return self._network.wait_for_news(within_s)

    async def woken_or_idle(self, alive_s: float, /) -> bool:
        if not self._network.wait_for_news():
            raise NothingMore
        return True


class VirtualTurns:
    """No wait is needed: requests are answered one at a time and cost the leader no time."""

    watchers = 0

    @asynccontextmanager
    async def turn(self, cost_s: Callable[[], float]) -> AsyncIterator[None]:
        yield


class VirtualProbes:
    def __init__(self, network: "Network") -> None:
        self._network = network
        self.checks = VirtualTurns()

    async def ask(self, node: str, epoch: int) -> Probe:
        if self._network.answers(node):
            return Probe(True, 0, 0)
        connected = self._network.is_connected(node)
        self._network.pass_time(PROBE_S)
        return Probe(False, None, round(1_000 * PROBE_S) if connected else None)


class VirtualTime:
    def __init__(self, network: "Network") -> None:
        self._network = network

    def wall_ms(self) -> int:
        return self._network.wall_ms

    def boottime_ms(self) -> int:
        return round(1_000 * self._network.now_s)

    async def sleep(self, seconds: float, /) -> None:
        self._network.pass_time(seconds)

    @asynccontextmanager
    async def within(self, seconds: float, /) -> AsyncIterator[None]:
        yield

    async def together(self, *questions: Awaitable[Any]) -> list[Any]:
        return [await one for one in questions]
