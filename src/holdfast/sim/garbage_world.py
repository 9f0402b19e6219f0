"""A simulation of the garbage collector: several orchestrators share a blob store and its rows, from one seed.

Processes die, freeze between any two steps, and are replaced while they still believe that they lead. Wall clocks are
set, answers get lost, requests arrive late, uploads are interrupted. All decisions are made by
`holdfast.blobs.garbage`: this module only has the steps that `orchestrator.content` takes
around it, separately, so that anything can happen in between. Content that a root names, or that somebody was told to
rely on, must never be deleted, and named content must exist; once everything is quiet, all other content must be
deleted within bounded time.
"""

import heapq
from collections.abc import Generator
from itertools import count
from random import Random

from holdfast.blobs.garbage import Collector, Root
from holdfast.blobs.keys import Owned, Stored, incoming_key, owned_key, owner_hash, parse_key, sha_of

GRACE, ROUND, LATE = 4_000, 80, 60
UNFINISHED = 3 * GRACE
BEAT, SWEEP = 150, 300
STORM = 9 * GRACE
"""How long faults are injected."""
CALM = 2 * GRACE + UNFINISHED + 20 * SWEEP
"""Within this time after the last fault, all unreferenced content is deleted."""
OWNERS = [owner_hash("ann"), owner_hash("bob")]
SHAS = [sha_of(bytes([i])) for i in range(5)]

Steps = Generator[int]
"""The actions of a process; yields the duration of each step."""


class Lost(AssertionError):
    """Content is missing that must exist, or exists that must have been deleted."""


class Fenced(Exception):
    """The row was not written: another epoch leads."""


class Died(Exception):
    """The process ends itself: another one leads."""


class StoredProcess:
    def __init__(self, number: int, wall_ahead: int) -> None:
        self.number = number
        self.alive = True
        self.frozen_until = 0
        self.wall_ahead = wall_ahead
        """The difference between its wall clock and the store's."""
        self.epoch = 0
        self.collector = Collector(0)
        self.pledged: dict[str, int] = {}
        """Every key that it told somebody to rely on while it led, with the time limit: kept for the checks."""


