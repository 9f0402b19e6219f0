"""Decides whether a node is held free for a job that finds no room among smaller ones (SPEC J13).

Room appears in the size of the job that has just ended, and a small job takes it at once: a large job could wait for
ever. So an owner's first job gets a reservation if it has waited for `reserve_ms` and was passed over: of the nodes
where that happened, the one on which it should fit soonest. That node takes nothing new until the job fits there.
A job that waits only because the network is full needs no reservation: jobs that end leave room for it.

Few nodes are reserved at a time (`reserved_share_max_permille`), and fairness between owners comes first: an owner with
a smaller share than the job's owner may still use the room. The reserved node is part of the job's row, so that a
rebuild restores it.
"""

from msgspec.structs import replace

from holdfast.kernel.mechanism import Mechanism
from holdfast.kernel.placement import kind_serves
from holdfast.kernel.queue import LaneKey
from holdfast.kernel.world import Member, World
from holdfast.model import (
    Attempt,
    AttemptPhase,
    Facts,
    Gate,
    Instant,
    Job,
    JobId,
    JobPhase,
    Need,
    Node,
    NodeId,
    NodeState,
    Resources,
)
from holdfast.policy.chance import mix

LOOKS = 32
"""Most nodes compared for one reservation, so that its cost does not grow with the fleet."""
HEADS = 16
"""Most owners whose first job is considered, those with the smallest share first."""
_BEFORE_BODY = (AttemptPhase.OFFERED, AttemptPhase.PREPARING, AttemptPhase.READY)


class Reservations(Mechanism):
    def __init__(self) -> None:
        self.held: dict[NodeId, JobId] = {}
        """Nodes that are held free, and the job that each is held for."""

    def offered(self, w: World, job: Job) -> Job:
        return job if job.reserved is None else replace(job, reserved=None)

    def ending(self, w: World, job: Job) -> Job:
        return job if job.reserved is None else replace(job, reserved=None)

    def job_changed(self, w: World, before: Job | None, job: Job) -> None:
        """Update `held`: the node that is held free for the job may have changed."""
        was = None if before is None else before.reserved
        if was is not None and was != job.reserved:
            del self.held[was]
            w.freed[was] = None
            w.reindex(was)
        if job.reserved is not None:
            self.held[job.reserved] = job.id
            w.reindex(job.reserved)

    def gate(self, w: World, node: Node, to: str | None) -> Gate | None:
        return None if self.held.get(node.id, to) == to else Gate.RESERVED

    def digest(self) -> object:
        return sorted(self.held.items())


def held_free(w: World) -> dict[NodeId, JobId]:
    """Nodes that are held free, and the job that each is held for."""
    return w.lifecycle.of(Reservations).held


