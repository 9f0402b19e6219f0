"""Attempts as contenders: offering, taking over, revoking, and the one step that accepts a result.

Safety rests on four rules, all of them here:

1. Each attempt gets a fence that was never used before.
2. An attempt is revoked once and for ever; nothing it says afterwards is accepted.
3. A result is accepted only if its job has none yet and its attempt is not revoked.
4. A job of class `never` gets at most one attempt with `go`, and no further attempt after that.
"""

from msgspec.structs import replace

from holdfast.kernel.checkpoints import start_of
from holdfast.kernel.decision import ToSession
from holdfast.kernel.placement import has_room, kind_serves
from holdfast.kernel.queue import LaneKey
from holdfast.kernel.reservation import held_free, look_again, next_for, room_held
from holdfast.kernel.world import NO_FACTS, Member, World, node_label
from holdfast.model import (
    Attempt,
    AttemptPhase,
    Facts,
    Failure,
    FailureCode,
    Instant,
    Job,
    JobId,
    JobPhase,
    Need,
    NodeId,
    NodeState,
    PendingVerdict,
    Purpose,
    Recovery,
    Result,
    RevokeCause,
    Verdict,
    WaitReason,
    after,
)
from holdfast.model.cause_text import revoke_failure, wait_text
from holdfast.model.messages import Discard, Go, Start
from holdfast.policy import cost
from holdfast.policy.lease import orchestrator_part_ms
from holdfast.policy.restored import MADE_MAX

_QUEUED, _ASSIGNED = JobPhase.QUEUED, JobPhase.ASSIGNED
_NEVER = Recovery.NEVER
_PLACED = Purpose.PLACED
_JOB_PHASE = {
    AttemptPhase.OFFERED: JobPhase.ASSIGNED,
    AttemptPhase.PREPARING: JobPhase.PREPARING,
    AttemptPhase.READY: JobPhase.PREPARING,
    AttemptPhase.RUNNING: JobPhase.RUNNING,
    AttemptPhase.UPLOADING: JobPhase.UPLOADING,
}
_ORDER = [JobPhase.QUEUED, JobPhase.ASSIGNED, JobPhase.PREPARING, JobPhase.RUNNING, JobPhase.UPLOADING]

TRIES_PER_FAILURE = 4
"""Attempts that a job may make for each failure it may have, unless one of them lasts. This bounds takeovers, which do
not count as failures."""


# --- looking ---


def healthy(w: World, attempt: Attempt) -> bool:
    """Whether the attempt can be expected to make progress."""
    node = w.nodes[attempt.node]
    return attempt.may_win and node.state in (NodeState.READY, NodeState.PROBATION)


def must_not_repeat(job: Job, attempt: Attempt) -> bool:
    """Its body may have started, and this kind of body may start only once."""
    return job.spec.recovery is Recovery.NEVER and attempt.go


def attempts_max(w: World, job: Job) -> int:
    return w.settings.attempts_max if job.spec.attempts_max is None else job.spec.attempts_max


def used_up(w: World, job: Job) -> bool:
    """Whether the job has had all the attempts it may have."""
    tries = TRIES_PER_FAILURE * attempts_max(w, job)
    return job.failures >= attempts_max(w, job) or job.tries >= tries or job.attempts_made >= MADE_MAX


def got_on(w: World, job: Job, attempt: Attempt) -> Job:
    """The job row after the loss of an attempt. If the body ran for `lasting_ms` since the last attempt was made, the
    job made progress, and its earlier tries are forgiven."""
    if attempt.started_ms is None or w.now - max(attempt.started_ms, job.tried_ms) < w.settings.lasting_ms:
        return job
    return replace(job, tries=0)


def lane_of(w: World, job: Job) -> LaneKey:
    ruled_out = {a.node for a in w.attempts_of(job.id)}
    if job.pending_verdict is not None:
        ruled_out.add(job.pending_verdict.node)
    return (job.spec.need, tuple(sorted(ruled_out)), job.pinned)


