"""The objects that clients return: snapshots of jobs and nodes, with methods.

A `Job` is the API's `JobView` with methods, so it has the same fields and is encoded as the same JSON. It never
changes: methods that query again (`refresh`, `wait`, `stop` …) return a new object. `AsyncJob` and `AsyncNode` are the
same for `AsyncClient`.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from holdfast.cleaning import clean
from holdfast.errors import Misuse
from holdfast.quantities import spoken_ms
from holdfast.wire.errors import ErrorView
from holdfast.wire.http import ArrayView, EventView, ExplainView, JobList, JobView, NodeView

if TYPE_CHECKING:
    from holdfast.client.array_results import Collected
    from holdfast.client.async_client import AsyncClient
    from holdfast.client.client import Client
    from holdfast.client.content import Told
    from holdfast.client.log_lines import LogLine
    from holdfast.client.results import Synced

Event = EventView
Explanation = ExplainView
NotTaken = ErrorView
"""A rejected job among several that were submitted together."""

V = TypeVar("V", bound=msgspec.Struct)


def asker(of: msgspec.Struct) -> Any:
    """The client that returned it."""
    client = of.__dict__.get("client")
    if client is None:
        raise Misuse(f"no client returned this {type(of).__name__}", hint="Use a client: `client.jobs.get(id)`.")
    return client


def bound(kind: type[V], view: msgspec.Struct, client: Any) -> V:
    """A view with the client that it came from."""
    made = kind(*(getattr(view, name) for name in view.__struct_fields__))
    msgspec.structs.force_setattr(made, "client", client)
    return made


def state_of(job: JobView) -> str:
    """One word: how it ended, or its current phase."""
    return job.verdict or job.phase


def took_ms(job: JobView) -> int | None:
    """From submission to end. Dates are the wall clock's: one that was set back meanwhile shows none."""
    return None if job.ended_ms is None else max(0, job.ended_ms - job.submitted_ms)


class JobShown(JobView, frozen=True, dict=True):
    """How a job is displayed, for both clients."""

    @property
    def state(self) -> str:
        """One word: `queued`, `starting`, `running` … and once it has ended `succeeded`, `failed`, `cancelled`."""
        return state_of(self)

    @property
    def ended(self) -> bool:
        return self.phase == "ended"

    @property
    def took_s(self) -> float | None:
        """Seconds from submission to end."""
        took = took_ms(self)
        return None if took is None else took / 1_000

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        took = took_ms(self)
        rest = f" after {spoken_ms(took)}" if took is not None else f" on {self.node}" if self.node else ""
        why = f": {self.failure.code}" if self.failure else f": {self.waiting}" if self.waiting else ""
        return clean(f"<{type(self).__name__} {self.id}{name} {self.state}{rest}{why}>")

    def _repr_html_(self) -> str:
        from holdfast.client import html

        return html.job_card(self)


class Job(JobShown, frozen=True, dict=True):
    @property
    def _client(self) -> "Client":
        return asker(self)

    def refresh(self) -> "Job":
        """The job as it is now."""
        return self._client.jobs.get(self.id)

    def wait(self, *, timeout_s: float | None = None, check: bool = True) -> "Job":
        """The job once it has ended. Raises `JobFailed` or `JobCancelled` unless `check` is false."""
        return self._client.jobs.wait(self.id, timeout_s=timeout_s, check=check)

    def logs(
        self, *, stream: str = "both", follow: bool = False, after: "LogLine | str | None" = None
    ) -> "Iterator[LogLine]":
        """Its output line by line, with messages of the platform. `after`: only what follows that line."""
        return self._client.jobs.logs(self.id, stream=stream, follow=follow, after=after)

    def results(self, to: str | Path | None = None, *, told: "Told" = lambda progress: None) -> "Synced":
        return self._client.jobs.results(self.id, to=to, told=told)

    def explain(self) -> Explanation:
        return self._client.jobs.explain(self.id)

    def stop(self) -> "Job":
        return self._client.jobs.stop(self.id)

    def rerun(self) -> "Job":
        return self._client.jobs.rerun(self.id)

    def move_to(self, node: str) -> "Job":
        return self._client.jobs.move(self.id, node)


