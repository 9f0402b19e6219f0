"""Decides what follows when the author of a checkpoint turns out to lie: what it saved, and everything that grew from
that, is not used any more, and the work is redone from the last ancestor that is believed.

Whether the content of a checkpoint is true is not decided here. A false result, or exit codes that other machines
refuted until their machine was set aside, say that its word is worth nothing, and so are its checkpoints.
"""

from collections.abc import Callable, Collection

from msgspec.structs import replace

from holdfast.kernel.contenders import refresh, revoke, seek
from holdfast.kernel.mechanism import Mechanism
from holdfast.kernel.world import World
from holdfast.model import AttemptId, Checkpoint, Facts, Job, JobId, NodeId, RevokeCause

Guilty = Callable[[Checkpoint], bool]


class SavedJobs(Mechanism):
    """Knows which live jobs have a checkpoint: only these can be tainted."""

    def __init__(self) -> None:
        self.jobs: set[JobId] = set()

    def job_changed(self, w: World, before: Job | None, job: Job) -> None:
        if job.checkpoint is not None and job.live:
            self.jobs.add(job.id)
        elif before is not None and before.checkpoint is not None:
            self.jobs.discard(job.id)


def taint_attempt(w: World, attempt: AttemptId, job: JobId) -> None:
    """What this attempt saved is not believed any more: for example because another machine refuted its verdict."""
    known = w.attempts.get(attempt)
    if known is not None and known.revoked is None:
        w.put(replace(known, tainted=True))
    _taint(w, job, lambda checkpoint: checkpoint.attempt == attempt)


def taint_node(w: World, node: NodeId) -> None:
    """Nothing that this machine saved until now is believed any more, in any job: it delivered something false."""
    for attempt in w.held_by(node):
        if attempt.revoked is None:
            w.put(replace(attempt, tainted=True))
    for job in sorted(w.lifecycle.of(SavedJobs).jobs):
        _taint(w, job, lambda checkpoint: checkpoint.node == node)


def drop_damaged(w: World, job_id: JobId, manifests: Collection[str]) -> None:
    """The content of these checkpoints is damaged: the job goes on from the newest one that is not."""
    job = w.jobs.get(job_id)
    if job is None or job.checkpoint is None or job.checkpoint.manifest not in manifests:
        return
    good = next((one for one in job.checkpoint.line if one.manifest not in manifests), None)
    w.put(replace(job, checkpoint=good))
    facts = Facts(attempt=job.checkpoint.attempt, count=good.depth if good is not None else 0)
    w.note("job.tainted", facts, job_id)


def last_good(checkpoint: Checkpoint | None, guilty: Guilty) -> Checkpoint | None:
    """The newest checkpoint of the line that has no guilty one among its ancestors; None: the beginning."""
    return _split(checkpoint, guilty)[1]


def _split(checkpoint: Checkpoint | None, guilty: Guilty) -> tuple[Checkpoint | None, Checkpoint | None]:
    """The oldest guilty checkpoint of the line, and what remains of the line without it and its descendants."""
    line = checkpoint.line if checkpoint is not None else ()
    culprit = next((one for one in reversed(line) if guilty(one)), None)
    return (None, checkpoint) if culprit is None else (culprit, culprit.ancestor)


def _taint(w: World, job_id: JobId, guilty: Guilty) -> None:
    job = w.jobs.get(job_id)
    if job is None:
        return
    culprit, good = _split(job.checkpoint, guilty)
    if culprit is not None:
        w.put(replace(job, checkpoint=good))
        facts = Facts(attempt=culprit.attempt, count=good.depth if good is not None else 0)
        w.note("job.tainted", facts, job_id)
    grown = [(a, _split(a.resumed, guilty)[0]) for a in w.attempts_of(job_id) if a.may_win]
    for attempt, culprit in grown:
        if culprit is not None:
            revoke(w, attempt, Facts(revoke=RevokeCause.TAINTED, attempt=culprit.attempt))
    if any(culprit is not None for _, culprit in grown):
        refresh(w, job_id)
        seek(w, job_id)