# --- queueing and offering ---


def seek(w: World, job_id: JobId, rebuilding: bool = False) -> None:
    """Make sure that a healthy attempt works on the job, or that the job waits in the queue for one.

    `rebuilding`: no row may change, so a job that is out of attempts ends at its first deadline."""
    job = w.jobs.get(job_id)
    if job is None:
        return
    rivals = [a for a in w.attempts_of(job_id) if a.may_win]
    cared_for = any(healthy(w, a) for a in rivals) or any(must_not_repeat(job, a) for a in rivals)
    if not cared_for and not used_up(w, job) and job.not_before_ms <= w.patience:
        wait_in_line(w, job, lane_of(w, job))
        return
    w.queue.leave(job_id)
    if job.reserved is not None and not rebuilding:
        w.put(replace(job, reserved=None))
    if cared_for:
        return
    if job.not_before_ms > w.patience:
        w.deadlines.add(job.not_before_ms, "job", job_id)
    elif not rivals and not rebuilding:
        why = Failure(FailureCode.NODE_LOST, f"gave up after {job.attempts_made} attempts")
        end_job(w, job_id, Verdict.FAILED, why)


def wait_in_line(w: World, job: Job, lane: LaneKey) -> None:
    w.queue.join(job.id, job.owner, job.spec.priority, lane, fresh=not had_its_turn(job))
    look_again(w)


def had_its_turn(job: Job) -> bool:
    """Whether the job had a machine and goes before jobs of its owner that had none (docs/decisions/0017). The limit on
    its attempts bounds how often it does. One machine that died soon after the job began there may be chance; after two
    the job queues behind the others."""
    return job.attempts_made > 0 and len(job.felled) < 2


def serve_queue(w: World) -> None:
    """Give out free room fairly, until no waiting job fits anywhere."""
    while w.queue.waiting:
        held = held_free(w)
        for node_id in [n for n in w.freed if n in held]:
            while (job_id := next_for(w, node_id)) is not None:
                w.queue.leave(job_id)
                offer(w, w.jobs[job_id], w.fleet[node_id])
        rooms = [m for m in map(w.fleet.__getitem__, w.freed) if m.cell is not None]
        w.freed.clear()
        _serve_lanes(w, rooms)
        w.lifecycle.served(w)
        if not w.freed:  # not empty: a node is no longer held free
            return
    w.freed.clear()


def _serve_lanes(w: World, rooms: list[Member]) -> None:
    """Try the jobs of all lanes that are not stuck. `rooms`: where room appeared since the stuck lanes were tried."""
    loosened: list[LaneKey] = []
    if rooms:
        loosened = w.queue.free_up(lambda need: _fits_one(need, rooms), lambda lane: _serves_one(lane, rooms))
    while (head := w.queue.next()) is not None:
        job_id, lane = head
        job = w.jobs[job_id]
        member = choose(w, job, lane)
        if member is None:
            w.queue.stick(lane)
            if lane[2] is None and (not lane[1] or not w.index.candidates(lane[0], 0, ())):
                w.queue.dry(lane[0])
        else:
            w.queue.leave(job_id)
            offer(w, job, member)
            loosened = _still_served(w, loosened, rooms)


def _still_served(w: World, lanes: list[LaneKey], rooms: list[Member]) -> list[LaneKey]:
    """Those of the lanes freed for these rooms that still fit one. The others are stuck again without being tried."""
    fits = {need: _fits_one(need, rooms) for need in {lane[0] for lane in lanes}}
    left: list[LaneKey] = []
    for lane in lanes:
        if fits[lane[0]] and _serves_one(lane, rooms):
            left.append(lane)
        else:
            w.queue.stick(lane)
    return left


def _fits_one(need: Need, rooms: list[Member]) -> bool:
    return any(m.cell is not None and kind_serves(m.kind, need) and has_room(m, need) for m in rooms)


