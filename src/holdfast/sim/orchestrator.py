"""Simulated orchestrators: the production leader core and kernel on a simulated store.

Nothing is decided here. This is the shell: it numbers sessions, passes events to the core, commits batches, and then
performs the effects that they release. Everything around it can fail: the process dies before, during or after a
commit, freezes, is replaced while it is frozen, or its store refuses to write.
"""

from collections.abc import Callable, Hashable
from random import Random
from typing import Any

import msgspec

from holdfast.kernel.commit import CommitBatch
from holdfast.kernel.decision import Answer, CloseSession, Decision, Send, Taken, ToSession, Verify
from holdfast.kernel.events import AnyEvent, CheckAsked, NodeBroke, NodeJoined, NodeSaid, Submitted, Verified
from holdfast.kernel.kernel import Kernel
from holdfast.model import AttemptId, DeletedNode, Instant, Meta, NodeId, Settings
from holdfast.model.messages import Hello, Leaving, Offers, Pong, Report
from holdfast.model.rows import BY_TYPE, counterpart_key, row_key
from holdfast.orchestrator.leader.core import LeaderCore, Moment, Offered
from holdfast.orchestrator.logs.output_check import NOTHING, PrintedOutput, output_fault
from holdfast.sim.delivery import Logs, LogsKept
from holdfast.sim.network import DOWN, UP, Stream
from holdfast.sim.process import SimProcess
from holdfast.sim.store import SimStore, SimStoreFailed
from holdfast.sim.watch import InvariantWatch, View
from holdfast.sim.world import Clock, SimWorld, Timer

_ENCODER = msgspec.msgpack.Encoder()
VERIFY_AGAIN_MS = 1_000

Reply = Callable[[Answer | None], None]
"""Called with the answer, or with None for "try again"."""


class WatchedKernel(Kernel):
    """The production kernel, observed by the rules."""

    leader: str
    watch: InvariantWatch
    view: View

    def apply(self, event: AnyEvent, now: Instant) -> Decision:
        if isinstance(event, Submitted) and self.watch.wants("checked"):
            self.watch.tell("checked", super().apply(CheckAsked(event.owner, event.spec), now))
        decision = super().apply(event, now)
        self.watch.decided(self.leader, event, now, decision, self.view)
        for row in decision.changes:
            if not BY_TYPE[type(row)].appends:
                self.view[row_key(row)] = row
            if BY_TYPE[type(row)].replaces is not None and (gone := counterpart_key(row)) is not None:
                self.view.pop(gone, None)
                if isinstance(row, DeletedNode):
                    self.view.pop(("record", row.id), None)
        return decision


