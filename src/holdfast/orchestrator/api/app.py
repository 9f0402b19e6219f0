"""Serves the table of routes with Litestar. Reads requests, authenticates the caller, formats errors, and writes the
OpenAPI document; the handlers make the answers.
"""

import inspect
import logging
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from litestar import HttpMethod, Litestar, Request, Response
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers, State
from litestar.exceptions import (
    ClientException,
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from litestar.handlers import HTTPRouteHandler, route
from litestar.openapi import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import Parameter
from litestar.response import Stream
from litestar.types import ASGIApp, Receive, Send
from litestar.types import Scope as AsgiScope

import holdfast
from holdfast import codes
from holdfast.identity.admin import AdminToken
from holdfast.identity.tokens import redacted
from holdfast.orchestrator.api.authentication import Authentication, Unauthenticated
from holdfast.orchestrator.api.call import STREAM_HEADERS, ApiCall, EventStream, Principal, Reply
from holdfast.orchestrator.api.context import ApiContext
from holdfast.orchestrator.api.dispatch import (
    JSON_TYPE,
    TOO_DEEP,
    allowed,
    answer_of,
    body_too_large,
    refused,
    response_to,
)
from holdfast.orchestrator.api.routes import BODY_BYTES_MAX, ROUTES, Route
from holdfast.orchestrator.api.service import health
from holdfast.orchestrator.api_error import ApiError, Unavailable
from holdfast.orchestrator.connections.early_answers import EarlyAnswers
from holdfast.orchestrator.connections.recognition import recognized
from holdfast.passing import is_passing
from holdfast.state import StoreError
from holdfast.wire.errors import ErrorView

log = logging.getLogger("holdfast.http")

BEARER = "token"
"""The security scheme of the OpenAPI document: the admin token, or an access token."""
BODY_MAX = "body_bytes_max"
PRINCIPAL = "holdfast.principal"
"""Key in the ASGI scope under which the guard puts the caller."""


# --- mounting ---


def mounted(ours: Route, context: ApiContext) -> HTTPRouteHandler:
    """The Litestar handler for a route. It reads the parameters in the handler's signature."""

    async def may(connection: ASGIConnection[Any, Any, Any, Any], _: object) -> None:
        """Runs before the body is read."""
        allowed(ours, _principal(connection))

    async def run(request: Request[Any, Any, Any], **parameters: Any) -> Any:
        call = ApiCall(context, _principal(request), request.headers)
        return sent(await answer_of(ours, call, parameters), ours)

    kinds = {name: _litestars(one.kind) for name, one in ours.parameters.items()}
    shown = [inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)]
    for name, one in ours.parameters.items():
        shown.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=kinds[name])
        )
    answer = {Reply: Response[bytes], EventStream: Stream}.get(ours.returns, ours.returns)
    run.__signature__ = inspect.Signature(shown, return_annotation=answer)  # pyright: ignore
    run.__annotations__ = {"request": Request, **kinds, "return": answer}
    run.__name__, run.__doc__ = ours.handler.__name__, ours.handler.__doc__
    return route(
        ours.path.replace("}", ":str}"),
        http_method=HttpMethod(ours.method),
        status_code=ours.status,
        media_type=ours.media_type,
        request_max_body_size=ours.body_bytes_max,
        opt={BODY_MAX: ours.body_bytes_max},
        guards=[may],
        # One of these is enough; the word is the role that the token must have. Open routes need none.
        security=[{BEARER: [role.value]} for role in sorted(ours.roles)],
        responses={status: _refusal(found) for status, found in ours.errors.items()},
    )(run)


def _refusal(found: list[str]) -> ResponseSpec:
    """One status in the OpenAPI document, with the codes that have it."""
    says = "; ".join(f"`{code}`: {codes.rows()[code].what}" for code in found)
    return ResponseSpec(ErrorView, generate_examples=False, description=says)


def _principal(connection: ASGIConnection[Any, Any, Any, Any]) -> Principal:
    return connection.scope[PRINCIPAL]  # pyright: ignore[reportGeneralTypeIssues]


def _litestars(kind: Any) -> Any:
    """The type with its bounds in Litestar's form: around the whole type, even if the parameter is optional."""
    several = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    bounded = [one for one in several if get_origin(one) is Annotated]
    if not bounded:
        return kind
    inner, *marks = get_args(bounded[0])
    bounds = {word: value for mark in marks for word in ("ge", "le") if (value := getattr(mark, word)) is not None}
    return Annotated[inner | None if len(several) > 1 else inner, Parameter(**bounds)]


