"""Access tokens: makes them, and revokes them with the join tokens that were made with them. The API decides who may do
what with one; no other decision of the kernel depends on them.

Rows are bounded (`model.rows`): a new one evicts the one that changed longest ago. Half of them may be valid, and a
valid one is never evicted.
"""

from msgspec.structs import replace

from holdfast.kernel.decision import Answer, Done, Rejected
from holdfast.kernel.world import World
from holdfast.model import AccessId, AccessToken, Instant
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
    return Done("made")


def revoke(w: World, id: AccessId) -> Answer:
    """Also revokes the join tokens that were made with it: they would let its holder bring in more nodes. Nodes that
    joined stay, and so do access tokens that a network operator made with it for others."""
    token: AccessToken | None = w.rows[AccessToken].get(id)
    if token is None:
        return Rejected("no_such_access", f"There is no access token {id}.")
    if not token.revoked:
        _put(w, replace(token, revoked=True))
        for _, made in sorted(w.tokens.items()):
            if made.access == id and not made.revoked:
                w.put(replace(made, revoked=True))
    return Done("revoked")


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
