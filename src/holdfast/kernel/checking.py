"""Says what would happen to a job if it were submitted now (SPEC H5). Reads the world and changes nothing.

A submission uses the same functions, so the answer is correct at this moment; a moment later another job may have taken
the room.
"""

from holdfast.kernel.contenders import room_now
from holdfast.kernel.decision import Answer, Checked, Rejected
from holdfast.kernel.estimates import of_new
from holdfast.kernel.events import CheckAsked
from holdfast.kernel.explain import gate_counts, never_fits, shortfall, worst_gate
from holdfast.kernel.queue import LaneKey
from holdfast.kernel.world import Member, World
from holdfast.model import Failure, FailureCode, Gate, Job, JobId, NodeId, Owner, Resources
from holdfast.model.cause_text import gate_text, gate_titles, held_back_text
from holdfast.policy import cost

_CHECKED_JOB = JobId("job_checked")


def refusal(w: World, owner: Owner) -> Rejected | None:
    """Why no more jobs are taken from this owner, or from any owner; None if they are."""
    s = w.settings
    if w.live_of.get(owner, 0) >= s.owner_live_jobs_max:
        return Rejected("owner_limit", f"{owner} already has {s.owner_live_jobs_max} jobs that have not ended.")
    if len(w.jobs) >= s.live_jobs_max:
        return Rejected("network_full", f"The network already holds {s.live_jobs_max} jobs. Try later.")
    return None


def no_fit(miss: str) -> Rejected:
    says = f"No machine of this network could ever hold this job; nearest miss: {miss}."
    return Rejected("no_fit", says, Failure(FailureCode.NO_FIT, f"nearest: {miss}"))


def check(w: World, asked: CheckAsked) -> Answer:
    if asked.node is not None and asked.node not in w.nodes:
        return Rejected("no_such_node", f"There is no node {asked.node}.")
    refused = refusal(w, asked.owner)
    if refused is not None:
        return Checked("refused", refused.says, refused.code)
    job = Job(_CHECKED_JOB, asked.owner, asked.spec, "", w.now)
    lane: LaneKey = (asked.spec.need, tuple(sorted(asked.without)), asked.node)
    member = room_now(w, job, lane, asking=True)
    if member is not None:
        return _goes_to(w, job, lane, member)
    if asked.node is not None:
        return _not_on(w, job, lane, asked.node)
    miss = never_fits(w, asked.spec.need, asking=True)
    if miss:
        never = no_fit(miss)
        return Checked("never", never.says, never.code, nearest=miss)
    gates, nearest = gate_counts(w, job)
    worst = worst_gate(gates)
    held_back = "" if worst is None else held_back_text(sum(gates.values()), worst)
    return Checked(
        "waits",
        f"no machine has room now; {held_back}" if held_back else "no machine has joined the network",
        gates=gate_titles(gates),
        nearest=nearest,
        ahead=w.queue.ahead_if(asked.owner, asked.spec.priority),
        estimate=of_new(w, job, lane, placed=False) if w.nodes else None,
        gate_codes=gates,
    )


def _goes_to(w: World, job: Job, lane: LaneKey, member: Member) -> Checked:
    free = w.free_on(w.nodes[member.node])
    terms = cost.breakdown(
        cost.standing_terms(free[0], member.cpu_total, free[1], member.memory_total, member.busy_permille),
        cost.placing_terms(free[3], lane[0].resources.gpus, same_site=False, avoided=False),
    )
    return Checked(
        "now",
        f"it would be given to {member.label} at once",
        node=member.node,
        label=member.label,
        state=member.state.value,
        cost=terms,
        free=free,
        estimate=of_new(w, job, lane, placed=True),
    )


def _not_on(w: World, job: Job, lane: LaneKey, node_id: NodeId) -> Checked:
    """Why the requested node would not take the job now, and whether it ever could."""
    node = w.nodes[node_id]
    member = w.fleet[node_id]
    never = shortfall(member.kind, node.offered, lane[0])
    if never is not None:
        says = f"{member.label} could not hold it even idle: {never.text}"
        return Checked("never", says, "no_fit", node_id, member.label, node.state.value, nearest=never.text)
    gate = w.closed_to_work(node)
    miss = shortfall(member.kind, Resources(*w.free_on(node)), lane[0]) if gate is None else None
    if gate is None:
        gate = miss.gate if miss is not None else Gate.HELD_BACK
    why = miss.text if miss is not None else gate_text(gate)
    return Checked(
        "waits",
        f"{member.label} would not take it now: {why}",
        node=node_id,
        label=member.label,
        state=node.state.value,
        free=w.free_on(node),
        gates=gate_titles({gate: 1}),
        nearest=why,
        ahead=w.queue.ahead_if(job.owner, job.spec.priority),
        estimate=of_new(w, job, lane, placed=False),
        gate_codes={gate: 1},
    )
