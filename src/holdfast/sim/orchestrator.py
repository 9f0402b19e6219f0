"""Orchestrators of the virtual world: the production kernel, commit loop and leader's clock on a virtual store.

Nothing is decided here. This is the shell's part: number sessions, hand events to the loop, commit batches,
then carry out what they release. Around it everything that can go wrong: the process dies before, during or
after a commit, stands still, is replaced while it stands still, or its store refuses to write.
"""

from collections.abc import Callable, Hashable
from random import Random
from typing import Any, TypeVar

import msgspec

from holdfast.kernel.commit import Batch, CommitLoop, row_key
from holdfast.kernel.decision import Answer, CloseSession, Decision, Row, Send, Taken, ToSession, Verify
from holdfast.kernel.events import AnyEvent, CheckAsked, Led, NodeBroke, NodeJoined, NodeSaid, Submitted, Tick, Verified
from holdfast.kernel.kernel import Kernel
from holdfast.model import Attempt, Instant, Job, JobId, JoinToken, Meta, Node, NodeId, Pace, Settings
from holdfast.model.messages import Hello, Leaving, Offers, Pong, Report
from holdfast.orchestrator.clock import LeaderClock
from holdfast.sim.delivery import Logs, LogsKept
from holdfast.sim.network import DOWN, UP, Stream
from holdfast.sim.process import Process
from holdfast.sim.store import Store, StoreFailed
from holdfast.sim.watch import View, Watch
from holdfast.sim.world import Clock, Timer, World

TICK_GAP_MS = 5
"""As in production: a deadline that stays due cannot spin the loop."""
_ENCODER = msgspec.msgpack.Encoder()
RETRY_MS, RETRY_MS_MAX = 50, 2_000

K = TypeVar("K", bound=Kernel)
Reply = Callable[[Answer | None], None]
"""Called with the answer, or with None for "try again"."""


class WatchedKernel(Kernel):
    """The production kernel with somebody looking over its shoulder."""

    leader: str
    watch: Watch
    view: View

    def apply(self, event: AnyEvent, now: Instant) -> Decision:
        if isinstance(event, Submitted) and self.watch.wants("checked"):
            self.watch.tell("checked", super().apply(CheckAsked(event.owner, event.spec), now))
        decision = super().apply(event, now)
        self.watch.decided(self.leader, event, now, decision, self.view)
        for row in decision.changes:
            key = row_key(row)
            if key[0] != "entry":
                self.view[key] = row
        return decision


def rebuilt(kind: type[K], settings: Settings, rows: list[Row]) -> K:
    """A kernel with the state that these rows hold."""
    kernel = kind.load(
        settings,
        next((row for row in rows if isinstance(row, Meta)), None),
        [row for row in rows if isinstance(row, Node)],
        [row for row in rows if isinstance(row, Job)],
        [row for row in rows if isinstance(row, Attempt)],
        [row for row in rows if isinstance(row, JoinToken)],
        [row for row in rows if isinstance(row, Pace)],
    )
    assert isinstance(kernel, kind)
    return kernel


