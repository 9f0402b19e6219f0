"""Access tokens: make, list, revoke.

A token's text is shown when the token is made, and when that call is repeated; never in a list.
"""

import asyncio

from holdfast.identity import access
from holdfast.identity.admin import AdminToken
from holdfast.identity.tokens import Drawn
from holdfast.kernel.events import AccessMade, AccessRevoked
from holdfast.model import AccessId, AccessToken, Role
from holdfast.orchestrator.api.call import ApiCall
from holdfast.orchestrator.api.context import ApiContext
from holdfast.orchestrator.api.job_requests import checked_access, checked_key
from holdfast.orchestrator.api.refusals import decided
from holdfast.orchestrator.api_error import ApiError
from holdfast.wire.http import AccessRequest, AccessTokenView, AccessView


class AccessService:
    """Makes access tokens, one at a time. For a repeated idempotency key the same token is derived again, as a join
    token is (`TokenService`)."""

    def __init__(self, admin: AdminToken) -> None:
        self._admin = admin
        self._one_at_a_time = asyncio.Lock()

    def drawn(self, caller: str, key: str, asked: AccessRequest) -> Drawn:
        wanted = (asked.role, asked.owner, str(asked.ttl_ms), asked.note)
        return Drawn(
            self._admin.derived("access id", caller, key), self._admin.derived("access secret", caller, key, *wanted)
        )

    async def make(self, context: ApiContext, asked: AccessRequest, caller: str, key: str | None) -> AccessView:
        drawn = None if key is None else self.drawn(caller, key, asked)
        secret, row = access.make(Role(asked.role), asked.owner, asked.note, caller, drawn)
        # No other call may make the same token between the lookup and the commit.
        async with self._one_at_a_time:
            if context.access.get(row.id) is None:
                decided(await context.leader.ask(AccessMade(row, asked.ttl_ms)))
            known = context.access.get(row.id)
        assert known is not None
        if not secret.matches(known):
            raise ApiError("key_reused", f"the idempotency key was used before, for another token ({known.id})")
        return AccessView(known.id, secret.text, known.role.value, known.owner, _left_ms(context, known))


async def make_access(call: ApiCall, data: AccessRequest) -> AccessView:
    key = checked_key(call.key) if call.key else None
    return await call.context.access_tokens.make(call.context, checked_access(data), call.principal.name, key)


async def list_access(call: ApiCall) -> list[AccessTokenView]:
    context = call.context
    newest = sorted(context.access.all(), key=lambda token: (-token.made_ms, token.id))
    return [_shown(context, token) for token in newest]


async def revoke_access(call: ApiCall, access: str) -> None:
    context = call.context
    known = _named(context, access)
    decided(await context.leader.ask(AccessRevoked(known.id, call.principal.name)))


def _named(context: ApiContext, named: str) -> AccessToken:
    """The token with this id, or with this unique prefix of an id."""
    known = context.access.get(AccessId(named))
    fits = [known] if known is not None else []
    if not fits and len(named) > len(access.ID_PREFIX):
        fits = sorted((one for one in context.access.all() if one.id.startswith(named)), key=lambda token: token.id)
    if len(fits) > 1:
        shown = ", ".join(token.id for token in fits[:5])
        raise ApiError(
            "ambiguous", f"{named[:80]!r} fits several access tokens: {shown}", "Give more letters of the id."
        )
    if not fits:
        # Not quoted: it may be the token itself, whole or in part.
        raise ApiError("no_such_access", "there is no access token with that id")
    return fits[0]


def _shown(context: ApiContext, token: AccessToken) -> AccessTokenView:
    left_ms = _left_ms(context, token)
    state = "revoked" if token.revoked else "good" if left_ms else "expired"
    age_ms = max(0, context.leader.served_ms() - token.made_ms)
    return AccessTokenView(token.id, state, token.role.value, token.owner, age_ms, left_ms, token.note, token.made_by)


def _left_ms(context: ApiContext, token: AccessToken) -> int:
    return 0 if token.revoked else max(0, token.expires_ms - context.leader.served_ms())
