"""What no manifest names is collected in the end, and nothing that one names is, in whatever order things happen."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from holdfast.blobs import Collector, Root, Stored, incoming_key, owned_key, owner_hash, sha_of

pytestmark = pytest.mark.spec("J1", "J10")

GRACE, ROUND = 1_000, 150
OWNERS = [owner_hash("ann"), owner_hash("bob")]
SHAS = [sha_of(bytes([i])) for i in range(5)]
ANN, BOB = OWNERS
ONE, TWO, THREE, FOUR, FIVE = SHAS
MANIFEST = sha_of(b"manifest")


def old(*keys: str, at: int = 0) -> list[Stored]:
    return [Stored(key, 1, at) for key in keys]


def collector() -> Collector:
    return Collector(0, GRACE, round_ms=ROUND)


def condemn(
    collector: Collector,
    listing: list[Stored],
    roots: list[Root],
    named: dict[str, list[str]],
    uploading: tuple[str, ...] = (),
    now: int = 5_000,
) -> list[str]:
    return collector.condemn(listing, roots, named, uploading, roots_read_ms=now, now_ms=now)


def test_only_what_no_root_names_goes() -> None:
    listing = old(*(owned_key(o, s) for o in OWNERS for s in (ONE, TWO)), owned_key(ANN, MANIFEST))
    gone = condemn(collector(), listing, [Root(ANN, MANIFEST)], {MANIFEST: [ONE]})
    assert gone == sorted([owned_key(ANN, TWO), owned_key(BOB, ONE), owned_key(BOB, TWO)])


def test_what_is_young_stays() -> None:
    listing = [Stored(owned_key(ANN, ONE), 1, 4_000), Stored(owned_key(ANN, TWO), 1, 3_999)]
    assert condemn(collector(), listing, [], {}) == [owned_key(ANN, TWO)]


def test_an_owner_whose_manifest_cannot_be_read_loses_nothing() -> None:
    listing = old(owned_key(ANN, ONE), owned_key(BOB, ONE))
    assert condemn(collector(), listing, [Root(ANN, MANIFEST)], {}) == [owned_key(BOB, ONE)]


def test_what_somebody_still_uploads_stays_and_what_was_left_behind_goes() -> None:
    live, dead = incoming_key("att_a.1", ONE), incoming_key("att_a.2", ONE)
    assert condemn(collector(), old(live, dead), [], {}, ("att_a.1",)) == [dead]


def test_keys_of_others_are_not_touched() -> None:
    assert condemn(collector(), old("backups/mine", "owned/readme.txt", f"incoming/../{ONE}"), [], {}) == []


def test_what_somebody_was_told_to_rely_on_stays_until_the_grace_is_over() -> None:
    """Given an old blob that nothing names, when an uploader is told that it is there, then it stays to be named."""
    c = collector()
    assert c.pledge(ANN, [ONE], 4_900) == {ONE}
    listing = old(owned_key(ANN, ONE))
    assert condemn(c, listing, [], {}, now=5_000) == []
    assert c.may_name(ANN, [ONE], 5_100)
    assert condemn(c, listing, [], {}, now=6_000) == []
    assert not c.may_name(ANN, [ONE], 6_100), "the pledge is over: ask again"
    assert condemn(c, listing, [], {}, now=6_100) == [owned_key(ANN, ONE)]


def test_what_is_being_deleted_is_pledged_to_nobody() -> None:
    c = collector()
    gone = condemn(c, old(owned_key(ANN, ONE)), [], {})
    assert gone
    assert c.pledge(ANN, [ONE, TWO], 5_000) == {TWO}
    assert not c.may_promote(ANN, ONE, 5_000)
    assert not c.may_name(ANN, [ONE, TWO], 5_000)
    assert condemn(c, old(owned_key(ANN, THREE)), [], {}) == [], "one round at a time"
    assert c.buried(5_000)
    assert c.may_promote(ANN, ONE, 5_000)


def test_a_new_process_waits_until_old_pledges_are_over() -> None:
    c = Collector(5_000, GRACE)
    assert condemn(c, old(owned_key(ANN, ONE)), [], {}, now=5_999) == []
    assert condemn(c, old(owned_key(ANN, ONE)), [], {}, now=6_000) == [owned_key(ANN, ONE)]


def test_a_decision_ages() -> None:
    """Given a process that was frozen after it decided, then it does not go on deleting when it wakes."""
    c = collector()
    assert not c.may_delete(5_000)
    assert condemn(c, old(owned_key(ANN, ONE)), [], {})
    assert c.may_delete(5_000 + ROUND - 1)
    assert not c.may_delete(5_000 + ROUND)


def test_what_a_dead_process_may_still_be_deleting_is_relied_on_by_nobody() -> None:
    c = Collector(5_000, GRACE, round_ms=ROUND, left=[owned_key(ANN, ONE)])
    assert c.condemned == [owned_key(ANN, ONE)] and c.may_delete(5_000)
    assert not c.buried(5_000 + 2 * ROUND - 1)
    assert not c.may_promote(ANN, ONE, 5_000 + 2 * ROUND - 1) and c.may_promote(BOB, ONE, 5_000)
    assert c.buried(5_000 + 2 * ROUND)
    assert c.may_promote(ANN, ONE, 5_000 + 2 * ROUND)


def test_roots_that_were_read_long_ago_condemn_nothing() -> None:
    assert collector().condemn(old(owned_key(ANN, ONE)), [], {}, (), roots_read_ms=4_499, now_ms=5_000) == []


class Interleavings(RuleBasedStateMachine):
    """A store, committed roots and clients in any order of their steps. Each step of the real thing that can be
    overtaken by another is a step of its own here: reading the roots, condemning, each single deletion."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.store: dict[str, int] = {}
        self.roots: dict[Root, frozenset[str]] = {}
        self.collector = collector()
        self.read: tuple[int, dict[Root, frozenset[str]]] | None = None
        self.to_delete: list[str] = []
        self.zombie: tuple[Collector, list[str]] = (self.collector, [])
        self.number = 0

    @initialize()
    def begin(self) -> None:
        self.now = 10

    @rule(ms=st.sampled_from([1, 100, 160, 400, 600, 1_001]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(
        target=clients, owner=st.sampled_from(OWNERS), shas=st.frozensets(st.sampled_from(SHAS), min_size=1, max_size=3)
    )
    def a_client_asks_what_is_missing(self, owner: str, shas: frozenset[str]) -> tuple[str, str, frozenset[str]]:
        uploader = f"client-{self.number}"
        self.number += 1
        for sha in sorted(shas):
            held = self.collector.pledge(owner, [sha], self.now)
            if not held or owned_key(owner, sha) not in self.store:
                self.store[incoming_key(uploader, sha)] = self.now
        return owner, uploader, shas

    @rule(client=clients, data=st.data())
    def a_blob_is_promoted(self, client: tuple[str, str, frozenset[str]], data: st.DataObject) -> None:
        owner, uploader, shas = client
        sha = data.draw(st.sampled_from(sorted(shas)))
        if incoming_key(uploader, sha) in self.store and self.collector.may_promote(owner, sha, self.now):
            self.store[owned_key(owner, sha)] = self.now
            del self.store[incoming_key(uploader, sha)]

    @rule(client=clients)
    def a_manifest_is_committed(self, client: tuple[str, str, frozenset[str]]) -> None:
        owner, _, shas = client
        manifest = sha_of("".join(sorted(shas)).encode())
        present = all(owned_key(owner, sha) in self.store for sha in shas)
        if not present or not self.collector.may_promote(owner, manifest, self.now):
            return
        self.store[owned_key(owner, manifest)] = self.now
        if self.collector.may_name(owner, shas | {manifest}, self.now):
            self.roots[Root(owner, manifest)] = shas

    @rule(data=st.data())
    def a_job_is_forgotten(self, data: st.DataObject) -> None:
        if self.roots:
            del self.roots[data.draw(st.sampled_from(sorted(self.roots)))]

    @rule()
    def the_roots_are_read(self) -> None:
        self.read = (self.now, dict(self.roots))

    @rule()
    def a_round_is_decided(self) -> None:
        if self.read is None:
            return
        read_ms, roots = self.read
        listing = [Stored(key, 1, at) for key, at in self.store.items()]
        named = {root.manifest: shas for root, shas in roots.items()}
        chosen = self.collector.condemn(listing, roots, named, (), roots_read_ms=read_ms, now_ms=self.now)
        self.to_delete = chosen or self.to_delete

    @rule()
    def one_key_is_deleted(self) -> None:
        if self.to_delete and self.collector.may_delete(self.now):
            self.store.pop(self.to_delete.pop(), None)

    @rule()
    def a_round_ends(self) -> None:
        if self.collector.buried(self.now):
            self.to_delete = []

    @rule()
    def the_orchestrator_is_replaced(self) -> None:
        """Pledges are lost with it; it may yet wake and go on deleting, as long as it thinks that it may."""
        self.zombie = (self.collector, self.to_delete)
        self.collector = Collector(self.now, GRACE, round_ms=ROUND, left=self.collector.condemned)
        self.to_delete, self.read = self.collector.condemned, None

    @rule()
    def a_replaced_orchestrator_deletes_one_key(self) -> None:
        collector, to_delete = self.zombie
        if to_delete and collector.may_delete(self.now):
            self.store.pop(to_delete.pop(), None)

    @invariant()
    def every_named_blob_is_there(self) -> None:
        for root, shas in self.roots.items():
            lost = [sha for sha in (root.manifest, *shas) if owned_key(root.owner, sha) not in self.store]
            assert not lost, f"{root} names {lost}, and they are gone"

    def teardown(self) -> None:
        """When all is quiet, everything that nothing names goes, and what is named stays."""
        self.now += 3 * GRACE
        assert self.collector.buried(self.now)
        named = {root.manifest: shas for root, shas in self.roots.items()}
        listing = [Stored(key, 1, at) for key, at in self.store.items()]
        for key in self.collector.condemn(listing, self.roots, named, (), roots_read_ms=self.now, now_ms=self.now):
            del self.store[key]
        self.every_named_blob_is_there()
        assert set(self.store) == {owned_key(r.owner, s) for r, shas in self.roots.items() for s in (r.manifest, *shas)}


class TestInterleavings(Interleavings.TestCase):
    settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