def sent(said: Any, ours: Route) -> Any:
    match said:
        case Reply():
            return raw(said)
        case EventStream():
            return Stream(said.pieces, media_type=ours.media_type, headers=STREAM_HEADERS)
        case _:
            return said


def raw(reply: Reply) -> Response[bytes]:
    return Response(reply.content, status_code=reply.status, media_type=reply.media_type, headers=dict(reply.headers))


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body may be nested more deeply than the decoder can follow."""

    async def json(self) -> Any:
        try:
            return await super().json()
        except RecursionError:
            raise ApiError("bad_request", TOO_DEEP) from None


# --- errors ---


def worded(request: Request[Any, Any, Any], wrong: Exception) -> Response[bytes]:
    error, status = _error(request, wrong), None
    if isinstance(wrong, HTTPException) and error.code == "bad_request" and not isinstance(wrong, ValidationException):
        status = wrong.status_code
    return Response(
        msgspec.json.encode(error.told),
        status_code=status or error.status,
        headers=dict(error.headers),
        media_type=JSON_TYPE,
    )


def _error(request: Request[Any, Any, Any], wrong: Exception) -> ApiError:
    if (error := refused(wrong)) is not None:
        return error
    path = request.url.path
    match wrong:
        case StoreError():
            return ApiError("store_unavailable", wrong.says, wrong.hint)
        case ValidationException():
            return ApiError("bad_request", _what_is_wrong(wrong))
        case MethodNotAllowedException():
            return ApiError("method_not_allowed", f"{path} does not take {request.method}")
        case NotFoundException():
            return ApiError("not_found", f"there is nothing at {path[:200]}")
        case HTTPException() if wrong.status_code == 413:
            return body_too_large(request.route_handler.opt.get(BODY_MAX, BODY_BYTES_MAX))
        case ClientException() | HTTPException() if wrong.status_code < 500:
            return ApiError("bad_request", wrong.detail or "the request is invalid")
        case OSError() if is_passing(wrong):
            log.error("%s %s failed: %s", request.method, redacted(path), wrong)
            return Unavailable("busy", f"the orchestrator's machine lacks something: {wrong.strerror}; nothing is lost")
        case _:
            log.error("%s %s failed", request.method, redacted(path), exc_info=wrong)
            return ApiError("internal", "the orchestrator failed on this request", "Its log says more.")


def _what_is_wrong(error: ValidationException) -> str:
    """All faults with their fields, in one line."""
    faults = error.extra if isinstance(error.extra, list) else []
    lines = [
        f"{fault.get('key', '')}: {fault.get('message', '')}".strip(": ") for fault in faults if isinstance(fault, dict)
    ]
    return "; ".join(filter(None, lines)) or "the request is malformed"


# --- the application ---


class Guard:
    """Authenticates callers, and rejects a request without a valid token, whatever its path, unless the route is open.
    Reads no body."""

    def __init__(self, app: ASGIApp, authentication: Authentication) -> None:
        self._app = app
        self._authentication = authentication

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                principal = self._authentication.principal(scope["path"], Headers.from_scope(scope), ROUTES)
                if principal.role is not None:
                    recognized(scope)
            except ApiError as wrong:
                await turn_away(wrong, send)
                return
            scope[PRINCIPAL] = principal  # pyright: ignore[reportGeneralTypeIssues]
        await self._app(scope, receive, send)


async def turn_away(wrong: ApiError, send: Send) -> None:
    """Answer without having read the body."""
    answer = response_to(wrong)
    assert isinstance(answer.body, bytes)
    told = {"content-type": answer.content_type, "content-length": str(len(answer.body)), **answer.headers}
    headers = [(name.lower().encode(), value.encode()) for name, value in told.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})  # pyright: ignore
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


def early_answers(context: ApiContext) -> EarlyAnswers:
    """What needs neither a body nor a token, as the application would answer it."""
    refusal = response_to(Unauthenticated())
    assert isinstance(refusal.body, bytes)
    return EarlyAnswers(lambda: health(context), (refusal.status, refusal.headers, refusal.body))


def make_app(context: ApiContext, token: AdminToken) -> Guard:
    app = Litestar(
        route_handlers=[mounted(one, context) for one in ROUTES],
        state=State({"context": context}),
        exception_handlers={Exception: worded},
        request_class=JsonRequest,
        request_max_body_size=BODY_BYTES_MAX,
        openapi_config=OpenAPIConfig(
            title="Holdfast",
            version=holdfast.__version__,
            description="Runs work on machines nobody controls, and gets it finished.",
            components=Components(security_schemes={BEARER: SecurityScheme(type="http", scheme="bearer")}),
        ),
        logging_config=None,
        debug=False,
    )
    return Guard(app, Authentication(token, lambda id: context.access.valid(id)))
