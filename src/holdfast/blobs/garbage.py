"""Decides which keys of a store may be deleted. Pure: the time, the listing and the roots come in.

What a root's manifest names is never deleted. Between "you need not send that, it is here" and the commit that names
it, a blob may be named by nothing; so such an answer is a pledge, and a pledged blob is not deleted either. A key that
is being deleted is pledged to nobody, and nothing is promoted to it until the round is over. The caller's duties:

1. `pledge` a blob, and only then look whether it is there, before a `missing` answer declares it present. What cannot
   be pledged counts as missing. (`hold` of `store.missing` and `store.accept` does this and the next.)
2. Promote only where `may_promote`; it pledges as well. Where it says no, try again after the round.
3. Commit a root only if `may_name` has said yes in the same step; it prolongs the pledges.
4. Give `condemn` roots that were read after the last call of `may_name` that is to count, or less than half a grace
   ago. Write what it returns down, in the same fenced commit that leaders make; only then delete, asking `may_delete`
   before every request; then call `buried` and strike the note out.
5. A new process makes a new Collector and gives it the note that its predecessor left. It condemns nothing until the
   pledges of its predecessor have run out, and what that one may still be deleting stays condemned until it cannot.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from holdfast.blobs.keys import Incoming, Owned, Stored, owned_key, parse_key

GRACE_MS = 6 * 3600 * 1000
"""Longer than any upload takes between two signs of life."""
ROUND_MS = 60_000
"""From the decision to the last request to delete. A process that was frozen in between must not go on."""
ROUND_MAX = 1_000
"""Keys in one round: the note of it is a row."""


class Root(msgspec.Struct, frozen=True, order=True):
    """A manifest that something still refers to."""

    owner: str
    """A hash: see `keys.owner_hash`."""
    manifest: str


class Collector:
    def __init__(
        self, now_ms: int, grace_ms: int = GRACE_MS, *, round_ms: int = ROUND_MS, left: Collection[str] = ()
    ) -> None:
        """`left`: the note of a round that the process before this one did not end."""
        self._grace_ms = grace_ms
        self._round_ms = round_ms
        self._blind_until_ms = now_ms + grace_ms
        """Until then a pledge may stand that this process has not heard of."""
        self._pledged: dict[str, int] = {}
        """Owned key -> when the pledge ends."""
        self._condemned = frozenset(left)
        self._round_ends_ms = now_ms + round_ms
        self._buried_from_ms = now_ms + 2 * round_ms if left else now_ms
        """The predecessor's last request may have been sent a round after it died, and have taken as long again."""

    # --- holding on ---

    def pledge(self, owner: str, shas: Iterable[str], now_ms: int) -> set[str]:
        """Of these, which are the owner's to rely on for a grace: all but those that are being deleted."""
        kept: set[str] = set()
        for sha in shas:
            key = owned_key(owner, sha)
            if key not in self._condemned:
                self._pledged[key] = now_ms + self._grace_ms
                kept.add(sha)
        return kept

    def may_promote(self, owner: str, sha: str, now_ms: int) -> bool:
        """Whether a blob may be put under its owned key now. If so it is pledged."""
        return bool(self.pledge(owner, [sha], now_ms))

    def may_name(self, owner: str, shas: Collection[str], now_ms: int) -> bool:
        """Whether a root may be committed that names these: every one of them is pledged and will be for a while.
        If not, its uploader asks once more what is missing."""
        if any(self._pledged.get(owned_key(owner, sha), 0) <= now_ms for sha in shas):
            return False
        return len(self.pledge(owner, shas, now_ms)) == len(set(shas))

    # --- letting go ---

    def condemn(
        self,
        listing: Iterable[Stored],
        roots: Collection[Root],
        named: Mapping[str, Collection[str]],
        uploading: Collection[str],
        *,
        roots_read_ms: int,
        now_ms: int,
    ) -> list[str]:
        """The keys to delete now, sorted; at most ROUND_MAX of them.

        `named`: manifest -> the blobs in it. Where a root's manifest is not in it, its owner loses nothing.
        `uploading`: uploaders that are at work; what they sent stays. No more is condemned before `buried`.
        """
        stale = now_ms - roots_read_ms > self._grace_ms // 2
        if self._condemned or stale or now_ms < self._blind_until_ms:
            return []
        self._pledged = {key: until for key, until in self._pledged.items() if until > now_ms}
        keep = {owned_key(r.owner, sha) for r in roots for sha in (r.manifest, *named.get(r.manifest, ()))}
        unknown = {root.owner for root in roots if root.manifest not in named}
        doomed: list[str] = []
        for stored in listing:
            if now_ms - stored.modified_ms <= self._grace_ms:
                continue
            match parse_key(stored.key):
                case Incoming(uploader=uploader):
                    doomed += [stored.key] if uploader not in uploading else []
                case Owned(owner=owner) if owner not in unknown:
                    doomed += [stored.key] if stored.key not in keep and stored.key not in self._pledged else []
                case _:
                    pass  # not ours to delete
        chosen = sorted(doomed)[:ROUND_MAX]
        self._condemned = frozenset(chosen)
        self._round_ends_ms = now_ms + self._round_ms
        return chosen

    @property
    def condemned(self) -> list[str]:
        """What is to be deleted, or deleted again."""
        return sorted(self._condemned)

    def may_delete(self, now_ms: int) -> bool:
        """Whether a request to delete what is condemned may still be sent."""
        return bool(self._condemned) and now_ms < self._round_ends_ms

    def buried(self, now_ms: int) -> bool:
        """No request to delete is under way any more: the round is over. False: not yet, a predecessor's may be."""
        if now_ms < self._buried_from_ms:
            return False
        self._condemned = frozenset()
        return True
