"""Join tokens over HTTP: make, list, revoke.

A token's text is shown when it is made, and again to who repeats that call; never in a list.
"""

import asyncio

from litestar import Request, delete, get, post
from litestar.datastructures import State

from holdfast.identity import tokens
from holdfast.identity.admin import AdminToken
from holdfast.identity.tokens import Drawn
from holdfast.kernel.decision import Rejected
from holdfast.kernel.events import TokenMade, TokenRevoked
from holdfast.model import Instant, JoinToken, TokenId
from holdfast.orchestrator.asked import checked_key, checked_token
from holdfast.orchestrator.clock import wall_ms
from holdfast.orchestrator.front import HINTS, Front, Refused, error_of
from holdfast.orchestrator.views import token_view
from holdfast.wire.http import ErrorView, JoinTokenView, TokenRequest, TokenView


class TokenDesk:
    """Makes tokens, one at a time.

    Only the hash of a token's secret is stored, so the text of an earlier answer cannot be looked up. Under an
    idempotency key it is worked out again instead: id and secret follow from the key, from what was asked for, and from
    the admin token, which nobody else has.
    """

    def __init__(self, admin: AdminToken) -> None:
        self._admin = admin
        self._one_at_a_time = asyncio.Lock()

    def drawn(self, key: str, asked: TokenRequest) -> Drawn:
        wanted = (str(asked.ttl_ms), str(asked.uses), asked.note)
        return Drawn(self._admin.derived("token id", key), self._admin.derived("token secret", key, *wanted))

    async def make(self, front: Front, asked: TokenRequest, key: str | None) -> TokenView:
        now = wall_ms()
        drawn = None if key is None else self.drawn(key, asked)
        ticket, row = tokens.make(front.pin, Instant(now), Instant(now + asked.ttl_ms), asked.uses, asked.note, drawn)
        # Between the look and the commit nobody else may make the same one: the second would undo a revocation.
        async with self._one_at_a_time:
            known = None if key is None else await front.reading.token(row.id)
            if known is None:
                answer = await front.leader.ask(TokenMade(row))
                if isinstance(answer, Rejected):
                    raise Refused(error_of(answer))
                known = row
        if known.secret_sha256 != ticket.secret_sha256:
            raise Refused(_reused(known))
        return TokenView(known.id, ticket.text, known.expires_ms, known.uses_left)


def _reused(token: JoinToken) -> ErrorView:
    says = f"the idempotency key was used before, for another token ({token.id})"
    return ErrorView("key_reused", says, HINTS["key_reused"])


@post("/v1/tokens", status_code=201)
async def make_token(data: TokenRequest, request: Request, state: State) -> TokenView:
    front: Front = state.front
    key = request.headers.get("idempotency-key")
    return await front.tokens.make(front, checked_token(data), checked_key(key) if key else None)


@get("/v1/tokens")
async def list_tokens(state: State) -> list[JoinTokenView]:
    front: Front = state.front
    now = wall_ms()
    return [token_view(token, now) for token in await front.reading.tokens()]


@delete("/v1/tokens/{token:str}", status_code=204)
async def revoke_token(token: str, state: State) -> None:
    front: Front = state.front
    known = await front.reading.token_named(token)
    answer = await front.leader.ask(TokenRevoked(TokenId(known.id if known else token)))
    if isinstance(answer, Rejected) and known is None:
        raise Refused(error_of(answer))


ROUTES = [make_token, list_tokens, revoke_token]
