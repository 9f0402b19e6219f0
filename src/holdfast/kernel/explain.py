"""Explains why a job is in its state, and when that state ends (SPEC H6). Reads the world, changes nothing."""

from itertools import islice
from typing import NamedTuple

from holdfast.kernel.contenders import lease_over_ms, must_not_repeat, pending_facts
from holdfast.kernel.decision import Answer, Explanation, Rejected
from holdfast.kernel.estimates import of_live
from holdfast.kernel.placement import NodeKind, kind_serves
from holdfast.kernel.world import NO_FACTS, World, node_label
from holdfast.model import (
    Attempt,
    AttemptPhase,
    Facts,
    Gate,
    Instant,
    Job,
    JobId,
    JobPhase,
    MoveState,
    Need,
    NodeState,
    Recovery,
    Resources,
    WaitReason,
)
from holdfast.model.cause_text import entry_text, gate_titles, shortfall_text, wait_text

_THEN = {
    AttemptPhase.OFFERED: "the offer goes to another machine (offer_unanswered)",
    AttemptPhase.PREPARING: "it is prepared on another machine (prepare_timeout)",
    AttemptPhase.READY: "it is prepared on another machine (prepare_timeout)",
    AttemptPhase.RUNNING: "it is stopped (time_limit)",
    AttemptPhase.UPLOADING: "it is run again (upload_timeout)",
}

NODES_LOOKED_AT = 2_000
"""Most nodes over which gates are counted. In a larger fleet this is a sample, which takes only milliseconds."""
SHAPES_LOOKED_AT = 4_096
_PHASE_WAITS = {
    AttemptPhase.OFFERED: WaitReason.ANSWER,
    AttemptPhase.PREPARING: WaitReason.PREPARATION,
    AttemptPhase.READY: WaitReason.START,
    AttemptPhase.RUNNING: WaitReason.PROGRAM,
    AttemptPhase.UPLOADING: WaitReason.RESULT,
}
_MOVE_WAITS = {
    MoveState.WAITING: WaitReason.NODE_ROOM,
    MoveState.SAVING: WaitReason.MOVE_SAVE,
    MoveState.STARTING: WaitReason.MOVE_START,
}


class Shortfall(NamedTuple):
    """What free room lacks for a need."""

    gate: Gate
    """What it lacks most."""
    short: int
    """The sum of all that it lacks, in thousandths of each amount wanted."""
    free: int = 0
    wanted: int = 0

    @property
    def text(self) -> str:
        return shortfall_text(self.gate, self.free, self.wanted)


def explain(w: World, job_id: JobId) -> Answer:
    job = w.jobs.get(job_id)
    if job is None:
        return Rejected("not_live", f"{job_id} is not waiting for anything: it has ended or does not exist.")
    attempts = w.attempts_of(job_id)
    lines = tuple(_attempt_line(w, a) for a in attempts)
    if job.pending_verdict is not None:
        lines = (entry_text("job.confirming", pending_facts(w, job.pending_verdict)), *lines)
    gates, nearest = ({}, "") if job.phase is not JobPhase.QUEUED and job_id not in w.queue else gate_counts(w, job)
    leader = max((a for a in attempts if a.may_win), key=lambda a: list(AttemptPhase).index(a.phase), default=None)
    until, then = _bound(w, job, leader)
    titles = gate_titles(gates)
    reason, waits = _moves(w, job) or waiting_for(w, job, leader, gates)
    ahead = w.queue.ahead_of(job_id)
    predicted = of_live(w, job_id)
    at = until + w.meta.late_ms
    return Explanation(
        job_id, job.phase.value, waits, at, then, lines, titles, nearest, ahead, predicted, reason, gates
    )


def _bound(w: World, job: Job, leader: Attempt | None) -> tuple[Instant, str]:
    """When the present state ends by itself, and what follows."""
    if leader is None and job.not_before_ms > w.patience:
        return job.not_before_ms, "it is offered to a machine again"
    if leader is None:
        return job.queue_until_ms, "the job ends as queue_expired"
    if job.wait_reason is WaitReason.LEASE:
        return lease_over_ms(w, leader), "the job ends as lease_lost"
    node = w.nodes[leader.node]
    if node.state is NodeState.SUSPECT:
        return node.state_until_ms, "this attempt is written off (node_lost)"
    if must_not_repeat(job, leader) and leader.phase is not AttemptPhase.RUNNING:
        return leader.phase_until_ms, "the job ends: it must not run twice"
    return leader.phase_until_ms, _THEN[leader.phase]


def _moves(w: World, job: Job) -> tuple[WaitReason, str] | None:
    """What a move that is under way waits for."""
    if job.move is None or job.move.state not in _MOVE_WAITS:
        return None
    return _told(_MOVE_WAITS[job.move.state], Facts(label=node_label(w.nodes[job.move.to])))


def _told(reason: WaitReason, facts: Facts) -> tuple[WaitReason, str]:
    return reason, wait_text(reason, facts)


def waiting_for(
    w: World, job: Job, leader: Attempt | None, gates: dict[Gate, int]
) -> tuple[WaitReason, str]:  # fmt: skip
    """What the job waits for, as a code and in words."""
    if job.wait_reason is not None and leader is not None:
        return job.wait_reason, job.waiting
    if leader is not None and job.id not in w.queue:
        return _told(_PHASE_WAITS[leader.phase], NO_FACTS)
    if job.pending_verdict is not None:
        return _told(WaitReason.CONFIRMATION, pending_facts(w, job.pending_verdict))
    if job.reserved is not None:
        return _told(WaitReason.RESERVED_ROOM, Facts(label=node_label(w.nodes[job.reserved])))
    if job.not_before_ms > w.patience:
        return _told(WaitReason.BACKOFF, Facts(count=job.failures, ms=job.not_before_ms - w.patience))
    worst = worst_gate(gates)
    if worst is None:
        return _told(WaitReason.MACHINE, NO_FACTS)
    return _told(WaitReason.ROOM, Facts(count=sum(gates.values()), gate=worst))


