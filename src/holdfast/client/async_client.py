"""`AsyncClient`: everything that `Client` has, under the same names, with `await`.

    async with holdfast.AsyncClient() as client:
        job = await client.jobs.submit(["python", "train.py"], cpu=4)
        async for line in job.logs(follow=True):
            print(line.text, end="")

It runs in the caller's event loop and starts no other. The requests themselves are defined once, in `requests`.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Unpack, overload

from holdfast.client import requests
from holdfast.client.answers import parsed
from holdfast.client.async_transport import AsyncTransport
from holdfast.client.endpoint import Endpoint, find
from holdfast.client.job_options import Command, JobOptions
from holdfast.client.log_lines import Lines, LogLine
from holdfast.client.objects import AsyncArray, AsyncJob, AsyncNode, Event, Explanation, NodeList, NotTaken, Page, bound
from holdfast.client.retry import Patience
from holdfast.wire.http import (
    AccessTokenView,
    AccessView,
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
    """A client of one network, with separate connections for each event loop. Use it with `async with`, or await
    `close`.

    `AsyncClient()` connects to the network that the command line would use here: HOLDFAST_URL, or the `holdfast up` of
    this machine.
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
        """A client over an existing transport."""
        client = cls.__new__(cls)
        client._transport = transport
        client._made()
        return client

    def _made(self) -> None:
        self.jobs = AsyncJobs(self, self._transport)
        self.arrays = AsyncArrays(self, self._transport)
        self.nodes = AsyncNodes(self, self._transport)
        self.tokens = AsyncTokens(self._transport)
        self.access = AsyncAccess(self._transport)
        self.content = AsyncContent(self._transport)

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
        """Journal entries, oldest first. With `follow`, also new ones as they occur, without end. `tail`: start this
        many entries before the newest."""
        params = {"after": after, "job": job, "node": node, "follow": follow, "tail": tail}
        async for event in self._transport.follow("/v1/events", params):
            yield parsed(Event, event)

    async def check(self, command: Command, *, node: str | None = None, **options: Unpack[JobOptions]) -> CheckView:
        """What would happen if this job were submitted now: where it would run, whether that machine responds right
        now, or what the job would wait for. Nothing is sent, stored or started. `node`: consider this machine only."""
        return await self._transport.run(requests.check(command, options, node))

    async def watch_check(
        self, command: Command, *, node: str | None = None, **options: Unpack[JobOptions]
    ) -> AsyncIterator[CheckView]:
        """Repeats the check whenever something changes and at least every second, without end."""
        asked = requests.checked(command, options)
        async for event in self._transport.follow("/v1/check/watch", {"node": node}, asked):
            yield parsed(CheckView, event)

    async def estimates(self) -> EstimatesView:
        """How often estimates of start and end times were right."""
        return await self._transport.run(requests.estimates())

    async def ping(self, *, patience_s: float | None = None) -> None:
        """Returns if the orchestrator responds. `patience_s`: how long to wait for that, in place of the usual time."""
        await self._transport.run(requests.ping(patience_s))

    async def doctor(self) -> DoctorView:
        return await self._transport.run(requests.doctor())

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncJobs:
    def __init__(self, client: AsyncClient, transport: AsyncTransport) -> None:
        self._client = client
        self._transport = transport

    def _job(self, view: JobView) -> AsyncJob:
        return bound(AsyncJob, view, self._client)

    async def submit(self, command: Command, **options: Unpack[JobOptions]) -> AsyncJob:
        """Submit a job and return as soon as it is stored: `submit(["python", "train.py"], cpu=4, folder=".")`.

        The idempotency key is made once per call, before the first try, so lost responses never create a second job.
        Pass `key=…` to use your own.
        """
        return self._job(await self._transport.run(requests.submit(command, options)))

    async def submit_many(self, commands: Iterable[Command]) -> list[AsyncJob | NotTaken]:
        """Up to 1,000 jobs in one call. Each is accepted or rejected on its own; results are in the order given."""
        views = await self._transport.run(requests.submit_many(commands))
        return [self._job(view) if isinstance(view, JobView) else view for view in views]

    async def run(
        self, command: Command, *, timeout_s: float | None = None, check: bool = True, **options: Unpack[JobOptions]
    ) -> AsyncJob:
        """Submit and wait for the end. Raises `JobFailed` or `JobCancelled` unless `check` is false."""
        return self._job(await self._transport.run(requests.run(command, options, timeout_s, check)))

    async def rerun(self, job: str, *, key: str | None = None) -> AsyncJob:
        """Submit the same work as a new job. Repeating the call with the same `key` returns the same new job."""
        return self._job(await self._transport.run(requests.rerun(job, key)))

    async def get(self, job: str, *, live: bool = False) -> AsyncJob:
        """One job, by its id, a prefix of its id, or its name. A name finds the newest job of that name; with `live`,
        the one that has not ended. Raises `Refused` (`ambiguous`) if several have not ended."""
        return self._job(await self._transport.run(requests.job(job, live)))

    async def list(
        self,
        *,
        owner: str | None = None,
        phase: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[AsyncJob]:
        """One page, newest first. Pass `after=page.next` for the next page."""
        page = await self._transport.run(requests.jobs(owner, phase, limit, after))
        return Page([self._job(view) for view in page.jobs], page.next)

    async def wait(self, job: str, *, timeout_s: float | None = None, check: bool = True) -> AsyncJob:
        """The job once it has ended. Raises `WaitExpired` after `timeout_s`; the job itself continues."""
        return self._job(await self._transport.run(requests.wait(job, timeout_s, check)))

    async def stop(self, job: str) -> AsyncJob:
        """Stop a job. Stopping a job that has ended changes nothing and is no error."""
        return self._job(await self._transport.run(requests.stop(job)))

    async def move(self, job: str, to: str, *, key: str | None = None) -> AsyncJob:
        """Run the job on the node `to`, and stop it where it is once it runs there. Returns as soon as the move has
        started; refused at once if the job cannot move. Repeating the call with the same `key` is one request."""
        return self._job(await self._transport.run(requests.move(job, to, key)))

    async def wait_moved(self, job: str, *, timeout_s: float | None = None) -> AsyncJob:
        """The job once its last move is over. Raises `Refused` (`not_moved`) if it could not be moved; the job itself
        continues."""
        return self._job(await self._transport.run(requests.wait_moved(job, timeout_s)))

    async def explain(self, job: str) -> Explanation:
        """What it waits for, until when, and what happens then."""
        return await self._transport.run(requests.explain(job))

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
        """The output of all attempts, line by line, with messages of the platform; with `follow`, until the job ends.
        `stream`: only `stdout` or `stderr`. `after`: only what follows that line, or its `cursor`. `pieces`: return
        output as soon as it arrives, even parts of lines, always with the messages of the platform. Pieces have no
        `cursor`: it is not possible to continue in the middle of a line."""
        lines = Lines(after, stream, pieces=pieces)
        params = {"stream": stream, "follow": follow}
        async for event in self._transport.follow(requests.logs_path(job), params, after=lines.begin):
            for line in [parsed(Piece, event)] if pieces else lines.heard(event):
                yield line
        for line in lines.rest():
            yield line

    async def results(
        self, job: str, *, to: str | Path | None = None, told: "Told" = lambda progress: None, receive: bool = True
    ) -> "Synced":
        """Download a job's results to a folder: `to`, or `results/<its name or id>/` here. Content is verified, and an
        interrupted download resumes. With `receive`, the network is then told that it need not keep the files."""
        return await self._transport.run(requests.results(job, to=to, told=told, receive=receive))

    async def received(self, job: str) -> AsyncJob:
        """Confirm that the files of a job have arrived; the network may then delete them."""
        return self._job(await self._transport.run(requests.received(job)))


class AsyncArrays:
    """Arrays: many jobs from one command and a list of items."""

    def __init__(self, client: AsyncClient, transport: AsyncTransport) -> None:
        self._client = client
        self._transport = transport

    def _array(self, view: ArrayView) -> AsyncArray:
        return bound(AsyncArray, view, self._client)

    async def submit(self, command: Command, items: Iterable[str], **options: Unpack[JobOptions]) -> AsyncArray:
        """`submit(["python", "work.py", "{item}"], ["a", "b"])`: one job for each item, which replaces `{item}`.

        Repeating the call with the same `key` returns the same array."""
        return self._array(await self._transport.run(requests.submit_array(command, items, options)))

    async def get(self, array: str) -> AsyncArray:
        return self._array(await self._transport.run(requests.array(array)))

    async def wait(
        self, array: str, *, timeout_s: float | None = None, told: Callable[[AsyncArray], None] = lambda view: None
    ) -> AsyncArray:
        """The array once every item has ended. `told` is called with its progress."""
        view = await self._transport.run(requests.wait_array(array, timeout_s, lambda view: told(self._array(view))))
        return self._array(view)

    async def stop(self, array: str) -> AsyncArray:
        return self._array(await self._transport.run(requests.stop_array(array)))

    async def retry(self, array: str) -> AsyncArray:
        """Run the items that did not succeed again."""
        return self._array(await self._transport.run(requests.retry_array(array)))

    async def results(
        self, array: str, *, to: str | Path | None = None, told: Callable[[int, int], None] = lambda done, total: None
    ) -> "Collected":
        """Download the items' results to a folder: `to`, or `results/<its name or id>/` here, one folder for each item
        by its index, and `index.json` for all of them. An interrupted download resumes. `told` is called with the
        number of items that are here and the total."""
        return await self._transport.run(requests.array_results(array, to, told))


class AsyncNodes:
    def __init__(self, client: AsyncClient, transport: AsyncTransport) -> None:
        self._client = client
        self._transport = transport

    async def list(self) -> NodeList[AsyncNode]:
        return NodeList([bound(AsyncNode, view, self._client) for view in await self._transport.run(requests.nodes())])

    async def get(self, node: str) -> AsyncNode:
        """One node with its recent events, by its id, a prefix of its id, or its name."""
        return bound(AsyncNode, await self._transport.run(requests.node(node)), self._client)

    async def drain(self, node: str, *, on: bool = True) -> AsyncNode:
        """Place no new work on the node and move what it holds; `on=False` undoes that."""
        return bound(AsyncNode, await self._transport.run(requests.drain(node, on)), self._client)


class AsyncAccess:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self, role: str, *, owner: str = "", ttl_ms: int = 2_592_000_000, note: str = "", key: str = ""
    ) -> AccessView:
        """An access token for a `user`, a `node-operator` or a `network-operator`. It is shown only here. The
        idempotency key is made once per call, so lost responses never create a second token."""
        return await self._transport.run(requests.create_access(role, owner, ttl_ms, note, key))

    async def list(self) -> Sequence[AccessTokenView]:
        """The access tokens, newest first, without their secrets."""
        return await self._transport.run(requests.access_tokens())

    async def revoke(self, access: str) -> None:
        """Revoke an access token, by its id or a prefix of it. Join tokens that were made with it are revoked too."""
        await self._transport.run(requests.revoke_access(access))


