"""The arguments and answers of an API handler. Knows neither HTTP servers nor frameworks."""

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.model import AccessId, Job, Node, Role
from holdfast.orchestrator.api_error import Unavailable

if TYPE_CHECKING:
    from holdfast.orchestrator.api.context import ApiContext

ADMIN = "admin"
"""The owner of jobs that are submitted without another owner."""
OWNER_HEADER = "x-holdfast-owner"
"""The owner that a network operator acts for, in the role of a user: submits as that owner, and sees what that owner
sees."""
KEY_HEADER = "idempotency-key"
EVENTS_TYPE = "text/event-stream"
NO_STORE = {"Cache-Control": "no-store"}
STREAM_HEADERS = {**NO_STORE, "X-Accel-Buffering": "no"}


class Principal(msgspec.Struct, frozen=True):
    """Who calls, and what they may see."""

    role: Role | None = None
    """None: a caller without a token, which may use open routes only."""
    name: str = ADMIN
    """The owner of submitted jobs, the name recorded with requests, and the owner whose jobs a name refers to."""
    sees: str | None = None
    """The owner whose jobs the caller sees; None: all owners."""
    access: AccessId | None = None
    """The access token that was presented; None: the admin token."""

    @property
    def operates(self) -> str | None:
        """The operator whose nodes and join tokens the caller sees; None: all of them."""
        return self.name if self.role is Role.NODE_OPERATOR else None


class Headers(Protocol):
    """Headers by case-insensitive name."""

    def get(self, key: str, /) -> str | None: ...


class ApiCall(msgspec.Struct, frozen=True):
    """What a handler needs of a request besides its parameters."""

    context: "ApiContext"
    principal: Principal
    headers: Headers

    def header(self, name: str) -> str:
        """Empty if there is none."""
        return self.headers.get(name) or ""

    @property
    def key(self) -> str:
        """The idempotency key of the request; empty: none was given."""
        return self.header(KEY_HEADER)

    def still_allowed(self) -> bool:
        """Whether the token that was presented is still valid."""
        id = self.principal.access
        if id is None:
            return True
        try:
            return self.context.access.valid(id) is not None
        except Unavailable:
            return False

    async def job(self, named: str, *, live: bool = False) -> Job:
        """The job that the caller means. See `Queries.job`."""
        return await self.context.queries.job(named, self.principal.sees, self.principal.name, live=live)

    async def node(self, named: str) -> Node:
        """The node that the caller means. See `Queries.node`."""
        return await self.context.queries.node(named, self.principal.operates)


class Reply(msgspec.Struct, frozen=True):
    """An answer that is not a type of `wire/http.py`."""

    content: bytes
    media_type: str
    headers: Mapping[str, str] = {}
    status: int = 200


class EventStream(msgspec.Struct, frozen=True):
    """An answer that is sent piece by piece. See `orchestrator/api/streams.py`."""

    pieces: AsyncGenerator[bytes, None]
