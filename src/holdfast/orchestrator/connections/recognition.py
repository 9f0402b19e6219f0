"""Lets an application say that the caller of a request is known. Knows nothing about how that was found out."""

from typing import Any, Protocol

from litestar.types import Scope

from holdfast.orchestrator.api_error import Unavailable

CONNECTION = "holdfast.connection"
"""Key in the ASGI scope under which the HTTP server puts the connection."""


class Recognizable(Protocol):
    def recognize(self) -> bool:
        """False: there are too many known connections of this address."""
        ...


def recognized(scope: Scope) -> None:
    """The request showed a valid token, key or signature. Raises Unavailable if its address has too many connections
    already."""
    fields: dict[str, Any] = scope  # pyright: ignore[reportAssignmentType]
    connection: Recognizable | None = fields.get(CONNECTION)
    if connection is not None and not connection.recognize():
        raise Unavailable("busy", "there are too many connections from this address; nothing was done")