class AsyncTokens:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, *, ttl_ms: int = 86_400_000, uses: int = 1, note: str = "", key: str = "") -> TokenView:
        """A join token. The idempotency key is made once per call, so lost responses never create a second token."""
        return await self._transport.run(requests.create_token(ttl_ms, uses, note, key))

    async def list(self) -> Sequence[JoinTokenView]:
        """All tokens ever made, newest first, without their secrets."""
        return await self._transport.run(requests.tokens())

    async def revoke(self, token: str) -> None:
        """Revoke a token, by its id or a prefix of it. Nodes that joined with it stay."""
        await self._transport.run(requests.revoke_token(token))


class AsyncContent:
    """Folders to and from the network. The code for this is loaded on first use: most requests move no files."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def send(
        self,
        folder: str | Path,
        *,
        index_file: str | Path | None = None,
        ignore: "Ignore | None" = None,
        include: Sequence[str] = (),
        gitignore: bool = True,
        told: "Told" = lambda progress: None,
        read: Callable[[int], None] | None = None,
    ) -> "Sent":
        """Send a folder; content that the network already has is not sent. `index_file`: a cache of what was read, so
        that unchanged files are not read again. `read` is called with the bytes read, from several threads; `told` with
        the bytes sent. Secret files, and those that `.gitignore` (unless `gitignore` is False) and `.holdfastignore`
        name, are not sent unless `include` names them; `ignore` replaces all these rules."""
        from holdfast.client import content

        return await self._transport.run(
            content.send(
                folder,
                index_file=index_file,
                ignore=ignore,
                include=include,
                gitignore=gitignore,
                told=told,
                read=read,
            )
        )

    async def fetch(
        self, manifest: str, into: str | Path, *, only: str = "", told: "Told" = lambda progress: None
    ) -> "Manifest":
        """Write the content of a manifest to a folder. Content is verified, nothing outside the folder is touched, and
        an interrupted download resumes. `only`: nothing but this subfolder."""
        from holdfast.client import content

        return await self._transport.run(content.fetch(manifest, into, only=only, told=told))

    async def manifest(self, name: str) -> "Manifest":
        """The manifest of a folder, verified against its hash and against the rules for manifests."""
        from holdfast.client import content

        return await self._transport.run(content.manifest(name))
