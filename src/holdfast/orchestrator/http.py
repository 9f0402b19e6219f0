"""The door for people: the HTTP API as `wire/http.py` states it. It checks who asks and words the errors.

Everything shown is committed: reads come from the store, and what changes something is answered after its commit.
"""

import logging
from typing import Annotated, Any

import msgspec
from litestar import Litestar, Request, Response, get, post
from litestar.datastructures import State
from litestar.exceptions import (
    ClientException,
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import Parameter
from litestar.response import Stream
from litestar.types import ASGIApp, Receive, Scope, Send

import holdfast
from holdfast.blobs.errors import BlobError
from holdfast.codes import what_to_do
from holdfast.identity.admin import AdminToken
from holdfast.kernel.decision import Rejected
from holdfast.kernel.events import DrainAsked
from holdfast.model import Entry, Node
from holdfast.orchestrator import streams
from holdfast.orchestrator.asked import BadRequest
from holdfast.orchestrator.doctor import examine
from holdfast.orchestrator.front import HINTS, STATUS, Front, Refused, acting_for, error_of
from holdfast.orchestrator.http_arrays import ROUTES as ARRAY_ROUTES
from holdfast.orchestrator.http_check import ROUTES as CHECK_ROUTES
from holdfast.orchestrator.http_content import ROUTES as CONTENT_ROUTES
from holdfast.orchestrator.http_jobs import ROUTES
from holdfast.orchestrator.http_tokens import ROUTES as TOKEN_ROUTES
from holdfast.orchestrator.loop import Unavailable
from holdfast.orchestrator.reading import NotFound
from holdfast.orchestrator.views import node_view
from holdfast.state import StoreError
from holdfast.wire.http import DoctorView, ErrorView, NodeView

log = logging.getLogger("holdfast.http")

BODY_BYTES_MAX = 16 * 1024 * 1024
"""A full batch of ordinary jobs takes a tenth of this."""
OPEN_PATHS = frozenset({"/healthz"})
STREAM_TYPE = "text/event-stream"
TAIL_MAX = 1_000


# --- nodes ---


@get("/v1/nodes")
async def list_nodes(state: State) -> list[NodeView]:
    front: Front = state.front
    return [_node(front, node) for node in await front.reading.nodes()]


@get("/v1/nodes/{node:str}")
async def show_node(node: str, state: State) -> NodeView:
    front: Front = state.front
    found = await front.reading.node(node)
    return _node(front, found, await front.reading.recent_of_node(found.id))


@post("/v1/nodes/{node:str}/drain", status_code=200)
async def drain_node(node: str, request: Request, state: State, on: bool = True) -> NodeView:
    front: Front = state.front
    found = await front.reading.node(node)
    answer = await front.leader.ask(DrainAsked(found.id, on, by=acting_for(request) or "admin"))
    if isinstance(answer, Rejected):
        raise Refused(error_of(answer))
    return _node(front, await front.reading.node(found.id))


def _node(front: Front, node: Node, events: list[Entry] | None = None) -> NodeView:
    fleet = front.fleet
    held, load, silent_ms = fleet.held_by(node.id), fleet.load_of(node.id), fleet.silent_ms(node.id)
    return node_view(node, held, fleet.is_connected(node.id), load, events or [], silent_ms)


# --- streams ---


@get("/v1/events", media_type=STREAM_TYPE)
async def follow_events(
    request: Request,
    state: State,
    after: int = 0,
    job: str | None = None,
    node: str | None = None,
    follow: bool = False,
    tail: Annotated[int | None, Parameter(ge=0, le=TAIL_MAX)] = None,
) -> Stream:
    front: Front = state.front
    owner = acting_for(request)
    if tail is not None:
        after = max(after, await front.reading.ask(front.reading.store.last_seq) - tail)
    last = request.headers.get("last-event-id")
    if last is not None:
        if not last.isascii() or not last.isdigit() or len(last) > 18:
            raise BadRequest("Last-Event-ID is not one that this stream gave out", code="bad_cursor")
        after = int(last)
    job_id = (await front.reading.job(job, owner)).id if job else None
    node_id = (await front.reading.node(node)).id if node else None
    owners: dict[str, str] = {}

    async def shown(entry: Entry) -> bool:
        """The admin sees all; who acts for an owner sees nothing of other owners' jobs."""
        if owner is None or entry.job is None:
            return True
        if entry.job not in owners:
            found = await front.reading.known_jobs([entry.job])
            owners[entry.job] = found[entry.job].owner if entry.job in found else ""
        return owners[entry.job] == owner

    return _stream(
        streams.events(front.reading, front.bells, front.stopping, max(0, after), job_id, node_id, follow, shown)
    )


@get("/v1/jobs/{job:str}/logs", media_type=STREAM_TYPE)
async def follow_logs(job: str, request: Request, state: State, stream: str = "both", follow: bool = False) -> Stream:
    front: Front = state.front
    chosen = {"both": ("stdout", "stderr"), "stdout": ("stdout",), "stderr": ("stderr",)}.get(stream)
    if chosen is None:
        raise BadRequest(f"stream is {stream[:60]!r}; it can be stdout, stderr or both")
    cursor = streams.Cursor(request.headers.get("last-event-id", ""))
    found = await front.reading.job(job, acting_for(request))
    story = streams.JobLog(front.reading, front.logs, front.shelf, front.bells, found.id, chosen, cursor)
    return _stream(story.follow(front.stopping, follow))


def _stream(content: Any) -> Stream:
    return Stream(content, media_type=STREAM_TYPE, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


# --- the orchestrator itself ---


@get("/v1/doctor")
async def doctor(state: State) -> DoctorView:
    front: Front = state.front
    return await examine(front.leader, front.reading, front.data)


@get("/healthz", media_type="application/json")
async def healthz(state: State) -> Response[bytes]:
    """200 while it leads, else 503 and why. Names no job, node or address, for it needs no token."""
    leader = state.front.leader
    says = "leading" if not leader.trouble else "not leading: the store cannot be used, or this is just starting"
    body = {"ok": not leader.trouble, "epoch": leader.epoch, "says": says}
    return Response(msgspec.json.encode(body), status_code=503 if leader.trouble else 200)


@get("/metrics", media_type="text/plain; version=0.0.4")
async def metrics(state: State) -> bytes:
    return state.front.metrics.text()


# --- errors ---


def _error(view: ErrorView, retry_after_s: int | None = None, status: int | None = None) -> Response[bytes]:
    code = status or STATUS.get(view.code, 400)
    if not view.hint:
        view = msgspec.structs.replace(view, hint=what_to_do(view.code))
    if retry_after_s is None and code in (429, 503):
        retry_after_s = 1
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return Response(msgspec.json.encode(view), status_code=code, headers=headers, media_type="application/json")


def worded(request: Request, error: Exception) -> Response[bytes]:
    match error:
        case Refused():
            return _error(error.view)
        case BadRequest() | NotFound():
            return _error(ErrorView(error.code, error.says, error.hint))
        case Unavailable():
            return _error(ErrorView(error.code, error.says, HINTS.get(error.code, "")), error.retry_after_s)
        case BlobError():
            return _error(ErrorView(error.code, error.says, error.hint), status=None if error.code in STATUS else 400)
        case StoreError():
            return _error(ErrorView("store_unavailable", error.says, error.hint))
        case ValidationException():
            return _error(ErrorView("bad_request", _what_is_wrong(error)))
        case MethodNotAllowedException():
            return _error(ErrorView("method_not_allowed", f"{request.url.path} does not take {request.method}"))
        case NotFoundException():
            return _error(ErrorView("not_found", f"there is nothing at {request.url.path[:200]}"))
        case HTTPException() if error.status_code == 413:
            return _error(
                ErrorView("too_large", f"the body is larger than {BODY_BYTES_MAX} bytes", "Send less at a time.")
            )
        case ClientException() | HTTPException() if error.status_code < 500:
            return _error(
                ErrorView("bad_request", error.detail or "the request makes no sense"), status=error.status_code
            )
        case _:
            log.error("%s %s failed", request.method, request.url.path, exc_info=error)
            return _error(ErrorView("internal", "the orchestrator failed on this request", "Its log says more."))


def _what_is_wrong(error: ValidationException) -> str:
    """Each fault with its field, in one line."""
    faults = error.extra if isinstance(error.extra, list) else []
    lines = [
        f"{fault.get('key', '')}: {fault.get('message', '')}".strip(": ") for fault in faults if isinstance(fault, dict)
    ]
    return "; ".join(filter(None, lines)) or "the request does not have the shape it should have"


# --- the whole ---


class Guard:
    """Lets nobody but the holder of the admin token through, whatever the path."""

    def __init__(self, app: ASGIApp, token: AdminToken) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._allowed(scope):
            view = ErrorView(
                "not_allowed",
                "the admin token is missing or wrong",
                "It is the text of admin.token in the orchestrator's folder. Commands take it from --token-file FILE; "
                "over HTTP, send `Authorization: Bearer <token>`.",
            )
            body = msgspec.json.encode(view)
            headers = [
                (b"content-type", b"application/json"),
                (b"www-authenticate", b"Bearer"),
                (b"content-length", str(len(body)).encode()),
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})  # pyright: ignore
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:  # pyright: ignore[reportTypedDictNotRequiredAccess]
            if name == b"authorization":
                scheme, _, presented = value.decode("latin-1").partition(" ")
                return scheme.lower() == "bearer" and self._token.matches(presented.strip())
        return False


def make_app(front: Front, token: AdminToken) -> Guard:
    app = Litestar(
        route_handlers=[
            *ROUTES, *CHECK_ROUTES, *ARRAY_ROUTES, *CONTENT_ROUTES, *TOKEN_ROUTES, list_nodes, show_node,
            drain_node, follow_events, follow_logs, doctor, healthz, metrics,
        ],
        state=State({"front": front}),
        exception_handlers={Exception: worded},
        request_max_body_size=BODY_BYTES_MAX,
        openapi_config=OpenAPIConfig(
            title="Holdfast",
            version=holdfast.__version__,
            description="Runs work on machines nobody controls, and gets it finished.",
            components=Components(security_schemes={"admin": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"admin": []}],
        ),
        logging_config=None,
        debug=False,
    )  # fmt: skip
    return Guard(app, token)