class AsyncJob(JobShown, frozen=True, dict=True):
    @property
    def _client(self) -> "AsyncClient":
        return asker(self)

    async def refresh(self) -> "AsyncJob":
        """The job as it is now."""
        return await self._client.jobs.get(self.id)

    async def wait(self, *, timeout_s: float | None = None, check: bool = True) -> "AsyncJob":
        """The job once it has ended. Raises `JobFailed` or `JobCancelled` unless `check` is false."""
        return await self._client.jobs.wait(self.id, timeout_s=timeout_s, check=check)

    def logs(
        self, *, stream: str = "both", follow: bool = False, after: "LogLine | str | None" = None
    ) -> "AsyncIterator[LogLine]":
        """Its output line by line, with messages of the platform. `after`: only what follows that line."""
        return self._client.jobs.logs(self.id, stream=stream, follow=follow, after=after)

    async def results(self, to: str | Path | None = None, *, told: "Told" = lambda progress: None) -> "Synced":
        return await self._client.jobs.results(self.id, to=to, told=told)

    async def explain(self) -> Explanation:
        return await self._client.jobs.explain(self.id)

    async def stop(self) -> "AsyncJob":
        return await self._client.jobs.stop(self.id)

    async def rerun(self) -> "AsyncJob":
        return await self._client.jobs.rerun(self.id)

    async def move_to(self, node: str) -> "AsyncJob":
        return await self._client.jobs.move(self.id, node)


class ArrayShown(ArrayView, frozen=True, dict=True):
    """How an array is displayed, for both clients."""

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items())
        return clean(f"<{type(self).__name__} {self.id}{name} {self.items} items: {counts}>")

    def _repr_html_(self) -> str:
        from holdfast.client import html

        return html.array_card(self)


class Array(ArrayShown, frozen=True, dict=True):
    @property
    def _client(self) -> "Client":
        return asker(self)

    def refresh(self) -> "Array":
        """The array as it is now."""
        return self._client.arrays.get(self.id)

    def wait(self, *, timeout_s: float | None = None) -> "Array":
        """The array once every item has ended."""
        return self._client.arrays.wait(self.id, timeout_s=timeout_s)

    def results(self, to: str | Path | None = None) -> "Collected":
        return self._client.arrays.results(self.id, to=to)

    def stop(self) -> "Array":
        return self._client.arrays.stop(self.id)

    def retry(self) -> "Array":
        """Run the items that did not succeed again."""
        return self._client.arrays.retry(self.id)


class AsyncArray(ArrayShown, frozen=True, dict=True):
    @property
    def _client(self) -> "AsyncClient":
        return asker(self)

    async def refresh(self) -> "AsyncArray":
        """The array as it is now."""
        return await self._client.arrays.get(self.id)

    async def wait(self, *, timeout_s: float | None = None) -> "AsyncArray":
        """The array once every item has ended."""
        return await self._client.arrays.wait(self.id, timeout_s=timeout_s)

    async def results(self, to: str | Path | None = None) -> "Collected":
        return await self._client.arrays.results(self.id, to=to)

    async def stop(self) -> "AsyncArray":
        return await self._client.arrays.stop(self.id)

    async def retry(self) -> "AsyncArray":
        """Run the items that did not succeed again."""
        return await self._client.arrays.retry(self.id)


class NodeShown(NodeView, frozen=True, dict=True):
    def __repr__(self) -> str:
        busy = f", holds {len(self.attempts)}" if self.attempts else ""
        return clean(f"<{type(self).__name__} {self.name or self.id} {self.state}{busy}>")

    def _repr_html_(self) -> str:
        from holdfast.client import html

        return html.node_card(self)


class Node(NodeShown, frozen=True, dict=True):
    @property
    def _client(self) -> "Client":
        return asker(self)

    def refresh(self) -> "Node":
        return self._client.nodes.get(self.id)

    def drain(self, *, on: bool = True) -> "Node":
        return self._client.nodes.drain(self.id, on=on)


class AsyncNode(NodeShown, frozen=True, dict=True):
    @property
    def _client(self) -> "AsyncClient":
        return asker(self)

    async def refresh(self) -> "AsyncNode":
        return await self._client.nodes.get(self.id)

    async def drain(self, *, on: bool = True) -> "AsyncNode":
        return await self._client.nodes.drain(self.id, on=on)


J = TypeVar("J", Job, AsyncJob)
N = TypeVar("N", Node, AsyncNode)


class Page(JobList, Generic[J], frozen=True):
    """Some jobs, newest first; `next` is the cursor of the next page."""

    def __iter__(self) -> Iterator[J]:
        return iter(self.jobs)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, place: int) -> J:
        return self.jobs[place]  # type: ignore[return-value]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.jobs)) or "<no jobs>"

    def _repr_html_(self) -> str:
        from holdfast.client import html

        return html.job_table(self.jobs, more=self.next is not None)


class NodeList(list[N]):
    """The machines of a network."""

    def _repr_html_(self) -> str:
        from holdfast.client import html

        return html.node_table(self)
