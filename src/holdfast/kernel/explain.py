"""Why a job is where it is, and when that ends (SPEC H6). Reads the world, changes nothing."""

from itertools import islice

from holdfast.kernel.contenders import WAITS_FOR_LEASE, lease_over_ms, must_not_repeat
from holdfast.kernel.decision import Answer, Explanation, Rejected
from holdfast.kernel.estimates import of_live
from holdfast.kernel.placement import Kind, kind_serves
from holdfast.kernel.world import World, kind_of, node_label
from holdfast.model import (
    Attempt,
    AttemptPhase,
    Instant,
    Job,
    JobId,
    JobPhase,
    MoveState,
    Need,
    Node,
    NodeState,
    Recovery,
    Resources,
)

_THEN = {
    AttemptPhase.OFFERED: "the offer goes to another machine (offer_unanswered)",
    AttemptPhase.PREPARING: "it is prepared on another machine (prepare_timeout)",
    AttemptPhase.READY: "it is prepared on another machine (prepare_timeout)",
    AttemptPhase.RUNNING: "it is stopped (time_limit)",
    AttemptPhase.UPLOADING: "it is run again (upload_timeout)",
}

NODES_LOOKED_AT = 2_000
"""In a larger fleet the gates are counted over this many nodes: an answer in milliseconds, representative enough."""
SHAPES_LOOKED_AT = 4_096


def explain(w: World, job_id: JobId) -> Answer:
    job = w.jobs.get(job_id)
    if job is None:
        return Rejected("not_live", f"{job_id} is not waiting for anything: it has ended, or never was.")
    attempts = w.attempts_of(job_id)
    lines = tuple(_attempt_line(w, a) for a in attempts)
    gates, nearest = ({}, "") if job.phase is not JobPhase.QUEUED and job_id not in w.queue else gate_counts(w, job)
    leader = max((a for a in attempts if a.may_win), key=lambda a: list(AttemptPhase).index(a.phase), default=None)
    until, then = _bound(w, job, leader)
    waits = _moves(w, job) or waiting_for(w, job, leader, gates)
    ahead = w.queue.ahead_of(job_id)
    foretold = of_live(w, job_id)
    at = until + w.meta.late_ms
    return Explanation(job_id, job.phase.value, waits, at, then, lines, gates, nearest, ahead, foretold)


def _bound(w: World, job: Job, leader: Attempt | None) -> tuple[Instant, str]:
    """When the present state ends by itself, and what follows."""
    if leader is None and job.not_before_ms > w.patience:
        return job.not_before_ms, "it is offered to a machine again"
    if leader is None:
        return job.queue_until_ms, "the job ends as queue_expired"
    if job.waiting == WAITS_FOR_LEASE:
        return lease_over_ms(w, leader), "the job ends as lease_lost"
    node = w.nodes[leader.node]
    if node.state is NodeState.SUSPECT:
        return node.state_until_ms, "this attempt is written off (node_lost)"
    if must_not_repeat(job, leader) and leader.phase is not AttemptPhase.RUNNING:
        return leader.phase_until_ms, "the job ends: it must not run twice"
    return leader.phase_until_ms, _THEN[leader.phase]


def _moves(w: World, job: Job) -> str:
    """What a move that is under way waits for."""
    if job.move is None:
        return ""
    there = node_label(w.nodes[job.move.to])
    words = {
        MoveState.WAITING: f"room on {there}, the machine it was moved to",
        MoveState.SAVING: f"its state to be saved; then it starts on {there}, where it is moved to",
        MoveState.STARTING: f"an attempt to start on {there}, where it is moved to; until then it goes on where it is",
    }
    return words.get(job.move.state, "")


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
    if job.reserved is not None:
        return f"room on {node_label(w.nodes[job.reserved])}, which takes nothing new until this job fits there"
    if job.not_before_ms > w.patience:
        return f"its back-off after {job.failures} failures, {job.not_before_ms - w.patience} ms more"
    if not gates:
        return "a machine to join the network"
    worst = max(gates, key=lambda g: (gates[g], g))
    return f"a machine with room; of {sum(gates.values())} most are held back by: {worst}"


def _attempt_line(w: World, a: Attempt) -> str:
    node = w.nodes[a.node]
    text = f"{a.id} on {node_label(node)} [{node.state.value}]: {a.phase.value}"
    if a.revoked is not None:
        text += f", revoked ({a.revoked.code.value}), until its machine says it is gone"
    elif a.straggling:
        text += f", straggling: {a.straggling}; {_beside(w, a)}"
    return text


