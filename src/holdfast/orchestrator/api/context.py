"""The interfaces that the API handlers use, the same in production and in a virtual network.

All waiting happens behind them. Production waits in an event loop; a virtual network advances virtual time and returns,
so that its handlers never suspend.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.blobs.manifest import Blob
from holdfast.blobs.store import Accepted
from holdfast.boottime import boottime_ms
from holdfast.kernel.decision import Answer
from holdfast.kernel.events import AnyEvent
from holdfast.model import AccessId, AccessToken, Attempt, Job, JobId, Settings, WallTimes
from holdfast.model.messages import Load, Progress
from holdfast.orchestrator.content.uploaders import Uploader
from holdfast.orchestrator.leader.clock import wall_ms
from holdfast.orchestrator.nodes.probing import Probe
from holdfast.orchestrator.queries import Queries
from holdfast.wire.http import DoctorView

if TYPE_CHECKING:
    from holdfast.orchestrator.api.access import AccessService
    from holdfast.orchestrator.api.submissions import Submissions
    from holdfast.orchestrator.api.tokens import TokenService


class LeaderPort(Protocol):
    """The leader: passes events to the kernel, and answers once the decision is durable."""

    @property
    def settings(self) -> Settings: ...
    @property
    def epoch(self) -> int: ...
    @property
    def trouble(self) -> str:
        """Why no request can be served right now; empty while leading."""
        ...

    @property
    def question_s(self) -> Mapping[type, float]:
        """The leader's time, in seconds, that the last query of each kind took."""
        ...

    @property
    def wall_times(self) -> WallTimes:
        """Shows served time as dates."""
        ...

    def served_ms(self) -> int:
        """The time by which lifetimes are counted."""
        ...

    async def ask(self, event: AnyEvent) -> Answer: ...
    async def ask_all(self, events: Sequence[AnyEvent]) -> tuple[list[Answer], dict[JobId, Job]]: ...
    def turn(self, jobs: Set[JobId], /) -> AbstractAsyncContextManager[None]:
        """Inside, no other caller that takes a turn submits any of these jobs."""
        ...


class FleetPort(Protocol):
    """What is known of nodes besides their rows."""

    def attempts_of(self, job: Job) -> list[Attempt]: ...
    def held_by(self, node: str) -> list[Attempt]: ...
    def is_connected(self, node: str) -> bool: ...
    def load_of(self, node: str) -> Load | None: ...
    def silent_ms(self, node: str) -> int | None: ...
    def progress_of(self, attempt: str) -> Progress | None: ...


class AccessPort(Protocol):
    """The access tokens, as of the last commit. Raises Unavailable while this orchestrator does not lead."""

    def get(self, id: AccessId) -> AccessToken | None: ...
    def all(self) -> list[AccessToken]: ...
    def valid(self, id: AccessId) -> AccessToken | None:
        """None: there is none, or it has expired or was revoked."""
        ...


class OutputPort(Protocol):
    def read(self, attempt: str, stream: str, offset: int, limit: int) -> bytes: ...


class RetentionPort(Protocol):
    def gone(self, job: Job, served_ms: int) -> str: ...


class InputsPort(Protocol):
    """Objects in S3 buckets that jobs may read."""

    async def size_of(self, url: str) -> int | None: ...


class ContentPort(Protocol):
    """The network's content. See `orchestrator/content/service.py`."""

    @property
    def inputs(self) -> InputsPort: ...
    async def missing(self, owner: str, uploader: Uploader, blobs: Sequence[Blob]) -> list[str]: ...
    async def places(self, uploader: Uploader, blobs: Sequence[Blob]) -> dict[str, str]: ...
    async def take(self, owner: str, uploader: Uploader, name: str) -> Accepted: ...
    async def manifest(self, owner: str, name: str) -> bytes: ...
    async def links(self, owner: str, name: str, shas: Sequence[str]) -> dict[str, str]: ...
    async def ready(self, owner: str, name: str) -> bool: ...
    async def whole(self, owner: str, name: str) -> bool: ...
    def may_name(self, owner: str, names: Iterable[str]) -> bool: ...


class WakeupPort(Protocol):
    """Signals to one reader that something may have changed. Clear it, read, and only then wait."""

    def clear(self) -> None: ...
    async def woken(self, within_s: float, /) -> bool:
        """False: nothing changed in time."""
        ...

    async def woken_or_idle(self, alive_s: float, /) -> bool:
        """As `woken`, for a reader that only sends signs of life meanwhile. Where no connection can break, these are
        not needed, and the wait has no limit. Raises NothingMore if it would never end."""
        ...


class WakeupsPort(Protocol):
    def listen(self, *topics: str) -> AbstractContextManager[WakeupPort]: ...


class NothingMore(Exception):
    """Nothing will happen any more. Only a virtual network can know this."""


class TurnsPort(Protocol):
    """Limits the leader's time spent on checks."""

    watchers: int

    def turn(self, cost_s: Callable[[], float]) -> AbstractAsyncContextManager[None]: ...


class ProbesPort(Protocol):
    """Probes nodes."""

    @property
    def checks(self) -> TurnsPort: ...
    async def ask(self, node: str, epoch: int) -> Probe: ...


class MetricsPort(Protocol):
    def text(self) -> bytes: ...


class TimePort(Protocol):
    def wall_ms(self) -> int:
        """Only for display."""
        ...

    def boottime_ms(self) -> int: ...
    async def sleep(self, seconds: float, /) -> None: ...
    def within(self, seconds: float, /) -> AbstractAsyncContextManager[Any]:
        """Raises TimeoutError if the block takes longer."""
        ...

    async def together(self, *questions: Awaitable[Any]) -> list[Any]:
        """The results of all, awaited concurrently where that is possible."""
        ...


class RealTime:
    """The clocks of this machine, and the running event loop."""

    wall_ms = staticmethod(wall_ms)
    boottime_ms = staticmethod(boottime_ms)
    sleep = staticmethod(asyncio.sleep)
    within = staticmethod(asyncio.timeout)

    async def together(self, *questions: Awaitable[Any]) -> list[Any]:
        return await asyncio.gather(*questions)


class ApiContext(msgspec.Struct):
    leader: LeaderPort
    queries: Queries
    fleet: FleetPort
    logs: OutputPort
    log_retention: RetentionPort
    content: ContentPort
    wakeups: WakeupsPort
    metrics: MetricsPort
    probes: ProbesPort
    submissions: "Submissions"
    tokens: "TokenService"
    access: AccessPort
    access_tokens: "AccessService"
    self_check: Callable[[], Awaitable[DoctorView]]
    pin: str
    """Fingerprint of the certificate that nodes see; empty: there is none."""
    stopping: Callable[[], bool]
    time: TimePort

    def dated(self, served_ms: int) -> int:
        """Served time as people see it (Unix ms)."""
        return self.leader.wall_times.wall_ms(served_ms)
