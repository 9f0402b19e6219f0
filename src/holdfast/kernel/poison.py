"""Decides whether a job brings machines down: several different ones died under it, and not by chance (SPEC J8)."""

from msgspec.structs import replace

from holdfast.kernel.checkpoints import got_far
from holdfast.kernel.contenders import end_job
from holdfast.kernel.mechanism import Mechanism
from holdfast.kernel.world import World
from holdfast.model import Attempt, Facts, Instant, Job, NodeId, NodeState, RevokeCause, Verdict
from holdfast.model.cause_text import revoke_failure

MASS_WINDOW_MS = 10_000
"""Nodes lost within this window of each other point at the network, not at a job."""

POISON_WINDOW_MS = 600_000
"""A body that brings its machine down does so soon. A loss later than this is churn, not the job's fault."""


class Poison(Mechanism):
    def __init__(self) -> None:
        self.went: dict[NodeId, Instant] = {}
        """Recently suspected nodes, oldest first. They distinguish a felled node from a network cut."""

    def returned(self, w: World, attempt: Attempt) -> None:
        """Its node came back with the attempt, so the job did not bring it down."""
        job = w.jobs.get(attempt.job)
        if job is not None and attempt.node in job.felled:
            w.put(replace(job, felled=tuple(n for n in job.felled if n != attempt.node)))


def went_down(w: World, node_id: NodeId) -> None:
    """Record that the node is suspected from now on."""
    went = w.lifecycle.of(Poison).went
    went.pop(node_id, None)
    went[node_id] = w.patience
    while went[first := next(iter(went))] <= w.patience - MASS_WINDOW_MS:
        del went[first]


def blame_job(w: World, attempt: Attempt) -> None:
    """Record that the node went down while this job's body ran, unless many nodes went down at once. If the job made
    progress since earlier nodes went down, it did not bring them down."""
    job = w.jobs.get(attempt.job)
    if job is None or attempt.started_ms is None:
        return
    if w.now - attempt.started_ms > POISON_WINDOW_MS:
        if job.felled and got_far(job, attempt, POISON_WINDOW_MS):
            w.put(replace(job, felled=()))
        return
    if attempt.node in job.felled:
        return
    # Nodes that went down without this job: many at once point at the network.
    went = w.lifecycle.of(Poison).went
    others = len(went) - sum(n in went for n in {*job.felled, attempt.node})
    present = sum(w.states.get(s, 0) for s in (NodeState.READY, NodeState.PROBATION, NodeState.SUSPECT))
    if others >= 1 and (others + 1) * 5 >= present:
        return
    w.put(replace(job, felled=(*job.felled, attempt.node)))


def poisonous(w: World, job: Job) -> bool:
    """Stop the job if several different machines went down while it ran (SPEC J8). True: it is stopped."""
    if len(job.felled) < w.settings.poison_nodes:
        return False
    why = Facts(revoke=RevokeCause.POISON, nodes=job.felled)
    end_job(w, job.id, Verdict.FAILED, revoke_failure(why), why=why)
    return True