def _serves_one(lane: LaneKey, rooms: list[Member]) -> bool:
    need, ruled_out, only = lane
    return any(
        m.cell is not None and m.node not in ruled_out and only in (None, m.node) and has_room(m, need) for m in rooms
    )


def room_now(w: World, job: Job, lane: LaneKey, asking: bool = False) -> Member | None:
    """The node that a new job is placed on at once, or None. `asking`: this is only a question."""
    # Waiting jobs wait because no free room serves their lane, so taking room now passes none of them over.
    if w.queue.waiting and w.queue.stuck(lane):
        return room_held(w, job, lane)
    return choose(w, job, lane, asking)


def choose(w: World, job: Job, lane: LaneKey, asking: bool = False) -> Member | None:
    """The cheapest of a few nodes with room; nodes on which the job failed before come last."""
    need, ruled_out, only = lane
    if only is not None:
        return _chosen(w, job, lane, only)
    draw = w.peek() if asking else w.draw()
    found: list[Member] = []
    if job.avoid:
        found = w.index.candidates(need, draw, {*ruled_out, *job.avoid}, asking)
    if not found:
        found = w.index.candidates(need, draw, ruled_out, asking)
    if not found:
        return room_held(w, job, lane) if held_free(w) else None
    if len(found) == 1:
        return found[0]
    sites = {w.nodes[n].site for n in ruled_out if n in w.nodes} if ruled_out else ()
    gpus = need.resources.gpus
    best = found[0]
    lowest_ms = -1
    for member in found:
        ms = member.standing_ms
        if member.gpus or sites or job.avoid:
            same_site = member.site != "" and member.site in sites
            ms += cost.placing_ms(member.gpus, gpus, same_site, member.node in job.avoid)
        if lowest_ms < 0 or ms < lowest_ms or (ms == lowest_ms and member.node < best.node):
            best, lowest_ms = member, ms
    return best


def _chosen(w: World, job: Job, lane: LaneKey, only: NodeId) -> Member | None:
    """The node that a person chose for the job, if it has room."""
    member = w.fleet.get(only)
    if member is None or member.cell is None or only in lane[1]:
        return room_held(w, job, lane) if only in held_free(w) else None
    return member if kind_serves(member.kind, lane[0]) and has_room(member, lane[0]) else None


def offer(w: World, job: Job, member: Member, purpose: Purpose = Purpose.PLACED) -> None:
    """Create a contender on a node and send it the offer."""
    if purpose is _PLACED and job.pending_verdict is not None:
        purpose = Purpose.CONFIRM
    number = job.attempts_made + 1
    node_id = member.node
    attempt = Attempt(
        id=job.nth_attempt(number),
        job=job.id,
        node=node_id,
        fence=w.next_fence(),
        offered_ms=w.now,
        owner=job.owner,
        holds=job.spec.need.resources,
        phase_until_ms=w.soon(w.settings.offer_ms_max),
        resumed=start_of(job),
        purpose=purpose,
    )
    if not member.held:
        member.presence.watched_ms = w.patience
        w.deadlines.add(w.soon(w.settings.silence_floor_ms), "silence", node_id)
    w.put_new(attempt, member)
    phase = _ASSIGNED if job.phase is _QUEUED else job.phase
    tries = job.tries + 1 if purpose.in_turn else job.tries
    job = w.lifecycle.offered(w, job)
    w.put(replace(job, attempts_made=number, tries=tries, tried_ms=w.now, phase=phase, waiting="", wait_reason=None))
    w.note("job.assigned", Facts(count=number, label=member.label), job.id, attempt.id, node_id)
    _say_start(w, attempt, job, member.presence.session)


def send_start(w: World, attempt: Attempt, job: Job) -> None:
    """Send an offer again."""
    w.claim(attempt).sent_ms = w.patience
    w.deadlines.add(w.soon(w.settings.resend_ms), "attempt", attempt.id)
    _say_start(w, attempt, job, w.presence(attempt.node).session)


