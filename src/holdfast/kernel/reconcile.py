"""Compares what a node reports with what it should hold, and repeats commands that did not take effect.

Nothing here looks at what was sent before except to avoid repeating it too often: a message may have been lost,
duplicated or reordered. The rows say what should be; the report says what is.
"""

from msgspec.structs import replace

from holdfast.kernel.confirming import refuted
from holdfast.kernel.contenders import (
    accept,
    advance,
    close_attempt,
    end_job,
    grant_go,
    renew_lease,
    send_discard,
    send_start,
)
from holdfast.kernel.decision import Inspect, ToSession, Verify
from holdfast.kernel.events import Inspected, Verified
from holdfast.kernel.health import won
from holdfast.kernel.recovery import attempt_failed
from holdfast.kernel.tainting import drop_damaged
from holdfast.kernel.world import NO_FACTS, World
from holdfast.model import Attempt, AttemptId, AttemptPhase, Facts, Failure, FailureCode, NodeId, Recovery, Verdict
from holdfast.model.messages import Discard, Held, HeldPhase, Renewed

NODE_MAY_SAY = frozenset(
    {
        FailureCode.EXIT_CODE, FailureCode.OOM_JOB, FailureCode.OOM_NODE, FailureCode.TIME_LIMIT,
        FailureCode.DISK_QUOTA, FailureCode.NODE_DISK_FULL, FailureCode.IMAGE, FailureCode.BUILD, FailureCode.DATA,
        FailureCode.DAMAGED,
        FailureCode.NETWORK, FailureCode.RUNTIME_FAULT, FailureCode.ORPHANED, FailureCode.LEASE_LOST,
        FailureCode.DRAINED,
    }
)  # fmt: skip
"""Failure codes that a node may report. The orchestrator decides the others, and a node must not report them."""
_RUNNING = AttemptPhase.RUNNING
_BEFORE_BODY = (AttemptPhase.OFFERED, AttemptPhase.PREPARING, AttemptPhase.READY)


def compare(w: World, node: NodeId, held: tuple[Held, ...], full: bool, seq: int, came_back: bool = False) -> None:
    """Process a report. `came_back`: the node was away, and attempts it still has are contenders again."""
    for item in held:
        observe(w, node, item, seq, came_back)
    if full:
        named = {item.attempt for item in held}
        for attempt in w.held_by(node):
            if attempt.id not in named:
                missing(w, attempt, came_back)


def observe(w: World, node: NodeId, item: Held, seq: int, came_back: bool) -> None:
    """Process one attempt of a report."""
    attempt = w.attempts.get(item.attempt)
    if attempt is None or attempt.node != node or attempt.fence != item.fence:
        if item.phase is not HeldPhase.GONE:
            stray(w, node, item)
        return
    if attempt.revoked is not None:
        observe_revoked(w, attempt, item)
        return
    if came_back and item.failure is None and item.phase is not HeldPhase.GONE:
        w.lifecycle.returned(w, attempt)
        attempt = w.attempts[attempt.id]
    match item.phase:
        case HeldPhase.PREPARING:
            if attempt.phase is AttemptPhase.OFFERED:
                advance(w, attempt, AttemptPhase.PREPARING, w.settings.prepare_ms_max)
        case HeldPhase.READY:
            observe_ready(w, attempt, seq)
        case HeldPhase.RUNNING:
            if attempt.phase in _BEFORE_BODY:
                body_seen(w, attempt, AttemptPhase.RUNNING)
            elif attempt.phase is _RUNNING:
                w.lifecycle.progressed(w, attempt, item.progress)
        case HeldPhase.UPLOADING:
            # Without a go this proves nothing: a body that was stopped before it began has also ended.
            unproven = attempt.phase in _BEFORE_BODY and _waits_for_go(w, attempt)
            if not unproven and (attempt.phase in _BEFORE_BODY or attempt.phase is AttemptPhase.RUNNING):
                body_seen(w, attempt, AttemptPhase.UPLOADING)
        case HeldPhase.FINISHED:
            observe_finished(w, attempt, item, came_back)
        case HeldPhase.REFUSED if attempt.phase not in _BEFORE_BODY:
            vanished(w, attempt, came_back)
        case HeldPhase.REFUSED:
            why = item.failure or Failure(FailureCode.REFUSED, "it gave no reason")
            attempt_failed(w, attempt, replace(why, code=FailureCode.REFUSED), still_held=True)
        case HeldPhase.GONE:
            vanished(w, attempt, came_back)


def _waits_for_go(w: World, attempt: Attempt) -> bool:
    job = w.jobs.get(attempt.job)
    return job is not None and job.spec.recovery is Recovery.NEVER and not attempt.go and not w.from_backup(attempt)


def stray(w: World, node: NodeId, item: Held) -> None:
    """The node holds an attempt that it should not: one that never existed, or ended before."""
    session = w.presence(node).session
    if session is not None:
        reason = "this attempt is not, or no longer, one that counts"
        w.send(ToSession(session, node, Discard(w.meta.epoch, item.attempt, item.fence, reason)))


