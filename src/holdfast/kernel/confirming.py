"""Decides whether a failure that a node blames on the job's owner counts (SPEC A12, J7; docs/decisions/0031).

    blamed ──► counts at once: the node has a record, or nobody else could be asked
       │
       └────► pending ── another machine blames the owner too ──► counts; the first node is cleared
                 │  └── another machine finishes the job ───────► that is the result; the first node gets a strike
                 │  └── that attempt is lost ───────────────────► another one, as after any loss
                 └── nobody else is left to ask ────────────────► counts, marked `unconfirmed`

The pending failure is part of the job's row. The job waits in the queue as begun work, and the node that failed it is
ruled out. A run that confirms does not start from what the doubted node saved, in this attempt or in earlier ones: an
invented checkpoint could make it fail as well. It starts from the newest one that another node saved. A contender that
started from the doubted node's may still finish the job, but its failure confirms nothing.

A node whose refuted exit codes set it aside is dishonest as far as can be known: what it saved is not used any more.

A node with doubted failures gets less fresh work (`World.doubt`). It may still confirm failures of other nodes:
otherwise a fleet of new machines that run a program with a bug would wait for each other.
"""

from itertools import islice

from msgspec.structs import replace

from holdfast.kernel import node_records
from holdfast.kernel.contenders import end_job, offer, pending_facts, used_up
from holdfast.kernel.health import cleared, strike
from holdfast.kernel.mechanism import Mechanism
from holdfast.kernel.placement import kind_serves
from holdfast.kernel.queue import LaneKey
from holdfast.kernel.tainting import taint_node
from holdfast.kernel.world import Member, World
from holdfast.model import (
    Attempt,
    Checkpoint,
    Confirmation,
    Facts,
    Failure,
    FailureCode,
    Job,
    JobId,
    Node,
    NodeId,
    NodeState,
    PendingVerdict,
    Recovery,
    Resources,
    Verdict,
)

LOOKS = 64
"""Most waiting jobs, and most nodes for each, that are looked at in one decision."""


class Confirming(Mechanism):
    def __init__(self) -> None:
        self.pending: dict[JobId, NodeId] = {}
        """Jobs with a doubted failure, and the node that reported it."""

    def due(self, w: World, job: Job) -> None:
        ask_again(w, job)

    def ending(self, w: World, job: Job) -> Job:
        return job if job.pending_verdict is None else replace(job, pending_verdict=None)

    def job_changed(self, w: World, before: Job | None, job: Job) -> None:
        """Update `pending`, and what the doubted nodes may hold."""
        was = self.pending.get(job.id)
        now = job.pending_verdict.node if job.pending_verdict is not None and job.live else None
        if was == now:
            return
        if was is not None:
            del self.pending[job.id]
            w.doubt(was, -1)
        if now is not None:
            self.pending[job.id] = now
            w.doubt(now, 1)
            w.unproven_changed = True

    def served(self, w: World) -> None:
        serve_unproven(w, self.pending)

    def digest(self) -> object:
        return sorted(self.pending.items())


def opinion(w: World, job: Job, attempt: Attempt) -> Confirmation | None:
    """Why the failure of an attempt, which its node blames on the owner, counts; None: it must be confirmed first."""
    pending = job.pending_verdict
    misled = _misled(job, attempt)
    if pending is not None and pending.node != attempt.node and not misled:
        return Confirmation.CONFIRMED
    if job.spec.recovery is Recovery.NEVER or job.spec.attempts_max == 1 or used_up(w, job):
        return Confirmation.UNCONFIRMED
    if node_records.is_proven(w, attempt.node) and not misled:
        return Confirmation.RECORD
    if not somebody_else(w, job, pending.node if misled and pending is not None else attempt.node):
        return Confirmation.UNCONFIRMED
    return None


def _misled(job: Job, attempt: Attempt) -> bool:
    """Whether the attempt started from what the doubted node saved."""
    pending, start = job.pending_verdict, attempt.resumed
    return pending is not None and start is not None and attempt.node != pending.node == start.node


def _before(checkpoint: Checkpoint | None, nodes: tuple[NodeId, ...]) -> Checkpoint | None:
    """The newest checkpoint of the line that none of these nodes saved."""
    while checkpoint is not None and checkpoint.node in nodes:
        checkpoint = checkpoint.ancestor
    return checkpoint


