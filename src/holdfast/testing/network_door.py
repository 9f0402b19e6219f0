"""The HTTP API of a network for tests, answered in this process: the same requests, types, errors and streams.

It is a transport for httpx, so what asks is the real `Client`. Requests are checked and views are made by what the real
orchestrator uses for that; decisions come from the kernel behind it. While an answer is made, virtual time passes.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from threading import RLock
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httpx
import msgspec

from holdfast.kernel.decision import Rejected
from holdfast.orchestrator.asked import BadRequest
from holdfast.orchestrator.front import STATUS, Refused, error_of
from holdfast.testing.network_rows import NotThere
from holdfast.wire.http import ErrorView

if TYPE_CHECKING:
    from holdfast.testing.network_answers import Answers


class Away(Exception):
    """No orchestrator leads just now."""


class Door(httpx.BaseTransport, httpx.AsyncBaseTransport):
    def __init__(self, answers: "Answers") -> None:
        self._answers = answers
        self._turn = RLock()
        """A client may be shared between threads; the world behind it is one."""
        self.lost = 0
        """So many answers get lost on their way back."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self._handle(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return self._handle(request)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        with self._turn:
            answer = self._answered(request)
            if self.lost > 0:
                self.lost -= 1
                raise httpx.ReadError("the answer was lost", request=request)
            return answer

    def _answered(self, request: httpx.Request) -> httpx.Response:
        try:
            handler, words = self._route(request)
            self._answers.need_leader()
            said = handler(Asked(request), *words)
        except Refused as wrong:
            return _error(wrong.view)
        except (BadRequest, NotThere) as wrong:
            return _error(ErrorView(wrong.code, wrong.says, wrong.hint))
        except Away:
            return _error(ErrorView("busy", "no orchestrator leads just now", "Try again in a moment."))
        except (msgspec.DecodeError, ValueError) as wrong:
            return _error(ErrorView("bad_request", str(wrong)))
        if isinstance(said, Iterator):
            return httpx.Response(200, stream=_Pieces(said, self._turn, self._answers.need_open))
        content = said if isinstance(said, bytes) else b"" if said is None else msgspec.json.encode(said)
        return httpx.Response(200, stream=httpx.ByteStream(content))

    def _route(self, request: httpx.Request) -> tuple[Callable[..., Any], list[str]]:
        path = request.url.raw_path.decode().partition("?")[0]
        for method, pattern, name in ROUTES:
            if method == request.method and (found := re.fullmatch(pattern, path)):
                return getattr(self._answers, name), [unquote(word) for word in found.groups()]
        raise NotThere(f"there is nothing at {path[:200]}")


class Asked:
    """A request, as far as an answer needs it."""

    def __init__(self, request: httpx.Request) -> None:
        self._request = request

    def body(self, kind: Any) -> Any:
        return msgspec.json.decode(self._request.content, type=kind)

    @property
    def content(self) -> bytes:
        return self._request.content

    def param(self, name: str, usual: str = "") -> str:
        return self._request.url.params.get(name, usual)

    def truth(self, name: str, usual: bool = False) -> bool:
        return self.param(name, str(usual).lower()) == "true"

    def number(self, name: str, usual: int = 0) -> int:
        return int(self.param(name, str(usual)))

    def header(self, name: str) -> str:
        return self._request.headers.get(name, "")


_ID = r"([^/]+)"
ROUTES = [
    ("GET", "/healthz", "healthz"),
    ("GET", "/v1/doctor", "doctor"),
    ("POST", "/v1/jobs", "submit"),
    ("POST", "/v1/jobs/batch", "submit_many"),
    ("GET", "/v1/jobs", "jobs"),
    ("GET", f"/v1/jobs/{_ID}", "job"),
    ("GET", f"/v1/jobs/{_ID}/explain", "explain"),
    ("POST", f"/v1/jobs/{_ID}/stop", "stop"),
    ("POST", f"/v1/jobs/{_ID}/rerun", "rerun"),
    ("POST", f"/v1/jobs/{_ID}/move", "move"),
    ("POST", f"/v1/jobs/{_ID}/received", "received"),
    ("GET", f"/v1/jobs/{_ID}/output/{_ID}/{_ID}", "output"),
    ("GET", f"/v1/jobs/{_ID}/logs", "logs"),
    ("POST", "/v1/check", "check"),
    ("POST", "/v1/check/watch", "watch_check"),
    ("GET", "/v1/estimates", "estimates"),
    ("POST", "/v1/arrays", "submit_array"),
    ("GET", f"/v1/arrays/{_ID}", "array"),
    ("POST", f"/v1/arrays/{_ID}/stop", "stop_array"),
    ("POST", f"/v1/arrays/{_ID}/retry", "retry_array"),
    ("GET", "/v1/nodes", "nodes"),
    ("GET", f"/v1/nodes/{_ID}", "node"),
    ("POST", f"/v1/nodes/{_ID}/drain", "drain"),
    ("GET", "/v1/events", "events"),
    ("POST", "/v1/blobs/missing", "missing"),
    ("POST", "/v1/blobs/links", "places"),
    ("PUT", f"/blobs/{_ID}", "put_blob"),
    ("GET", f"/blobs/{_ID}", "get_blob"),
    ("POST", "/v1/manifests", "take"),
    ("GET", f"/v1/manifests/{_ID}", "manifest"),
    ("POST", f"/v1/manifests/{_ID}/links", "links"),
    ("POST", "/v1/tokens", "make_token"),
    ("GET", "/v1/tokens", "tokens"),
    ("DELETE", f"/v1/tokens/{_ID}", "revoke_token"),
]


class _Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream, made as it is read: whoever waits for its next piece lets virtual time pass."""

    def __init__(self, pieces: Iterator[bytes], turn: RLock, need_open: Callable[[], None]) -> None:
        self._pieces = pieces
        self._turn = turn
        self._need_open = need_open

    def _next(self) -> bytes | None:
        with self._turn:
            self._need_open()
            return next(self._pieces, None)

    def __iter__(self) -> Iterator[bytes]:
        while (piece := self._next()) is not None:
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := self._next()) is not None:
            yield piece


def _error(view: ErrorView) -> httpx.Response:
    return httpx.Response(STATUS.get(view.code, 400), content=msgspec.json.encode(view))


def need(answer: Any) -> None:
    """Raise where the kernel said no."""
    if isinstance(answer, Rejected):
        raise Refused(error_of(answer))