def worst_gate(gates: dict[Gate, int]) -> Gate | None:
    """The gate that holds back most machines; of several, the one that `Gate` declares first."""
    return max((gate for gate in Gate if gate in gates), key=lambda gate: gates[gate], default=None)


def _attempt_line(w: World, a: Attempt) -> str:
    node = w.nodes[a.node]
    text = f"{a.id} on {node_label(node)} [{node.state.value}]: {a.phase.value}"
    if a.revoked is not None:
        text += f", revoked ({a.revoked.code.value}); it holds its room until its machine says it is gone"
    elif a.straggle is not None:
        text += f", straggling: {a.straggling}; {_beside(w, a)}"
    return text


def _beside(w: World, attempt: Attempt) -> str:
    """What is done about a straggler."""
    job = w.jobs[attempt.job]
    if any(a.may_win for a in w.attempts_of(job.id) if a.id != attempt.id):
        return "another attempt runs beside it, and the first result wins"
    if job.spec.recovery is Recovery.NEVER:
        return "it must not run twice, so nothing else is done"
    if job.extra_attempts >= w.settings.seconds_max:
        return f"{job.extra_attempts} attempts beside it did not help"
    return "another attempt starts beside it as soon as a machine is idle"


def gate_counts(w: World, job: Job) -> tuple[dict[Gate, int], str]:
    """How many nodes each gate holds back, and the node that comes closest to fitting."""
    gates: dict[Gate, int] = {}
    nearest: tuple[int, str] | None = None
    holding = {a.node for a in w.attempts_of(job.id)}
    # Nodes that left are not looked at: counting them would use up the limit for nodes that are present.
    for node_id in islice(w.present, NODES_LOOKED_AT):
        node = w.nodes[node_id]
        gate = w.closed_to_work(node, job.id) or (Gate.SAME_JOB if node_id in holding else None)
        if job.pending_verdict is not None and job.pending_verdict.node == node_id:
            gate = Gate.DOUBTED
        if job.pinned not in (None, node_id):
            gate = Gate.NOT_CHOSEN
        if (
            gate is None
            and (miss := shortfall(w.fleet[node_id].kind, Resources(*w.free_on(node)), job.spec.need)) is not None
        ):
            gate = miss.gate
            if nearest is None or miss.short < nearest[0]:
                nearest = (miss.short, f"{node_label(node)}: {miss.text}")
        if gate is not None:
            gates[gate] = gates.get(gate, 0) + 1
    lost = w.states.get(NodeState.LOST, 0)
    if lost:
        gate = Gate.LOST if job.pinned is None else Gate.NOT_CHOSEN
        gates[gate] = gates.get(gate, 0) + lost
    return gates, nearest[1] if nearest else ""


def shortfall(kind: NodeKind, room: Resources, need: Need) -> Shortfall | None:
    """What a machine of this kind with this room lacks for the need; None: it fits."""
    if not kind_serves(kind, need):
        return Shortfall(Gate.KIND, 10**9)
    want = need.resources
    gaps = {
        Gate.CPU: (want.cpu_milli, room.cpu_milli),
        Gate.MEMORY: (want.memory_mib, room.memory_mib),
        Gate.DISK: (want.disk_mib, room.disk_mib),
        Gate.GPUS: (want.gpus, room.gpus),
    }
    short = {gate: (w_ - h) * 1000 // max(1, w_) for gate, (w_, h) in gaps.items() if w_ > h}
    if not short:
        return None
    gate = max(short, key=lambda g: (short[g], g.value))
    return Shortfall(gate, sum(short.values()), gaps[gate][1], gaps[gate][0])


def never_fits(w: World, need: Need, asking: bool = False) -> str:
    """Empty if some node that joined could hold the need when idle; else the nearest miss, in words."""
    if w.could.candidates(need, 0, (), asking):
        return ""
    shapes = islice(w.shapes, SHAPES_LOOKED_AT)
    nearest = min(shapes, key=lambda shape: _gap(shape[0], shape[1], need), default=None)
    return "" if nearest is None else _miss(nearest[0], nearest[1], need)


def _gap(kind: NodeKind, offered: Resources, need: Need) -> int:
    """The sum of what a shape lacks, in thousandths of each amount wanted."""
    if not kind_serves(kind, need):
        return 10**9
    want = need.resources
    return (
        max(0, want.cpu_milli - offered.cpu_milli) * 1000 // max(1, want.cpu_milli)
        + max(0, want.memory_mib - offered.memory_mib) * 1000 // max(1, want.memory_mib)
        + max(0, want.disk_mib - offered.disk_mib) * 1000 // max(1, want.disk_mib)
        + max(0, want.gpus - offered.gpus) * 1000 // max(1, want.gpus)
    )


def spoken_kind(kind: NodeKind) -> str:
    words = [kind.arch]
    if kind.gpu_memory_mib:
        words.append(f"{kind.gpu_model or 'different GPUs'} with {kind.gpu_memory_mib} MiB")
    if kind.gpu_driver or kind.cuda:
        words.append(f"driver {kind.gpu_driver or 'unknown'}, CUDA {kind.cuda or 'unknown'}")
    return f"{', '.join(words)} (can: {', '.join(kind.features) or 'nothing'})"


def _miss(kind: NodeKind, offered: Resources, need: Need) -> str:
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
