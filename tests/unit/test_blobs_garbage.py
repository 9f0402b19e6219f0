"""What no manifest names is collected in the end, and nothing that one names is, in whatever order things happen."""

from contextlib import suppress
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.blobs import Collector, Root, Stored, incoming_key, owned_key, owner_hash, sha_of

pytestmark = pytest.mark.spec("J1", "J10")

GRACE, ROUND, LATE = 1_000, 100, 50
OVER = 2 * ROUND + LATE
"""After so long no request of a round that ended badly has any force."""
OWNERS = [owner_hash("ann"), owner_hash("bob")]
SHAS = [sha_of(bytes([i])) for i in range(3)]
ANN, BOB = OWNERS
ONE, TWO, THREE = SHAS
MANIFEST = sha_of(b"manifest")


def old(*keys: str, at: int = 0) -> list[Stored]:
    return [Stored(key, 1, at) for key in keys]


def collector() -> Collector:
    """One that has been awake for long."""
    c = Collector(0, GRACE, round_ms=ROUND, late_ms=LATE, unfinished_ms=5 * GRACE)
    stays_awake(c, 0, 5_000)
    return c


def stays_awake(collector: Collector, since: int, until: int) -> None:
    for now in range(since, until, GRACE // 10):
        collector.awake(now)


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
    for now in range(4_900, 5_900, 100):
        assert condemn(c, listing, [], {}, now=now) == []
    assert condemn(c, listing, [], {}, now=5_900) == [owned_key(ANN, ONE)]


def test_only_what_was_found_lately_is_named() -> None:
    """Given a manifest that was pledged and found, then a row may name it for a quarter of a grace: roots that were
    read just before the commit may be used for half a grace, and the commit takes its time."""
    c, root = collector(), Root(ANN, MANIFEST)
    assert not c.may_name(root, 4_900), "pledged by nobody"
    c.pledge(ANN, [MANIFEST, ONE], 4_900)
    assert not c.may_name(root, 4_900), "pledged, but not found"
    c.seen(root, 4_900)
    assert c.may_name(root, 5_150) and not c.may_name(root, 5_151)
    assert c.still_seen(root, 5_025) and not c.still_seen(root, 5_026)
    assert not c.may_name(Root(BOB, MANIFEST), 4_900)


def test_what_is_being_deleted_is_pledged_to_nobody() -> None:
    c = collector()
    gone = condemn(c, old(owned_key(ANN, ONE)), [], {})
    assert gone
    assert c.pledge(ANN, [ONE, TWO], 5_000) == {TWO}
    with c.looking(ANN, [ONE, TWO, TWO]) as kept:
        assert kept == {TWO}
    assert condemn(c, old(owned_key(ANN, THREE)), [], {}) == [], "one round at a time"
    assert c.buried(5_000)
    assert c.pledge(ANN, [ONE], 5_000) == {ONE}


def test_what_is_being_looked_at_stays_for_as_long_as_somebody_looks() -> None:
    """Given two who check whether a blob exists, then it stays until both are done, however long they take; a look
    alone pledges nothing, and ends also if it fails."""
    c, listing = collector(), old(owned_key(ANN, ONE), owned_key(BOB, ONE))
    with c.looking(ANN, [ONE]) as first:
        with suppress(OSError), c.looking(ANN, [ONE]) as second:
            assert first == second == {ONE}
            assert condemn(c, listing[:1], [], {}) == []
            raise OSError
        stays_awake(c, 5_000, 9_000)
        assert condemn(c, listing[:1], [], {}, now=9_000) == []
    assert c.pledged(ANN, 9_000) == 0
    assert condemn(c, listing, [], {}, now=9_000) == sorted(stored.key for stored in listing)


def test_a_hash_that_nobody_stored_leaves_nothing_behind() -> None:
    """Given somebody who asks about a thousand hashes and about one blob that exists, then one entry is kept, and it
    goes when its time is over, though nothing is ever collected."""
    c = Collector(0, GRACE)
    with c.looking(ANN, [sha_of(b"%d" % i) for i in range(1_000)]) as kept:
        assert len(kept) == 1_000
    assert c.pledge(ANN, [ONE], 100) == {ONE}
    assert (c.pledged(ANN, 100), c.pledged(BOB, 100)) == (1, 0)
    assert c.pledge(ANN, [TWO], 200) == {TWO} and c.pledge(ANN, [ONE], 300) == {ONE}
    assert [c.pledged(ANN, now) for now in (300 + GRACE - 101, 200 + GRACE, 300 + GRACE - 1, 300 + GRACE)] == [
        2,
        1,
        1,
        0,
    ]
    assert [len(entries) for entries in (c._pledged, c._looked_at)] == [0, 0]  # pyright: ignore[reportPrivateUsage]


def test_a_new_process_waits_until_old_pledges_are_over() -> None:
    c = Collector(5_000, GRACE)
    for now in range(5_000, 6_000, 111):
        assert condemn(c, old(owned_key(ANN, ONE)), [], {}, now=now) == []
    assert condemn(c, old(owned_key(ANN, ONE)), [], {}, now=6_000) == [owned_key(ANN, ONE)]


def test_a_process_that_was_frozen_waits_as_a_new_one_does() -> None:
    """Whoever looked before the freeze, and was about to commit, must find the blobs that it looked at."""
    c = collector()
    c.pledge(ANN, [ONE], 5_000)
    listing = old(owned_key(ANN, ONE))
    assert condemn(c, listing, [], {}, now=8_000) == [], "the pledge ran out in the freeze"
    for now in range(8_100, 9_000, 100):
        assert condemn(c, listing, [], {}, now=now) == []
    assert condemn(c, listing, [], {}, now=9_000) == [owned_key(ANN, ONE)]


def test_unfinished_uploads_of_somebody_at_work_go_as_well_in_the_end() -> None:
    sent = incoming_key("client-x", ONE)
    c = collector()
    assert condemn(c, old(sent), [], {}, ("client-x",), now=5_000) == []
    stays_awake(c, 5_000, 5_000 + 5 * GRACE)
    assert condemn(c, old(sent), [], {}, ("client-x",), now=5_000 + 5 * GRACE) == []
    assert condemn(c, old(sent), [], {}, ("client-x",), now=5_001 + 5 * GRACE) == [sent]


def test_what_somebody_sends_anew_is_unfinished_from_then_on() -> None:
    sent = incoming_key("client-x", ONE)
    c = collector()
    assert condemn(c, old(sent), [], {}, ("client-x",), now=5_000) == []
    stays_awake(c, 5_000, 7_000)
    assert condemn(c, old(sent, at=1), [], {}, ("client-x",), now=7_000) == []
    stays_awake(c, 7_000, 7_000 + 5 * GRACE)
    assert condemn(c, old(sent, at=1), [], {}, ("client-x",), now=7_000 + 5 * GRACE) == []
    assert condemn(c, old(sent, at=1), [], {}, ("client-x",), now=7_001 + 5 * GRACE) == [sent]


@pytest.mark.spec("J1")
@pytest.mark.parametrize("years", [1, 10])
def test_a_store_whose_clock_is_years_ahead_ends_no_upload(years: int) -> None:
    """The listing says how old a key is: wrong clocks make it older than any limit."""
    listing = old(incoming_key("client-x", ONE), at=1_000)
    store_ms = 1_000 + years * 365 * 86_400_000
    c = collector()
    for now in (5_000, 6_000):
        stays_awake(c, 5_000, now)
        assert c.condemn(listing, [], {}, ("client-x",), roots_read_ms=now, now_ms=now, store_ms=store_ms) == []


def test_age_is_told_by_the_clock_of_the_store() -> None:
    """Given a store whose clock is far from ours, then a blob is as old as the store says."""
    listing = old(incoming_key("att_a.1", ONE), at=1_000_000)
    young = collector().condemn(listing, [], {}, (), roots_read_ms=5_000, now_ms=5_000, store_ms=1_001_000)
    aged = collector().condemn(listing, [], {}, (), roots_read_ms=5_000, now_ms=5_000, store_ms=1_001_001)
    assert (young, aged) == ([], [incoming_key("att_a.1", ONE)])


def test_a_decision_ages() -> None:
    """Given a process that was frozen after it decided, then it does not go on deleting when it wakes."""
    c = collector()
    assert not c.may_delete(5_000)
    assert condemn(c, old(owned_key(ANN, ONE)), [], {})
    assert c.may_delete(5_000 + ROUND - 1)
    assert not c.may_delete(5_000 + ROUND)


def test_what_a_dead_process_may_still_be_deleting_is_relied_on_by_nobody() -> None:
    c = Collector(5_000, GRACE, round_ms=ROUND, late_ms=LATE, left=[owned_key(ANN, ONE)])
    assert c.condemned == [owned_key(ANN, ONE)] and not c.may_delete(5_000)
    assert not c.buried(5_000 + OVER - 1)
    assert not c.pledge(ANN, [ONE], 5_000 + OVER - 1) and c.pledge(BOB, [ONE], 5_000)
    assert c.may_bury(5_000 + OVER) and c.buried(5_000 + OVER)
    assert c.pledge(ANN, [ONE], 5_000 + OVER)


def test_a_round_of_which_nobody_knows_how_it_ended_lasts_until_it_cannot_do_harm() -> None:
    c = collector()
    assert condemn(c, old(owned_key(ANN, ONE)), [], {})
    c.unsure(5_010)
    assert not c.may_delete(5_010) and not c.buried(5_010 + OVER - 1)
    assert c.buried(5_010 + OVER)


def test_roots_that_were_read_long_ago_condemn_nothing() -> None:
    assert collector().condemn(old(owned_key(ANN, ONE)), [], {}, (), roots_read_ms=4_499, now_ms=5_000) == []


Client = tuple[str, str, frozenset[str]]


class World:
    """A store, committed roots and clients. Each step of the real thing that can be overtaken by another is a step of
    its own here: reading the roots, condemning, each single deletion."""

    def __init__(self) -> None:
        """Long after the start, with blobs that nothing has named for as long."""
        self.now = 10 * GRACE
        self.store = {owned_key(owner, sha): 0 for owner in OWNERS for sha in SHAS[:2]}
        self.roots: dict[Root, frozenset[str]] = {}
        self.collector = collector()
        for now in range(5_000, self.now, GRACE // 10):
            self.collector.awake(now)
        self.read: tuple[int, dict[Root, frozenset[str]]] | None = None
        self.to_delete: list[str] = []
        self.zombie: tuple[Collector, list[str]] = (self.collector, [])
        self.clients: list[Client] = []

    def time_passes(self, ms: int) -> None:
        """The process is awake meanwhile."""
        for _ in range(ms // 100):
            self.now += 100
            self.collector.awake(self.now)
        self.now += ms % 100

    def a_client_asks_what_is_missing(self, owner: str, shas: frozenset[str]) -> None:
        uploader = f"client-{len(self.clients)}"
        for sha in sorted(shas):
            if owned_key(owner, sha) not in self.store or not self.collector.pledge(owner, [sha], self.now):
                self.store[incoming_key(uploader, sha)] = self.now
        self.clients.append((owner, uploader, shas))

    def blobs_are_promoted(self, client: Client) -> None:
        owner, uploader, shas = client
        for sha in sorted(shas):
            if incoming_key(uploader, sha) in self.store and self.collector.pledge(owner, [sha], self.now):
                self.store[owned_key(owner, sha)] = self.now
                del self.store[incoming_key(uploader, sha)]

    def a_manifest_is_committed(self, client: Client) -> None:
        owner, _, shas = client
        manifest = sha_of("".join(sorted(shas)).encode())
        present = all(owned_key(owner, sha) in self.store for sha in shas)
        if not present or not self.collector.pledge(owner, [manifest], self.now):
            return
        self.store[owned_key(owner, manifest)] = self.now
        if len(self.collector.pledge(owner, shas, self.now)) == len(shas):
            self.collector.seen(Root(owner, manifest), self.now)
        if self.collector.may_name(Root(owner, manifest), self.now):
            self.roots[Root(owner, manifest)] = shas

    def a_job_is_forgotten(self, which: int) -> None:
        if self.roots:
            del self.roots[sorted(self.roots)[which % len(self.roots)]]

    def the_roots_are_read(self) -> None:
        self.read = (self.now, dict(self.roots))

    def a_round_is_decided(self) -> None:
        if self.read is None:
            return
        read_ms, roots = self.read
        listing = [Stored(key, 1, at) for key, at in self.store.items()]
        named = {root.manifest: shas for root, shas in roots.items()}
        chosen = self.collector.condemn(listing, roots, named, (), roots_read_ms=read_ms, now_ms=self.now)
        self.to_delete = chosen or self.to_delete

    def one_key_is_deleted(self, which: int) -> None:
        if self.to_delete and self.collector.may_delete(self.now):
            self.store.pop(self.to_delete.pop(which % len(self.to_delete)), None)

    def a_round_ends(self) -> None:
        if self.collector.buried(self.now):
            self.to_delete = []

    def the_orchestrator_is_replaced(self) -> None:
        """Pledges are lost with it; it may yet wake and go on deleting, as long as it thinks that it may."""
        self.zombie = (self.collector, self.to_delete)
        self.collector = Collector(self.now, GRACE, round_ms=ROUND, late_ms=LATE, left=self.collector.condemned)
        self.to_delete, self.read = [], None

    def a_replaced_orchestrator_deletes_one_key(self, which: int) -> None:
        collector, to_delete = self.zombie
        if to_delete and collector.may_delete(self.now):
            self.store.pop(to_delete.pop(which % len(to_delete)), None)

    def every_named_blob_is_there(self) -> None:
        for root, shas in self.roots.items():
            lost = [sha for sha in (root.manifest, *shas) if owned_key(root.owner, sha) not in self.store]
            assert not lost, f"{root} names {lost}, and they are gone"

    def all_else_goes_in_the_end(self) -> None:
        """When all is quiet, everything that nothing names goes, and what is named stays."""
        self.time_passes(3 * GRACE)
        assert self.collector.buried(self.now)
        named = {root.manifest: shas for root, shas in self.roots.items()}
        listing = [Stored(key, 1, at) for key, at in self.store.items()]
        for key in self.collector.condemn(listing, self.roots, named, (), roots_read_ms=self.now, now_ms=self.now):
            del self.store[key]
        self.every_named_blob_is_there()
        assert set(self.store) == {owned_key(r.owner, s) for r, shas in self.roots.items() for s in (r.manifest, *shas)}


WHOSE = st.sampled_from(OWNERS)
WHICH = st.frozensets(st.sampled_from(SHAS), min_size=1, max_size=2)
MS = [1, 100, 160, 400, 600, 1_001]


class Interleavings(RuleBasedStateMachine):
    """Any order of steps, and the shortest one that breaks a promise."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(ms=st.sampled_from(MS))
    def time(self, ms: int) -> None:
        self.world.time_passes(ms)

    @rule(owner=WHOSE, shas=WHICH)
    def ask(self, owner: str, shas: frozenset[str]) -> None:
        self.world.a_client_asks_what_is_missing(owner, shas)

    @precondition(lambda self: self.world.clients)
    @rule(which=st.integers(0, 20), commit=st.booleans())
    def go_on(self, which: int, commit: bool) -> None:
        client = self.world.clients[-1 - which % len(self.world.clients)]
        (self.world.a_manifest_is_committed if commit else self.world.blobs_are_promoted)(client)

    @rule(which=st.integers(0, 20))
    def forget(self, which: int) -> None:
        self.world.a_job_is_forgotten(which)

    @rule(which=st.integers(0, 20), step=st.sampled_from(["read", "decide", "delete", "end", "replace", "zombie"]))
    def collect(self, which: int, step: str) -> None:
        collect(self.world, step, which)

    @invariant()
    def kept(self) -> None:
        self.world.every_named_blob_is_there()

    def teardown(self) -> None:
        self.world.all_else_goes_in_the_end()


def collect(world: World, step: str, which: int) -> None:
    match step:
        case "read":
            world.the_roots_are_read()
        case "decide":
            world.a_round_is_decided()
        case "delete":
            world.one_key_is_deleted(which)
        case "end":
            world.a_round_ends()
        case "replace":
            world.the_orchestrator_is_replaced()
        case "zombie":
            world.a_replaced_orchestrator_deletes_one_key(which)


class TestInterleavings(Interleavings.TestCase):
    settings = settings(max_examples=40, stateful_step_count=50)


@pytest.mark.parametrize("batch", range(4))
def test_long_walks_lose_nothing(batch: int) -> None:
    """Steps with the weights that make trouble likely. The seed is in the message of a failure."""
    steps = {
        "time": 4,
        "ask": 3,
        "go on": 6,
        "forget": 1,
        "read": 3,
        "decide": 4,
        "delete": 5,
        "end": 2,
        "replace": 0.3,
        "zombie": 2,
    }
    for seed in range(batch * 500, batch * 500 + 500):
        draw, world = Random(seed), World()
        try:
            for step in draw.choices(list(steps), list(steps.values()), k=50):
                which = draw.randrange(20)
                match step:
                    case "time":
                        world.time_passes(draw.choice(MS))
                    case "ask":
                        world.a_client_asks_what_is_missing(
                            draw.choice(OWNERS), frozenset(draw.sample(SHAS, 1 + which % 2))
                        )
                    case "go on" if world.clients:
                        client = world.clients[-1 - min(which // 5, len(world.clients) - 1)]
                        world.blobs_are_promoted(client)
                        world.a_manifest_is_committed(client)
                    case "forget":
                        world.a_job_is_forgotten(which)
                    case _:
                        collect(world, step, which)
                world.every_named_blob_is_there()
            world.all_else_goes_in_the_end()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
