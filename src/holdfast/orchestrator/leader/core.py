"""Decides for the leader, without clocks, store or callers: when it leads, the time, when to tick, what it refuses.

Pure: the clock readings come in with every call as a `Moment`. The production loop, the simulator and
`testing.Network` drive this same object. It outlives the kernel: a lost lead drops the kernel, and
the next lead brings one that was rebuilt from the store.

States:

    AWAY      no kernel. Requests and sessions are refused. Left by `take`, which drops any earlier lead.
    TAKING    the store gave a new epoch, a kernel was loaded, and `Led` was applied to it; that batch is not durable.
              Nothing else is applied. Left by `committed` of that batch.
    LEADING   events are applied, batches are committed.
    BROKEN    the kernel failed on an event; its state can no longer be trusted. Nothing is applied or committed.

`drop` leads from every state to AWAY.

Fences:

    epoch     every batch is written under the epoch that `take` was given; the store refuses an older one, so a deposed
              leader makes nothing durable and releases nothing.
    commit    one batch is in flight at a time, and only `committed` of that very batch releases it.
    turn      submissions under one key are decided one at a time (`dedupe`); turns outlive a lost lead.

Crash points and what holds at each (those of a commit: see `kernel.commit`):

    lead taken, nothing loaded    the epoch is used up; the next leader takes a higher one
    loaded, `Led` not durable     no request was served, nothing was sent: as if it had never led
    `Led` durable                 served time goes on from the last that was stored, and every lease counts anew
    the lead is lost              `drop`: what was not durable is forgotten, waiting callers are told to try again, and
                                  `retry_ms` says when to take the lead again
    a commit is refused           the batch changed what has ended. `refused`, then as if the lead were lost; the next
                                  kernel is told which jobs have ended, so the request that is repeated is answered
                                  (docs/decisions/0022)

What the caller owes:

    1. `take` with the epoch and the rows of the store, then commit what `next_batch` returns before anything else;
    2. offer nothing unless `leads`; check `refusal` before a request and `has_room` before a session's message;
    3. `next_batch` after every `offer` and `committed`; a failed commit, or BROKEN, ends the lead; call `refused` first
       if the store refused it;
    4. call `pulse` and then `pulsed` within `next_pulse_ms`, counted anew after each commit.
"""

from collections.abc import Hashable, Iterable
from enum import StrEnum
from typing import NamedTuple

from holdfast.kernel.commit import CommitBatch, CommitLoop
from holdfast.kernel.events import AnyEvent, CheckAsked, EstimatesAsked, ExplainAsked, Led, Tick
from holdfast.kernel.kernel import Kernel
from holdfast.kernel.world import ENDED_MAX
from holdfast.model import MINUTE_MS, DeletedJob, Instant, Job, JobId, Settings
from holdfast.model.stored import StoredRow
from holdfast.orchestrator.leader.dedupe import SubmissionQueue

UNCOMMITTED_EVENTS_MAX = 20_000
"""Events that may wait behind one commit before requests are refused: about a second of kernel work."""
CROWD_MS_MAX = 120_000
"""For how long after taking the lead a crowd of waiting nodes can stop deadlines, in milliseconds: a fleet of 10,000
has joined by then, and a stranger that fills the handshake queue cannot delay deadlines longer."""
TICK_GAP_MS = 5
"""The shortest time between two ticks, in milliseconds: a deadline that stays due must not make the loop spin."""
TIGHT_JOBS_MAX = 32
"""Jobs that one commit changes while the store has little space. A row takes up to 100 KiB."""
RETRY_MS, RETRY_MS_MAX = 50, 2_000
"""The wait between two tries to take the lead, in milliseconds; it doubles after each failure, up to the second
value."""
PULSE_MS_MIN, PULSE_MS_MAX = 20, 200
AWAY_MS = 10 * MINUTE_MS
"""A leader that did not look at its clock for this long beyond its tolerance was suspended or stopped: the rest is not
time served."""
QUESTIONS = (CheckAsked, EstimatesAsked, ExplainAsked)
"""Events that change no state."""


class LeadState(StrEnum):
    AWAY = "away"
    TAKING = "taking"
    LEADING = "leading"
    BROKEN = "broken"


class Moment(NamedTuple):
    """What the caller reads from its machine for one call."""

    boot_ms: int
    """CLOCK_BOOTTIME: counts while the machine is suspended, and cannot be set."""
    wall_ms: int
    """Only for display: it can be set, and may be wrong by years."""
    crowded: bool = False
    """Whether nodes wait for their handshake."""


class Offered(NamedTuple):
    """The result of offering an event."""

    late_ms: int = 0
    """Lateness that was applied to the kernel before the event."""
    failed: Exception | None = None
    """What the kernel raised. If a question failed without a change of state, only its answer is lost; otherwise the
    state is BROKEN."""


