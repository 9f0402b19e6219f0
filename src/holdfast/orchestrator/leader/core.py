"""The leader, without its clocks, store and callers: when it leads, what time it is, when to tick, whom to refuse.

Pure: what the clocks show comes in with every call as a `Moment`. The production loop, the simulator and
`testing.Network` drive this same object. It outlives the kernel: with each lost lead the kernel is dropped, and the
next lead brings one that was rebuilt from the store.

States:

    AWAY      no kernel. Requests and sessions are refused. Left by `take`, which drops whatever was before.
    TAKING    the store gave a new epoch, a kernel was loaded, and `Led` was applied to it; that batch is not durable.
              Nothing else is applied. Left by `committed` of that batch.
    LEADING   events are applied, batches are committed.
    BROKEN    the kernel failed on an event; its state can no longer be trusted. Nothing is applied or committed.

`drop` leads from every state to AWAY.

Fences:

    epoch     every batch is written under the epoch that `take` was given; the store refuses an older one, so a deposed
              leader makes nothing durable and releases nothing.
    commit    one batch is in flight at a time, and only `committed` of that very batch releases it.
    turn      of the submissions under one key one is decided at a time (`dedupe`); turns outlive a lost lead.

Crash points and what holds at each (those of a commit: see `kernel.commit`):

    lead taken, nothing loaded    the epoch is used up; the next leader takes a higher one
    loaded, `Led` not durable     nobody was served, nothing was sent: as if it had never led
    `Led` durable                 the time without a leader is on record as lateness, and every lease counts anew
    the lead is lost              `drop`: what was not durable is forgotten, whoever waits is told to try again, and
                                  `retry_ms` says when to take the lead again

What the caller owes:

    1. `take` with the epoch and the rows of the store, then commit what `next_batch` returns before anything else;
    2. offer nothing unless `leads`; ask `refusal` before a request and `has_room` before what a session says;
    3. `next_batch` after every `offer` and `committed`; a failed commit, or BROKEN, ends the lead;
    4. call `pulse` and then `pulsed` within `next_pulse_ms`, counted anew after each commit.
"""

from collections.abc import Hashable
from enum import StrEnum
from typing import NamedTuple

from holdfast.kernel.commit import CommitBatch, CommitLoop
from holdfast.kernel.events import AnyEvent, CheckAsked, EstimatesAsked, ExplainAsked, Led, Tick
from holdfast.kernel.kernel import Kernel
from holdfast.model import Instant, Settings
from holdfast.orchestrator.leader.dedupe import SubmissionQueue

UNCOMMITTED_EVENTS_MAX = 20_000
"""Events that may wait behind one commit before requests are refused: about a second of kernel work."""
CROWD_MS_MAX = 120_000
"""For how long after its start a crowd at the door can make time stand still: a fleet of 10,000 is in by then, and a
stranger who fills the line can hold up deadlines no longer than that."""
TICK_GAP_MS = 5
"""A deadline that stays due cannot spin the loop."""
RETRY_MS, RETRY_MS_MAX = 50, 2_000
"""Between two tries to take the lead, doubled after each that failed."""
PULSE_MS_MIN, PULSE_MS_MAX = 20, 200
QUESTIONS = (CheckAsked, EstimatesAsked, ExplainAsked)
"""Events that change nothing."""


class LeadState(StrEnum):
    AWAY = "away"
    TAKING = "taking"
    LEADING = "leading"
    BROKEN = "broken"


class Moment(NamedTuple):
    """What the caller sees when it calls."""

    boot_ms: int
    """CLOCK_BOOTTIME: counts a suspended machine and cannot be set."""
    wall_ms: int
    crowded: bool = False
    """Whether nodes wait to be let in."""


class Offered(NamedTuple):
    """What became of an event."""

    late_ms: int = 0
    """Lateness that the kernel was told of before the event."""
    failed: Exception | None = None
    """What the kernel raised. A question that changed nothing costs only its answer; otherwise the state is BROKEN."""


