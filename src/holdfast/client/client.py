"""`Client`: what a person or a program can ask of a network, under names they can guess.

client.jobs      run · submit · submit_many · rerun · get · list · wait · stop · move · wait_moved · explain · logs ·
                 results · received
client.arrays    submit · get · wait · stop · retry · results
client.nodes     list · get · drain
client.tokens    create · revoke
client.content   send · fetch · manifest
client.events()  client.ping()  client.doctor()
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from holdfast.client.endpoint import Endpoint, find
from holdfast.client.retry import Patience
from holdfast.client.sse import ServerEvent
from holdfast.client.transport import Transport
from holdfast.errors import Garbled, Refused, WaitExpired, verdict_error
from holdfast.wire.http import (
    ArrayRequest,
    ArrayView,
    DoctorView,
    ErrorView,
    EventView,
    ExplainView,
    JobList,
    JobRequest,
    JobView,
    LogLine,
    MoveRequest,
    NodeView,
    TokenRequest,
    TokenView,
)

if TYPE_CHECKING:
    from holdfast.client.array_results import Collected
    from holdfast.client.content import Content, Told
    from holdfast.client.results import Synced


class Client:
    """A connection to one network, safe to share between threads. Use it with `with`, or call `close`."""

    def __init__(self, url: str, token: str = "", *, certificate: str = "", patience_s: float = 30.0) -> None:
        self._transport = Transport(Endpoint(url.rstrip("/"), token, certificate), Patience(give_up_s=patience_s))
        self._made()

    @classmethod
    def find(
        cls,
        url: str | None = None,
        token_file: str | Path | None = None,
        certificate_file: str | Path | None = None,
        *,
        patience_s: float = 30.0,
    ) -> "Client":
        """A client for the network that the arguments, the environment or the local `holdfast up` name."""
        endpoint = find(url, token_file, certificate_file)
        return cls(endpoint.url, endpoint.token, certificate=endpoint.certificate, patience_s=patience_s)

    @classmethod
    def over(cls, transport: Transport) -> "Client":
        """A client over a transport made elsewhere."""
        client = cls.__new__(cls)
        client._transport = transport
        client._made()
        return client

    def _made(self) -> None:
        self.jobs = Jobs(self._transport)
        self.arrays = Arrays(self._transport)
        self.nodes = Nodes(self._transport)
        self.tokens = Tokens(self._transport)

    @cached_property
    def content(self) -> "Content":
        """Folders to and from the network. Made when it is first used: most of what is asked moves no files."""
        from holdfast.client.content import Content

        return Content(self._transport)

    @property
    def url(self) -> str:
        return self._transport.endpoint.url

    def events(
        self,
        *,
        follow: bool = False,
        after: int | None = None,
        job: str | None = None,
        node: str | None = None,
    ) -> Iterator[EventView]:
        """What happened, oldest first; with `follow`, also what happens from now on, without end."""
        params = {"after": after, "job": job, "node": node, "follow": follow}
        for event in self._transport.follow("/v1/events", params):
            yield _parsed(EventView, event)

    def ping(self, *, patience_s: float | None = None) -> None:
        """Return if somebody answers there. `patience_s`: how long that is waited for, if not as long as usual."""
        patience = None if patience_s is None else Patience(give_up_s=patience_s)
        self._transport.ask(None, "GET", "/healthz", patience=patience)

    def doctor(self) -> DoctorView:
        return self._transport.ask(DoctorView, "GET", "/v1/doctor")

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Jobs:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def submit(self, request: JobRequest | Sequence[str], **fields: Any) -> JobView:
        """Send a job and return as soon as it stands: `submit(["echo", "hi"], cpu_milli=500)`.

        The idempotency key is made once per call, before the first try: however often the answer gets lost
        on the way, there is one job.
        """
        asked = _keyed(_request(request, fields))
        headers = {"Idempotency-Key": str(asked.key)}
        return self._transport.ask(JobView, "POST", "/v1/jobs", body=asked, headers=headers)

    def submit_many(self, requests: Iterable[JobRequest]) -> list[JobView | ErrorView]:
        """Up to 1,000 jobs in one call; each stands or is refused by itself, in the order given."""
        body = [_keyed(request) for request in requests]
        answers = self._transport.ask(list[dict[str, Any]], "POST", "/v1/jobs/batch", body=body)
        # A job and an error are told apart by what only one of them has.
        return [msgspec.convert(one, JobView if "phase" in one else ErrorView) for one in answers]

    def rerun(self, job: str, *, key: str | None = None) -> JobView:
        """The same again, as a new job. `key`: the same key is the same new job, however often it is sent."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self._transport.ask(JobView, "POST", f"/v1/jobs/{_segment(job)}/rerun", headers=headers)

    def run(
        self,
        request: JobRequest | Sequence[str],
        *,
        timeout_s: float | None = None,
        check: bool = True,
        **fields: Any,
    ) -> JobView:
        """Submit and wait for the end. Raises `JobFailed` or `JobCancelled` unless `check` is false."""
        return self.wait(self.submit(request, **fields).id, timeout_s=timeout_s, check=check)

    def wait(self, job: str, *, timeout_s: float | None = None, check: bool = True) -> JobView:
        """The job as it ended. Raises `WaitExpired` after `timeout_s`; the job itself goes on."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause = 0.02
        while True:
            view = self.get(job)
            if view.phase == "ended":
                error = verdict_error(view) if check else None
                if error is not None:
                    raise error
                return view
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitExpired(
                    f"{view.id} is still {view.phase} after {timeout_s:g} s"
                    + (f": {view.waiting}" if view.waiting else ""),
                    hint=f"It goes on. `holdfast job explain {view.id}` says what it waits for.",
                )
            time.sleep(pause if deadline is None else min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 1.5, 0.5)

    def get(self, job: str) -> JobView:
        return self._transport.ask(JobView, "GET", f"/v1/jobs/{_segment(job)}")

    def list(
        self,
        *,
        owner: str | None = None,
        phase: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> JobList:
        """One page, newest first. Pass `after=page.next` for the one behind it."""
        params = {"owner": owner, "phase": phase, "limit": limit, "after": after}
        return self._transport.ask(JobList, "GET", "/v1/jobs", params=params)

    def stop(self, job: str) -> JobView:
        return self._transport.ask(JobView, "POST", f"/v1/jobs/{_segment(job)}/stop")

    def move(self, job: str, to: str, *, key: str | None = None) -> JobView:
        """Have it run on the node `to`, and stop where it is once it runs there; returns as soon as that is under way.
        Refused at once where it cannot be. `key`: the same key is the same request, however often it is sent."""
        asked = MoveRequest(to, key or uuid.uuid4().hex)
        headers = {"Idempotency-Key": str(asked.key)}
        return self._transport.ask(JobView, "POST", f"/v1/jobs/{_segment(job)}/move", body=asked, headers=headers)

    def wait_moved(self, job: str, *, timeout_s: float | None = None) -> JobView:
        """The job once its last move is over. Raises `Refused` (`not_moved`) if it could not be moved; the job itself
        goes on."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause = 0.02
        while True:
            view = self.get(job)
            move = view.move
            if move is None or move.state == "done":
                return view
            if move.state == "failed":
                raise Refused(f"{view.id} could not be moved to {move.to}: {move.says}", code="not_moved")
            if deadline is not None and time.monotonic() >= deadline:
                hint = f"It goes on. `holdfast job explain {view.id}` says what it waits for."
                raise WaitExpired(f"the move of {view.id} is still {move.state} after {timeout_s:g} s", hint=hint)
            time.sleep(pause if deadline is None else min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 1.5, 0.5)

    def explain(self, job: str) -> ExplainView:
        return self._transport.ask(ExplainView, "GET", f"/v1/jobs/{_segment(job)}/explain")

    def logs(self, job: str, *, stream: str = "both", follow: bool = False) -> Iterator[LogLine]:
        """The output of all attempts, with what the platform saw; with `follow`, until the job ends."""
        path = f"/v1/jobs/{_segment(job)}/logs"
        for event in self._transport.follow(path, {"stream": stream, "follow": follow}):
            yield _parsed(LogLine, event)

    def results(
        self, job: str, *, to: str | Path | None = None, told: "Told" = lambda progress: None, receive: bool = True
    ) -> "Synced":
        """Bring what a job left to a folder: `to`, or `results/<its name or id>/` here. Verified; what was cut goes on
        where it was. With `receive`, the network is then told that it need not keep the files any longer."""
        from holdfast.client.content import Content
        from holdfast.client.results import Results

        view = self.get(job)
        synced = Results(self._transport, Content(self._transport), view).sync(to, told)
        if receive and view.files is not None and not view.files.received:
            self.received(view.id)
        return synced

    def received(self, job: str) -> JobView:
        """Say that the files of a job have arrived; the network may forget them."""
        return self._transport.ask(JobView, "POST", f"/v1/jobs/{_segment(job)}/received")