def _say_start(w: World, attempt: Attempt, job: Job, session: int | None) -> None:
    if session is not None:
        spec = job.spec
        limit = spec.time_limit_ms or w.settings.run_ms_max
        lease = w.settings.lease_ms if spec.recovery is _NEVER else 0
        resumed = attempt.resumed
        saved = resumed.manifest if resumed is not None else ""
        start = Start(w.meta.epoch, attempt.id, attempt.fence, job.id, spec, limit, lease, saved)
        w.sends.append(ToSession(session, attempt.node, start))


def grant_go(w: World, attempt: Attempt, seq: int) -> None:
    """Class `never`: let the body start. `seq`: the report that said READY; the node counts the lease from it."""
    if not attempt.go:
        rivals = [a for a in w.attempts_of(attempt.job) if a.id != attempt.id and a.go]
        if rivals:
            raise AssertionError(f"a second go was asked for {attempt.job}: {rivals[0].id} has it")
        attempt = replace(attempt, go=True, phase=AttemptPhase.READY, phase_until_ms=w.soon(w.settings.prepare_ms_max))
        w.put(attempt)
        w.note("attempt.go", NO_FACTS, attempt.job, attempt.id, attempt.node)
    w.claim(attempt).sent_ms = w.patience
    renew_lease(w, attempt)
    session = w.presence(attempt.node).session
    if session is not None:
        w.send(ToSession(session, attempt.node, Go(w.meta.epoch, attempt.id, attempt.fence, seq)))


def renew_lease(w: World, attempt: Attempt) -> None:
    """Restart the lease from this answer."""
    w.claim(attempt).lease_from_ms = w.patience
    w.deadlines.add(lease_over_ms(w, attempt), "lease", attempt.id)


def lease_over_ms(w: World, attempt: Attempt) -> Instant:
    """When the body is certainly dead if the lease is not renewed."""
    start = w.claim(attempt).lease_from_ms
    return Instant((w.patience if start is None else start) + orchestrator_part_ms(w.settings.lease_ms))


# --- phases ---


def advance(w: World, attempt: Attempt, phase: AttemptPhase, bound_ms: int, **changes: object) -> Attempt:
    """Move an attempt to a later phase, which must end within `bound_ms`."""
    moved: Attempt = replace(attempt, phase=phase, phase_until_ms=w.soon(bound_ms), **changes)
    w.put(moved)
    refresh(w, attempt.job)
    return moved


def refresh(w: World, job_id: JobId) -> None:
    """Set the job's phase to that of its most advanced contender."""
    job = w.jobs.get(job_id)
    if job is None:
        return
    phase = JobPhase.QUEUED
    for attempt in w.attempts_of(job_id):
        if attempt.may_win and _ORDER.index(_JOB_PHASE[attempt.phase]) > _ORDER.index(phase):
            phase = _JOB_PHASE[attempt.phase]
    if phase is job.phase:
        return
    if phase is JobPhase.QUEUED:
        limit = w.settings.queue_ms_max if job.spec.queue_limit_ms is None else job.spec.queue_limit_ms
        # A retry counts from the end of its back-off, and gets at least the time an offer takes.
        until = after(max(w.patience, job.not_before_ms), max(limit, w.settings.offer_ms_max))
        w.deadlines.add(until, "job", job_id)
        job = _waits_in_queue(w, replace(job, queue_until_ms=until))
    w.put(replace(job, phase=phase))
    w.note(f"job.{phase.value}", NO_FACTS, job_id)


def _waits_in_queue(w: World, job: Job) -> Job:
    pending = job.pending_verdict
    if pending is None:
        return waits_for(job, WaitReason.ROOM)
    return waits_for(job, WaitReason.CONFIRMATION, pending_facts(w, pending))


