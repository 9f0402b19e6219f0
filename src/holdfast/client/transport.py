"""One HTTP connection to an orchestrator: asks, asks again when that is safe, and turns answers into errors.

Every call may be repeated: reads by nature, mutations because they carry an idempotency key or say how things
shall be rather than what to change. So a lost answer and a restarting orchestrator are waited out in here.
"""

import ssl
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx
import msgspec

from holdfast.client.endpoint import Endpoint
from holdfast.client.retry import Patience, Retries
from holdfast.client.sse import ServerEvent, TooLong, read_events
from holdfast.errors import Busy, Garbled, NotAllowed, NotFound, Refused, RequestError, Unreachable, Untrusted
from holdfast.wire.http import ErrorView

T = TypeVar("T")

RETRIED_STATUS = frozenset({429, 502, 503, 504})
"""The orchestrator is overloaded, restarting or has lost its leadership: the same call will work later."""

QUIET_S = 30.0
"""The server sends at least a comment every 10 s. A stream this quiet is dead; opening it again loses nothing."""


STEADY = Patience()


class Transport:
    def __init__(
        self,
        endpoint: Endpoint,
        patience: Patience = STEADY,
        *,
        answer_s: float = 30.0,
        wire: httpx.BaseTransport | None = None,
        retries: Callable[[Patience], Retries] = Retries,
    ) -> None:
        self.endpoint = endpoint
        self.patience = patience
        self._retries = retries
        headers = {"Accept": "application/json"}
        if endpoint.token:
            headers["Authorization"] = f"Bearer {endpoint.token}"
        self._http = httpx.Client(
            base_url=endpoint.url,
            headers=headers,
            timeout=httpx.Timeout(answer_s, connect=5.0),
            verify=trust(endpoint),
            transport=wire,
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def ask(
        self,
        kind: type[T] | Any,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: Any = None,
        headers: dict[str, str] | None = None,
        patience: Patience | None = None,
    ) -> T:
        """One call with all its retries. `kind` is the type of the answer: None for no answer, bytes for a raw one.
        `patience`: for this call, in place of the usual one."""
        content = None if body is None else msgspec.json.encode(body)
        sent = {**(headers or {}), **({"Content-Type": "application/json"} if content is not None else {})}
        retries = self._retries(patience or self.patience)
        while True:
            pause = 0.0
            try:
                answer = self._http.request(method, path, params=_known(params), content=content, headers=sent)
                if answer.status_code not in RETRIED_STATUS:
                    return _decode(kind, answer.status_code, answer.content)
                error: RequestError = _error(answer.status_code, answer.content)
                pause = _retry_after(answer)
            except httpx.TransportError as cause:
                error = self._unreachable(cause)
            if isinstance(error, Untrusted) or not retries.wait(pause):
                raise error

    def follow(self, path: str, params: dict[str, Any]) -> Iterator[ServerEvent]:
        """The events of a stream, each once, across any number of connections, until the server says `end`.

        The end of a connection alone proves nothing: a server that stops in good order also ends its streams
        in good order.
        """
        retries = self._retries(self.patience)
        last: str | None = None
        while True:
            pause = 0.0
            try:
                for event in self._connection(path, params, last, retries):
                    retries.alive()
                    if event.name == "end":
                        return
                    if event.id is not None:
                        last = event.id
                    if event.data:
                        yield event
                error: RequestError = Unreachable(f"the orchestrator at {self.endpoint.url} keeps ending {path}")
            except _Answered as answered:
                error = _error(answered.status, answered.body)
                if answered.status not in RETRIED_STATUS:
                    raise error from None
                pause = answered.pause
            except httpx.TransportError as cause:
                error = self._unreachable(cause)
            except TooLong:
                raise Garbled(f"the orchestrator at {self.endpoint.url} sent an event without end") from None
            if isinstance(error, Untrusted) or not retries.wait(pause):
                raise error

    def _connection(
        self, path: str, params: dict[str, Any], last: str | None, retries: Retries
    ) -> Iterator[ServerEvent]:
        headers = {"Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = last
        timeout = httpx.Timeout(QUIET_S, connect=5.0)
        with self._http.stream("GET", path, params=_known(params), headers=headers, timeout=timeout) as answer:
            if answer.status_code != 200:
                raise _Answered(answer.status_code, answer.read(), _retry_after(answer))
            yield from read_events(_heard(answer.iter_bytes(), retries))

    def _unreachable(self, cause: httpx.TransportError) -> RequestError:
        url = self.endpoint.url
        if "CERTIFICATE_VERIFY_FAILED" in str(cause):
            return Untrusted(
                f"{url} answers with another certificate than the one pinned",
                hint="If the orchestrator was set up anew, take its new certificate; if not, trust nothing.",
            )
        if isinstance(cause, httpx.TimeoutException):
            why = "it did not answer in time"
        else:
            why = str(cause) or type(cause).__name__
        return Unreachable(
            f"no orchestrator answers at {url}: {why}",
            hint="Start one with `holdfast up`, or say where it is with --url or HOLDFAST_URL.",
        )


class _Answered(Exception):
    """A stream was asked for and something else was answered."""

    def __init__(self, status: int, body: bytes, pause: float) -> None:
        self.status, self.body, self.pause = status, body, pause


def trust(endpoint: Endpoint) -> ssl.SSLContext | bool:
    if not endpoint.url.startswith("https:"):
        # Nothing is encrypted there; reading all authorities of the system would take longer than most calls.
        return False
    if not endpoint.certificate:
        return True
    context = ssl.create_default_context(cadata=endpoint.certificate)
    # The pinned certificate is the identity: it is the only one trusted here, whatever name the address has.
    context.check_hostname = False
    return context


def _known(params: dict[str, Any] | None) -> dict[str, str]:
    """Only what was given; truth values as the API writes them."""
    given = {k: v for k, v in (params or {}).items() if v is not None}
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in given.items()}


def _heard(chunks: Iterator[bytes], retries: Retries) -> Iterator[bytes]:
    """The same bytes; each of them, a comment too, shows that the server lives."""
    for chunk in chunks:
        retries.heard()
        yield chunk


def _retry_after(answer: httpx.Response) -> float:
    value = answer.headers.get("Retry-After", "")
    return min(float(value), 30.0) if value.replace(".", "", 1).isdigit() else 0.0


def _decode(kind: Any, status: int, body: bytes) -> Any:
    if status >= 300:
        raise _error(status, body)
    if kind is None or kind is bytes:
        return None if kind is None else body
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as cause:
        raise Garbled(
            f"the answer of the orchestrator makes no sense: {cause}",
            hint="Client and orchestrator may be of different versions: compare `holdfast version` on both.",
        ) from None


def _error(status: int, body: bytes) -> RequestError:
    """The exception that stands for an error answer."""
    try:
        view = msgspec.json.decode(body, type=ErrorView)
    except msgspec.DecodeError:
        text = body[:200].decode("utf-8", "replace").strip()
        view = ErrorView("", f"the orchestrator answered {status}" + (f": {text}" if text else ""))
    code, hint = view.code or None, view.hint
    if status in (401, 403):
        hint = hint or "The admin token lies beside the orchestrator's endpoint file; give it with --token-file."
        return NotAllowed(view.says, hint=hint, code=code)
    if status == 404:
        return NotFound(view.says, hint=hint, code=code)
    if status in RETRIED_STATUS:
        return Busy(view.says, hint=hint, code=code)
    if status >= 500:
        return Garbled(view.says, hint=hint or "The orchestrator's own log says more.", code=code or "server_fault")
    return Refused(view.says, hint=hint, code=code, failure=view.failure)
