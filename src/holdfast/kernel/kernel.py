"""The kernel itself: an event and the time go in, a decision comes out."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from holdfast.kernel import (
    access,
    checking,
    checkpoints,
    confirming,
    contenders,
    estimates,
    files,
    health,
    membership,
    moving,
    reconcile,
    recovery,
    reservation,
    retention,
)
from holdfast.kernel.decision import Answer, Decision, Done, Predicted, Rejected, Taken
from holdfast.kernel.events import (
    AccessMade,
    AccessRevoked,
    AnyEvent,
    CancelAsked,
    CheckAsked,
    Checkpointed,
    ContentDelivered,
    DeletionAsked,
    DeliveryRefused,
    DrainAsked,
    EstimatesAsked,
    ExplainAsked,
    FilesReceived,
    Inspected,
    Led,
    MoveAsked,
    NodeBroke,
    NodeJoined,
    NodeSaid,
    Submitted,
    Tick,
    TokenMade,
    TokenRevoked,
    Verified,
)
from holdfast.kernel.explain import explain, never_fits
from holdfast.kernel.lifecycle import Lifecycle
from holdfast.kernel.world import NO_FACTS, World
from holdfast.model import (
    AttemptId,
    Facts,
    Instant,
    Job,
    JobId,
    Meta,
    NodeId,
    NodeState,
    RevokeCause,
    Settings,
    TokenId,
    Verdict,
    WaitReason,
    after,
)
from holdfast.model.cause_text import revoke_failure
from holdfast.model.messages import Leaving, Offers, Pong, Report
from holdfast.model.rows import in_load_order
from holdfast.model.stored import StoredRow

_encode = msgspec.json.Encoder(order="sorted").encode
CLOCK_MS, IDLE_CLOCK_MS = 30_000, 60_000
"""How often served time is stored, in milliseconds: while a job is live, and otherwise. A crash costs at most that
much of it."""
CLOCK_SET_MS = 60_000
"""A change of the wall clock by this much, in milliseconds, is written into the journal, because the dates that people
see jump."""


class Kernel:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._w = World(settings, Lifecycle())

    # --- rebuilding ---

    @classmethod
    def load(cls, settings: Settings, rows: Iterable[StoredRow]) -> Self:
        """A kernel with the state that the store holds. The first event must be `Led`."""
        kernel = cls(settings)
        w = kernel._w
        for row in in_load_order(rows):
            w.load(row)
        for job in sorted(w.jobs.values(), key=lambda j: (j.submitted_ms, j.id)):
            w.deadlines.add(job.queue_until_ms, "job", job.id)
            contenders.seek(w, job.id, rebuilding=True)
        for attempt in w.attempts.values():
            if attempt.job not in w.jobs:
                w.remember_ended(attempt.job, "")
        w.order_departed()
        w.changes = []
        return kernel

    def rows(self) -> list[StoredRow]:
        """All live stored rows, in a fixed order."""
        rows: dict[type[StoredRow], dict[Any, StoredRow]] = {**self._w.rows, Meta: {0: self._w.meta}}
        return in_load_order(rows[kind][key] for kind in rows for key in sorted(rows[kind]))

    def digest(self) -> str:
        """A hash of the rows and of the state derived from them. A rebuild must give the same hash."""
        w = self._w
        derived = (
            sorted(w.shares.items()),
            sorted(w.live_of.items()),
            w.queue.members(),
            w.lifecycle.digest(),
        )
        return sha256(_encode([*self.rows(), derived])).hexdigest()

    # --- deciding ---

    def apply(self, event: AnyEvent, now: Instant) -> Decision:
        """Decide. The caller may act on the decision only after its changes are durable."""
        w = self._w
        w.begin(now)
        answer = self._dispatch(event)
        contenders.serve_queue(w)
        w.finish()
        return Decision(tuple(w.changes), tuple(w.sends), answer)

    def next_due(self) -> Instant | None:
        """When the next deadline is due, in kernel time. The driver must send a `Tick` then."""
        first = self._w.deadlines.first()
        return None if first is None else Instant(first + self._w.meta.late_ms)

    @property
    def at_stake(self) -> bool:
        """Whether any job is live. While one is, the time is stored regularly."""
        return bool(self._w.jobs)

    def clock_due(self, now: Instant) -> bool:
        """Whether served time should be stored now. The driver then sends a `Tick`."""
        w = self._w
        return now - w.meta.now_ms >= (CLOCK_MS if w.jobs else IDLE_CLOCK_MS)

    def wall_differs(self, now: Instant, wall_ms: int) -> bool:
        """Whether dates would be shown wrong. The driver then sends a `Tick` with the reading of the wall clock."""
        return self._w.wall_times.differs(now, wall_ms)

    @property
    def changing(self) -> bool:
        """Whether the last event changed a row or sent something, even if an exception stopped it halfway."""
        return bool(self._w.changes or self._w.sends)

    def knows_node(self, node: NodeId) -> bool:
        return node in self._w.nodes

    def load_of(self, node: NodeId) -> "tuple[bool, object]":
        """Whether the node is connected, and its last reported load. For display, not for decisions."""
        member = self._w.fleet.get(node)
        return (False, None) if member is None else (member.presence.session is not None, member.presence.load)

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._w.queue)

    def _dispatch(self, event: AnyEvent) -> Answer | None:
        w = self._w
        match event:
            case NodeSaid():
                self._said(event)
            case Submitted():
                return self._submitted(event)
            case Tick():
                self._tick(event)
            case Verified():
                reconcile.verified(w, event)
            case Inspected():
                reconcile.inspected(w, event)
            case DeliveryRefused():
                reconcile.refused(w, event.attempt, event.fence, event.detail)
            case FilesReceived():
                return files.received(w, event)
            case Checkpointed():
                answer = checkpoints.keep(w, event)
                if isinstance(answer, Done):
                    w.lifecycle.checkpointed(w, event.attempt, event.manifest)
                return answer
            case ContentDelivered():
                return checkpoints.deliver(w, event)
            case NodeJoined():
                membership.join(w, event)
            case NodeBroke():
                membership.broke(w, event.session, event.node, event.why)
            case CancelAsked():
                return self._cancel(event.job, event.by)
            case MoveAsked():
                return moving.ask(w, event)
            case DrainAsked():
                return membership.drain(w, event.node, event.on, event.by or "the network's operator")
            case ExplainAsked():
                return explain(w, event.job)
            case CheckAsked():
                return checking.check(w, event)
            case EstimatesAsked():
                return Predicted(estimates.of_all(w, event.jobs), estimates.scores(w))
            case TokenMade():
                return access.make_join_token(w, event.token)
            case AccessMade():
                return access.make(w, event.token, event.ttl_ms)
            case AccessRevoked():
                return access.revoke(w, event.token, event.by)
            case TokenRevoked():
                token = w.tokens.get(event.token)
                if token is None:
                    return Rejected("no_such_token", f"There is no token {event.token}.")
                w.put(replace(token, revoked=True))
                return Done("revoked")
            case DeletionAsked():
                return retention.delete(w, event)
            case Led():
                self._led(event)
        return None

    # --- leadership and time ---

    def _led(self, event: Led) -> None:
        """Lead from now on: served time continues where it was last stored, and every lease restarts."""
        w = self._w
        meta = w.meta
        away = max(0, w.now - meta.now_ms) if meta.now_ms else 0
        seed = meta.seed if meta.epoch else event.seed
        w.meta = replace(meta, epoch=event.epoch, seed=seed)
        w.was_late(away)
        absent = away
        if event.wall_ms is not None and meta.now_ms:
            absent = max(away, event.wall_ms - w.wall_times.wall_ms(meta.now_ms))
        w.note("orchestrator.led", Facts(count=event.epoch, ms=absent))
        self._follow_wall(event.wall_ms)
        for job_id, spec_hash in event.ended:
            w.remember_ended(job_id, spec_hash)
        retention.date_departed(w)
        for node_id, node in sorted(w.nodes.items()):
            if node.state in (NodeState.READY, NodeState.PROBATION, NodeState.QUARANTINED):
                health.await_return(w, node_id)
        for attempt_id in sorted(w.attempts):
            if w.attempts[attempt_id].go:
                contenders.renew_lease(w, w.attempts[attempt_id])
        for job_id in sorted(w.jobs):
            w.deadlines.add(w.patience, "job", job_id)

    def _follow_wall(self, wall_ms: int | None) -> None:
        """Remember what the wall clock shows, for people. No deadline depends on it."""
        w = self._w
        before = w.wall_times
        if wall_ms is None or not before.differs(w.now, wall_ms):
            return
        w.put(before.followed(w.now, wall_ms))
        by_ms = w.wall_times.offset_ms - before.offset_ms
        if abs(by_ms) >= CLOCK_SET_MS:
            w.note("orchestrator.clock", Facts(ms=by_ms))

    def _tick(self, event: Tick) -> None:
        w = self._w
        late_ms = event.late_ms
        self._follow_wall(event.wall_ms)
        if late_ms > 0:
            w.was_late(late_ms)
            w.note("orchestrator.late", Facts(ms=late_ms))
            health.forgive(w, late_ms)
        if self.clock_due(w.now):
            w.meta = replace(w.meta, now_ms=w.now)
        jobs = 0
        while (due := w.deadlines.pop_due(w.patience)) is not None:
            subject, id = due
            match subject:
                case "silence":
                    health.silence_due(w, NodeId(id))
                case "attempt":
                    recovery.phase_due(w, AttemptId(id))
                case "job" if 0 < event.jobs_max <= jobs:
                    w.deadlines.add(after(w.patience, 1), "job", id)
                case "job":
                    jobs += 1
                    recovery.job_due(w, JobId(id))
                case "node":
                    if health.state_due(w, NodeId(id)):
                        recovery.write_off(w, NodeId(id))
                case "drain":
                    recovery.drain_due(w, NodeId(id))
                case "lease":
                    recovery.lease_due(w, AttemptId(id))
                case "ping":
                    health.ping_due(w, NodeId(id))
                case "reserve":
                    reservation.review(w)
                case "forget":
                    retention.node_due(w, NodeId(id))
                case "token":
                    retention.token_due(w, TokenId(id))

    # --- people ---

    def _submitted(self, event: Submitted) -> Answer:
        w = self._w
        known = w.jobs.get(event.job)
        spec_hash = w.ended.get(event.job) if known is None else known.spec_hash
        if spec_hash is not None:
            if spec_hash not in ("", event.spec_hash):
                return Rejected("key_reused", "This idempotency key was used for another job; use a new key.")
            return Taken(event.job, again=True)
        refusal = checking.refusal(w, event.owner)
        if refusal is not None:
            return refusal
        spec = event.spec
        until = w.soon(self.settings.queue_ms_max if spec.queue_limit_ms is None else spec.queue_limit_ms)
        skipped = ((0, w.meta.numbers_skipped),) if w.meta.numbers_skipped else ()
        job = Job(event.job, event.owner, spec, event.spec_hash, w.now, queue_until_ms=until, numbers_skipped=skipped)
        lane = (spec.need, (), None)
        member = contenders.room_now(w, job, lane)
        if member is None:
            miss = never_fits(w, spec.need)
            if miss:
                return checking.no_fit(miss)
            job = estimates.predict(w, contenders.waits_for(job, WaitReason.ROOM), lane, placed=False)
            w.put(job)
            contenders.wait_in_line(w, job, lane)
            w.queue.dry(spec.need)
            w.deadlines.add(until, "job", job.id)
        w.note("job.queued", NO_FACTS, job.id)
        if member is not None:
            contenders.offer(w, estimates.predict(w, job, lane, placed=True), member)
        return Taken(job.id)

    def _cancel(self, job_id: JobId, by: str) -> Answer:
        job = self._w.jobs.get(job_id)
        if job is None:
            return Rejected("not_live", f"{job_id} has already ended or does not exist.")
        if confirming.taken(self._w, job):
            return Done("its failure counts now, unconfirmed")
        why = Facts(revoke=RevokeCause.CANCELLED, by=by or "its owner")
        contenders.end_job(self._w, job_id, Verdict.CANCELLED, revoke_failure(why), why=why)
        return Done("stopped")

    # --- nodes ---

    def _said(self, event: NodeSaid) -> None:
        w = self._w
        member = w.fleet.get(event.node)
        if member is None or member.presence.session != event.session:
            return
        presence = member.presence
        message = event.message
        match message:
            case Report():
                if message.seq <= presence.seq:
                    return
                presence.seq = message.seq
                presence.excused_ms = None
                health.heard(w, event.node, presence)
                if message.load is not None:
                    health.load_reported(w, event.node, presence, message.load)
                reconcile.compare(w, event.node, message.held, message.full, message.seq)
                if message.renew:
                    reconcile.renew(w, event.node, message.seq, message.renew)
            case Pong():
                health.heard(w, event.node, presence)
                health.ponged(w, event.node, message.nonce)
            case Offers() as offers:
                membership.offers(w, event.node, offers)
            case Leaving():
                membership.leaving(w, event.session, event.node, message)