def pulse_ms_of(tolerance_ms: int) -> int:
    """How often a leader looks at its clock that may be late by so much: min(200, max(20, tolerance / 2))."""
    return max(PULSE_MS_MIN, min(PULSE_MS_MAX, tolerance_ms // 2))


class LeaderClock:
    """Kernel time that never runs back, and by how much the loop itself was late.

    Kernel time starts at max(last committed, wall clock) and then advances with CLOCK_BOOTTIME. A wall clock that jumps
    ahead is followed, and the jump counts as lateness, so that setting a clock blames no node.

    The loop promises to look at the clock every `pulse_ms`. Time beyond the promise is lateness, whatever the cause
    (SIGSTOP, suspend, swap, a long computation, a store that stalls). `look` is called before anything is judged, so
    the first event after a freeze already finds the deadlines moved.
    """

    def __init__(self, tolerance_ms: int, pulse_ms: int, last_ms: int, at: Moment) -> None:
        self._tolerance_ms = tolerance_ms
        self._pulse_ms = pulse_ms
        self._seen_ms = at.boot_ms
        self._promised_ms = at.boot_ms + pulse_ms
        self._now_ms = max(last_ms, at.wall_ms)

    def now(self, at: Moment) -> Instant:
        """Kernel time, without judging whether the loop was late."""
        self._now_ms += max(0, at.boot_ms - self._seen_ms)
        self._seen_ms = max(at.boot_ms, self._seen_ms)
        return Instant(self._now_ms)

    def look(self, at: Moment, stalled: bool = False) -> tuple[Instant, int]:
        """(now, late_ms). `stalled`: the loop runs but cannot act (a commit is overdue), so it keeps no promise."""
        self.now(at)
        late = self._seen_ms - self._promised_ms
        jump = at.wall_ms - self._now_ms
        if jump > self._tolerance_ms:
            self._now_ms += jump
            self._promised_ms = self._seen_ms + self._pulse_ms
            return Instant(self._now_ms), max(0, late) + jump
        if late > self._tolerance_ms:
            self._promised_ms = self._seen_ms + (0 if stalled else self._pulse_ms)
            return Instant(self._now_ms), late
        return Instant(self._now_ms), 0

    def late(self, at: Moment) -> bool:
        """Whether a look would find lateness."""
        jump = at.wall_ms - self.now(at)
        return at.boot_ms - self._promised_ms > self._tolerance_ms or jump > self._tolerance_ms

    def kept(self, at: Moment) -> None:
        """The pulse ran as promised; the next one is due in `pulse_ms`."""
        self._promised_ms = at.boot_ms + self._pulse_ms


class _Lead:
    """What is dropped with a lost lead."""

    def __init__(self, loop: CommitLoop, clock: LeaderClock, at: Moment) -> None:
        self.loop, self.clock = loop, clock
        self.since_ms = at.boot_ms
        self.pulse_by_ms = at.boot_ms
        self.commit_began_ms: int | None = None


class LeaderCore:
    def __init__(
        self, settings: Settings, *, pulse_ms: int | None = None, events_max: int = UNCOMMITTED_EVENTS_MAX
    ) -> None:
        """`pulse_ms`: of a world whose orchestrator never freezes, and need not look at the clock so often."""
        tolerance_ms = self.tolerance_ms = settings.late_tolerance_ms
        self.pulse_ms = pulse_ms_of(tolerance_ms) if pulse_ms is None else pulse_ms
        self.events_max = events_max
        self.crowd_ms_max = CROWD_MS_MAX
        self.state = LeadState.AWAY
        self.epoch = 0
        """Of the last lead taken."""
        self.behind_commit = 0
        """Events that wait for the next commit: the bound for overload."""
        self.submissions = SubmissionQueue()
        self._lead: _Lead | None = None
        self._retry_ms = RETRY_MS

    # --- taking and losing the lead ---

    @property
    def leads(self) -> bool:
        return self.state is LeadState.LEADING

    @property
    def _leading(self) -> _Lead | None:
        return self._lead if self.leads else None

    @property
    def kernel(self) -> Kernel | None:
        return None if self._lead is None else self._lead.loop.kernel

    def take(self, epoch: int, kernel: Kernel, last_ms: int, seed: int, at: Moment) -> None:
        """The store gave this epoch, and this kernel was loaded from it. `last_ms`: kernel time when it was last
        committed; `seed`: 63 random bits, used by the first leader of all."""
        self.drop()
        self.state, self.epoch = LeadState.TAKING, epoch
        lead = self._lead = _Lead(CommitLoop(kernel), self._fresh_clock(last_ms, at), at)
        lead.loop.offer(Led(epoch, seed), lead.clock.now(at))

    def _fresh_clock(self, last_ms: int, at: Moment) -> LeaderClock:
        return LeaderClock(self.tolerance_ms, self.pulse_ms, last_ms, at)

    def drop(self) -> None:
        """The lead is over: forget the kernel and everything it decided that did not become durable."""
        self.state, self.behind_commit, self._lead = LeadState.AWAY, 0, None

    def retry_ms(self) -> int:
        """How long to wait before the next try to take the lead."""
        wait_ms, self._retry_ms = self._retry_ms, min(2 * self._retry_ms, RETRY_MS_MAX)
        return wait_ms

    # --- events ---

    @property
    def has_room(self) -> bool:
        """Whether a session may add more: what holds back a node that talks faster than the store writes."""
        return self.behind_commit < self.events_max

    def refusal(self) -> str:
        """The code with which a request is refused now; empty where it may be offered."""
        if not self.leads:
            return "store_unavailable"
        return "" if self.has_room else "busy"

    def offer(self, event: AnyEvent, at: Moment, ticket: Hashable = None) -> Offered:
        """Apply an event. Lateness is told first, so that nobody is judged by it. What follows waits for the commit."""
        lead = self._leading
        if lead is None:
            raise AssertionError(f"an event is offered while the lead is {self.state}")
        now, late_ms = lead.clock.look(at, self.held_up(at))
        failed = self._apply(lead.loop, Tick(late_ms), now, None) if late_ms else None
        if failed is None:
            failed = self._apply(lead.loop, event, now, ticket)
        if self.leads:
            self.behind_commit += 1
        return Offered(late_ms, failed)

    def _apply(self, loop: CommitLoop, event: AnyEvent, now: Instant, ticket: Hashable) -> Exception | None:
        try:
            loop.offer(event, now, ticket)
        except Exception as cause:
            if not isinstance(event, QUESTIONS) or loop.kernel.changing:
                self.state = LeadState.BROKEN
            return cause
        return None

    # --- commits ---

    @property
    def committing(self) -> bool:
        return self._lead is not None and self._lead.commit_began_ms is not None

    @property
    def at_rest(self) -> bool:
        """Whether everything that was decided is durable."""
        return self._lead is not None and not self.committing and self._lead.loop.waiting == 0

    def next_batch(self, at: Moment) -> CommitBatch | None:
        """The batch to commit now, or None: one is in flight, there is nothing to do, or the kernel is broken."""
        lead = self._lead
        if lead is None or self.committing or self.state is LeadState.BROKEN:
            return None
        self.behind_commit = 0
        batch = lead.loop.next_batch()
        if batch is not None:
            lead.commit_began_ms = at.boot_ms
        return batch

    def committed(self, batch: CommitBatch, at: Moment) -> CommitBatch:
        """The batch is durable: its sends and answers may go out now. With the first of a lead, leading begins."""
        lead = self._lead
        assert lead is not None
        lead.loop.committed(batch)
        lead.commit_began_ms = None
        if self.state is LeadState.TAKING:
            # Time that the first commit took is no lateness: nothing was promised to anybody yet.
            lead.clock = self._fresh_clock(lead.clock.now(at), at)
            self.state, self._retry_ms = LeadState.LEADING, RETRY_MS
            lead.since_ms = lead.pulse_by_ms = at.boot_ms
        return batch

    # --- time ---

    def now(self, at: Moment) -> Instant:
        """Kernel time."""
        assert self._lead is not None
        return self._lead.clock.now(at)

    def held_up(self, at: Moment) -> bool:
        """Whether no deadline may run out now, for it is this side that others wait for: a commit is overdue, and
        nothing decided reaches anyone; or it has just begun to lead, and nodes stand at its door, not yet let in."""
        lead = self._lead
        if lead is None:
            return False
        if lead.commit_began_ms is not None and at.boot_ms - lead.commit_began_ms > self.tolerance_ms:
            return True
        return at.crowded and at.boot_ms - lead.since_ms < self.crowd_ms_max

    def pulse(self, at: Moment) -> Offered | None:
        """Look at the clock as promised. Ticks if the loop was late, if something is due, and while a job lives: then
        the time is kept on record, so that little is charged to nobody if this process is lost."""
        lead = self._leading
        if lead is None:
            return None
        kernel = lead.loop.kernel
        due = kernel.next_due()
        wanted = kernel.at_stake or (due is not None and due <= lead.clock.now(at))
        if lead.clock.late(at) or (wanted and not self.held_up(at)):
            return self.offer(Tick(), at)
        return None

    def pulsed(self, at: Moment) -> None:
        """The pulse is done: the next one is promised, unless this side is held up."""
        lead = self._leading
        if lead is None:
            return
        if not self.held_up(at):
            lead.clock.kept(at)
        lead.pulse_by_ms = at.boot_ms + self.pulse_ms

    def next_pulse_ms(self, at: Moment) -> int | None:
        """How long until the next pulse: as promised or when something is due, what is first. None: not leading."""
        lead = self._leading
        if lead is None:
            return None
        wait_ms = lead.pulse_by_ms - at.boot_ms
        due = lead.loop.kernel.next_due()
        if due is not None and not self.held_up(at):
            wait_ms = min(wait_ms, max(TICK_GAP_MS, due - lead.clock.now(at)))
        return max(0, wait_ms)
