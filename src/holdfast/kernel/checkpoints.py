"""Decides which checkpoint a job resumes from, and asks running attempts to save one.

A checkpoint is captured and delivered completely before the kernel learns of it; the kernel sees only its hash. It
names its author, the attempt and the machine, and its ancestor, the checkpoint that the attempt started from. A few
ancestors are kept, so that the work can be redone from one of them if an author turns out to lie (`kernel.tainting`).
If two contenders save, the deeper checkpoint is kept, counted in captures from
the beginning of the job. So a contender that started further back never sets the job back.
"""

from msgspec.structs import replace

from holdfast.kernel.decision import Answer, Done, Rejected, ToSession
from holdfast.kernel.events import Checkpointed, ContentDelivered
from holdfast.kernel.world import World
from holdfast.model import Attempt, AttemptPhase, Checkpoint, Facts, Instant, Job, Recovery
from holdfast.model.messages import Save

ANCESTORS_MAX = 3
"""Ancestors kept of a checkpoint: the last state of each of the last authors before its own. Each takes space in the
store."""
DELIVERED_MAX = 4
"""Manifests remembered of an attempt: its result, and captures that were under way at the same time."""

_SAVING = (AttemptPhase.RUNNING, AttemptPhase.UPLOADING)


def keep(w: World, event: Checkpointed) -> Answer:
    """Make a delivered checkpoint the job's. An attempt that can no longer win is rejected."""
    attempt = w.attempts.get(event.attempt)
    if attempt is None or attempt.fence != event.fence:
        return Rejected("not_live", f"{event.attempt} is not held under fence {event.fence}")
    if attempt.tainted:
        return Rejected("revoked", f"{event.attempt} can no longer save: its machine delivered something false")
    if not attempt.may_win or attempt.phase not in _SAVING:
        why = attempt.revoked.detail if attempt.revoked else f"it is {attempt.phase.value}"
        return Rejected("revoked", f"{event.attempt} can no longer save: {why}")
    job = w.jobs[attempt.job]
    start = attempt.resumed
    made = Checkpoint(
        manifest=event.manifest,
        attempt=attempt.id,
        parent=start.attempt if start is not None else None,
        depth=(start.depth if start is not None else 0) + attempt.captures + 1,
        bytes=event.bytes,
        made_ms=w.now,
        node=attempt.node,
        ancestor=_shortened(start, ANCESTORS_MAX),
    )
    behind = job.checkpoint is not None and made.depth < job.checkpoint.depth
    # A body that resumes and makes no progress is also captured once, with the state it resumed from.
    new = not behind and (job.checkpoint is None or made.manifest != job.checkpoint.manifest)
    saved_ms = w.now if new else attempt.saved_ms
    w.put(replace(attempt, captures=attempt.captures + 1, saved_ms=saved_ms))
    if job.checkpoint is not None and behind:
        return Done(f"{job.checkpoint.attempt} has saved a later state of this job")
    w.put(replace(job, checkpoint=made))
    w.note("job.saved", Facts(bytes=event.bytes), job.id, attempt.id, attempt.node)
    return Done()


def _shortened(checkpoint: Checkpoint | None, most: int) -> Checkpoint | None:
    """The checkpoint with at most `most` in its line, itself included."""
    if checkpoint is None or most == 0:
        return None
    return replace(checkpoint, ancestor=_shortened(checkpoint.ancestor, most - 1))


def deliver(w: World, event: ContentDelivered) -> Answer:
    """Record which content an attempt sent. A result may name only that."""
    attempt = w.attempts.get(event.attempt)
    if attempt is None or attempt.fence != event.fence:
        return Rejected("not_live", f"{event.attempt} is not held under fence {event.fence}")
    if attempt.revoked is not None:
        return Rejected("revoked", f"{event.attempt} was revoked: {attempt.revoked.detail}")
    if event.manifest not in attempt.delivered:
        w.put(replace(attempt, delivered=(*attempt.delivered, event.manifest)[-DELIVERED_MAX:]))
    return Done()


def start_of(job: Job) -> Checkpoint | None:
    """Where a new attempt starts from."""
    return job.checkpoint if job.spec.recovery is Recovery.RESUME else None


def got_far(job: Job, attempt: Attempt, at_least_ms: int) -> bool:
    """Whether the attempt saved something new more than `at_least_ms` after its body began, for a job that can resume.

    The last checkpoint proves that the body ran until then; the moment of its loss is less certain."""
    if job.spec.recovery is not Recovery.RESUME or attempt.started_ms is None or attempt.saved_ms is None:
        return False
    return attempt.saved_ms - attempt.started_ms > at_least_ms


def may_save(w: World, attempt: Attempt) -> bool:
    """Whether its body is running and has a checkpoint folder."""
    job = w.jobs.get(attempt.job)
    running = attempt.may_win and attempt.phase is AttemptPhase.RUNNING
    return running and job is not None and job.spec.checkpoint_ms > 0


def saved_since(w: World, attempt: Attempt, moment: Instant) -> bool:
    """Whether the job's checkpoint is from this attempt, saved at or after `moment` on the patience clock."""
    checkpoint = w.jobs[attempt.job].checkpoint
    if checkpoint is None or checkpoint.attempt != attempt.id:
        return False
    return checkpoint.made_ms - w.meta.late_ms >= moment


def ask_to_save(w: World, attempt: Attempt) -> None:
    """Ask the attempt to save its state, because it is about to leave its machine."""
    session = w.presence(attempt.node).session
    if session is not None:
        w.send(ToSession(session, attempt.node, Save(w.meta.epoch, attempt.id, attempt.fence)))
