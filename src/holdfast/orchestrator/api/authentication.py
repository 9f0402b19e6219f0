"""Authenticates callers by the token in their request. Reads no body, and knows no web framework."""

from collections.abc import Callable, Iterable, Mapping

from holdfast.identity import access
from holdfast.identity.admin import AdminToken
from holdfast.model import AccessId, AccessToken, Role
from holdfast.orchestrator.api.call import ADMIN, OWNER_HEADER, Headers, Principal
from holdfast.orchestrator.api.job_requests import checked_owner
from holdfast.orchestrator.api.routes import Route
from holdfast.orchestrator.api_error import ApiError

TOKEN_HEADER = "authorization"


class Unauthenticated(ApiError):
    """No token was presented, or one that is not valid. The answer is the same for both."""

    def __init__(self) -> None:
        super().__init__(
            "not_allowed",
            "the token is missing, wrong, expired or revoked",
            "Commands take a token from --token-file FILE, HOLDFAST_ACCESS_TOKEN or HOLDFAST_ADMIN_TOKEN; over HTTP, "
            "send `Authorization: Bearer <token>`. The admin token is the text of admin.token in the orchestrator's "
            "folder; `holdfast access new` makes others.",
        )

    @property
    def headers(self) -> Mapping[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Authentication:
    """`valid`: the access token with this id, if it is valid now."""

    def __init__(self, token: AdminToken, valid: Callable[[AccessId], AccessToken | None]) -> None:
        self._token = token
        self._valid = valid

    def principal(self, path: str, headers: Headers, routes: Iterable[Route]) -> Principal:
        """Raises ApiError, whether or not the path exists, unless its route is open."""
        try:
            return _acting(self._caller(headers.get(TOKEN_HEADER) or ""), headers.get(OWNER_HEADER))
        except ApiError:
            if any(one.path == path and not one.roles for one in routes):
                return Principal()
            raise

    def _caller(self, sent: str) -> Principal:
        scheme, _, rest = sent.partition(" ")
        presented = rest.strip()
        if scheme.lower() != "bearer":
            raise Unauthenticated
        if self._token.matches(presented):
            return Principal(Role.NETWORK_OPERATOR)
        secret = access.parse(presented)
        known = None if secret is None else self._valid(secret.id)
        if secret is None or known is None or not secret.matches(known):
            raise Unauthenticated
        if known.role is Role.NETWORK_OPERATOR:
            return Principal(known.role, known.owner or ADMIN, access=known.id)
        return Principal(known.role, known.owner, known.owner, known.id)


def _acting(caller: Principal, acts_for: str | None) -> Principal:
    """The caller in the role of a user, if it acts for an owner: nothing but what that owner may do."""
    if acts_for is None or acts_for == caller.sees:
        return caller
    if caller.role is not Role.NETWORK_OPERATOR:
        raise ApiError("forbidden", f"this token acts for {caller.name!r} only; {OWNER_HEADER} names another owner")
    owner = checked_owner(acts_for)
    return Principal(Role.USER, owner, owner, caller.access)
