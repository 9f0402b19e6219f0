"""Decides what happens to a job when one of its attempts fails (SPEC J7, J8).

The failure code determines whose fault it was, and whether a retry makes sense. Retries are limited in number,
spaced by a growing back-off, and go to other nodes first. Work that must not repeat is never repeated.
"""

from msgspec.structs import replace

from holdfast.kernel import confirming
from holdfast.kernel.checkpoints import ask_to_save, got_far, may_save, saved_since
from holdfast.kernel.contenders import (
    attempts_max,
    close_attempt,
    end_job,
    got_on,
    healthy,
    lease_over_ms,
    must_not_repeat,
    refresh,
    revoke,
    seek,
    send_discard,
    send_start,
)
from holdfast.kernel.health import ended, strike
from holdfast.kernel.mechanism import Mechanism
from holdfast.kernel.poison import POISON_WINDOW_MS, poisonous
from holdfast.kernel.tainting import taint_node
from holdfast.kernel.world import World
from holdfast.model import (
    Attempt,
    AttemptId,
    AttemptPhase,
    Blame,
    Facts,
    Failure,
    FailureCode,
    Instant,
    Job,
    JobId,
    JobPhase,
    NodeId,
    NodeState,
    Resources,
    RevokeCause,
    Verdict,
    after,
)
from holdfast.model.cause_text import revoke_failure
from holdfast.policy import record
from holdfast.policy.backoff import backoff_ms

_BEFORE_BODY = (AttemptPhase.OFFERED, AttemptPhase.PREPARING, AttemptPhase.READY)
AVOID_MAX = 16
"""Most nodes that a job remembers to avoid."""
FREE_OF_CHARGE = {FailureCode.REFUSED, FailureCode.DRAINED, FailureCode.SUPERSEDED}
"""Failures that say nothing about the job: they do not count towards its attempts."""

LOST_WITH_MACHINE = {FailureCode.NODE_LOST, FailureCode.RUNTIME_FAULT, FailureCode.ORPHANED}
"""Codes for a body whose machine was switched off or cut off, as set by the orchestrator or later by the machine."""


def attempt_failed(w: World, attempt: Attempt, failure: Failure, still_held: bool, was_away: bool = False) -> None:
    """A contender failed. `still_held`: the node must be told to clean up. `was_away`: the node was suspect, lost or
    gone until now, or still is."""
    if still_held:
        send_discard(w, attempt, failure)
    close_attempt(w, attempt, failure)
    facts = Facts(failure=failure.code, detail=failure.detail)
    w.note("attempt.failed", facts, attempt.job, attempt.id, attempt.node)
    if failure.meaning.blame is Blame.USER:
        ended(w, attempt.node, record.BLAMED)
    else:
        strike(w, attempt.node, failure)
    if failure.code is FailureCode.INVALID_RESULT:
        taint_node(w, attempt.node)
    go_on(w, attempt, failure, was_away)


def give_up(w: World, attempt: Attempt, why: Facts) -> None:
    """Revoke an attempt that its node may still be running, and continue without it."""
    failure = revoke_failure(why)
    attempt = revoke(w, attempt, why)
    strike(w, attempt.node, failure)
    go_on(w, attempt, failure)