class Arrays:
    """Many jobs from one: the same command over a list of items."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def submit(self, request: JobRequest | Sequence[str], items: Iterable[str], **fields: Any) -> ArrayView:
        """`submit(["python", "work.py", "{item}"], ["a", "b"])`: one job for each item, which replaces `{item}`.

        The same `key` is the same array, however often it is sent."""
        job = _keyed(_request(request, fields))
        asked = ArrayRequest(job, list(items), key=job.key)
        headers = {"Idempotency-Key": str(asked.key)}
        return self._transport.ask(ArrayView, "POST", "/v1/arrays", body=asked, headers=headers)

    def get(self, array: str) -> ArrayView:
        return self._transport.ask(ArrayView, "GET", f"/v1/arrays/{_segment(array)}")

    def stop(self, array: str) -> ArrayView:
        return self._transport.ask(ArrayView, "POST", f"/v1/arrays/{_segment(array)}/stop")

    def retry(self, array: str) -> ArrayView:
        """Run the items again that did not succeed."""
        return self._transport.ask(ArrayView, "POST", f"/v1/arrays/{_segment(array)}/retry")

    def results(
        self, array: str, *, to: str | Path | None = None, told: Callable[[int, int], None] = lambda done, total: None
    ) -> "Collected":
        """Bring what the items left to a folder: `to`, or `results/<its name or id>/` here, one folder for each item
        by its index and `index.json` about them all. What was cut goes on where it was. `told` hears how many items
        of how many are here."""
        from holdfast.client.array_results import ArrayResults

        return ArrayResults(Jobs(self._transport), self.get(array)).sync(to, told)

    def wait(
        self, array: str, *, timeout_s: float | None = None, told: Callable[[ArrayView], None] = lambda view: None
    ) -> ArrayView:
        """The array once every item has ended. `told` hears of it on the way."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause = 0.05
        while True:
            view = self.get(array)
            told(view)
            if view.ended:
                return view
            if deadline is not None and time.monotonic() >= deadline:
                done = view.counts.get("succeeded", 0)
                raise WaitExpired(
                    f"{view.id}: {done} of {view.items} items have succeeded after {timeout_s:g} s",
                    hint="It goes on.",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)


