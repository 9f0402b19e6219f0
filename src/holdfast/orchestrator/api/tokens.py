"""Join tokens: make, list, revoke.

A token's text is shown when the token is made, and when that call is repeated; never in a list.
"""

import asyncio

from msgspec.structs import replace

from holdfast.identity import tokens
from holdfast.identity.admin import AdminToken
from holdfast.identity.tokens import Drawn
from holdfast.kernel.events import TokenMade, TokenRevoked
from holdfast.model import Instant
from holdfast.orchestrator.api.call import ADMIN, ApiCall
from holdfast.orchestrator.api.job_requests import checked_key, checked_token
from holdfast.orchestrator.api.refusals import decided
from holdfast.orchestrator.api.views import token_view
from holdfast.orchestrator.api_error import ApiError
from holdfast.wire.http import JoinTokenView, TokenRequest, TokenView


class TokenService:
    """Makes tokens, one at a time.

    Only the hash of a token's secret is stored, so the text of an earlier answer cannot be looked up. For a repeated
    idempotency key it is derived again instead: id and secret are derived from the key, the request and the admin
    token, which is secret.
    """

    def __init__(self, admin: AdminToken) -> None:
        self._admin = admin
        self._one_at_a_time = asyncio.Lock()

    def drawn(self, caller: str, key: str, asked: TokenRequest) -> Drawn:
        wanted = (str(asked.ttl_ms), str(asked.uses), asked.note)
        # A key is its caller's own: another's must not lead to the same token.
        ours = (key,) if caller == ADMIN else (key, caller)
        return Drawn(self._admin.derived("token id", *ours), self._admin.derived("token secret", *ours, *wanted))

    async def make(self, call: ApiCall, asked: TokenRequest, key: str | None) -> TokenView:
        context, caller = call.context, call.principal
        now = context.leader.served_ms()
        drawn = None if key is None else self.drawn(caller.name, key, asked)
        ticket, row = tokens.make(context.pin, Instant(now), Instant(now + asked.ttl_ms), asked.uses, asked.note, drawn)
        row = replace(row, made_by=caller.name, access=caller.access or "")
        # No other call may make the same token between the lookup and the commit: it would undo a revocation.
        async with self._one_at_a_time:
            known = None if key is None else await context.queries.token(row.id)
            if known is None and key is not None and await context.queries.token_deleted(row.id):
                raise ApiError("key_reused", "the idempotency key was used before, for a token that was deleted since")
            if known is None:
                decided(await context.leader.ask(TokenMade(row)))
                # One that was made with an access token ends with it, which may be before what was asked for.
                known = (await context.queries.token(row.id) if row.access else None) or row
        if known.secret_sha256 != ticket.secret_sha256:
            raise ApiError("key_reused", f"the idempotency key was used before, for another token ({known.id})")
        left_ms = max(0, known.expires_ms - context.leader.served_ms())
        return TokenView(known.id, ticket.text, context.dated(known.expires_ms), known.uses_left, left_ms)


async def make_token(call: ApiCall, data: TokenRequest) -> TokenView:
    return await call.context.tokens.make(call, checked_token(data), checked_key(call.key) if call.key else None)


async def list_tokens(call: ApiCall) -> list[JoinTokenView]:
    context = call.context
    now, operator = context.leader.served_ms(), call.principal.operates
    ours = (token for token in await context.queries.tokens() if operator in (None, token.made_by))
    return [token_view(token, now, context.dated) for token in ours]


async def revoke_token(call: ApiCall, token: str) -> None:
    context = call.context
    known = await context.queries.token_named(token, call.principal.operates)
    if known is None:
        # Not quoted: it may be the token itself, whole or in part.
        raise ApiError("no_such_token", "there is no join token with that id")
    decided(await context.leader.ask(TokenRevoked(known.id)))
