"""Decides which saved state a job goes on from, and when a running attempt is asked to save one.

A checkpoint is captured whole and delivered before the kernel hears of it; here only its hash counts. It belongs to
the attempt that wrote it. Two contenders may both save: the one that lies deeper, counted in captures from the
job's beginning, stands, so a contender that started further back never takes the job back with it.
"""

from msgspec.structs import replace

from holdfast.kernel.decision import Answer, Done, Rejected, ToSession
from holdfast.kernel.events import Checkpointed
from holdfast.kernel.world import World
from holdfast.model import Attempt, AttemptPhase, Checkpoint, Facts, Instant, Job, Recovery
from holdfast.model.messages import Save

_SAVING = (AttemptPhase.RUNNING, AttemptPhase.UPLOADING)


def keep(w: World, event: Checkpointed) -> Answer:
    """Take a delivered checkpoint for the job's. Never from an attempt that can no longer win."""
    attempt = w.attempts.get(event.attempt)
    if attempt is None or attempt.fence != event.fence:
        return Rejected("not_live", f"{event.attempt} is not held under fence {event.fence}")
    if not attempt.may_win or attempt.phase not in _SAVING:
        why = attempt.revoked.detail if attempt.revoked else f"it is {attempt.phase.value}"
        return Rejected("revoked", f"{event.attempt} can save nothing any more: {why}")
    job = w.jobs[attempt.job]
    start = attempt.resumed
    made = Checkpoint(
        manifest=event.manifest,
        attempt=attempt.id,
        parent=start.attempt if start is not None else None,
        depth=(start.depth if start is not None else 0) + attempt.captures + 1,
        bytes=event.bytes,
        made_ms=w.now,
    )
    behind = job.checkpoint is not None and made.depth < job.checkpoint.depth
    # A body that goes on from a state and gets nowhere is captured as well, once, with that state.
    new = not behind and (job.checkpoint is None or made.manifest != job.checkpoint.manifest)
    saved_ms = w.now if new else attempt.saved_ms
    w.put(replace(attempt, captures=attempt.captures + 1, saved_ms=saved_ms))
    if job.checkpoint is not None and behind:
        return Done(f"{job.checkpoint.attempt} has saved a later state of this job")
    w.put(replace(job, checkpoint=made))
    w.note("job.saved", Facts(bytes=event.bytes), job.id, attempt.id, attempt.node)
    return Done()


def start_of(job: Job) -> Checkpoint | None:
    """Where a new attempt starts from."""
    return job.checkpoint if job.spec.recovery is Recovery.RESUME else None


def got_far(job: Job, attempt: Attempt, at_least_ms: int) -> bool:
    """Whether the attempt saved something new so long after its body began, and the job goes on from what is saved.

    What it saved last is proof that it ran until then; when it was lost is not known so well."""
    if job.spec.recovery is not Recovery.RESUME or attempt.started_ms is None or attempt.saved_ms is None:
        return False
    return attempt.saved_ms - attempt.started_ms > at_least_ms


def may_save(w: World, attempt: Attempt) -> bool:
    """Whether its body is at work and has a checkpoint folder."""
    job = w.jobs.get(attempt.job)
    running = attempt.may_win and attempt.phase is AttemptPhase.RUNNING
    return running and job is not None and job.spec.checkpoint_ms > 0


def saved_since(w: World, attempt: Attempt, moment: Instant) -> bool:
    """Whether the job goes on from what this attempt saved after a moment of the patience clock."""
    checkpoint = w.jobs[attempt.job].checkpoint
    if checkpoint is None or checkpoint.attempt != attempt.id:
        return False
    return checkpoint.made_ms - w.meta.late_ms >= moment


def ask_to_save(w: World, attempt: Attempt) -> None:
    """Its machine is about to be emptied: what it saves now is not lost."""
    session = w.pulse(attempt.node).session
    if session is not None:
        w.send(ToSession(session, attempt.node, Save(w.meta.epoch, attempt.id, attempt.fence)))
