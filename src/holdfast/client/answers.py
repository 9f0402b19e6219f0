"""Interprets responses and decides what to do when none arrives: the part of a transport that does no I/O.

Every call can be repeated: reads have no effect, and mutations carry an idempotency key or set a state instead of
changing it. So lost responses and orchestrator restarts are retried here.
"""

import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec

from holdfast.client.endpoint import Endpoint, guarded
from holdfast.client.retry import Patience, Retries
from holdfast.client.sse import EventReader, ServerEvent, TooLong
from holdfast.client.steps import Answer, Ask, Pause, Send, Steps
from holdfast.errors import (
    Busy,
    Garbled,
    Misconfigured,
    NotAllowed,
    NotFound,
    Refused,
    RequestError,
    Unreachable,
    Untrusted,
)
from holdfast.wire.errors import ErrorView

RETRIED_STATUS = frozenset({429, 502, 503, 504})
"""The orchestrator is overloaded, restarting or has lost its leadership: the same call will work later."""
QUIET_S = 30.0
"""The server sends at least a comment every 10 s. A stream this quiet is dead; opening it again loses nothing."""
CONNECT_S = 5.0
STEADY = Patience()


class Connection:
    """Address, credentials and retry patience. Both transports extend this with I/O."""

    def __init__(
        self,
        endpoint: Endpoint,
        patience: Patience = STEADY,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
        new_key: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self.endpoint = checked(endpoint)
        self.patience = patience
        self._clock = clock
        self._draw = draw
        self._new_key = new_key

    def retries(self, patience: Patience | None = None) -> Retries:
        return Retries(patience or self.patience, clock=self._clock, draw=self._draw)

    def headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self.endpoint.token:
            headers["Authorization"] = f"Bearer {self.endpoint.token}"
        return headers

    def insist(self, ask: Ask) -> Steps[Any]:
        """Repeat the request until there is a response or patience runs out."""
        content = None if ask.body is None else msgspec.json.encode(ask.body)
        headers = {**ask.headers, **({"Content-Type": "application/json"} if content is not None else {})}
        send = Send(ask.method, ask.path, known(ask.params), content, headers)
        retries = self.retries(ask.patience)
        while True:
            at_least_s = 0.0
            try:
                answer: Answer = yield send
                if answer.status not in RETRIED_STATUS:
                    return decoded(ask.kind, answer.status, answer.content)
                error: RequestError = error_of(answer.status, answer.content)
                at_least_s = answer.retry_after_s
            except httpx.DecodingError as cause:
                raise garbled(self.endpoint.url, cause) from None
            except httpx.TransportError as cause:
                error = unreachable(self.endpoint.url, cause)
            pause_s = retries.next(at_least_s)
            if isinstance(error, Untrusted) or pause_s is None:
                raise error
            yield Pause(pause_s)


class Following:
    """One event stream over any number of connections, until the server sends `end`. Yields each event once.

    The end of a connection alone does not end the stream: a server that shuts down cleanly also closes its connections
    cleanly.
    """

    def __init__(self, line: Connection, path: str, params: dict[str, Any], after: str = "") -> None:
        self.path = path
        self.params = known(params)
        self.ended = False
        self._url = line.endpoint.url
        self._retries = line.retries()
        self._last = after or None
        self._reader = EventReader()

    def connection(self) -> dict[str, str]:
        """The headers of the next connection, which continues after the last complete event."""
        self._reader = EventReader()
        headers = {"Accept": "text/event-stream"}
        if self._last is not None:
            headers["Last-Event-ID"] = self._last
        return headers

    def heard(self, chunk: bytes) -> Iterator[ServerEvent]:
        self._retries.heard()
        try:
            for event in self._reader.feed(chunk):
                self._retries.alive()
                if event.name == "end":
                    self.ended = True
                    return
                if event.id is not None:
                    self._last = event.id
                if event.data:
                    yield event
        except TooLong:
            raise Garbled(f"the orchestrator at {self._url} sent an event without end") from None

    def broke(self, cause: "httpx.TransportError | httpx.DecodingError | Answer | None") -> float:
        """The connection has ended: the seconds to wait before the next one. `cause`: the error or the response
        received instead, or None if the server closed it. Raises if another connection would not help."""
        at_least_s = 0.0
        if cause is None:
            error: RequestError = Unreachable(f"the orchestrator at {self._url} keeps ending {self.path}")
        elif isinstance(cause, Answer):
            error, at_least_s = error_of(cause.status, cause.content), cause.retry_after_s
            if cause.status not in RETRIED_STATUS:
                raise error
        else:
            if isinstance(cause, httpx.DecodingError):
                raise garbled(self._url, cause)
            error = unreachable(self._url, cause)
        pause_s = self._retries.next(at_least_s)
        if isinstance(error, Untrusted) or pause_s is None:
            raise error
        return pause_s


def trust(endpoint: Endpoint) -> ssl.SSLContext | bool:
    if not endpoint.url.startswith("https:"):
        # Plain HTTP uses no certificates, and loading all system authorities would take longer than most calls.
        return False
    if not endpoint.certificate:
        return True
    context = ssl.create_default_context(cadata=endpoint.certificate)
    # The pinned certificate is the identity: only it is trusted, whatever host name the address has.
    context.check_hostname = False
    return context


def known(params: dict[str, Any]) -> dict[str, str]:
    """The parameters that are set; booleans as the API writes them."""
    given = {k: v for k, v in params.items() if v is not None}
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in given.items()}