class Nodes:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> list[NodeView]:
        return self._transport.ask(list[NodeView], "GET", "/v1/nodes")

    def get(self, node: str) -> NodeView:
        """One node with what happened to it lately."""
        return self._transport.ask(NodeView, "GET", f"/v1/nodes/{_segment(node)}")

    def drain(self, node: str, *, on: bool = True) -> NodeView:
        """Give it nothing new and move what it holds; `on=False` takes it back."""
        return self._transport.ask(NodeView, "POST", f"/v1/nodes/{_segment(node)}/drain", params={"on": on})


class Tokens:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, *, ttl_ms: int = 86_400_000, uses: int = -1, note: str = "", key: str = "") -> TokenView:
        """A join token. The idempotency key is made once per call: whatever answers get lost, it is one token."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self._transport.ask(
            TokenView, "POST", "/v1/tokens", body=TokenRequest(ttl_ms, uses, note), headers=headers
        )

    def revoke(self, token: str) -> None:
        self._transport.ask(None, "DELETE", f"/v1/tokens/{_segment(token)}")


def _request(request: JobRequest | Sequence[str], fields: dict[str, Any]) -> JobRequest:
    if isinstance(request, JobRequest):
        return msgspec.structs.replace(request, **fields) if fields else request
    if isinstance(request, str):
        raise TypeError('a command is a list of words, ["echo", "hi"], not one string')
    return JobRequest(argv=list(request), **fields)


def _keyed(request: JobRequest) -> JobRequest:
    return request if request.key else msgspec.structs.replace(request, key=uuid.uuid4().hex)


def _segment(identifier: str) -> str:
    """An id as one path segment, so that what a person pastes can never name another path."""
    return quote(identifier, safe="") or "-"


def _parsed(kind: Any, event: ServerEvent) -> Any:
    try:
        return msgspec.json.decode(event.data, type=kind)
    except msgspec.DecodeError as cause:
        raise Garbled(f"the orchestrator sent an event that makes no sense: {cause}") from None
