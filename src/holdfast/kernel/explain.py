"""Why a job is where it is, and when that ends (SPEC H6). Reads the world, changes nothing."""

from holdfast.kernel.contenders import WAITS_FOR_LEASE, lease_over_ms, node_name
from holdfast.kernel.decision import Answer, Explanation, Rejected
from holdfast.kernel.placement import Kind, kind_serves
from holdfast.kernel.world import World, kind_of
from holdfast.model import Attempt, AttemptPhase, Job, JobId, JobPhase, Need, Node, NodeState, Resources

_THEN = {
    AttemptPhase.OFFERED: "the offer goes to another machine (offer_unanswered)",
    AttemptPhase.PREPARING: "it is prepared on another machine (prepare_timeout)",
    AttemptPhase.READY: "it is prepared on another machine (prepare_timeout)",
    AttemptPhase.RUNNING: "it is stopped (time_limit)",
    AttemptPhase.UPLOADING: "it is run again (upload_timeout)",
}


def explain(w: World, job_id: JobId) -> Answer:
    job = w.jobs.get(job_id)
    if job is None:
        return Rejected("not_live", f"{job_id} is not waiting for anything: it has ended, or never was.")
    attempts = w.attempts_of(job_id)
    lines = tuple(_attempt_line(w, a) for a in attempts)
    gates, nearest = ({}, "") if job.phase is not JobPhase.QUEUED and job_id not in w.queue else gate_counts(w, job)
    leader = max((a for a in attempts if a.may_win), key=lambda a: list(AttemptPhase).index(a.phase), default=None)
    if leader is None:
        until, then = job.queue_until_ms + w.meta.late_ms, "the job ends as queue_expired"
    elif job.waiting == WAITS_FOR_LEASE:
        until, then = lease_over_ms(w, leader) + w.meta.late_ms, "the job ends as lease_lost"
    else:
        until, then = leader.phase_until_ms + w.meta.late_ms, _THEN[leader.phase]
    return Explanation(
        job_id, job.phase.value, waiting_for(w, job, leader, gates), until, then, lines, gates, nearest,
        w.queue.ahead_of(job_id),
    )  # fmt: skip


def waiting_for(w: World, job: Job, leader: Attempt | None, gates: dict[str, int]) -> str:
    if job.waiting and leader is not None:
        return job.waiting
    if leader is not None and job.id not in w.queue:
        words = {
            AttemptPhase.OFFERED: "its machine to answer the offer",
            AttemptPhase.PREPARING: "its machine to prepare it",
            AttemptPhase.READY: "its machine to start it",
            AttemptPhase.RUNNING: "its program to end",
            AttemptPhase.UPLOADING: "its result to be delivered and verified",
        }
        return words[leader.phase]
    if job.not_before_ms > w.patience:
        return f"its back-off after {job.failures} failures, {job.not_before_ms - w.patience} ms more"
    if not gates:
        return "a machine to join the network"
    worst = max(gates, key=lambda g: (gates[g], g))
    return f"a machine with room; of {sum(gates.values())} most are held back by: {worst}"


def _attempt_line(w: World, a: Attempt) -> str:
    node = w.nodes[a.node]
    text = f"{a.id} on {node_name(node)} [{node.state.value}]: {a.phase.value}"
    if a.revoked is not None:
        text += f", revoked ({a.revoked.code.value}), until its machine says it is gone"
    return text


def gate_counts(w: World, job: Job) -> tuple[dict[str, int], str]:
    """How many nodes each gate holds back, and the node that misses by least."""
    gates: dict[str, int] = {}
    nearest: tuple[int, str] | None = None
    holding = {a.node for a in w.attempts_of(job.id)}
    for node_id in sorted(w.nodes):
        node = w.nodes[node_id]
        if node.state is NodeState.GONE:
            continue
        gate = w.closed_to_work(node) or ("holds an attempt of this job" if node_id in holding else "")
        if not gate:
            cpu, memory, disk, gpus = w.free_on(node)
            gate, short = _shortfall(node, Resources(cpu, memory, disk, gpus), job.spec.need)
            if gate and (nearest is None or short < nearest[0]):
                nearest = (short, f"{node_name(node)}: {gate}")
        if gate:
            gates[gate.partition(":")[0]] = gates.get(gate.partition(":")[0], 0) + 1
    return gates, nearest[1] if nearest else ""


def _shortfall(node: Node, room: Resources, need: Need) -> tuple[str, int]:
    if not kind_serves(kind_of(node), need):
        return "architecture or GPU", 10**9
    want = need.resources
    gaps = {
        "cpu": (want.cpu_milli, room.cpu_milli),
        "memory": (want.memory_mib, room.memory_mib),
        "disk": (want.disk_mib, room.disk_mib),
        "gpus": (want.gpus, room.gpus),
    }
    short = {name: (w_ - h) * 1000 // max(1, w_) for name, (w_, h) in gaps.items() if w_ > h}
    if not short:
        return "", 0
    name = max(short, key=lambda n: (short[n], n))
    return f"{name}: {gaps[name][1]} free of {gaps[name][0]} wanted", sum(short.values())


def never_fits(w: World, need: Need) -> str:
    """Empty if some node that joined could hold the need when idle; else the nearest miss, in words."""
    want = need.resources
    for kind, offered in w.shapes:
        if want.fits_in(offered) and kind_serves(kind, need):
            return ""
    return min((_miss(kind, offered, need) for kind, offered in w.shapes), default=(0, ""))[1]


def _miss(kind: Kind, offered: Resources, need: Need) -> tuple[int, str]:
    """By how much a shape misses, in thousandths summed over resources, and in words."""
    if not kind_serves(kind, need):
        return 10**9, f"machines of kind {' '.join(str(part) for part in kind if part)} do not serve"
    want = need.resources
    parts = [
        (f"cpu {offered.cpu_milli} of {want.cpu_milli} milli", want.cpu_milli, offered.cpu_milli),
        (f"memory {offered.memory_mib} of {want.memory_mib} MiB", want.memory_mib, offered.memory_mib),
        (f"disk {offered.disk_mib} of {want.disk_mib} MiB", want.disk_mib, offered.disk_mib),
        (f"gpus {offered.gpus} of {want.gpus}", want.gpus, offered.gpus),
    ]
    missing = [(text, (wanted - there) * 1000 // wanted) for text, wanted, there in parts if wanted > there]
    return sum(gap for _, gap in missing), ", ".join(text for text, _ in missing)
