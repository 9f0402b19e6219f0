"""The HTTP API for nodes' files: only content of the attempts that a session holds. The session's key identifies the
caller; the kernel decides what counts.

    POST /node/v1/attempts/{attempt}/missing          BlobsRequest -> Missing
    POST /node/v1/attempts/{attempt}/links            BlobsRequest -> Urls
    POST /node/v1/attempts/{attempt}/manifests        TakeRequest -> ManifestView
    GET  /node/v1/attempts/{attempt}/manifests/{name} -> bytes         only manifests that the attempt was given
    POST /node/v1/attempts/{attempt}/manifests/{name}/links   LinksRequest -> Urls
    POST /node/v1/attempts/{attempt}/checkpoint       TakeRequest -> SavedView
    POST /node/v1/attempts/{attempt}/inputs/{name}/link       -> Urls      of an input in S3, by the input's name

Every call names the attempt's fence as `?fence=`.
"""

from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get, post
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers, State
from litestar.types import ASGIApp, Receive, Scope, Send

from holdfast.blobs.errors import ManifestRefused, ManifestTooLarge
from holdfast.blobs.store import Accepted
from holdfast.kernel.decision import Rejected
from holdfast.kernel.events import Checkpointed, ContentDelivered, DeliveryRefused
from holdfast.model import Attempt, AttemptId, Job, job_of
from holdfast.orchestrator.api.app import JsonRequest, raw, turn_away, worded
from holdfast.orchestrator.api.content import blobs_of, manifest_answer, name_of, taken_view
from holdfast.orchestrator.api_error import ApiError, Unavailable
from holdfast.orchestrator.connections.recognition import recognized
from holdfast.orchestrator.content.s3_inputs import SCHEME
from holdfast.orchestrator.content.service import ContentService
from holdfast.orchestrator.content.uploaders import Uploader, attempt_uploader
from holdfast.orchestrator.leader.loop import Leader
from holdfast.orchestrator.nodes.sessions import Session, Sessions
from holdfast.orchestrator.queries import Queries
from holdfast.wire.files import BlobsRequest, LinksRequest, ManifestView, Missing, SavedView, TakeRequest, Urls

NODE_BODY_BYTES_MAX = 1024 * 1024
"""Size limit of a request body: more than twice what a full list of blobs takes."""
SESSION, VISIT = "holdfast.session", "holdfast.visit"
"""Keys in the ASGI scope."""


class NodeFilesApi(msgspec.Struct):
    """What the routes use."""

    leader: Leader
    sessions: Sessions
    queries: Queries
    content: ContentService


class Visit(msgspec.Struct, frozen=True):
    """An authorized request about an attempt."""

    door: NodeFilesApi
    session: Session
    attempt: Attempt
    job: Job

    @property
    def uploader(self) -> Uploader:
        return attempt_uploader(self.attempt, self.job.spec.need.resources.disk_mib)

    @property
    def given(self) -> set[str]:
        """The manifests that the attempt was told to use."""
        spec, resumed = self.job.spec, self.attempt.resumed
        named = {spec.package, *(item.manifest for item in spec.inputs)}
        return (named | ({resumed.manifest} if resumed is not None else set[str]())) - {""}

    @property
    def known(self) -> set[str]:
        """The manifests whose content the attempt may name: what it was given, and what it delivered."""
        saved = self.job.checkpoint.line if self.job.checkpoint is not None else ()
        own = {checkpoint.manifest for checkpoint in saved if checkpoint.attempt == self.attempt.id}
        return self.given | own | set(self.attempt.delivered)

    def readable(self, name: str) -> bool:
        return name in self.given


class SessionGuard:
    """Rejects a request without the key of a session, whatever its path. Reads no body."""

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                scope[SESSION] = self._session(Headers.from_scope(scope))  # pyright: ignore[reportGeneralTypeIssues]
                recognized(scope)
            except ApiError as wrong:
                await turn_away(wrong, send)
                return
        await self._app(scope, receive, send)

    def _session(self, headers: Headers) -> Session:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        session = self._sessions.of_bulk_key(key.strip()) if scheme.lower() == "bearer" else None
        if session is None or not session.welcome:
            raise ApiError("not_allowed", "no session has this key", "The next session brings another.")
        return session


async def authorize(connection: ASGIConnection[Any, Any, Any, Any], _: object) -> None:
    """Checks that the session, the attempt and its fence match, before the body is read. Raises ApiError if they do
    not."""
    door: NodeFilesApi = connection.app.state.door
    session: Session = connection.scope[SESSION]  # pyright: ignore[reportGeneralTypeIssues]
    attempt = str(connection.path_params["attempt"])
    fence = connection.query_params.get("fence", "")
    found, job = await door.queries.ask(_held, door.queries, attempt)
    if found is None or job is None or str(found.fence) != fence or found.node != session.node or not found.live:
        raise ApiError("not_found", f"{attempt[:64]} is not held by this node under fence {fence[:32]}")
    if found.revoked is not None:
        raise ApiError("revoked", f"{attempt} was revoked: {found.revoked.detail}")
    visit = Visit(door, session, found, job)
    connection.scope[VISIT] = visit  # pyright: ignore[reportGeneralTypeIssues]