class SimOrchestrator(SimProcess):
    """One process. It takes the lead when it starts, and rebuilds when it has lost its store."""

    def __init__(
        self,
        name: str,
        world: SimWorld,
        store: SimStore,
        settings: Settings,
        watch: InvariantWatch,
        boottime: Clock,
        wall: Clock,
    ) -> None:
        self.name = name
        super().__init__(world)
        self.store, self.settings, self.watch = store, settings, watch
        self._random: Random = world.stream()
        self._boottime, self._wall = boottime, wall
        self.alive = False
        self.overtaken = False
        """Another process took the lead: this one will not lead again."""
        self.core = self.new_core()
        self.turned_away = 0
        """Requests refused because too much was waiting for the store."""
        self._session = 0
        self._sessions: dict[int, Stream] = {}
        self._streams: dict[Stream, tuple[int, NodeId] | None] = {}
        self._replies: dict[Hashable, Reply] = {}
        self._tickets = 0
        self._submitted: dict[Hashable, Submitted] = {}
        """Submissions in progress or waiting for their turn."""
        self._held_back: list[tuple[Stream, Any]] = []
        self._received: dict[AttemptId, PrintedOutput] = {}
        """The logs that this process received, as they arrived; gone when it ends."""
        """Messages of nodes that arrived while there was no room for them."""
        self._pulse_timer: Timer | None = None

    def new_core(self) -> LeaderCore:
        return LeaderCore(self.settings)

    # --- the process ---

    def start(self) -> None:
        self.alive = True
        self.world.note(f"{self.name} starts")
        self.later(self._random.randrange(20, 300), self._rebuild)

    def die(self, silently: bool) -> None:
        """`silently`: the machine lost power, so no connection is closed."""
        self.alive, self.frozen = False, False
        self.core.drop()
        self.forget_everything()
        for stream in list(self._streams):
            if silently:
                stream.vanish(UP)
            else:
                stream.close(UP, "the orchestrator's process ended")
        self._refuse_all()

    def _refuse_all(self) -> None:
        self.world.cancel(self._pulse_timer)
        self._streams.clear()
        self._sessions.clear()
        self._held_back.clear()
        self._received.clear()
        for ticket in list(self._replies):
            self._reply(ticket, None)

    @property
    def serves(self) -> bool:
        """Whether a connection attempt gets an answer (perhaps much later)."""
        return self.alive and self.core.leads

    def _moment(self) -> Moment:
        return Moment(self._boottime.read(), self._wall.read())

    def served_ms(self) -> int:
        return self.core.now(self._moment())

    # --- people ---

    def ask(self, event: AnyEvent, reply: Reply) -> None:
        self.run(self._ask, event, reply)

    def _ask(self, event: AnyEvent, reply: Reply) -> None:
        if refused := self.core.refusal():
            self.turned_away += refused == "busy"
            reply(None)
            return
        self._tickets += 1
        self._replies[self._tickets] = reply
        if isinstance(event, Submitted):
            self._submit(event, self._tickets)
        else:
            self._offer(event, self._tickets)

    def _submit(self, event: Submitted, ticket: int) -> None:
        self._submitted[ticket] = event
        if self.core.submissions.enter(ticket, {event.job}):
            self._decide(ticket)

    def _decide(self, ticket: Hashable) -> None:
        """This submission's turn. Jobs in the store are not new: the kernel remembers only live ones."""
        event = self._submitted[ticket]
        if ("job", event.job) in self.store.rows:
            self._reply(ticket, Taken(event.job, again=True))
        elif not self.core.leads:
            self._reply(ticket, None)
        else:
            self._offer(event, ticket)

    def _reply(self, ticket: Hashable, answer: Answer | None) -> None:
        if self._submitted.pop(ticket, None) is not None:
            for next_ticket in self.core.submissions.leave(ticket):
                self.later(0, self._decide_if_waiting, next_ticket)
        reply = self._replies.pop(ticket, None)
        if reply is not None:
            reply(answer)

    def _decide_if_waiting(self, ticket: Hashable) -> None:
        if ticket in self._submitted:
            self._decide(ticket)

    # --- nodes ---

    def accept(self, stream: Stream) -> None:
        self._streams[stream] = None

    def heard(self, stream: Stream, message: Any) -> None:
        self.run(self._heard, stream, message)

    def broke(self, stream: Stream, why: str) -> None:
        self.run(self._broke, stream, why)

    def _heard(self, stream: Stream, message: Any) -> None:
        if stream not in self._streams or not self.core.leads:
            return
        known = self._streams[stream]
        match message:
            case Hello() if known is None:
                self._session += 1
                self._streams[stream] = (self._session, message.node)
                self._sessions[self._session] = stream
                self._offer(NodeJoined(self._session, message))
            case Report() | Pong() | Leaving() | Offers() if known is not None:
                if self.core.has_room and not any(waits is stream for waits, _ in self._held_back):
                    self._offer(NodeSaid(known[0], known[1], message))
                else:
                    self._held_back.append((stream, message))
            case Logs() if known is not None:
                if self.store.deliver(message.attempt, message.stdout_sha256, message.stdout_bytes):
                    self._received[message.attempt] = PrintedOutput(message.stdout_bytes, message.stdout_sha256)
                    stream.send(DOWN, LogsKept(message.attempt))
            case _:
                """A repeated Hello, or a message before it: a real shell drops it too."""

    def _hear_more(self) -> None:
        """There may be room for messages that were held back."""
        waiting, self._held_back = self._held_back, []
        for stream, message in waiting:
            self._heard(stream, message)

    def _broke(self, stream: Stream, why: str) -> None:
        known = self._streams.pop(stream, None)
        if known is not None and self.core.leads:
            self._sessions.pop(known[0], None)
            self._offer(NodeBroke(known[0], known[1], why))

    # --- deciding and committing ---

    def _rebuild(self) -> None:
        try:
            epoch = self.store.take_lead()
        except SimStoreFailed as failure:
            self._leadership_ended(failure)
            return
        rows = self.store.live()
        kernel = WatchedKernel.load(self.settings, rows)
        kernel.leader, kernel.watch, kernel.view = self.name, self.watch, {row_key(row): row for row in rows}
        last_ms = next((row.now_ms for row in rows if isinstance(row, Meta)), 0)
        self.world.note(f"{self.name} leads with epoch {epoch}")
        self.core.take(epoch, kernel, last_ms, self._random.getrandbits(63), self._moment())
        self._pump()

    def _offer(self, event: AnyEvent, ticket: Hashable = None) -> None:
        self._offered(self.core.offer(event, self._moment(), ticket))

    def _offered(self, offered: Offered) -> None:
        if offered.failed is not None:
            raise offered.failed  # a kernel exception must end the simulated world with its full traceback
        self._pump()

    def _pump(self) -> None:
        batch = self.core.next_batch(self._moment())
        if batch is not None:
            self.later(self._random.randrange(1, 6) + self.store.stall_ms, self._write, batch)
        elif not self.core.committing:
            self._schedule_pulse()
        if self._held_back and self.core.has_room:
            self.later(0, self._hear_more)

    def _write(self, batch: CommitBatch) -> None:
        try:
            self.store.write(batch.rows.values(), self.core.epoch, self.world.now)
        except SimStoreFailed as failure:
            if failure.durable:
                self._durable(batch)
            self.later(self._random.randrange(1, 6), self._leadership_ended, failure)
            return
        self._durable(batch)
        self.later(self._random.randrange(0, 4), self._committed, batch)

    def _durable(self, batch: CommitBatch) -> None:
        self.world.trace(_ENCODER.encode(list(batch.rows.values())))
        self.watch.durable(batch.rows.values())

    def _committed(self, batch: CommitBatch) -> None:
        core, led = self.core, self.core.leads
        core.committed(batch, self._moment())
        self.watch.tell("released", self.name, batch, core.epoch)
        for ticket, answer in batch.answers:
            self._reply(ticket, answer)
        for send in batch.sends:
            self._carry_out(send)
        kernel = core.kernel
        due = kernel.next_due() if kernel is not None else None
        nothing_due = due is None or due > core.now(self._moment())
        if core.at_rest and core.epoch == self.store.epoch and nothing_due:
            self.watch.tell("at_rest", kernel)
        self._pump()
        if not led:
            self._pulse()

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
        try:
            delivered = self.store.sealed(attempt)
        except SimStoreFailed:
            self.later(VERIFY_AGAIN_MS, self._verify, attempt, fence, result)  # our disk failed, not the node
            return
        declared = PrintedOutput(result.stdout_bytes, result.stdout_sha256)
        stored = PrintedOutput(delivered[1], delivered[0]) if delivered is not None else NOTHING
        received = self._received.get(attempt, None if delivered is not None else NOTHING)
        fault = output_fault(declared, stored, received)
        if self.core.leads and fault is None:
            self._offer(Verified(attempt, fence, True))
        elif self.core.leads and fault is not None:
            self._offer(Verified(attempt, fence, False, fault.detail, fault.damaged))

    def _leadership_ended(self, failure: SimStoreFailed) -> None:
        self.world.note(f"{self.name} no longer leads: {failure.says}")
        self.core.refused(failure.ended)
        self.core.drop()
        for stream in list(self._streams):
            stream.close(UP, "the orchestrator no longer leads")
        self._refuse_all()
        self.forget_everything()
        if failure.overtaken:
            self.overtaken = True
            self.alive = False
            return
        self.later(self.core.retry_ms(), self._rebuild)

    # --- time ---

    def _pulse(self) -> None:
        offered = self.core.pulse(self._moment())
        if offered is not None:
            self._offered(offered)
        self.core.pulsed(self._moment())
        self._schedule_pulse()

    def _schedule_pulse(self) -> None:
        self.world.cancel(self._pulse_timer)
        wait_ms = self.core.next_pulse_ms(self._moment())
        if wait_ms is not None:
            self._pulse_timer = self.later(wait_ms, self._pulse)