def _beside(w: World, attempt: Attempt) -> str:
    """What is done about a straggler."""
    job = w.jobs[attempt.job]
    if any(a.may_win for a in w.attempts_of(job.id) if a.id != attempt.id):
        return "another attempt runs beside it, and the first result wins"
    if job.spec.recovery is Recovery.NEVER:
        return "it must not run twice, so nothing else is done"
    if job.seconds >= w.settings.seconds_max:
        return f"{job.seconds} attempts beside it brought nothing"
    return "another attempt starts beside it as soon as a machine is idle"


def gate_counts(w: World, job: Job) -> tuple[dict[str, int], str]:
    """How many nodes each gate holds back, and the node that misses by least."""
    gates: dict[str, int] = {}
    nearest: tuple[int, str] | None = None
    holding = {a.node for a in w.attempts_of(job.id)}
    for node_id in islice(w.nodes, NODES_LOOKED_AT):
        node = w.nodes[node_id]
        if node.state is NodeState.GONE:
            continue
        gate = w.closed_to_work(node, job.id) or ("holds an attempt of this job" if node_id in holding else "")
        if job.pinned not in (None, node_id):
            gate = "not the machine it was moved to"
        if not gate:
            gate, short = shortfall(node, Resources(*w.free_on(node)), job.spec.need)
            if gate and (nearest is None or short < nearest[0]):
                nearest = (short, f"{node_label(node)}: {gate}")
        if gate:
            gates[gate.partition(":")[0]] = gates.get(gate.partition(":")[0], 0) + 1
    return gates, nearest[1] if nearest else ""


def shortfall(node: Node, room: Resources, need: Need) -> tuple[str, int]:
    """What the room lacks for the need, in words and as a number; nothing: it fits."""
    if not kind_serves(kind_of(node), need):
        return "architecture, GPU or features", 10**9
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


def never_fits(w: World, need: Need, asking: bool = False) -> str:
    """Empty if some node that joined could hold the need when idle; else the nearest miss, in words."""
    if w.could.candidates(need, 0, (), asking):
        return ""
    shapes = islice(w.shapes, SHAPES_LOOKED_AT)
    nearest = min(shapes, key=lambda shape: _gap(shape[0], shape[1], need), default=None)
    return "" if nearest is None else _miss(nearest[0], nearest[1], need)


def _gap(kind: Kind, offered: Resources, need: Need) -> int:
    """By how much a shape misses, in thousandths of each want, summed."""
    if not kind_serves(kind, need):
        return 10**9
    want = need.resources
    return (
        max(0, want.cpu_milli - offered.cpu_milli) * 1000 // max(1, want.cpu_milli)
        + max(0, want.memory_mib - offered.memory_mib) * 1000 // max(1, want.memory_mib)
        + max(0, want.disk_mib - offered.disk_mib) * 1000 // max(1, want.disk_mib)
        + max(0, want.gpus - offered.gpus) * 1000 // max(1, want.gpus)
    )


def spoken_kind(kind: Kind) -> str:
    words = [kind.arch]
    if kind.gpu_memory_mib:
        words.append(f"{kind.gpu_model or 'different GPUs'} with {kind.gpu_memory_mib} MiB")
    if kind.gpu_driver or kind.cuda:
        words.append(f"driver {kind.gpu_driver or 'unknown'}, CUDA {kind.cuda or 'unknown'}")
    return f"{', '.join(words)} (can: {', '.join(kind.features) or 'nothing'})"


def _miss(kind: Kind, offered: Resources, need: Need) -> str:
    """What a shape lacks, in words."""
    if not kind_serves(kind, need):
        return f"machines of kind {spoken_kind(kind)} do not serve"
    want = need.resources
    parts = [
        (f"cpu {offered.cpu_milli} of {want.cpu_milli} milli", want.cpu_milli > offered.cpu_milli),
        (f"memory {offered.memory_mib} of {want.memory_mib} MiB", want.memory_mib > offered.memory_mib),
        (f"disk {offered.disk_mib} of {want.disk_mib} MiB", want.disk_mib > offered.disk_mib),
        (f"gpus {offered.gpus} of {want.gpus}", want.gpus > offered.gpus),
    ]
    return ", ".join(text for text, short in parts if short)