def look_again(w: World) -> None:
    """A job waits: check later whether a node must be reserved."""
    w.deadlines.add(w.soon(w.settings.reserve_ms // 2), "reserve", "queue")


def review(w: World) -> None:
    """Release reservations that no longer help, and reserve nodes for jobs that have waited too long."""
    if not w.queue.waiting:
        return
    look_again(w)
    for node_id, job_id in sorted(held_free(w).items()):
        job = w.jobs[job_id]
        if job_id not in w.queue.waiting or not _suits(w, w.fleet[node_id], w.queue.waiting[job_id][2]):
            w.put(replace(job, reserved=None))
    most = max(1, w.states.get(NodeState.READY, 0) * w.settings.reserved_share_max_permille // 1000)
    for job_id, lane in w.queue.heads(HEADS):
        job = w.jobs[job_id]
        if len(held_free(w)) >= most:
            break
        if job.reserved is None and w.patience - waits_since(w, job) >= w.settings.reserve_ms:
            member = _soonest(w, job, lane)
            if member is not None:
                w.put(replace(job, reserved=member.node))
                w.note("job.reserved", Facts(label=member.label), job_id, node=member.node)


def waits_since(w: World, job: Job) -> Instant:
    """Since when a job in the queue has waited for room, on the patience clock; derived from rows alone."""
    if job.phase is JobPhase.QUEUED:
        limit = w.settings.queue_ms_max if job.spec.queue_limit_ms is None else job.spec.queue_limit_ms
        if job.attempts_made:
            limit = max(limit, w.settings.offer_ms_max)
        return Instant(job.queue_until_ms - limit)
    gone = (w.nodes[a.node].state_since_ms for a in w.attempts_of(job.id) if a.may_win)
    return Instant(max(gone, default=w.now) - w.meta.late_ms)


# --- which node ---


def _suits(w: World, member: Member, lane: LaneKey) -> bool:
    """Whether the node could take the job once it is empty enough."""
    node = w.nodes[member.node]
    need, ruled_out, only = lane
    return (
        only in (None, member.node)
        and node.state is NodeState.READY
        and member.presence.session is not None
        and not node.draining
        and member.node not in ruled_out
        and kind_serves(member.kind, need)
        and need.resources.fits_in(node.offered)
    )


def _soonest(w: World, job: Job, lane: LaneKey) -> Member | None:
    """Of some nodes that could take the job but took other work meanwhile, the one on which room appears first by the
    deadlines of what it holds. Nodes on which the job failed before come last."""
    need, ruled_out, only = lane
    since = waits_since(w, job)
    if only is not None:
        member = w.fleet[only]
        fit = only not in held_free(w) and _suits(w, member, lane) and _passed_over(w, member, need, since)
        return member if fit else None
    draw = w.draw()
    seen: set[NodeId] = {*ruled_out, *held_free(w)}
    best: tuple[bool, Instant, NodeId] | None = None
    for turn in range(LOOKS):
        found = w.could.candidates(need, mix(draw, turn), seen)
        if not found:
            break
        member = w.fleet[found[0].node]
        seen.add(member.node)
        if _suits(w, member, lane) and _passed_over(w, member, need, since):
            rank = (member.node in job.avoid, _fits_from(w, member, need), member.node)
            best = rank if best is None else min(best, rank)
    return None if best is None else w.fleet[best[2]]


def _passed_over(w: World, member: Member, need: Need, since: Instant) -> bool:
    """Whether the node took an attempt since then whose room is too small for the need."""
    late = [a for a in w.held_by(member.node) if a.offered_ms - w.meta.late_ms >= since]
    return any(not need.resources.fits_in(attempt.holds) for attempt in late)


def _fits_from(w: World, member: Member, need: Need) -> Instant:
    """When the need fits on the node, if everything there runs until its deadline."""
    room = Resources(*w.free_on(w.nodes[member.node]))
    at = w.patience
    for end, _, attempt in sorted((_ends_by(w, a), a.id, a) for a in w.held_by(member.node)):
        if need.resources.fits_in(room):
            break
        room, at = room + attempt.holds, end
    return at


def _ends_by(w: World, attempt: Attempt) -> Instant:
    job = w.jobs.get(attempt.job)
    if job is None or attempt.revoked is not None or attempt.phase not in _BEFORE_BODY:
        return attempt.phase_until_ms
    return Instant(attempt.phase_until_ms + (job.spec.time_limit_ms or w.settings.run_ms_max))


# --- who may have the room ---


def room_held(w: World, job: Job, lane: LaneKey) -> Member | None:
    """A reserved node with room for the job: reserved for it, or for a job whose owner has a larger share."""
    mine = w.shares.get(job.owner, 0)
    for node_id, held_for in sorted(held_free(w).items()):
        theirs = w.shares.get(w.jobs[held_for].owner, 0)
        if (held_for == job.id or mine < theirs) and _fits_now(w, node_id, lane):
            return w.fleet[node_id]
    return None


def next_for(w: World, node_id: NodeId) -> JobId | None:
    """The job that gets the room that appeared on a reserved node; None: no job yet."""
    held_for = held_free(w).get(node_id)
    if held_for is None or held_for not in w.queue.waiting:
        return None
    if _fits_now(w, node_id, w.queue.waiting[held_for][2]):
        return held_for
    theirs = w.shares.get(w.jobs[held_for].owner, 0)
    heads = w.queue.heads(HEADS, below=theirs)
    return next((job_id for job_id, lane in heads if _fits_now(w, node_id, lane)), None)


def _fits_now(w: World, node_id: NodeId, lane: LaneKey) -> bool:
    node = w.nodes[node_id]
    few = len(w.fleet[node_id].held) < w.settings.attempts_per_node_max
    return few and _suits(w, w.fleet[node_id], lane) and lane[0].resources.fits_in(Resources(*w.free_on(node)))