def go_on(w: World, attempt: Attempt, failure: Failure, was_away: bool = False) -> None:
    """Decide the job's next step after the loss of an attempt."""
    job = w.jobs.get(attempt.job)
    if job is None:
        return
    rivals = [a for a in w.attempts_of(job.id) if a.id != attempt.id and a.may_win]
    well = any(healthy(w, a) for a in rivals)
    taken_over = was_away or bool(rivals)
    churned = taken_over and job.spec.attempts_max is None and churn(job, attempt, failure)
    blamed = failure.meaning.blame is Blame.USER
    opinion = confirming.opinion(w, job, attempt) if blamed else None
    doubted = blamed and opinion is None
    # A second attempt, or one made for a move, does not count while another contender is healthy.
    of_the_job = attempt.purpose.in_turn or not well
    counts = failure.code not in FREE_OF_CHARGE and not churned and not doubted and of_the_job
    avoid = job.avoid if attempt.node in job.avoid else (*job.avoid, attempt.node)[-AVOID_MAX:]
    job = replace(got_on(w, job, attempt), failures=0 if churned else job.failures + counts, avoid=avoid)
    job = w.lifecycle.lost(w, job, attempt, failure)
    if doubted:
        job = confirming.pend(w, job, attempt, failure, was_away)
    # A verdict on the program counts only if no healthy contender is left: a machine that was suspended meanwhile
    # may report a time limit that the others keep.
    over = must_not_repeat(job, attempt) or (not failure.meaning.retryable and not well and not doubted)
    used_up = job.failures >= attempts_max(w, job) and not rivals
    if not (over or used_up or well or churned or doubted):
        tries = job.failures if counts else job.attempts_made - job.failures
        wait = backoff_ms(tries, w.settings.backoff_ms, w.settings.backoff_ms_max, w.draw())
        job = replace(job, not_before_ms=after(w.patience, wait))
    w.put(job)
    if over and opinion is not None:
        confirming.stand(w, job, failure, opinion, attempt.node)
    elif over:
        end_job(w, job.id, Verdict.FAILED, failure)
    elif used_up:
        detail = f"{failure.detail or failure.meaning.says} (the last of {job.failures} failures)"
        end_job(w, job.id, Verdict.FAILED, replace(failure, detail=detail))
    elif not poisonous(w, job):
        refresh(w, job.id)
        seek(w, job.id)


def churn(job: Job, attempt: Attempt, failure: Failure) -> bool:
    """Whether the body was lost with its machine long after it began, and had saved its state, so that another attempt
    can resume from there, now or once there is room.

    Such a loss is no failure of the job, and earlier failures are forgiven: a job that runs for weeks has dozens."""
    return failure.code in LOST_WITH_MACHINE and got_far(job, attempt, POISON_WINDOW_MS)


# --- deadlines ---


def phase_due(w: World, attempt_id: AttemptId) -> None:
    """An attempt's phase reached its deadline: every phase has a named outcome (SPEC H6)."""
    attempt = w.attempts.get(attempt_id)
    if attempt is None or not attempt.phase_until_ms:
        return
    if attempt.phase_until_ms > w.patience:
        w.deadlines.add(attempt.phase_until_ms, "attempt", attempt_id)
        if attempt.phase is AttemptPhase.OFFERED and attempt.revoked is None:
            offer_again(w, attempt)
        return
    presence, node = w.presence(attempt.node), w.nodes[attempt.node]
    awaited = node.state is NodeState.SUSPECT or presence.grace_until_ms > w.patience
    if presence.session is None and (attempt.phase not in _BEFORE_BODY or awaited):
        # The node is away, which its own deadline bounds: after that it is lost. Check again when it may be back.
        w.deadlines.add(w.soon(1_000), "attempt", attempt_id)
        return
    if attempt.revoked is not None:
        strike(w, attempt.node, Failure(FailureCode.RUNTIME_FAULT, f"{attempt_id} was revoked and is not gone"))
        if attempt_id in w.attempts:
            send_discard(w, w.attempts[attempt_id], attempt.revoked)
            w.put(replace(w.attempts[attempt_id], phase_until_ms=w.soon(w.settings.prepare_ms_max)))
        return
    match attempt.phase:
        case AttemptPhase.OFFERED:
            why = Facts(revoke=RevokeCause.OFFER_UNANSWERED, ms=w.settings.offer_ms_max)
        case AttemptPhase.PREPARING | AttemptPhase.READY:
            why = Facts(revoke=RevokeCause.PREPARE_TIMEOUT, ms=w.settings.prepare_ms_max)
        case AttemptPhase.RUNNING:
            why = Facts(revoke=RevokeCause.TIME_LIMIT)
            strike(w, attempt.node, Failure(FailureCode.RUNTIME_FAULT, f"{attempt_id} ran on past its limit"))
            attempt = w.attempts[attempt_id]
        case _:
            why = Facts(revoke=RevokeCause.UPLOAD_TIMEOUT, ms=w.settings.upload_ms_max)
    give_up(w, attempt, why)