class GarbageWorld:
    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.now = 0
        self.dated = bool(seed % 2)
        """Whether requests to delete carry their own time limit (S3), or are made under a lock (a folder)."""
        self.lock: StoredProcess | None = None
        self.store: dict[str, int] = {owned_key(o, s): 0 for o in OWNERS for s in SHAS[:3]}
        self.roots: dict[Root, frozenset[str]] = {}
        self.epoch = 0
        self.note: list[str] = []
        self.processes: list[StoredProcess] = []
        self.named = self.deleted = 0
        self._numbers = count()
        self._due: list[tuple[int, int, StoredProcess | None, Steps]] = []

    # --- time ---

    def run(self) -> None:
        """A phase with faults, then one without."""
        self.lead(self.start())
        self.begin(None, self.trouble())
        self.until(STORM)
        for process in self.processes:
            process.frozen_until, process.wall_ahead = min(process.frozen_until, self.now), 0
        if not any(p.alive and p.epoch == self.epoch for p in self.processes):
            self.lead(self.start())
        self.until(STORM + CALM)
        wanted = {owned_key(r.owner, s) for r, shas in self.roots.items() for s in (r.manifest, *shas)}
        if rest := set(self.store) - wanted:
            raise Lost(f"{len(rest)} keys that nothing names are still there: {sorted(rest)[0]}")

    def until(self, end: int) -> None:
        while self._due and self._due[0][0] <= end:
            at, _, process, steps = heapq.heappop(self._due)
            self.now = at
            if process is not None and process.frozen_until > at:
                self._put(process.frozen_until, process, steps)
            elif process is None or process.alive:
                try:
                    self._put(at + next(steps), process, steps)
                except StopIteration:
                    pass
                except Died:
                    assert process is not None
                    self.kill(process)
        self.now = end

    def begin(self, process: StoredProcess | None, steps: Steps, after: int = 0) -> None:
        self._put(self.now + after, process, steps)

    def _put(self, at: int, process: StoredProcess | None, steps: Steps) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), process, steps))

    # --- faults ---

    def trouble(self) -> Steps:
        draw = self.draw
        while self.now < STORM:
            living = [p for p in self.processes if p.alive]
            match draw.choices(
                ["client", "forget", "freeze", "kill", "replace", "again", "clock"], [9, 3, 1.2, 0.3, 0.7, 0.3, 0.5]
            )[0]:
                case "client" if living:
                    # Some clients still talk to the previous leader.
                    whom = living[-1] if draw.random() < 0.8 else draw.choice(living)
                    self.begin(whom, self.upload(whom))
                case "forget" if self.roots:
                    del self.roots[draw.choice(sorted(self.roots))]
                case "freeze" if living:
                    length = draw.choice([ROUND // 2, 2 * ROUND, 4 * ROUND, GRACE // 2, 2 * GRACE])
                    draw.choice(living).frozen_until = self.now + length
                case "kill" if living:
                    self.kill(draw.choice(living))
                case "replace":
                    self.lead(self.start())
                case "again" if living:
                    self.lead(draw.choice(living))
                case "clock" if living:
                    draw.choice(living).wall_ahead = draw.choice([-3 * GRACE, -LATE, 0, LATE, 3 * GRACE])
                case _:
                    pass
            yield draw.choice([1, 10, 40, 150, 300, 700])

    def coup(self, process: StoredProcess, doomed: list[str]) -> Steps:
        """In the middle of a round, another process takes the lead, and a client sends it content that is being
        deleted."""
        yield self.draw.choice([0, 1, 2, 10, ROUND])
        process.frozen_until = self.now + self.draw.choice([0, ROUND // 4, ROUND, 2 * ROUND, 3 * ROUND, GRACE // 2])
        heir = self.start()
        self.lead(heir)
        owned = [key for key in map(parse_key, doomed) if isinstance(key, Owned)]
        for wanted in self.draw.sample(owned, min(3, len(owned))):
            for after in range(0, 3 * ROUND, 20):
                self.begin(heir, self.upload(heir, wanted), after)

    def start(self) -> StoredProcess:
        process = StoredProcess(len(self.processes), self.draw.choice([-LATE, 0, LATE]))
        self.processes.append(process)
        self.begin(process, self.sweeps(process))
        self.begin(process, self.beats(process))
        return process

    def kill(self, process: StoredProcess) -> None:
        process.alive = False
        if self.lock is process:
            self.lock = None

    def lead(self, process: StoredProcess) -> None:
        """As `Leader._rebuild` and `Content.led` do: the note is read after the lead was taken."""
        self.epoch += 1
        if self.epoch != process.epoch + 1 or not process.epoch:
            process.collector = Collector(
                self.now, GRACE, round_ms=ROUND, late_ms=LATE, unfinished_ms=UNFINISHED, left=self.note
            )
        process.epoch = self.epoch

    def leave_note(self, epoch: int, keys: list[str]) -> None:
        if self.epoch != epoch:
            raise Fenced
        self.note = keys

    # --- collecting, as `orchestrator.sweep` does it ---

    def beats(self, process: StoredProcess) -> Steps:
        while True:
            process.collector.awake(self.now)
            yield BEAT

    def sweeps(self, process: StoredProcess) -> Steps:
        while True:
            yield (
                self.draw.randrange(1, ROUND // 2)
                if process.collector.condemned
                else self.draw.randrange(SWEEP // 2, SWEEP)
            )
            try:
                yield from self.sweep(process, process.collector, process.epoch)
            except Fenced:
                if process.epoch != self.epoch:
                    raise Died from None

    def sweep(self, process: StoredProcess, collector: Collector, epoch: int) -> Steps:
        if collector.condemned:
            yield from self.end_round(collector, epoch)
        read, roots = self.now, dict(self.roots)
        yield self.draw.choice([1, 5, GRACE // 3])
        listing = [Stored(key, 1, at) for key, at in self.store.items()]
        yield self.draw.choice([1, 5, 20])
        named = {root.manifest: shas for root, shas in roots.items()}
        doomed = collector.condemn(
            listing, roots, named, (), roots_read_ms=read, now_ms=self.now, store_ms=self.now + process.wall_ahead
        )
        if not doomed:
            return
        yield self.draw.choice([1, 5, ROUND])
        self.leave_note(epoch, doomed)
        if self.now < STORM and self.draw.random() < 0.3:
            self.begin(None, self.coup(process, doomed))
        answered = yield from (self.ask_dated if self.dated else self.delete_locked)(process, collector, doomed)
        if answered:
            yield from self.end_round(collector, epoch)
        else:
            collector.unsure(self.now)

    def ask_dated(self, process: StoredProcess, collector: Collector, doomed: list[str]) -> Generator[int, None, bool]:
        for key in doomed:
            # The store rejects a clock that is off by more than it tolerates; see `arrives`.
            dated = self.now + process.wall_ahead
            yield 1
            if not collector.may_delete(self.now):
                break
            yield 1  # between the check and the request: the critical moment for a freeze
            stormy = self.now < STORM
            travels = self.draw.choice([1, 3, ROUND // 2, ROUND]) if stormy else 1
            self.begin(None, self.arrives(key, dated), travels)
            if stormy and self.draw.random() < 0.03:
                return False
            yield travels + 1
        return True

    def arrives(self, key: str, dated: int) -> Steps:
        if dated - LATE <= self.now <= dated + ROUND:
            self.delete(key)
        yield from ()

    def delete_locked(
        self, process: StoredProcess, collector: Collector, doomed: list[str]
    ) -> Generator[int, None, bool]:
        if self.lock is not None:
            return False
        self.lock = process
        for key in doomed:
            if not collector.may_delete(self.now):
                break
            yield self.draw.choice([1, 1, 4])
            self.delete(key)
        self.lock = None
        return True

    def delete(self, key: str) -> None:
        for process in self.processes:
            if process.pledged.get(key, 0) > self.now:
                raise Lost(f"at {self.now} {key[-64:][:6]} is deleted, on which somebody was told to rely")
        for root, shas in self.roots.items():
            if key in {owned_key(root.owner, sha) for sha in (root.manifest, *shas)}:
                raise Lost(f"at {self.now} {key[-64:][:6]} is deleted, which {root.manifest[:6]} names")
        self.deleted += self.store.pop(key, None) is not None

    def end_round(self, collector: Collector, epoch: int) -> Steps:
        if not collector.may_bury(self.now):
            return
        yield 1
        if not self.dated and self.lock is not None:
            return
        yield 2
        self.leave_note(epoch, [])
        collector.buried(self.now)

    # --- uploading, as `orchestrator.content` does it ---

    def pledge(self, process: StoredProcess, owner: str, sha: str) -> bool:
        held = bool(process.collector.pledge(owner, [sha], self.now))
        if held and process.epoch == self.epoch:
            process.pledged[owned_key(owner, sha)] = self.now + GRACE
        return held

    def upload(self, process: StoredProcess, wanted: Owned | None = None) -> Steps:
        """Send missing content, have it promoted, and submit a job that names it."""
        draw = self.draw
        owner, uploader = wanted.owner if wanted else draw.choice(OWNERS), f"client-{next(self._numbers)}"
        shas = frozenset([wanted.sha] if wanted else draw.sample(SHAS, draw.choice([1, 2])))
        root = Root(owner, sha_of("".join(sorted(shas)).encode()))
        for sha in sorted(shas):
            there = False
            with process.collector.looking(owner, [sha]) as held:
                yield draw.choice([1, 3])
                if held and owned_key(owner, sha) in self.store:
                    yield draw.choice([1, 3])  # the store's answer travels
                    there = self.pledge(process, owner, sha)
            if not there:
                self.store[incoming_key(uploader, sha)] = self.now
            yield 1 if wanted else draw.choice([1, 20, ROUND])
        if draw.random() < 0.15:
            return  # interrupted
        collector, began = process.collector, self.now
        for sha in [*sorted(shas), root.manifest]:
            with process.collector.looking(owner, [sha]) as held:
                if not held:
                    return
                yield draw.choice([1, 3])
                key, incoming = owned_key(owner, sha), incoming_key(uploader, sha)
                if key not in self.store:
                    if incoming not in self.store and sha != root.manifest:
                        return
                    yield 2
                    self.store[key] = self.now
                if not self.pledge(process, owner, sha):
                    return
            self.store.pop(incoming, None)
        if collector is process.collector:
            collector.seen(root, began)
        yield 1 if wanted else draw.choice([1, 40, GRACE // 4, GRACE, 2 * GRACE])
        yield from self.submit(process, root, shas)

    def submit(self, process: StoredProcess, root: Root, shas: frozenset[str]) -> Steps:
        collector, pledged = process.collector, self.now
        careless = self.draw.random() < 0.1
        if not careless and not collector.still_seen(root, self.now):
            every = [root.manifest, *sorted(shas)]
            with collector.looking(root.owner, every) as held:
                yield 2
                if len(held) < len(every) or any(owned_key(root.owner, sha) not in self.store for sha in every):
                    return
                yield 1
                if not all(self.pledge(process, root.owner, sha) for sha in every):
                    return
                collector.seen(root, pledged)
        yield self.draw.choice([1, 1, 30])
        if process.collector.may_name(root, self.now):
            epoch = process.epoch
            yield self.draw.choice([1, 10, ROUND])  # the commit
            if self.epoch == epoch:
                if gone := [s for s in (root.manifest, *shas) if owned_key(root.owner, s) not in self.store]:
                    raise Lost(f"at {self.now} {root.manifest[:6]} is named, of which {gone[0][:6]} is gone")
                self.roots[root] = shas
                self.named += 1