def pulse_ms_of(tolerance_ms: int) -> int:
    """How often a leader that may be late by `tolerance_ms` looks at its clock: min(200, max(20, tolerance / 2))."""
    return max(PULSE_MS_MIN, min(PULSE_MS_MAX, tolerance_ms // 2))


class LeaderClock:
    """Computes served time, which is the kernel's, and by how much the loop itself was late.

    Served time continues from the last committed value and advances with CLOCK_BOOTTIME while this process leads. It
    never runs back, and no clock that can be set moves it. The very first leader starts it at its wall clock. A leader
    that did not look at its clock for `AWAY_MS` did not serve: of a longer gap only that much counts, so that a machine
    that was suspended for a month finds no lifetime over.

    The loop promises to look at the clock every `pulse_ms`. Time beyond the promise is lateness, whatever the cause
    (SIGSTOP, suspend, swap, a long computation, a store that stalls). `look` is called before any decision, so
    the first event after a freeze already finds the deadlines moved.
    """

    def __init__(self, tolerance_ms: int, pulse_ms: int, last_ms: int, at: Moment) -> None:
        self._tolerance_ms = tolerance_ms
        self._pulse_ms = pulse_ms
        self._seen_ms = at.boot_ms
        self._promised_ms = at.boot_ms + pulse_ms
        self._now_ms = last_ms or max(1, at.wall_ms)

    def now(self, at: Moment) -> Instant:
        """Served time, without judging whether the loop was late."""
        passed_ms = max(0, at.boot_ms - self._seen_ms)
        served_ms = min(passed_ms, AWAY_MS + self._tolerance_ms)
        self._now_ms += served_ms
        self._promised_ms += passed_ms - served_ms
        self._seen_ms += passed_ms
        return Instant(self._now_ms)

    def look(self, at: Moment, stalled: bool = False) -> tuple[Instant, int]:
        """(now, late_ms). `stalled`: the loop runs but cannot act (a commit is overdue), so its next look is late from
        now on."""
        self.now(at)
        late = self._seen_ms - self._promised_ms
        if late > self._tolerance_ms:
            self._promised_ms = self._seen_ms + (0 if stalled else self._pulse_ms)
            return Instant(self._now_ms), late
        return Instant(self._now_ms), 0

    def late(self, at: Moment) -> bool:
        """Whether a look would find lateness."""
        self.now(at)
        return self._seen_ms - self._promised_ms > self._tolerance_ms

    def kept(self, at: Moment) -> None:
        """The pulse ran as promised; the next one is due in `pulse_ms`."""
        self._promised_ms = at.boot_ms + self._pulse_ms


class _Lead:
    """The parts that are dropped when the lead is lost."""

    def __init__(self, loop: CommitLoop, clock: LeaderClock, at: Moment) -> None:
        self.loop, self.clock = loop, clock
        self.since_ms = at.boot_ms
        self.pulse_by_ms = at.boot_ms
        self.commit_began_ms: int | None = None


class LeaderCore:
    def __init__(
        self, settings: Settings, *, pulse_ms: int | None = None, events_max: int = UNCOMMITTED_EVENTS_MAX
    ) -> None:
        """`pulse_ms`: for an orchestrator that never freezes, and need not look at the clock so often."""
        tolerance_ms = self.tolerance_ms = settings.late_tolerance_ms
        self.pulse_ms = pulse_ms_of(tolerance_ms) if pulse_ms is None else pulse_ms
        self.events_max = events_max
        self.crowd_ms_max = CROWD_MS_MAX
        self.state = LeadState.AWAY
        self.epoch = 0
        """The epoch of the last lead taken."""
        self.behind_commit = 0
        """Events that wait for the next commit. `events_max` limits them."""
        self.submissions = SubmissionQueue()
        self.tight = False
        """The store has little space, so that only small commits fit: deadlines are handled a few at a time, and only
        when everything before is durable."""
        self._lead: _Lead | None = None
        self._retry_ms = RETRY_MS
        self._ended: dict[JobId, str] = {}
        """Jobs in refused commits, oldest first: id to hash of the specification. They outlive the lead."""

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
        """Begin to lead with this epoch from the store and the kernel that was loaded from it. `last_ms`: the last
        committed served time, 0 if there is none; `seed`: 63 random bits, used only by the very first leader."""
        self.drop()
        self.state, self.epoch = LeadState.TAKING, epoch
        lead = self._lead = _Lead(CommitLoop(kernel), self._fresh_clock(last_ms, at), at)
        lead.loop.offer(Led(epoch, seed, tuple(self._ended.items()), at.wall_ms), lead.clock.now(at))

    def _fresh_clock(self, last_ms: int, at: Moment) -> LeaderClock:
        return LeaderClock(self.tolerance_ms, self.pulse_ms, last_ms, at)

    def drop(self) -> None:
        """The lead is over: forget the kernel and everything it decided that did not become durable."""
        self.state, self.behind_commit, self._lead = LeadState.AWAY, 0, None

    def refused(self, rows: Iterable[StoredRow]) -> None:
        """The store refused a commit, because these rows have ended. The next lead's kernel is told of the jobs."""
        self._ended |= {row.id: row.spec_hash for row in rows if isinstance(row, Job | DeletedJob)}
        for job in list(self._ended)[:-ENDED_MAX]:
            del self._ended[job]

    def retry_ms(self) -> int:
        """How long to wait before the next try to take the lead."""
        wait_ms, self._retry_ms = self._retry_ms, min(2 * self._retry_ms, RETRY_MS_MAX)
        return wait_ms

    # --- events ---

    @property
    def has_room(self) -> bool:
        """Whether a session may add more events. This slows down a node that sends faster than the store writes."""
        return self.behind_commit < self.events_max

    def refusal(self) -> str:
        """The code with which a request is refused now; empty if it may be offered."""
        if not self.leads:
            return "store_unavailable"
        return "" if self.has_room else "busy"

    def offer(self, event: AnyEvent, at: Moment, ticket: Hashable = None) -> Offered:
        """Apply an event. Lateness is applied first, so that no node is blamed for it. The effects wait for the
        commit."""
        lead = self._leading
        if lead is None:
            raise AssertionError(f"an event is offered while the lead is {self.state}")
        now, late_ms = lead.clock.look(at, self.held_up(at))
        failed = self._apply(lead.loop, self._tick(late_ms), now, None) if late_ms else None
        if failed is None:
            failed = self._apply(lead.loop, event, now, ticket)
        if self.leads:
            self.behind_commit += 1
        return Offered(late_ms, failed)

    def _tick(self, late_ms: int = 0, wall_ms: int | None = None) -> Tick:
        return Tick(late_ms, wall_ms, TIGHT_JOBS_MAX if self.tight else 0)

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
        """The batch to commit now, or None: one is in flight, there is nothing to commit, or the kernel is broken."""
        lead = self._lead
        if lead is None or self.committing or self.state is LeadState.BROKEN:
            return None
        self.behind_commit = 0
        batch = lead.loop.next_batch()
        if batch is not None:
            lead.commit_began_ms = at.boot_ms
        return batch

    def committed(self, batch: CommitBatch, at: Moment) -> CommitBatch:
        """The batch is durable: its sends and answers may go out now. The first commit of a lead starts LEADING."""
        lead = self._lead
        assert lead is not None
        lead.loop.committed(batch)
        lead.commit_began_ms = None
        if self.state is LeadState.TAKING:
            # The time of the first commit is no lateness: no pulse was promised yet.
            lead.clock = self._fresh_clock(lead.clock.now(at), at)
            self.state, self._retry_ms = LeadState.LEADING, RETRY_MS
            lead.since_ms = lead.pulse_by_ms = at.boot_ms
        return batch

    # --- time ---

    def now(self, at: Moment) -> Instant:
        """Served time."""
        assert self._lead is not None
        return self._lead.clock.now(at)

    def held_up(self, at: Moment) -> bool:
        """Whether deadlines must not expire now because this side causes the delay: a commit is overdue, so no decision
        reaches anyone; or it has just begun to lead, and nodes still wait for their handshake."""
        lead = self._lead
        if lead is None:
            return False
        if lead.commit_began_ms is not None and at.boot_ms - lead.commit_began_ms > self.tolerance_ms:
            return True
        return at.crowded and at.boot_ms - lead.since_ms < self.crowd_ms_max

    def pulse(self, at: Moment) -> Offered | None:
        """Look at the clock as promised. Ticks if the loop was late, if something is due, while any job is live, if
        served time should be put on record, and if the wall clock was set."""
        lead = self._leading
        if lead is None:
            return None
        kernel = lead.loop.kernel
        due, now = kernel.next_due(), lead.clock.now(at)
        wanted = kernel.at_stake or (due is not None and due <= now) or kernel.clock_due(now)
        wall_ms = at.wall_ms if kernel.wall_differs(now, at.wall_ms) else None
        waits = self.held_up(at) or (self.tight and not self.at_rest)
        if lead.clock.late(at) or ((wanted or wall_ms is not None) and not waits):
            return self.offer(self._tick(wall_ms=wall_ms), at)
        return None

    def pulsed(self, at: Moment) -> None:
        """The pulse is done: the next one is promised, unless `held_up`."""
        lead = self._leading
        if lead is None:
            return
        if not self.held_up(at):
            lead.clock.kept(at)
        lead.pulse_by_ms = at.boot_ms + self.pulse_ms

    def next_pulse_ms(self, at: Moment) -> int | None:
        """Milliseconds until the next pulse: as promised, or when something is due, whichever is first. None: not
        leading."""
        lead = self._leading
        if lead is None:
            return None
        wait_ms = lead.pulse_by_ms - at.boot_ms
        due = lead.loop.kernel.next_due()
        if due is not None and not self.held_up(at):
            wait_ms = min(wait_ms, max(TICK_GAP_MS, due - lead.clock.now(at)))
        return max(0, wait_ms)
