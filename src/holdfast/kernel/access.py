"""Access tokens: makes them, and revokes them with the join tokens that were made with them. Join tokens: bounds what
the holder of an access token makes. The API decides who may do what with a token.

Rows are bounded (`model.rows`): a new one evicts the one that changed longest ago. Half of them may be valid, and a
valid one is never evicted.
"""

from msgspec.structs import replace

from holdfast.kernel.decision import Answer, Done, Rejected
from holdfast.kernel.world import World
from holdfast.model import AccessId, AccessToken, Facts, Instant, JoinToken, Role
from holdfast.model.rows import BY_TYPE, age


def make(w: World, token: AccessToken, ttl_ms: int) -> Answer:
    known = w.rows[AccessToken]
    if token.id in known:
        return Done("made before")  # never put again: that would undo a revocation
    valid_max = _rows_max() // 2
    if sum(one.valid(w.now) for one in known.values()) >= valid_max:
        return Rejected("access_limit", f"There are {valid_max} valid access tokens already.")
    _make_room(w)
    _put(w, replace(token, made_ms=w.now, expires_ms=Instant(w.now + ttl_ms)))
    w.note("access.made", replace(_facts(token, token.made_by), ms=ttl_ms))
    return Done("made")


def make_join_token(w: World, token: JoinToken) -> Answer:
    """One that was made with an access token is good for no longer than that, and a node operator has only so many:
    listed ones count, also after their end, because each is a row."""
    if token.access:
        access: AccessToken | None = w.rows[AccessToken].get(token.access)
        if access is None or not access.valid(w.now):
            return Rejected("forbidden", "The access token that asks for it is not valid any more.")
        most = w.settings.tokens_per_operator_max
        if access.role is Role.NODE_OPERATOR and token.id not in w.tokens:
            made = sum(one.made_by == token.made_by for one in w.tokens.values())
            if made >= most:
                return Rejected("token_limit", f"{token.made_by} has {made} join tokens already, of {most}.")
        token = replace(token, expires_ms=min(token.expires_ms, access.expires_ms))
    w.put(token)
    return Done("made")


def revoke(w: World, id: AccessId, by: str) -> Answer:
    """Also revokes the join tokens that were made with it: they would let its holder bring in more nodes. Nodes that
    joined stay, and so do access tokens that a network operator made with it for others."""
    token: AccessToken | None = w.rows[AccessToken].get(id)
    if token is None:
        return Rejected("no_such_access", f"There is no access token {id}.")
    if not token.revoked:
        _put(w, replace(token, revoked=True))
        w.note("access.revoked", _facts(token, by))
        for _, made in sorted(w.tokens.items()):
            if made.access == id and not made.revoked:
                w.put(replace(made, revoked=True))
    return Done("revoked")


def _facts(token: AccessToken, by: str) -> Facts:
    return Facts(label=token.id, role=token.role, detail=token.owner, by=by)


def _make_room(w: World) -> None:
    """If the next row evicts one, let it be one that is not valid: valid rows that are older move to the end."""
    known = w.rows[AccessToken]
    if len(known) < _rows_max():
        return
    for oldest in sorted(known.values(), key=age):
        if not oldest.valid(w.now):
            return
        _put(w, oldest)


def _put(w: World, token: AccessToken) -> None:
    last = max((one.seq for one in w.rows[AccessToken].values()), default=0)
    w.put(replace(token, seq=last + 1))


def _rows_max() -> int:
    newest = BY_TYPE[AccessToken].newest
    assert newest is not None
    return newest.most
