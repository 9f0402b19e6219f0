"""The arguments and answers of an API handler. Knows neither HTTP servers nor frameworks."""

from collections.abc import AsyncGenerator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.model import Job
from holdfast.orchestrator.api.job_requests import checked_owner

if TYPE_CHECKING:
    from holdfast.orchestrator.api.context import ApiContext

ADMIN = "admin"
"""The owner of jobs that are submitted without another owner."""
OWNER_HEADER = "x-holdfast-owner"
"""The owner that the admin acts for: submits as that owner, and sees what that owner sees."""
KEY_HEADER = "idempotency-key"
EVENTS_TYPE = "text/event-stream"
NO_STORE = {"Cache-Control": "no-store"}
STREAM_HEADERS = {**NO_STORE, "X-Accel-Buffering": "no"}


class Scope(Enum):
    """The permission that a route needs."""

    OPEN = "open"
    """None: no token is needed."""
    READ = "read"
    SUBMIT = "submit"
    """Send, stop and move jobs, and send their files."""
    OPERATE = "operate"
    """Nodes and join tokens."""


ALL_SCOPES = frozenset(Scope)
NO_SCOPES: frozenset[Scope] = frozenset()


class Principal(msgspec.Struct, frozen=True):
    """Who calls, and what they may do."""

    scopes: frozenset[Scope]
    acts_for: str | None = None
    """The owner named by the caller; not yet validated."""

    @property
    def sees(self) -> str | None:
        """The owner whose jobs the caller sees; None: all owners. Raises ApiError if the name is invalid."""
        return None if self.acts_for is None else checked_owner(self.acts_for)

    @property
    def name(self) -> str:
        """The owner of submitted jobs, the name recorded with requests, and the owner whose jobs a name refers to."""
        return self.sees or ADMIN


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

    async def job(self, named: str, *, live: bool = False) -> Job:
        """The job that the caller means. See `Queries.job`."""
        return await self.context.queries.job(named, self.principal.sees, self.principal.name, live=live)


class Reply(msgspec.Struct, frozen=True):
    """An answer that is not a type of `wire/http.py`."""

    content: bytes
    media_type: str
    headers: Mapping[str, str] = {}
    status: int = 200


class EventStream(msgspec.Struct, frozen=True):
    """An answer that is sent piece by piece. See `orchestrator/api/streams.py`."""

    pieces: AsyncGenerator[bytes, None]