def pend(w: World, job: Job, attempt: Attempt, failure: Failure, was_away: bool) -> Job:
    """The job row while the failure is confirmed. Returns it; the caller writes it."""
    w.deadlines.add(w.soon(w.settings.offer_ms_max), "job", job.id)
    known = job.pending_verdict
    if known is not None and _misled(job, attempt):
        # The question is still whether that one is true.
        saved = _before(job.checkpoint, (known.node, attempt.node))
        if saved != job.checkpoint:
            facts = Facts(attempt=known.attempt, count=saved.depth if saved is not None else 0)
            w.note("job.tainted", facts, job.id)
        return replace(job, checkpoint=saved)
    doubted = PendingVerdict(failure, attempt.id, attempt.node, excused=was_away)
    w.note("job.confirming", pending_facts(w, doubted), job.id, attempt.id, attempt.node)
    return replace(job, pending_verdict=doubted, checkpoint=_before(job.checkpoint, (attempt.node,)))


def stand(w: World, job: Job, failure: Failure, why: Confirmation, said_by: NodeId | None = None) -> None:
    """End the job by its owner's fault. `said_by`: the node whose attempt has just failed."""
    pending = job.pending_verdict
    if why is Confirmation.CONFIRMED and pending is not None:
        cleared(w, pending.node)
    if why in (Confirmation.CONFIRMED, Confirmation.RECORD) and said_by is not None:
        cleared(w, said_by)
    w.put(replace(w.jobs[job.id], confirmation=why))
    end_job(w, job.id, Verdict.FAILED, failure)


def taken(w: World, job: Job) -> bool:
    """The owner stops a job while its failure is confirmed: the failure counts. False: there is none."""
    if job.pending_verdict is None:
        return False
    stand(w, job, job.pending_verdict.failure, Confirmation.TAKEN)
    return True


def refuted(w: World, job: Job, attempt: Attempt) -> None:
    """The attempt finished the job, whose row before that is given: whoever blamed its owner was wrong.

    One refuted exit code proves nothing: programs fail by chance, and an owner can provoke it. Limits of time, memory
    and disk depend on the machine. If exit codes bring a node to the number of faults for which it is set aside, it
    counts as dishonest."""
    pending = job.pending_verdict
    if pending is None or pending.node == attempt.node:
        return
    node_records.refute(w, pending.node)
    if not pending.excused:
        detail = f"it said {pending.failure.code.value} of {pending.attempt}, and {attempt.id} succeeded"
        strike(w, pending.node, Failure(FailureCode.REFUTED, detail))
        node = w.nodes.get(pending.node)
        set_aside = node is not None and node.strikes >= w.settings.strikes_to_quarantine
        if set_aside and pending.failure.code is FailureCode.EXIT_CODE:
            taint_node(w, pending.node)


def ask_again(w: World, job: Job) -> None:
    """A failure waits for confirmation: it counts unconfirmed once there is nobody left to ask."""
    job = w.jobs[job.id]
    pending = job.pending_verdict
    if pending is None or any(a.may_win for a in w.attempts_of(job.id)):
        return
    if somebody_else(w, job, pending.node):
        w.deadlines.add(w.soon(w.settings.offer_ms_max), "job", job.id)
    else:
        stand(w, job, pending.failure, Confirmation.UNCONFIRMED)


# --- who can be asked ---


def somebody_else(w: World, job: Job, node_id: NodeId) -> bool:
    """Whether another node could take the job, now or when it is idle."""
    need = job.spec.need
    if w.index.candidates(need, 0, {node_id}, asking=True):
        return True
    return any(
        id != node_id
        and _in_service(w, node)
        and kind_serves(w.fleet[id].kind, need)
        and need.resources.fits_in(node.offered)
        for id, node in w.nodes.items()
    )


def _in_service(w: World, node: Node) -> bool:
    """Whether the node takes work, or is expected back at any moment."""
    if node.draining:
        return False
    if node.state is NodeState.SUSPECT:
        return w.now - node.state_since_ms < w.settings.reconnect_grace_ms
    return node.state in (NodeState.READY, NodeState.PROBATION)


def serve_unproven(w: World, pending: dict[JobId, NodeId]) -> None:
    """Give waiting confirmations to nodes that get no fresh work because of their own doubted failures. Nodes that are
    doubted least come first."""
    if not w.unproven_changed:
        return
    w.unproven_changed = False
    if not w.unproven:
        return
    nodes = sorted(w.unproven, key=lambda id: (w.fleet[id].doubted, id))[:LOOKS]
    for job_id in list(islice((id for id in pending if id in w.queue), LOOKS)):
        lane = w.queue.waiting[job_id][2]
        member = next((w.fleet[id] for id in nodes if _may_confirm(w, w.fleet[id], job_id, lane)), None)
        if member is not None:
            w.queue.leave(job_id)
            offer(w, w.jobs[job_id], member)


def _may_confirm(w: World, member: Member, job_id: JobId, lane: LaneKey) -> bool:
    node = w.nodes[member.node]
    need, ruled_out, only = lane
    return (
        member.node not in ruled_out
        and only in (None, member.node)
        and w.closed_to_work(node, job_id) is None
        and kind_serves(member.kind, need)
        and need.resources.fits_in(Resources(*w.free_on(node)))
    )