def retry_after_s(headers: httpx.Headers) -> float:
    value = headers.get("Retry-After", "")
    return min(float(value), 30.0) if value.replace(".", "", 1).isdigit() else 0.0


def decoded(kind: Any, status: int, body: bytes) -> Any:
    if status >= 300:
        raise error_of(status, body)
    if kind is None or kind is bytes:
        return None if kind is None else body
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as cause:
        raise Garbled(
            f"the answer of the orchestrator makes no sense: {cause}",
            hint="Client and orchestrator may be of different versions: compare `holdfast version` on both.",
        ) from None


def parsed(kind: Any, event: ServerEvent) -> Any:
    try:
        return msgspec.json.decode(event.data, type=kind)
    except msgspec.DecodeError as cause:
        raise Garbled(f"the orchestrator sent an event that makes no sense: {cause}") from None


def error_of(status: int, body: bytes) -> RequestError:
    """The exception for an error response."""
    try:
        view = msgspec.json.decode(body, type=ErrorView)
    except msgspec.DecodeError:
        text = body[:200].decode("utf-8", "replace").strip()
        view = ErrorView("", f"the orchestrator answered {status}" + (f": {text}" if text else ""))
    code, hint = view.code or None, view.hint
    if status in (401, 403):
        return NotAllowed(view.says, hint=hint, code=code)
    if status == 404:
        return NotFound(view.says, hint=hint, code=code)
    if status in RETRIED_STATUS:
        return Busy(view.says, hint=hint, code=code)
    if status >= 500:
        return Garbled(view.says, hint=hint or "The orchestrator's own log says more.", code=code or "server_fault")
    return Refused(view.says, hint=hint, code=code, failure=view.failure)


def garbled(url: str, cause: httpx.DecodingError) -> Garbled:
    return Garbled(f"the response of {url} cannot be read: {cause}", hint="Is something else listening there?")


def checked(endpoint: Endpoint) -> Endpoint:
    """Raises Misconfigured if the address is invalid or unsafe."""
    try:
        url = httpx.URL(endpoint.url)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise Misconfigured(
            f"{endpoint.url[:200]!r} is not the address of an orchestrator",
            hint="Write it like http://127.0.0.1:7420.",
        )
    return guarded(endpoint, url.host)


def unreachable(url: str, cause: httpx.TransportError) -> RequestError:
    if "CERTIFICATE_VERIFY_FAILED" in str(cause):
        return Untrusted(
            f"{url} answers with another certificate than the one pinned",
            hint="If the orchestrator was set up again, pin its new certificate; if not, do not trust it.",
        )
    if isinstance(cause, httpx.TimeoutException):
        why = "it did not answer in time"
    else:
        why = str(cause) or type(cause).__name__
    return Unreachable(
        f"no orchestrator answers at {url}: {why}",
        hint="Start one with `holdfast up`, or say where it is with --url or HOLDFAST_URL.",
    )
