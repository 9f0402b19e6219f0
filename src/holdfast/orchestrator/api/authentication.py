"""Authenticates callers by the token in their request. Reads no body, and knows no web framework."""

from collections.abc import Iterable, Mapping

from holdfast.identity.admin import AdminToken
from holdfast.orchestrator.api.call import ALL_SCOPES, NO_SCOPES, OWNER_HEADER, Headers, Principal, Scope
from holdfast.orchestrator.api.routes import Route
from holdfast.orchestrator.api_error import ApiError

TOKEN_HEADER = "authorization"


class Unauthenticated(ApiError):
    """The admin token is missing or wrong."""

    def __init__(self) -> None:
        super().__init__(
            "not_allowed",
            "the admin token is missing or wrong",
            "It is the text of admin.token in the orchestrator's folder. Commands take it from --token-file FILE; "
            "over HTTP, send `Authorization: Bearer <token>`.",
        )

    @property
    def headers(self) -> Mapping[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Authentication:
    def __init__(self, token: AdminToken) -> None:
        self._token = token

    def principal(self, path: str, headers: Headers, routes: Iterable[Route]) -> Principal:
        """Raises Unauthenticated, whether or not the path exists, unless its route is open."""
        scopes = self._scopes(headers.get(TOKEN_HEADER) or "")
        if not scopes and not any(one.path == path and one.scope is Scope.OPEN for one in routes):
            raise Unauthenticated
        return Principal(scopes, headers.get(OWNER_HEADER))

    def _scopes(self, sent: str) -> frozenset[Scope]:
        """The scopes of the presented token. There is only the admin token, which has all scopes."""
        scheme, _, presented = sent.partition(" ")
        known = scheme.lower() == "bearer" and self._token.matches(presented.strip())
        return ALL_SCOPES if known else NO_SCOPES
