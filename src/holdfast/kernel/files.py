"""Decides how long the files of an ended job are kept: until its owner has them, and not for ever.

Knows only hashes. What a live job refers to is always kept; this module decides about the time after its end.
"""

from holdfast.kernel.decision import Answer, Done, Rejected
from holdfast.kernel.events import FilesReceived
from holdfast.kernel.mechanism import Mechanism
from holdfast.kernel.world import NO_FACTS, World
from holdfast.model import Job, Keep, Result, after


def manifests_of(job: Job, result: Result | None) -> tuple[str, ...]:
    """The manifests needed to run the job again or to fetch its result; sorted, without duplicates."""
    spec = job.spec
    named = {spec.package, *(item.manifest for item in spec.inputs), result.manifest if result is not None else ""}
    return tuple(sorted(named - {""}))


class Files(Mechanism):
    def ended(self, w: World, job: Job) -> None:
        manifests = manifests_of(job, job.result)
        if manifests:
            w.changes.append(Keep(job.id, job.owner, manifests, after(w.now, w.settings.files_keep_ms)))


def received(w: World, event: FilesReceived) -> Answer:
    """The owner has the files: the network keeps them for a shorter time, in which the job can be run again."""
    job = event.job
    if job.id in w.deleted:
        return Rejected("job_deleted", f"{job.id} ended long ago and was deleted, with its files")
    if job.id in w.jobs or job.live:
        return Rejected("not_ended", f"{job.id} has not ended: there is nothing to receive yet")
    until = after(w.now, w.settings.files_keep_received_ms)
    w.changes.append(Keep(job.id, job.owner, manifests_of(job, job.result), until, received=True))
    w.note("job.received", NO_FACTS, job.id)
    return Done()