def pending_facts(w: World, pending: PendingVerdict) -> Facts:
    """The doubted failure, and the machine that reported it."""
    failure = pending.failure
    return Facts(failure=failure.code, detail=failure.detail, label=node_label(w.nodes[pending.node]))


def waits_for(job: Job, reason: WaitReason | None, facts: Facts = NO_FACTS) -> Job:
    """The job with the reason why it waits: as a code, and for one more release also in words."""
    words = "" if reason is None else wait_text(reason, facts)
    return replace(job, wait_reason=reason, waiting=words)


# --- ending ---


def revoke(w: World, attempt: Attempt, why: Facts) -> Attempt:
    """From now on nothing from this attempt is accepted. It holds its room until its node reports GONE."""
    if attempt.revoked is not None:
        return attempt
    bound = 4 * w.settings.stop_grace_ms + w.settings.offer_ms_max
    failure = revoke_failure(why)
    attempt = replace(attempt, revoked=failure, revoke_cause=why.revoke, phase_until_ms=w.soon(bound))
    w.put(attempt)
    w.note("attempt.revoked", replace(why, failure=failure.code), attempt.job, attempt.id, attempt.node)
    send_discard(w, attempt, failure)
    return attempt


def send_discard(w: World, attempt: Attempt, failure: Failure, accepted: bool = False) -> None:
    w.claim(attempt).sent_ms = w.patience
    session = w.presence(attempt.node).session
    if session is not None:
        reason = f"{failure.code.value}: {failure.detail or failure.meaning.says}" if not accepted else "accepted"
        w.send(ToSession(session, attempt.node, Discard(w.meta.epoch, attempt.id, attempt.fence, reason, accepted)))


def close_attempt(w: World, attempt: Attempt, failure: Failure | None) -> None:
    """End the attempt: its node no longer holds it, or is not asked about it again."""
    w.put(replace(attempt, phase=AttemptPhase.ENDED, failure=failure, ended_ms=w.now, phase_until_ms=Instant(0)))
    if attempt.job in w.queue:
        seek(w, attempt.job)  # its node is no longer ruled out


def accept(w: World, attempt: Attempt) -> bool:
    """The one step that makes a result the job's result. Compare and set: no result yet, and not revoked."""
    job = w.jobs.get(attempt.job)
    if job is None or job.accepted is not None or attempt.revoked is not None or attempt.result is None:
        return False
    send_discard(w, attempt, Failure(FailureCode.SUPERSEDED), accepted=True)
    w.lifecycle.accepted(w, job, attempt)
    close_attempt(w, attempt, None)
    w.note("job.accepted", Facts(attempt=attempt.id), job.id, attempt.id, attempt.node)
    end_job(w, job.id, Verdict.SUCCEEDED, None, attempt, attempt.result)
    return True


def end_job(
    w: World, job_id: JobId, verdict: Verdict, failure: Failure | None,
    winner: Attempt | None = None, result: Result | None = None, why: Facts | None = None,
) -> None:  # fmt: skip
    """End the job; this is never changed again. Its live attempts are revoked, and their nodes are told why."""
    if winner is not None:
        why = Facts(revoke=RevokeCause.OTHER_WON, attempt=winner.id)
    elif why is None:
        why = Facts(revoke=RevokeCause.JOB_ENDED)
    for attempt in w.attempts_of(job_id):
        revoke(w, attempt, why)
    job = replace(
        w.lifecycle.ending(w, w.jobs[job_id]),
        phase=JobPhase.ENDED,
        verdict=verdict,
        failure=failure,
        result=result,
        waiting="",
        wait_reason=None,
        accepted=winner.id if winner is not None else None,
        ended_ms=w.now,
    )
    w.put(job)
    w.lifecycle.ended(w, job)
    ended = Facts(verdict=verdict, confirmation=job.confirmation)
    if failure is not None:
        ended = replace(ended, failure=failure.code, detail=failure.detail)
    w.note("job.ended", ended, job_id, winner.id if winner is not None else None)