def offer_again(w: World, attempt: Attempt) -> None:
    """An offer has not been answered for a while: send it again. An idle node's next report may be far off."""
    job = w.jobs.get(attempt.job)
    again = after(w.claim(attempt).sent_ms, w.settings.resend_ms)
    if again > w.patience:
        w.deadlines.add(again, "attempt", attempt.id)
    elif job is not None:
        send_start(w, attempt, job)


def lease_due(w: World, attempt_id: AttemptId) -> None:
    """Class `never`: nothing was heard for so long that the body is certainly dead."""
    attempt = w.attempts.get(attempt_id)
    if attempt is None or not attempt.go or attempt.revoked is not None:
        return
    if attempt.phase is AttemptPhase.UPLOADING and w.presence(attempt.node).session is not None:
        return
    over = lease_over_ms(w, attempt)
    if over > w.patience:
        w.deadlines.add(over, "lease", attempt_id)
        return
    give_up(w, attempt, Facts(revoke=RevokeCause.LEASE_LOST))


def job_due(w: World, job_id: JobId) -> None:
    """A waiting job's back-off is over, or its queue limit is reached."""
    job = w.jobs.get(job_id)
    if job is None:
        return
    if job.phase is JobPhase.QUEUED and job.queue_until_ms <= w.patience:
        waited = "no machine had room for it in time"
        end_job(w, job_id, Verdict.FAILED, Failure(FailureCode.QUEUE_EXPIRED, waited))
        return
    if job.phase is JobPhase.QUEUED:
        w.deadlines.add(job.queue_until_ms, "job", job_id)
    w.lifecycle.due(w, job)
    job = w.jobs.get(job_id)
    if job is not None and job_id not in w.queue:
        if job.not_before_ms and job.not_before_ms <= w.patience:
            w.put(replace(job, not_before_ms=Instant(0)))  # stored, so that a rebuild also finds it waiting
        seek(w, job_id)


def drain_due(w: World, node_id: NodeId) -> None:
    """A draining node's grace is over: repeatable work moves once it had time to save its state; work that must not
    repeat may finish."""
    node = w.nodes.get(node_id)
    if node is None or not node.draining:
        return
    if node.drain_until_ms > w.patience:
        w.deadlines.add(node.drain_until_ms, "drain", node_id)
        return
    save_until = after(node.drain_until_ms, w.settings.save_ms_max)
    for attempt in w.held_by(node_id):
        job = w.jobs.get(attempt.job)
        if not attempt.may_win or job is None or must_not_repeat(job, attempt):
            continue
        unsaved = may_save(w, attempt) and not saved_since(w, attempt, node.drain_until_ms)
        if unsaved and w.patience < save_until:
            ask_to_save(w, attempt)
            w.deadlines.add(save_until, "drain", node_id)
        else:
            give_up(w, attempt, Facts(revoke=RevokeCause.DRAINED))


class Draining(Mechanism):
    """Moves work off a draining node as soon as it has saved its state."""

    def checkpointed(self, w: World, attempt: Attempt, manifest: str) -> None:
        drain_due(w, attempt.node)


def make_fit(w: World, node_id: NodeId) -> None:
    """The node offers less than it holds: repeatable work moves, the youngest first, until the rest fits."""
    held = [attempt for attempt in w.held_by(node_id) if attempt.revoked is None]
    total = sum((attempt.holds for attempt in held), Resources())
    for attempt in sorted(held, key=lambda a: -a.fence):
        job = w.jobs.get(attempt.job)
        if total.fits_in(w.nodes[node_id].offered):
            return
        if attempt.may_win and job is not None and not must_not_repeat(job, attempt):
            give_up(w, attempt, Facts(revoke=RevokeCause.OFFERS_LESS))
            total = total - attempt.holds


def write_off(w: World, node_id: NodeId) -> None:
    """The node is lost or gone: close what it held, and release the jobs that wait for it."""
    w.lifecycle.node_lost(w, node_id)
    for attempt in w.held_by(node_id):
        if attempt.revoked is not None:
            close_attempt(w, attempt, attempt.revoked)
        else:
            state = w.nodes[node_id].state
            why = "it said goodbye" if state is NodeState.GONE else "it stayed away too long"
            attempt_failed(w, attempt, Failure(FailureCode.NODE_LOST, why), still_held=False, was_away=True)