def observe_revoked(w: World, attempt: Attempt, item: Held) -> None:
    why = attempt.revoked or Failure(FailureCode.SUPERSEDED)
    if item.phase in (HeldPhase.GONE, HeldPhase.REFUSED):
        if item.phase is HeldPhase.REFUSED:
            send_discard(w, attempt, why)
        close_attempt(w, attempt, why)
        return
    claim = w.claim(attempt)
    if item.phase is HeldPhase.FINISHED and not claim.refused:
        claim.refused = True
        w.note("attempt.refused", Facts(failure=why.code, detail=why.detail), attempt.job, attempt.id, attempt.node)
    if w.patience - claim.sent_ms >= w.settings.resend_ms or claim.sent_ms == 0:
        send_discard(w, attempt, why)


def observe_ready(w: World, attempt: Attempt, seq: int) -> None:
    """The attempt is prepared. Only class `never` waits here, for a go that is durable before it is sent."""
    job = w.jobs.get(attempt.job)
    if job is None or job.spec.recovery is not Recovery.NEVER or attempt.phase not in _BEFORE_BODY:
        return
    claim = w.claim(attempt)
    if not attempt.go or w.patience - claim.sent_ms >= w.settings.resend_ms:
        grant_go(w, attempt, seq)


def body_seen(w: World, attempt: Attempt, phase: AttemptPhase) -> Attempt:
    """The node reports that the body runs or has run."""
    job = w.jobs[attempt.job]
    if job.spec.recovery is Recovery.NEVER and not attempt.go and w.from_backup(attempt):
        # A leader whose state was lost allowed it.
        attempt = replace(attempt, go=True)
        renew_lease(w, attempt)
    elif job.spec.recovery is Recovery.NEVER and not attempt.go:
        # It was not allowed to start. Its reports are not trusted: it is stopped, and its node gets strikes.
        fault = Failure(FailureCode.INVALID_RESULT, "its machine started it without being allowed to")
        attempt = replace(attempt, go=True)
        w.put(attempt)
        attempt_failed(w, attempt, fault, still_held=True)
        return attempt
    if phase is AttemptPhase.RUNNING:
        limit = job.spec.time_limit_ms or w.settings.run_ms_max
        bound = limit + w.settings.run_slack_ms
    else:
        bound = w.settings.upload_ms_max
    started = w.now if attempt.started_ms is None else attempt.started_ms
    if attempt.started_ms is None:
        w.note("attempt.running", NO_FACTS, attempt.job, attempt.id, attempt.node)
    first = attempt.started_ms is None
    attempt = advance(w, attempt, phase, bound, started_ms=started)
    w.lifecycle.body_started(w, attempt, first)
    return attempt


def observe_finished(w: World, attempt: Attempt, item: Held, came_back: bool) -> None:
    if item.failure is not None and (
        item.failure.code not in NODE_MAY_SAY
        or (item.failure.code is FailureCode.LEASE_LOST and not attempt.go and not w.from_backup(attempt))
    ):
        fault = Failure(FailureCode.INVALID_RESULT, f"{item.failure.code.value} is not for a machine to say")
        attempt_failed(w, attempt, fault, still_held=True)
        return
    if item.failure is not None and item.failure.code is FailureCode.DAMAGED:
        ask_to_inspect(w, attempt)
        return
    if item.failure is not None:
        attempt_failed(w, attempt, item.failure, still_held=True, was_away=came_back)
        return
    if item.result is None:
        fault = Failure(FailureCode.INVALID_RESULT, "it said finished and declared nothing")
        attempt_failed(w, attempt, fault, still_held=True)
        return
    if attempt.phase is not AttemptPhase.UPLOADING:
        attempt = body_seen(w, attempt, AttemptPhase.UPLOADING)
        if not attempt.may_win or attempt.id not in w.attempts:
            return
    if item.result.manifest and item.result.manifest not in attempt.delivered:
        # Not a lie for certain: a state restored from a backup may not know what was sent before.
        unsent = Failure(FailureCode.UPLOAD_TIMEOUT, "its result names files that it did not send here")
        attempt_failed(w, attempt, unsent, still_held=True)
        return
    if attempt.result is None:
        attempt = replace(attempt, result=item.result)
        w.put(attempt)
    elif attempt.result != item.result:
        # The first declaration is final: otherwise one result could be verified and another accepted.
        fault = Failure(FailureCode.INVALID_RESULT, "it declared two different results")
        attempt_failed(w, attempt, fault, still_held=True)
        return
    claim = w.claim(attempt)
    if not claim.verifying:
        claim.verifying = True
        w.send(Verify(attempt.id, attempt.fence, item.result, attempt.owner))


