"""Says who calls, by the token that they send, and turns away whoever needs one and has none. Reads no body, and knows
no web framework.
"""

from collections.abc import Iterable, Mapping

from holdfast.identity.admin import AdminToken
from holdfast.orchestrator.api.call import ALL_SCOPES, NO_SCOPES, OWNER_HEADER, Headers, Principal, Scope
from holdfast.orchestrator.api.routes import Route
from holdfast.orchestrator.api_error import ApiError

TOKEN_HEADER = "authorization"


class TurnedAway(ApiError):
    """The admin token is missing or wrong."""

    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}

    def __init__(self) -> None:
        super().__init__(
            "not_allowed",
            "the admin token is missing or wrong",
            "It is the text of admin.token in the orchestrator's folder. Commands take it from --token-file FILE; "
            "over HTTP, send `Authorization: Bearer <token>`.",
        )


class Authentication:
    def __init__(self, token: AdminToken) -> None:
        self._token = token

    def principal(self, path: str, headers: Headers, routes: Iterable[Route]) -> Principal:
        """Raises TurnedAway, whether or not there is anything at the path."""
        scopes = self._scopes(headers.get(TOKEN_HEADER) or "")
        if not scopes and not any(one.path == path and one.scope is Scope.OPEN for one in routes):
            raise TurnedAway
        return Principal(scopes, headers.get(OWNER_HEADER))

    def _scopes(self, sent: str) -> frozenset[Scope]:
        """What the token that was sent allows; there is one, and it allows everything."""
        scheme, _, presented = sent.partition(" ")
        known = scheme.lower() == "bearer" and self._token.matches(presented.strip())
        return ALL_SCOPES if known else NO_SCOPES
