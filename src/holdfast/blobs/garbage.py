"""Decides which keys of a store may be deleted. Pure: the time, the listing and the roots are passed in.

Content that a root's manifest names is never deleted. Between the answer "this blob is here, you need not send it" and
the commit that refers to it, nothing may refer to a blob; so such an answer is a pledge, and a pledged blob is not
deleted either. A key that is being deleted cannot be pledged, and nothing is promoted to it until the round is over.
The caller's duties:

1. Check whether a blob exists, or promote it, only inside `looking`: it is not condemned meanwhile. `pledge` it before
   that ends, and only if it exists: whoever asks about hashes that nobody stored must not take memory. What is not
   given by `looking`, or cannot be pledged, counts as missing. (`hold` of `store.missing` and `store.accept`.)
2. Refuse requests of an owner that has too many pledges (`pledged`, `PLEDGED_MAX`).
3. Look at a manifest and all its blobs at once, pledge them, and report that (`seen`). Commit a root only if
   `may_name` allows it in the same step. Call `awake` every few minutes, so that a freeze in between is noticed.
4. Pass roots to `condemn` that were read less than half a grace ago. Store what it returns, in a commit that only
   the leader can make; only then delete, in requests that expire when the round ends, and check `may_delete`
   before each one; then remove the stored note and call `buried`. If an answer is missing, call `unsure` instead.
5. A new leader creates a new Collector with the note that its predecessor left. It condemns nothing until the
   pledges of its predecessor have expired, and what that one may still be deleting stays condemned until it cannot.

Times are milliseconds on a clock that cannot be set. Only the age of a key is measured by the store's own clock, and a
wrong one deletes nothing that anybody needs: what is referred to, pledged, or sent by an active uploader stays.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from holdfast.blobs.keys import Incoming, Owned, Stored, owned_key, parse_key

GRACE_MS = 6 * 3600 * 1000
"""Longer than any pause between two requests of an upload."""
ROUND_MS = 60_000
"""From the decision to the last delete request. A process that was frozen in between must not continue."""
LATE_MS = 15 * 60_000
"""How much longer a dead process's request may remain valid: the store judges its age by its own clock, which may
differ from the clock that dated it."""
ROUND_MAX = 1_000
"""Keys in one round: the note of it is one row."""
UNFINISHED_MS = 7 * 24 * 3600 * 1000
"""How long incoming content may wait to be accepted, even if its sender is still active."""
PLEDGED_MAX = 1_000_000
"""Pledges of one owner, beyond which no request of it is begun: two of the largest manifests, about 250 MB. Those that
are in progress may add as many. Pledges expire."""


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
        """`left`: the note of a round that the previous leader did not finish."""
        self._grace_ms = grace_ms
        self._round_ms = round_ms
        self._late_ms = late_ms
        self._unfinished_ms = unfinished_ms
        self._blind_until_ms = now_ms + grace_ms
        """Until then there may be pledges that this process does not know."""
        self._awake_ms = now_ms
        self._pledged: dict[str, dict[str, int]] = {}
        """Owner -> hash -> when the pledge ends. The one that ends first is the first."""
        self._looked_at: Counter[str] = Counter()
        """Owned keys whose existence is being checked -> how many do so."""
        self._seen: dict[Root, int] = {}
        """Manifests that were found complete -> when the first of the pledges for it expires."""
        self._unfinished: dict[str, tuple[int, int]] = {}
        """Incoming key of an active uploader -> when it was modified, and when it was first listed like that."""
        self._condemned = frozenset(left)
        self._round_ends_ms = now_ms
        self._buried_from_ms = now_ms
        if left:
            self.unsure(now_ms)

    # --- pledging ---

    @contextmanager
    def looking(self, owner: str, shas: Iterable[str]) -> Iterator[set[str]]:
        """While the caller checks whether these exist, or stores them. Gives those that it can rely on until the end of
        the block: all except those being deleted."""
        keys = {owned_key(owner, sha): sha for sha in shas}
        kept = {key: sha for key, sha in keys.items() if key not in self._condemned}
        self._looked_at.update(kept.keys())
        try:
            yield set(kept.values())
        finally:
            for key in kept:
                self._looked_at[key] -= 1
                if not self._looked_at[key]:
                    del self._looked_at[key]

    def pledge(self, owner: str, shas: Iterable[str], now_ms: int) -> set[str]:
        """Pledge these, which exist, and return those that the owner can rely on for a grace: all except those being
        deleted."""
        kept: set[str] = set()
        self._expire(owner, now_ms)
        ours = self._pledged.setdefault(owner, {})
        for sha in shas:
            if owned_key(owner, sha) not in self._condemned:
                ours.pop(sha, None)
                ours[sha] = now_ms + self._grace_ms
                kept.add(sha)
        return kept

    def pledged(self, owner: str, now_ms: int) -> int:
        """The number of pledges that the owner has."""
        self._expire(owner, now_ms)
        return len(self._pledged.get(owner, ()))

    def _expire(self, owner: str, now_ms: int) -> None:
        ours = self._pledged.get(owner, {})
        while ours:
            first = next(iter(ours))
            if ours[first] > now_ms:
                return
            del ours[first]
        self._pledged.pop(owner, None)

    def seen(self, root: Root, pledged_ms: int) -> None:
        """The manifest and all its blobs were pledged at that time, and then found to exist."""
        self._seen[root] = pledged_ms + self._grace_ms

    def still_seen(self, root: Root, now_ms: int) -> bool:
        """Whether it need not be checked again: it was found, and has been pledged without a gap since then."""
        return self._seen.get(root, 0) >= now_ms + self._grace_ms * 7 // 8

    def may_name(self, root: Root, now_ms: int) -> bool:
        """Whether a root may be committed now: it is complete, and is pledged for as long as a list of roots that was
        read before this commit may still be used. If not, check it again."""
        return self._seen.get(root, 0) >= now_ms + self._grace_ms * 3 // 4

    # --- deleting ---

    def awake(self, now_ms: int) -> None:
        """Call it every few minutes. After a long freeze, a commit may be about to refer to what was checked before:
        pledges that expired meanwhile must count for a while longer."""
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

        `named`: manifest -> the blobs in it. If a root's manifest is missing there, nothing of its owner is deleted.
        `uploading`: active uploaders; what they sent stays. `store_ms`: now, by the store's clock. Nothing more is
        condemned before `buried`.
        """
        self.awake(now_ms)
        stale = now_ms - roots_read_ms > self._grace_ms // 2
        if self._condemned or stale or now_ms < self._blind_until_ms:
            return []
        for owner in list(self._pledged):
            self._expire(owner, now_ms)
        self._seen = {root: until for root, until in self._seen.items() if until > now_ms}
        keep = {owned_key(r.owner, sha) for r in roots for sha in (r.manifest, *named.get(r.manifest, ()))}
        unknown = {root.owner for root in roots if root.manifest not in named}
        known, self._unfinished = self._unfinished, {}
        doomed: list[str] = []
        for stored in listing:
            age_ms = (now_ms if store_ms is None else store_ms) - stored.modified_ms
            if age_ms <= self._grace_ms:
                continue
            match parse_key(stored.key):
                case Incoming(uploader=uploader) if uploader in uploading:
                    modified_ms, since_ms = known.get(stored.key, (stored.modified_ms, now_ms))
                    since_ms = since_ms if modified_ms == stored.modified_ms else now_ms
                    self._unfinished[stored.key] = stored.modified_ms, since_ms
                    doomed += [stored.key] if now_ms - since_ms > self._unfinished_ms else []
                case Incoming():
                    doomed.append(stored.key)
                case Owned(owner=owner, sha=sha) if owner not in unknown:
                    needed = stored.key in keep or stored.key in self._looked_at or sha in self._pledged.get(owner, ())
                    doomed += [] if needed else [stored.key]
                case _:
                    pass  # not one of our keys
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
        """Whether a delete request for what is condemned may still be sent."""
        return bool(self._condemned) and now_ms < self._round_ends_ms

    def unsure(self, now_ms: int) -> None:
        """Delete requests may be in flight whose answers are lost. They were made within a round, and remain valid for
        as long again, by a clock that may be late."""
        self._round_ends_ms = now_ms
        self._buried_from_ms = now_ms + 2 * self._round_ms + self._late_ms

    def may_bury(self, now_ms: int) -> bool:
        """Whether no delete request can be valid any more."""
        return now_ms >= self._buried_from_ms

    def buried(self, now_ms: int) -> bool:
        """End the round. Returns False if a request may still be in flight."""
        if self.may_bury(now_ms):
            self._condemned = frozenset()
        return not self._condemned
