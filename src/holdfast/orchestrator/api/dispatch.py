"""Answers a request from the table of routes, without a framework: for `holdfast.testing.Network`, and for checks that
run before any handler. Reads requests in the same way as Litestar.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from holdfast.blobs.errors import BlobError
from holdfast.orchestrator.api.call import STREAM_HEADERS, ApiCall, EventStream, Headers, Principal, Reply
from holdfast.orchestrator.api.context import ApiContext
from holdfast.orchestrator.api.routes import ROUTES, Route
from holdfast.orchestrator.api.streams import while_allowed
from holdfast.orchestrator.api_error import ApiError

JSON_TYPE = "application/json"
TOO_DEEP = "data: the body is nested too deeply"
_AT = re.compile(r"`\$\.(.+)`$")
"""The place in the body where msgspec found a fault."""


class ApiRequest(msgspec.Struct, frozen=True):
    method: str
    path: str
    query: str
    headers: Headers
    body: bytes


class ApiResponse(msgspec.Struct, frozen=True):
    status: int
    media_type: str
    headers: Mapping[str, str]
    body: bytes | EventStream

    @property
    def content_type(self) -> str:
        return f"{self.media_type}; charset=utf-8" if self.media_type.startswith("text/") else self.media_type


def allowed(route: Route, principal: Principal) -> None:
    """Raises ApiError if the caller may not use the route."""
    if route.roles and principal.role not in route.roles:
        needed = " or ".join(sorted(route.roles))
        raise ApiError("forbidden", f"this needs the role {needed}; the caller is {principal.role or 'nobody'}")


def refused(error: Exception) -> ApiError | None:
    """The answer for an expected error; None for an unexpected one."""
    match error:
        case ApiError():
            return error
        case BlobError():
            return ApiError(error.code, error.says, error.hint)
        case _:
            return None


async def answered(context: ApiContext, principal: Principal, request: ApiRequest) -> ApiResponse:
    """The answer to a request. Raises only unexpected errors."""
    try:
        route, words = found(request.method, request.path)
        allowed(route, principal)
        parameters = read(route, words, request)
        call = ApiCall(context, principal, request.headers)
        return _response(route, await answer_of(route, call, parameters))
    except Exception as wrong:
        error = refused(wrong)
        if error is None:
            raise
        return response_to(error)


async def answer_of(route: Route, call: ApiCall, parameters: Mapping[str, Any]) -> Any:
    """What the handler answers. A stream ends with the token of its reader."""
    said = await route.handler(call, **parameters)
    return EventStream(while_allowed(said.pieces, call.still_allowed)) if isinstance(said, EventStream) else said


def response_to(error: ApiError) -> ApiResponse:
    return ApiResponse(error.status, JSON_TYPE, error.headers, msgspec.json.encode(error.told))


def _response(route: Route, said: Any) -> ApiResponse:
    match said:
        case Reply():
            return ApiResponse(said.status, said.media_type, said.headers, said.content)
        case EventStream():
            return ApiResponse(route.status, route.media_type or "", STREAM_HEADERS, said)
        case bytes():
            return ApiResponse(route.status, route.media_type or JSON_TYPE, {}, said)
        case _:
            body = b"" if said is None else msgspec.json.encode(said)
            return ApiResponse(route.status, route.media_type or JSON_TYPE, {}, body)


# --- finding a route ---


@cache
def _patterns() -> list[tuple[re.Pattern[str], dict[str, Route]]]:
    """Literal paths come before paths with parameters."""
    methods: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        methods.setdefault(route.path, {})[route.method] = route
    ordered = sorted(methods, key=lambda path: path.count("{"))
    return [(re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)), methods[path]) for path in ordered]


def found(method: str, path: str) -> tuple[Route, dict[str, str]]:
    """The route and its path parameters. Raises ApiError if there is none."""
    plain = re.sub("/+", "/", path).rstrip("/")
    for pattern, methods in _patterns():
        if words := pattern.fullmatch(plain):
            if method not in methods:
                raise ApiError("method_not_allowed", f"{path} does not take {method}")
            return methods[method], words.groupdict()
    raise ApiError("not_found", f"there is nothing at {path[:200]}")


# --- reading a request ---


def read(route: Route, words: Mapping[str, str], request: ApiRequest) -> dict[str, Any]:
    """The parameters of the handler. Raises an ApiError that names every invalid one."""
    query = dict(parse_qsl(request.query, keep_blank_values=True))
    values: dict[str, Any] = {}
    faults: list[str] = []
    for name, parameter in route.parameters.items():
        try:
            if name == "data":
                values[name] = _converted(_body(route, request.body), parameter.kind)
            elif name in words:
                values[name] = words[name]
            elif name in query:
                values[name] = _converted(query[name], parameter.kind)
            elif parameter.required:
                raise ApiError("bad_request", f"the query parameter {name!r} is missing")
        except msgspec.ValidationError as wrong:
            faults.append(_fault(name, str(wrong)))
    if faults:
        raise ApiError("bad_request", "; ".join(faults))
    return values


def _converted(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, strict=False, str_keys=True)


def _body(route: Route, body: bytes) -> Any:
    if len(body) > route.body_bytes_max:
        raise body_too_large(route.body_bytes_max)
    if not body:
        raise ApiError("bad_request", "data: 'data'")
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as wrong:
        raise ApiError("bad_request", str(wrong)) from None
    except RecursionError:
        raise ApiError("bad_request", TOO_DEEP) from None


def _fault(name: str, says: str) -> str:
    at = _AT.search(says)
    key = name if at is None else at[1] if name == "data" else f"{name}.{at[1]}"
    return f"{key}: {says.split(' - ', maxsplit=1)[0]}"


def body_too_large(bytes_max: int) -> ApiError:
    return ApiError("too_large", f"the body is larger than {bytes_max} bytes", "Send less at a time.")