class Orchestrator(Process):
    """One process. It takes the lead when it starts and rebuilds when it lost its store."""

    def __init__(
        self, name: str, world: World, store: Store, settings: Settings, watch: Watch, boottime: Clock, wall: Clock
    ) -> None:
        self.name = name
        super().__init__(world)
        self.store, self.settings, self.watch = store, settings, watch
        self._random: Random = world.stream()
        self._boottime, self._wall = boottime, wall
        self.alive = False
        self.overtaken = False
        """Somebody else took the lead: this one will not lead again."""
        self.epoch = 0
        self.loop: CommitLoop | None = None
        self._clock = LeaderClock(settings, 0, boottime.read, wall.read)
        self._session = 0
        self._sessions: dict[int, Stream] = {}
        self._streams: dict[Stream, tuple[int, NodeId] | None] = {}
        self._replies: dict[Hashable, Reply] = {}
        self._tickets = 0
        self._submitting: dict[JobId, int] = {}
        self._pulse_timer: Timer | None = None
        self._pulse_by = 0
        self._commit_began: int | None = None
        self._pause_ms = RETRY_MS

    # --- the process ---

    def start(self) -> None:
        self.alive = True
        self.world.note(f"{self.name} starts")
        self.later(self._random.randrange(20, 300), self._rebuild)

    def die(self, silently: bool) -> None:
        """`silently`: the machine lost power, so nobody is told."""
        self.alive, self.frozen = False, False
        self.loop = None
        self.forget_everything()
        self.world.cancel(self._pulse_timer)
        for stream in list(self._streams):
            if silently:
                stream.vanish(UP)
            else:
                stream.close(UP, "the orchestrator's process ended")
        self._streams.clear()
        self._sessions.clear()
        for ticket in list(self._replies):
            self._reply(ticket, None)

    @property
    def serves(self) -> bool:
        """Whether somebody who dials gets an answer (perhaps much later)."""
        return self.alive and self.loop is not None

    # --- people ---

    def ask(self, event: AnyEvent, reply: Reply) -> None:
        self.run(self._ask, event, reply)

    def _ask(self, event: AnyEvent, reply: Reply) -> None:
        if self.loop is None:
            reply(None)
            return
        self._tickets += 1
        self._replies[self._tickets] = reply
        if isinstance(event, Submitted):
            self._submit(event, self._tickets)
        else:
            self._offer(event, self._tickets)

    def _submit(self, event: Submitted, ticket: int) -> None:
        """As the production front does: one submission of a job at a time, and what the store has is not new. The
        kernel remembers only what lives."""
        if event.job in self._submitting:
            self.later(20, self._submit, event, ticket)
            return
        if ("job", event.job) in self.store.rows:
            self._reply(ticket, Taken(event.job, again=True))
            return
        self._submitting[event.job] = ticket
        self._offer(event, ticket)

    def _reply(self, ticket: Hashable, answer: Answer | None) -> None:
        self._submitting = {job: waits for job, waits in self._submitting.items() if waits != ticket}
        reply = self._replies.pop(ticket, None)
        if reply is not None:
            reply(answer)

    # --- nodes ---

    def accept(self, stream: Stream) -> None:
        self._streams[stream] = None

    def heard(self, stream: Stream, message: Any) -> None:
        self.run(self._heard, stream, message)

    def broke(self, stream: Stream, why: str) -> None:
        self.run(self._broke, stream, why)

    def _heard(self, stream: Stream, message: Any) -> None:
        if stream not in self._streams or self.loop is None:
            return
        known = self._streams[stream]
        match message:
            case Hello() if known is None:
                self._session += 1
                self._streams[stream] = (self._session, message.node)
                self._sessions[self._session] = stream
                self._offer(NodeJoined(self._session, message))
            case Report() | Pong() | Leaving() | Offers() if known is not None:
                self._offer(NodeSaid(known[0], known[1], message))
            case Logs() if known is not None:
                self.store.delivered[message.attempt] = (message.stdout_sha256, message.stdout_bytes)
                stream.send(DOWN, LogsKept(message.attempt))
            case _:
                """A repeated Hello, or something said before it: a real shell drops it too."""

    def _broke(self, stream: Stream, why: str) -> None:
        known = self._streams.pop(stream, None)
        if known is not None and self.loop is not None:
            self._sessions.pop(known[0], None)
            self._offer(NodeBroke(known[0], known[1], why))

    # --- deciding and committing ---

    def _rebuild(self) -> None:
        try:
            self.epoch = self.store.take_lead()
        except StoreFailed as failure:
            self._leadership_ended(failure)
            return
        rows = self.store.live()
        kernel = rebuilt(WatchedKernel, self.settings, rows)
        kernel.leader, kernel.watch, kernel.view = self.name, self.watch, {row_key(row): row for row in rows}
        last_ms = next((row.now_ms for row in rows if isinstance(row, Meta)), 0)
        self._clock = LeaderClock(self.settings, last_ms, self._boottime.read, self._wall.read)
        self._commit_began = None
        self.loop = CommitLoop(kernel)
        self.world.note(f"{self.name} leads with epoch {self.epoch}")
        self.loop.offer(Led(self.epoch, self._random.getrandbits(63)), self._clock.look()[0])
        self._pump()
        self._pulse()

    def _offer(self, event: AnyEvent, ticket: Hashable = None) -> None:
        loop = self.loop
        if loop is None:
            return
        now, late_ms = self._clock.look(self._stalled())
        if late_ms:
            loop.offer(Tick(late_ms), now)
        loop.offer(event, now, ticket)
        self._pump()

    def _pump(self) -> None:
        loop = self.loop
        batch = loop.next_batch() if loop is not None else None
        if batch is not None:
            self._commit_began = self._boottime.read()
            self.later(self._random.randrange(1, 6) + self.store.stall_ms, self._write, batch)
        elif loop is not None and self._commit_began is None:
            self._schedule_pulse()

    def _write(self, batch: Batch) -> None:
        try:
            self.store.write(batch.rows.values(), self.epoch, self.world.now)
        except StoreFailed as failure:
            self.later(self._random.randrange(1, 6), self._leadership_ended, failure)
            return
        self.world.trace(_ENCODER.encode(list(batch.rows.values())))
        self.watch.durable(batch.rows.values())
        self.later(self._random.randrange(0, 4), self._committed, batch)

    def _committed(self, batch: Batch) -> None:
        loop = self.loop
        if loop is None:
            return
        self._commit_began = None
        self._pause_ms = RETRY_MS
        loop.committed(batch)
        self.watch.tell("released", self.name, batch, self.epoch)
        for ticket, answer in batch.answers:
            self._reply(ticket, answer)
        for send in batch.sends:
            self._carry_out(send)
        due = loop.kernel.next_due()
        if loop.waiting == 0 and self.epoch == self.store.epoch and (due is None or due > self._clock.now()):
            self.watch.tell("at_rest", loop.kernel)
        self._pump()

    def _carry_out(self, send: Send) -> None:
        match send:
            case ToSession(session, _, message):
                stream = self._sessions.get(session)
                if stream is not None:
                    stream.send(DOWN, message)
            case CloseSession(session, why):
                stream = self._sessions.pop(session, None)
                if stream is not None:
                    self._streams.pop(stream, None)
                    stream.close(UP, why)
            case Verify(attempt, fence, result):
                self.later(self._random.randrange(1, 40), self._verify, attempt, fence, result)

    def _verify(self, attempt: Any, fence: int, result: Any) -> None:
        delivered = self.store.delivered.get(attempt)
        ok = delivered == (result.stdout_sha256, result.stdout_bytes)
        detail = (
            "" if ok else f"declared {result.stdout_bytes} bytes, {result.stdout_sha256[:12]}; delivered {delivered}"
        )
        self._offer(Verified(attempt, fence, ok, detail))

    def _leadership_ended(self, failure: StoreFailed) -> None:
        self.world.note(f"{self.name} no longer leads: {failure.says}")
        self.loop = None
        self._commit_began = None
        self.world.cancel(self._pulse_timer)
        for stream in list(self._streams):
            stream.close(UP, "the orchestrator no longer leads")
        self._streams.clear()
        self._sessions.clear()
        for ticket in list(self._replies):
            self._reply(ticket, None)
        self.forget_everything()
        if failure.overtaken:
            self.overtaken = True
            self.alive = False
            return
        self.later(self._pause_ms, self._rebuild)
        self._pause_ms = min(2 * self._pause_ms, RETRY_MS_MAX)

    # --- time ---

    def _stalled(self) -> bool:
        began = self._commit_began
        return began is not None and self._boottime.read() - began > self._clock.tolerance_ms

    def _pulse(self) -> None:
        loop = self.loop
        if loop is None:
            return
        stalled = self._stalled()
        due = loop.kernel.next_due()
        if self._clock.late() or (due is not None and due <= self._clock.now() and not stalled):
            self._offer(Tick())
        if not stalled:
            self._clock.kept()
        self._pulse_by = self.world.now + self._clock.pulse_ms
        self._schedule_pulse()

    def _schedule_pulse(self) -> None:
        """The next pulse comes when promised, or when something is due, whichever is first. Never later."""
        self.world.cancel(self._pulse_timer)
        loop = self.loop
        if loop is None:
            return
        pause_ms = self._pulse_by - self.world.now
        due = loop.kernel.next_due()
        if due is not None and not self._stalled():
            pause_ms = min(pause_ms, max(TICK_GAP_MS, due - self._clock.now()))
        self._pulse_timer = self.later(max(0, pause_ms), self._pulse)
