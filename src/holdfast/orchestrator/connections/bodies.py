"""Bounds the memory for bodies that are being read. Plain ASGI; stands in front of what reads whole bodies.

Nothing is reserved before the application asks for the body, which it does once the caller is authenticated.
"""

from typing import Any

from litestar.types import ASGIApp, Receive, Scope, Send

from holdfast.orchestrator.api_error import ApiError, Unavailable


class BodyBudget:
    def __init__(self, app: ASGIApp, bytes_max: int) -> None:
        """`bytes_max`: of all bodies together; 0: no limit."""
        self._app = app
        self._bytes_max = bytes_max
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = declared_length(scope) if scope["type"] == "http" else 0
        if not declared:
            await self._app(scope, receive, send)
            return
        reserved, whole = 0, False

        async def bounded() -> Any:
            nonlocal reserved, whole
            if not reserved:
                if 0 < self._bytes_max < self._bytes + declared:
                    raise Unavailable("busy", "too many large requests are being read; nothing was done")
                reserved = declared
                self._bytes += declared
            message: Any = await receive()
            if message["type"] == "http.disconnect" and not whole:
                raise ApiError("bad_request", "the connection ended before the body was complete")
            whole = whole or not message.get("more_body")
            return message

        try:
            await self._app(scope, bounded, send)
        finally:
            self._bytes -= reserved


def declared_length(scope: Scope) -> int:
    """The declared length of the body; 0: there is none. The HTTP server has checked that it is a number."""
    headers: Any = scope["headers"]  # pyright: ignore[reportGeneralTypeIssues]
    return next((int(value) for name, value in headers if name == b"content-length"), 0)