def ask_to_inspect(w: World, attempt: Attempt) -> None:
    """Its machine says that files it was given are damaged. Its word alone is not enough: they are read again."""
    claim = w.claim(attempt)
    if claim.verifying:
        return
    claim.verifying = True
    w.put(replace(attempt, phase_until_ms=w.soon(w.settings.upload_ms_max)))  # much may have to be read
    spec, resumed = w.jobs[attempt.job].spec, attempt.resumed
    given = {spec.package, *(item.manifest for item in spec.inputs), resumed.manifest if resumed is not None else ""}
    w.send(Inspect(attempt.id, attempt.fence, attempt.owner, tuple(sorted(given - {""}))))


def inspected(w: World, event: Inspected) -> None:
    """The files that a machine called damaged have been read again. A checkpoint that is damaged is not used again;
    without its other files the job cannot run anywhere."""
    attempt = w.attempts.get(event.attempt)
    if attempt is None or attempt.fence != event.fence or not attempt.may_win:
        return
    w.claim(attempt).verifying = False
    if event.damaged:
        drop_damaged(w, attempt.job, event.damaged)
        failure = Failure(FailureCode.DAMAGED, f"the content of manifest {event.damaged[0]} is damaged or lost")
    else:
        failure = Failure(FailureCode.RUNTIME_FAULT, "it says that files are damaged, and they are not")
    attempt_failed(w, attempt, failure, still_held=True)
    resumed = attempt.resumed.manifest if attempt.resumed is not None else ""
    beyond = set(event.damaged) - {resumed}
    if beyond and attempt.job in w.jobs and not any(rival.may_win for rival in w.attempts_of(attempt.job)):
        end_job(w, attempt.job, Verdict.FAILED, failure)


def verified(w: World, event: Verified) -> None:
    """What was delivered has been compared with what was declared."""
    attempt = w.attempts.get(event.attempt)
    if attempt is None or attempt.fence != event.fence or not attempt.may_win or attempt.result is None:
        return
    w.claim(attempt).verifying = False
    if not event.ok:
        # Output that was acknowledged by a leader whose state was lost is missing, and not by the fault of its node.
        unknown = event.damaged or w.from_backup(attempt)
        code = FailureCode.DAMAGED if unknown else FailureCode.INVALID_RESULT
        attempt_failed(w, attempt, Failure(code, event.detail), still_held=True)
        return
    job = w.jobs[attempt.job]
    if accept(w, attempt):
        won(w, attempt.node)
        refuted(w, job, attempt)


def refused(w: World, attempt_id: AttemptId, fence: int, detail: str) -> None:
    """What the node sent for an attempt breaks a rule: nothing that it sends for it later is accepted."""
    attempt = w.attempts.get(attempt_id)
    if attempt is not None and attempt.fence == fence and attempt.may_win:
        attempt_failed(w, attempt, Failure(FailureCode.INVALID_RESULT, detail), still_held=True)


def missing(w: World, attempt: Attempt, came_back: bool) -> None:
    """A full report does not name an attempt that should be there."""
    if attempt.revoked is not None:
        close_attempt(w, attempt, attempt.revoked)
        return
    if attempt.phase is AttemptPhase.OFFERED and w.from_backup(attempt):
        # It may have run since: another attempt with its name would add to its output.
        lost = Failure(FailureCode.NODE_LOST, "it was offered before a backup that was restored")
        attempt_failed(w, attempt, lost, still_held=False, was_away=True)
        return
    if attempt.phase is AttemptPhase.OFFERED:
        job = w.jobs.get(attempt.job)
        if job is not None and w.patience - w.claim(attempt).sent_ms >= w.settings.resend_ms:
            send_start(w, attempt, job)
        return
    if came_back:
        # The attempt went down with its node. Absence is judged by suspicion, not by strikes.
        lost = Failure(FailureCode.NODE_LOST, "its machine came back without it")
        attempt_failed(w, attempt, lost, still_held=False, was_away=True)
    else:
        vanished(w, attempt, came_back)


def vanished(w: World, attempt: Attempt, came_back: bool) -> None:
    """The node had the attempt, and no longer has it."""
    if w.from_backup(attempt):
        # A leader whose state was lost may have told it to discard it.
        lost = Failure(FailureCode.NODE_LOST, "its machine no longer has it, and the state is from a backup")
        attempt_failed(w, attempt, lost, still_held=False, was_away=True)
        return
    fault = Failure(FailureCode.RUNTIME_FAULT, "its machine no longer has it")
    attempt_failed(w, attempt, fault, still_held=False, was_away=came_back)


def renew(w: World, node: NodeId, seq: int, attempts: tuple[AttemptId, ...]) -> None:
    """Renew the leases that are still valid. A revoked attempt's lease is not renewed, so its body is stopped."""
    good: list[AttemptId] = []
    for attempt_id in attempts:
        attempt = w.attempts.get(attempt_id)
        if attempt is not None and attempt.node == node and attempt.go and attempt.may_win:
            renew_lease(w, attempt)
            good.append(attempt_id)
    session = w.presence(node).session
    if good and session is not None:
        w.send(ToSession(session, node, Renewed(w.meta.epoch, seq, tuple(good))))
