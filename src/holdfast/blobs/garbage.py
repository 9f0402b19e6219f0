"""Decides which keys of a store may be deleted. Pure: the time, the listing and the roots come in.

What a root's manifest names is never deleted. Between "you need not send that, it is here" and the commit that names
it, a blob may be named by nothing; so such an answer is a pledge, and a pledged blob is not deleted either. A key that
is being deleted is pledged to nobody, and nothing is promoted to it until the round is over. The caller's duties:

1. `pledge` a blob, and only then look whether it is there, before a `missing` answer declares it present. What cannot
   be pledged counts as missing. (`hold` of `store.missing` and `store.accept` does this and the next.)
2. Promote only where `may_promote`; it pledges as well. Where it says no, try again after the round.
3. `pledge` a manifest with all its blobs, look whether they are there, and say so (`seen`). Commit a root only if
   `may_name` says yes in the same step. Call `awake` every few minutes, so that a freeze in between is noticed.
4. Give `condemn` roots that were read less than half a grace ago. Write what it returns down, in a commit that only
   the leader can make; only then delete, in requests that lose their force when the round ends, asking `may_delete`
   before every one; then strike the note out and call `buried`. Where an answer did not come, call `unsure` instead.
5. A new leader makes a new Collector and gives it the note that its predecessor left. It condemns nothing until the
   pledges of its predecessor have run out, and what that one may still be deleting stays condemned until it cannot.

Times are milliseconds on a clock that nobody can set; only the age of a key is told by the store's own.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from holdfast.blobs.keys import Incoming, Owned, Stored, owned_key, parse_key

GRACE_MS = 6 * 3600 * 1000
"""Longer than any upload takes between two signs of life."""
ROUND_MS = 60_000
"""From the decision to the last request to delete. A process that was frozen in between must not go on."""
LATE_MS = 15 * 60_000
"""By how much longer a dead process's request may keep its force: the clock that judges its age is the store's, and
that may differ from the one it was dated by."""
ROUND_MAX = 1_000
"""Keys in one round: the note of it is a row."""
UNFINISHED_MS = 7 * 24 * 3600 * 1000
"""How long what was sent may lie before it is taken over, even if its sender is still at work."""


class Root(msgspec.Struct, frozen=True, order=True):
    """A manifest that something still refers to."""

    owner: str
    """A hash: see `keys.owner_hash`."""
    manifest: str


class Collector:
    def __init__(
        self,
        now_ms: int,
        grace_ms: int = GRACE_MS,
        *,
        round_ms: int = ROUND_MS,
        late_ms: int = LATE_MS,
        unfinished_ms: int = UNFINISHED_MS,
        left: Collection[str] = (),
    ) -> None:
        """`left`: the note of a round that the leader before this one did not end."""
        self._grace_ms = grace_ms
        self._round_ms = round_ms
        self._late_ms = late_ms
        self._unfinished_ms = unfinished_ms
        self._blind_until_ms = now_ms + grace_ms
        """Until then a pledge may stand that this process has not heard of."""
        self._awake_ms = now_ms
        self._pledged: dict[str, int] = {}
        """Owned key -> when the pledge ends."""
        self._seen: dict[Root, int] = {}
        """Manifests of which all was found there -> when the first of the pledges that it stands on ends."""
        self._condemned = frozenset(left)
        self._round_ends_ms = now_ms
        self._buried_from_ms = now_ms
        if left:
            self.unsure(now_ms)

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

    def seen(self, root: Root, pledged_ms: int) -> None:
        """The manifest and all its blobs were pledged at that time, and then found where they belong."""
        self._seen[root] = pledged_ms + self._grace_ms

    def still_seen(self, root: Root, now_ms: int) -> bool:
        """Whether it need not be looked for again: it was found, and has been held without a gap since then."""
        return self._seen.get(root, 0) >= now_ms + self._grace_ms * 7 // 8

    def may_name(self, root: Root, now_ms: int) -> bool:
        """Whether a root may be committed now: it is all there, and is held for as long as roots that were read before
        this commit may still be used. If not, look once more."""
        return self._seen.get(root, 0) >= now_ms + self._grace_ms * 3 // 4

    # --- letting go ---

    def awake(self, now_ms: int) -> None:
        """To be called every few minutes. Whoever was frozen for long may be about to commit what it looked at before:
        pledges that ran out meanwhile must count for a while longer."""
        if now_ms - self._awake_ms > self._grace_ms // 8:
            self._blind_until_ms = now_ms + self._grace_ms
        self._awake_ms = now_ms

    def condemn(
        self,
        listing: Iterable[Stored],
        roots: Collection[Root],
        named: Mapping[str, Collection[str]],
        uploading: Collection[str],
        *,
        roots_read_ms: int,
        now_ms: int,
        store_ms: int | None = None,
    ) -> list[str]:
        """The keys to delete now, sorted; at most ROUND_MAX of them.

        `named`: manifest -> the blobs in it. Where a root's manifest is not in it, its owner loses nothing.
        `uploading`: uploaders that are at work; what they sent stays. `store_ms`: now, by the store's clock.
        No more is condemned before `buried`.
        """
        self.awake(now_ms)
        stale = now_ms - roots_read_ms > self._grace_ms // 2
        if self._condemned or stale or now_ms < self._blind_until_ms:
            return []
        self._pledged = {key: until for key, until in self._pledged.items() if until > now_ms}
        self._seen = {root: until for root, until in self._seen.items() if until > now_ms}
        keep = {owned_key(r.owner, sha) for r in roots for sha in (r.manifest, *named.get(r.manifest, ()))}
        unknown = {root.owner for root in roots if root.manifest not in named}
        doomed: list[str] = []
        for stored in listing:
            age_ms = (now_ms if store_ms is None else store_ms) - stored.modified_ms
            if age_ms <= self._grace_ms:
                continue
            match parse_key(stored.key):
                case Incoming(uploader=uploader):
                    doomed += [stored.key] if uploader not in uploading or age_ms > self._unfinished_ms else []
                case Owned(owner=owner) if owner not in unknown:
                    doomed += [stored.key] if stored.key not in keep and stored.key not in self._pledged else []
                case _:
                    pass  # not ours to delete
        chosen = sorted(doomed)[:ROUND_MAX]
        self._condemned = frozenset(chosen)
        self._round_ends_ms = now_ms + self._round_ms
        self._buried_from_ms = now_ms
        return chosen

    @property
    def condemned(self) -> list[str]:
        """What is being deleted."""
        return sorted(self._condemned)

    def condemns(self, owner: str, sha: str) -> bool:
        return owned_key(owner, sha) in self._condemned

    def may_delete(self, now_ms: int) -> bool:
        """Whether a request to delete what is condemned may still be sent."""
        return bool(self._condemned) and now_ms < self._round_ends_ms

    def unsure(self, now_ms: int) -> None:
        """Requests to delete may be under way of which nobody hears any more. They were made within a round, and keep
        their force for as long again; by a clock that may be late."""
        self._round_ends_ms = now_ms
        self._buried_from_ms = now_ms + 2 * self._round_ms + self._late_ms

    def may_bury(self, now_ms: int) -> bool:
        """Whether no request to delete can have force any more."""
        return now_ms >= self._buried_from_ms

    def buried(self, now_ms: int) -> bool:
        """The round is over. False: not yet, a request may be under way."""
        if self.may_bury(now_ms):
            self._condemned = frozenset()
        return not self._condemned
