"""Which jobs bring machines down: several different ones went with its body running, and not by chance (SPEC J8)."""

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
"""A body that brings its machine down does so soon; after this long it is churn, not the job."""


class Poison(Mechanism):
    def __init__(self) -> None:
        self.went: dict[NodeId, Instant] = {}
        """Which nodes were suspected lately, oldest first: tells a felled node from a cut network."""

    def returned(self, w: World, attempt: Attempt) -> None:
        """Its node was away, and did not go down of it."""
        job = w.jobs.get(attempt.job)
        if job is not None and attempt.node in job.felled:
            w.put(replace(job, felled=tuple(n for n in job.felled if n != attempt.node)))


def went_down(w: World, node_id: NodeId) -> None:
    """The node is suspected from now on."""
    went = w.lifecycle.of(Poison).went
    went.pop(node_id, None)
    went[node_id] = w.patience
    while went[first := next(iter(went))] <= w.patience - MASS_WINDOW_MS:
        del went[first]


def blame_job(w: World, attempt: Attempt) -> None:
    """Remember that the node went down with this job's body running, unless many nodes went at once. A job that got on
    since others did is not what they went down of."""
    job = w.jobs.get(attempt.job)
    if job is None or attempt.started_ms is None:
        return
    if w.now - attempt.started_ms > POISON_WINDOW_MS:
        if job.felled and got_far(job, attempt, POISON_WINDOW_MS):
            w.put(replace(job, felled=()))
        return
    if attempt.node in job.felled:
        return
    # Those that went without this job: many at once point at the network.
    went = w.lifecycle.of(Poison).went
    others = len(went) - sum(n in went for n in {*job.felled, attempt.node})
    present = sum(w.states.get(s, 0) for s in (NodeState.READY, NodeState.PROBATION, NodeState.SUSPECT))
    if others >= 1 and (others + 1) * 5 >= present:
        return
    w.put(replace(job, felled=(*job.felled, attempt.node)))


def poisonous(w: World, job: Job) -> bool:
    """Stop a job under which several different machines went down (SPEC J8)."""
    if len(job.felled) < w.settings.poison_nodes:
        return False
    why = Facts(revoke=RevokeCause.POISON, nodes=job.felled)
    end_job(w, job.id, Verdict.FAILED, revoke_failure(why), why=why)
    return True
