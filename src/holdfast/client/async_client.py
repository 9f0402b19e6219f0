"""`AsyncClient`: everything that `Client` has, under the same names, with `await`.

    async with holdfast.AsyncClient() as client:
        job = await client.jobs.submit(["python", "train.py"], cpu=4)
        async for line in job.logs(follow=True):
            print(line.text, end="")

It runs in the event loop of whoever calls it and starts no other. How to ask is written once, in `questions`.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Unpack, overload

from holdfast.client import questions
from holdfast.client.answers import parsed
from holdfast.client.async_transport import AsyncTransport
from holdfast.client.endpoint import Endpoint, find
from holdfast.client.log_lines import Lines, LogLine
from holdfast.client.objects import AsyncArray, AsyncJob, AsyncNode, Event, Explanation, NotTaken, Page, bound
from holdfast.client.objects import Nodes as NodeList
from holdfast.client.retry import Patience
from holdfast.client.wishes import Command, Wishes
from holdfast.wire.http import (
    ArrayView,
    CheckView,
    DoctorView,
    EstimatesView,
    JobView,
    JoinTokenView,
    TokenView,
)
from holdfast.wire.http import LogLine as Piece

if TYPE_CHECKING:
    from holdfast.blobs import Ignore, Manifest
    from holdfast.client.array_results import Collected
    from holdfast.client.content import Sent, Told
    from holdfast.client.results import Synced


class AsyncClient:
    """A connection to one network, one for each event loop it is used in. Use it with `async with`, or await `close`.

    `AsyncClient()` asks the network that the command line would ask here: HOLDFAST_URL, or the `holdfast up` of this
    machine.
    """

    def __init__(
        self, url: str | None = None, token: str = "", *, certificate: str = "", patience_s: float = 30.0
    ) -> None:
        endpoint = find() if url is None else Endpoint(url.rstrip("/"), token, certificate)
        self._transport = AsyncTransport(endpoint, Patience(give_up_s=patience_s))
        self._made()

    @classmethod
    def find(
        cls,
        url: str | None = None,
        token_file: str | Path | None = None,
        certificate_file: str | Path | None = None,
        *,
        patience_s: float = 30.0,
    ) -> "AsyncClient":
        """A client for the network that the arguments, the environment or the local `holdfast up` name."""
        endpoint = find(url, token_file, certificate_file)
        return cls(endpoint.url, endpoint.token, certificate=endpoint.certificate, patience_s=patience_s)

    @classmethod
    def over(cls, transport: AsyncTransport) -> "AsyncClient":
        """A client over a transport made elsewhere."""
        client = cls.__new__(cls)
        client._transport = transport
        client._made()
        return client

    def _made(self) -> None:
        self.jobs = Jobs(self, self._transport)
        self.arrays = Arrays(self, self._transport)
        self.nodes = Nodes(self, self._transport)
        self.tokens = Tokens(self._transport)
        self.content = Content(self._transport)

    @property
    def url(self) -> str:
        return self._transport.endpoint.url

    def __repr__(self) -> str:
        return f"<holdfast {type(self).__name__} of {self.url}>"

    async def events(
        self,
        *,
        follow: bool = False,
        after: int | None = None,
        job: str | None = None,
        node: str | None = None,
        tail: int | None = None,
    ) -> AsyncIterator[Event]:
        """What happened, oldest first; with `follow`, also what happens from now on, without end. `tail`: from so many
        before the newest on."""
        params = {"after": after, "job": job, "node": node, "follow": follow, "tail": tail}
        async for event in self._transport.follow("/v1/events", params):
            yield parsed(Event, event)

    async def check(self, command: Command, *, node: str | None = None, **wishes: Unpack[Wishes]) -> CheckView:
        """What a submission of this job would meet now: where it would run, whether that machine answers this second,
        or what it would wait for. Nothing is sent, stored or started. `node`: ask of this machine only."""
        return await self._transport.run(questions.check(command, wishes, node))

    async def watch_check(
        self, command: Command, *, node: str | None = None, **wishes: Unpack[Wishes]
    ) -> AsyncIterator[CheckView]:
        """The same again and again: as soon as something changes, and every second, without end."""
        asked = questions.checked(command, wishes)
        async for event in self._transport.follow("/v1/check/watch", {"node": node}, asked):
            yield parsed(CheckView, event)

    async def estimates(self) -> EstimatesView:
        """How often estimates of starts and ends were right."""
        return await self._transport.run(questions.estimates())

    async def ping(self, *, patience_s: float | None = None) -> None:
        """Return if somebody answers there. `patience_s`: how long that is waited for, if not as long as usual."""
        await self._transport.run(questions.ping(patience_s))

    async def doctor(self) -> DoctorView:
        return await self._transport.run(questions.doctor())

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Jobs:
    def __init__(self, client: AsyncClient, transport: AsyncTransport) -> None:
        self._client = client
        self._transport = transport

    def _job(self, view: JobView) -> AsyncJob:
        return bound(AsyncJob, view, self._client)

    async def submit(self, command: Command, **wishes: Unpack[Wishes]) -> AsyncJob:
        """Send a job and return as soon as it stands: `submit(["python", "train.py"], cpu=4, folder=".")`.

        The idempotency key is made once per call, before the first try: however often the answer gets lost
        on the way, there is one job. `key=…` for one of your own.
        """
        return self._job(await self._transport.run(questions.submit(command, wishes)))

    async def submit_many(self, commands: Iterable[Command]) -> list[AsyncJob | NotTaken]:
        """Up to 1,000 jobs in one call; each stands or is refused by itself, in the order given."""
        views = await self._transport.run(questions.submit_many(commands))
        return [self._job(view) if isinstance(view, JobView) else view for view in views]

    async def run(
        self, command: Command, *, timeout_s: float | None = None, check: bool = True, **wishes: Unpack[Wishes]
    ) -> AsyncJob:
        """Submit and wait for the end. Raises `JobFailed` or `JobCancelled` unless `check` is false."""
        return self._job(await self._transport.run(questions.run(command, wishes, timeout_s, check)))

    async def rerun(self, job: str, *, key: str | None = None) -> AsyncJob:
        """The same again, as a new job. `key`: the same key is the same new job, however often it is sent."""
        return self._job(await self._transport.run(questions.rerun(job, key)))

    async def get(self, job: str, *, live: bool = False) -> AsyncJob:
        """One job, by its id, the beginning of it, or its name: the newest of that name, or with `live` the one that
        has not ended. Refused (`ambiguous`) where several have not."""
        return self._job(await self._transport.run(questions.job(job, live)))

    async def list(
        self,
        *,
        owner: str | None = None,
        phase: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[AsyncJob]:
        """One page, newest first. Pass `after=page.next` for the one behind it."""
        page = await self._transport.run(questions.jobs(owner, phase, limit, after))
        return Page([self._job(view) for view in page.jobs], page.next)

    async def wait(self, job: str, *, timeout_s: float | None = None, check: bool = True) -> AsyncJob:
        """The job as it ended. Raises `WaitExpired` after `timeout_s`; the job itself goes on."""
        return self._job(await self._transport.run(questions.wait(job, timeout_s, check)))

    async def stop(self, job: str) -> AsyncJob:
        """Stopping what has ended changes nothing and is no error."""
        return self._job(await self._transport.run(questions.stop(job)))

    async def move(self, job: str, to: str, *, key: str | None = None) -> AsyncJob:
        """Have it run on the node `to`, and stop where it is once it runs there; returns as soon as that is under way.
        Refused at once where it cannot be. `key`: the same key is the same request, however often it is sent."""
        return self._job(await self._transport.run(questions.move(job, to, key)))

    async def wait_moved(self, job: str, *, timeout_s: float | None = None) -> AsyncJob:
        """The job once its last move is over. Raises `Refused` (`not_moved`) if it could not be moved; the job itself
        goes on."""
        return self._job(await self._transport.run(questions.wait_moved(job, timeout_s)))

    async def explain(self, job: str) -> Explanation:
        """What it waits for, until when, and what happens then."""
        return await self._transport.run(questions.explain(job))

    @overload
    def logs(
        self,
        job: str,
        *,
        stream: str = "both",
        follow: bool = False,
        after: LogLine | str | None = None,
        pieces: Literal[False] = False,
    ) -> AsyncIterator[LogLine]: ...
    @overload
    def logs(
        self, job: str, *, stream: str = "both", follow: bool = False, pieces: Literal[True]
    ) -> AsyncIterator[Piece]: ...
    async def logs(
        self,
        job: str,
        *,
        stream: str = "both",
        follow: bool = False,
        after: LogLine | str | None = None,
        pieces: bool = False,
    ) -> AsyncIterator[LogLine | Piece]:
        """The output of all attempts, line by line, with what the platform saw; with `follow`, until the job ends.
        `stream`: only `stdout` or `stderr`. `after`: only what comes behind that line, or behind its `cursor`.
        `pieces`: what is there at once, as soon as it is, also if that is a part of a line; with what the platform
        saw in any case. It has no `cursor`: nobody can go on behind a part of a line."""
        lines = Lines(after, stream, pieces=pieces)
        params = {"stream": stream, "follow": follow}
        async for event in self._transport.follow(questions.logs_path(job), params, after=lines.begin):
            for line in [parsed(Piece, event)] if pieces else lines.heard(event):
                yield line
        for line in lines.rest():
            yield line

    async def results(
        self, job: str, *, to: str | Path | None = None, told: "Told" = lambda progress: None, receive: bool = True
    ) -> "Synced":
        """Bring what a job left to a folder: `to`, or `results/<its name or id>/` here. Verified; what was cut goes on
        where it was. With `receive`, the network is then told that it need not keep the files any longer."""
        return await self._transport.run(questions.results(job, to=to, told=told, receive=receive))

    async def received(self, job: str) -> AsyncJob:
        """Say that the files of a job have arrived; the network may forget them."""
        return self._job(await self._transport.run(questions.received(job)))


class Arrays:
    """Many jobs from one: the same command over a list of items."""

    def __init__(self, client: AsyncClient, transport: AsyncTransport) -> None:
        self._client = client
        self._transport = transport

    def _array(self, view: ArrayView) -> AsyncArray:
        return bound(AsyncArray, view, self._client)

    async def submit(self, command: Command, items: Iterable[str], **wishes: Unpack[Wishes]) -> AsyncArray:
        """`submit(["python", "work.py", "{item}"], ["a", "b"])`: one job for each item, which replaces `{item}`.

        The same `key` is the same array, however often it is sent."""
        return self._array(await self._transport.run(questions.submit_array(command, items, wishes)))

    async def get(self, array: str) -> AsyncArray:
        return self._array(await self._transport.run(questions.array(array)))

    async def wait(
        self, array: str, *, timeout_s: float | None = None, told: Callable[[AsyncArray], None] = lambda view: None
    ) -> AsyncArray:
        """The array once every item has ended. `told` hears of it on the way."""
        view = await self._transport.run(questions.wait_array(array, timeout_s, lambda view: told(self._array(view))))
        return self._array(view)

    async def stop(self, array: str) -> AsyncArray:
        return self._array(await self._transport.run(questions.stop_array(array)))

    async def retry(self, array: str) -> AsyncArray:
        """Run the items again that did not succeed."""
        return self._array(await self._transport.run(questions.retry_array(array)))

    async def results(
        self, array: str, *, to: str | Path | None = None, told: Callable[[int, int], None] = lambda done, total: None
    ) -> "Collected":
        """Bring what the items left to a folder: `to`, or `results/<its name or id>/` here, one folder for each item
        by its index and `index.json` about them all. What was cut goes on where it was. `told` hears how many items
        of how many are here."""
        return await self._transport.run(questions.array_results(array, to, told))


class Nodes:
    def __init__(self, client: AsyncClient, transport: AsyncTransport) -> None:
        self._client = client
        self._transport = transport

    async def list(self) -> NodeList[AsyncNode]:
        return NodeList([bound(AsyncNode, view, self._client) for view in await self._transport.run(questions.nodes())])

    async def get(self, node: str) -> AsyncNode:
        """One node with what happened to it lately, by its id, the beginning of it, or its name."""
        return bound(AsyncNode, await self._transport.run(questions.node(node)), self._client)

    async def drain(self, node: str, *, on: bool = True) -> AsyncNode:
        """Give it nothing new and move what it holds; `on=False` takes it back."""
        return bound(AsyncNode, await self._transport.run(questions.drain(node, on)), self._client)


class Tokens:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, *, ttl_ms: int = 86_400_000, uses: int = -1, note: str = "", key: str = "") -> TokenView:
        """A join token. The idempotency key is made once per call: whatever answers get lost, it is one token."""
        return await self._transport.run(questions.create_token(ttl_ms, uses, note, key))

    async def list(self) -> Sequence[JoinTokenView]:
        """All that were ever made, newest first, without what lets anyone in."""
        return await self._transport.run(questions.tokens())

    async def revoke(self, token: str) -> None:
        """End it, by its id or the beginning of it. Nodes that joined with it stay."""
        await self._transport.run(questions.revoke_token(token))


class Content:
    """Folders to and from the network. What that takes is loaded when it is used: most questions move no files."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def send(
        self,
        folder: str | Path,
        *,
        index_file: str | Path | None = None,
        ignore: "Ignore | None" = None,
        told: "Told" = lambda progress: None,
        read: Callable[[int], None] | None = None,
    ) -> "Sent":
        """Send a folder; what the network has already is not sent. `index_file`: remembers what was read, so that
        unchanged files are not read the next time. `read` is told of bytes as they are read, from several threads;
        `told` of those that are sent."""
        from holdfast.client import content

        return await self._transport.run(
            content.send(folder, index_file=index_file, ignore=ignore, told=told, read=read)
        )

    async def fetch(
        self, manifest: str, into: str | Path, *, only: str = "", told: "Told" = lambda progress: None
    ) -> "Manifest":
        """Put the content of a manifest into a folder: verified, nothing outside of it touched, resumed where an
        earlier try was cut. `only`: what lies in this folder of it, and nothing else."""
        from holdfast.client import content

        return await self._transport.run(content.fetch(manifest, into, only=only, told=told))

    async def manifest(self, name: str) -> "Manifest":
        """The list of a folder's content: verified to be what the hash names, and to keep every rule."""
        from holdfast.client import content

        return await self._transport.run(content.manifest(name))