def visit(request: Request[Any, Any, Any]) -> Visit:
    return request.scope[VISIT]  # pyright: ignore[reportGeneralTypeIssues]


def _held(queries: Queries, attempt: str) -> tuple[Attempt | None, Job | None]:
    job = job_of(AttemptId(attempt)) if attempt.startswith("att_") and len(attempt) < 64 else ""
    if not job:
        return None, None
    found = next((a for a in queries.store.attempts(job) if a.id == attempt), None)
    return found, queries.store.job(job)


@post("/node/v1/attempts/{attempt:str}/missing", status_code=200)
async def missing(attempt: str, data: BlobsRequest, request: Request) -> Missing:
    guest = visit(request)
    blobs = blobs_of(data.blobs, guest.uploader)
    return Missing(await guest.door.content.missing(guest.job.owner, guest.uploader, blobs, guest.known))


@post("/node/v1/attempts/{attempt:str}/links", status_code=200)
async def places(attempt: str, data: BlobsRequest, request: Request) -> Urls:
    guest = visit(request)
    return Urls(await guest.door.content.places(guest.uploader, blobs_of(data.blobs, guest.uploader)))


@post("/node/v1/attempts/{attempt:str}/manifests", status_code=200)
async def take(attempt: str, data: TakeRequest, request: Request) -> ManifestView:
    """Accepts the uploaded content; then a result of this attempt may name it."""
    guest = visit(request)
    name = name_of(data.manifest)
    accepted = await _taken(guest, name)
    if not accepted.missing:
        await _committed(guest, name, ContentDelivered(guest.attempt.id, guest.attempt.fence, name))
    return taken_view(name, accepted)


@get("/node/v1/attempts/{attempt:str}/manifests/{name:str}")
async def manifest(attempt: str, name: str, request: Request) -> Response[bytes]:
    guest = visit(request)
    found = await guest.door.content.manifest(guest.job.owner, _readable(guest, name))
    return raw(manifest_answer(found))


@post("/node/v1/attempts/{attempt:str}/manifests/{name:str}/links", status_code=200)
async def links(attempt: str, name: str, data: LinksRequest, request: Request) -> Urls:
    guest = visit(request)
    return Urls(await guest.door.content.links(guest.job.owner, _readable(guest, name), data.blobs))


@post("/node/v1/attempts/{attempt:str}/checkpoint", status_code=200)
async def checkpoint(attempt: str, data: TakeRequest, request: Request) -> SavedView:
    """Accepts the uploaded content first; then it may become the job's checkpoint."""
    guest = visit(request)
    name = name_of(data.manifest)
    accepted = await _taken(guest, name)
    if accepted.missing:
        raise ApiError("incomplete", f"{len(accepted.missing)} blobs of the checkpoint are not there")
    event = Checkpointed(guest.attempt.id, guest.attempt.fence, name, accepted.manifest.total_bytes)
    return SavedView(await _committed(guest, name, event))


async def _committed(guest: Visit, name: str, event: Checkpointed | ContentDelivered) -> str:
    """Commit a row that names the manifest. Returns what the kernel says."""
    if not guest.door.content.may_name(guest.job.owner, [name]):
        raise Unavailable("busy", "this orchestrator has only just begun to lead; nothing was done")
    answer = await guest.door.leader.ask(event)
    if isinstance(answer, Rejected):
        raise ApiError(answer.code, answer.says)
    return getattr(answer, "says", "")


@post("/node/v1/attempts/{attempt:str}/inputs/{name:str}/link", status_code=200)
async def input_link(attempt: str, name: str, request: Request) -> Response[bytes]:
    """A URL from which this attempt can fetch an input in S3 for a few minutes. It is signed now and stored nowhere."""
    guest = visit(request)
    item = next((item for item in guest.job.spec.inputs if item.name == name), None)
    if item is None or not item.url.startswith(SCHEME):
        raise ApiError("not_found", f"{guest.attempt.id} has no input {name[:64]!r} in S3")
    found = Urls({name: await guest.door.content.inputs.address(item.url)})
    return Response(msgspec.json.encode(found), media_type="application/json", headers={"Cache-Control": "no-store"})


async def _taken(guest: Visit, name: str) -> Accepted:
    """Accept what the attempt sent. A manifest that no node makes by mistake ends the attempt, and counts against its
    node. One that is only too large does not: a body may make more files than its node expected."""
    try:
        return await guest.door.content.take(guest.job.owner, guest.uploader, name, guest.known)
    except ManifestTooLarge:
        raise
    except ManifestRefused as refused:
        guest.door.leader.tell(DeliveryRefused(guest.attempt.id, guest.attempt.fence, refused.says))
        raise


def _readable(guest: Visit, name: str) -> str:
    if not guest.readable(name_of(name)):
        raise ApiError("not_found", f"{guest.attempt.id} was not told to use manifest {name[:64]}")
    return name


def make_data_app(door: NodeFilesApi) -> SessionGuard:
    app = Litestar(
        route_handlers=[missing, places, take, manifest, links, checkpoint, input_link],
        state=State({"door": door}),
        guards=[authorize],
        exception_handlers={Exception: worded},
        request_class=JsonRequest,
        request_max_body_size=NODE_BODY_BYTES_MAX,
        openapi_config=None,
        logging_config=None,
        debug=False,
    )
    return SessionGuard(app, door.sessions)
