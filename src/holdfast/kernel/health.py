"""Whether a node can be trusted with work right now (SPEC H1–H4).

    ready ──stream broke, silent──► suspect ──too long──► lost
      │ ▲                              │                   │
      │ └── proven ── probation ◄──────┴──── came back ────┘
      │                 │   ▲
      └── strikes, sick ┴──►quarantined (time doubles with each)

A state that is not `ready` or `probation` means no new work in the same instant, and takeover of what the node
holds. Quarantine is capped: it never takes more than a share of the fleet, however bad things look.
"""

from msgspec.structs import replace

from holdfast.kernel.checkpoints import got_far
from holdfast.kernel.contenders import (
    WAITS_FOR_LEASE,
    end_job,
    got_on,
    lease_over_ms,
    must_not_repeat,
    refresh,
    revoke,
    seek,
)
from holdfast.kernel.decision import CloseSession, ToSession
from holdfast.kernel.moving import hindered
from holdfast.kernel.world import Pulse, World, node_label
from holdfast.model import (
    Attempt,
    AttemptPhase,
    Failure,
    FailureCode,
    Instant,
    Job,
    Node,
    NodeId,
    NodeState,
    Purpose,
    Recovery,
    Verdict,
)
from holdfast.model.messages import Load, Ping
from holdfast.policy.suspicion import silence_limit_ms

STRIKES: dict[FailureCode, int] = {
    FailureCode.RUNTIME_FAULT: 1,
    FailureCode.OOM_NODE: 1,
    FailureCode.NODE_DISK_FULL: 1,
    FailureCode.PREPARE_TIMEOUT: 1,
    FailureCode.OFFER_UNANSWERED: 1,
    FailureCode.INVALID_RESULT: 3,
}
"""Faults a node answers for. A user's error and a refusal are none; going away is judged by suspicion."""

MASS_WINDOW_MS = 10_000
"""Nodes lost within this window of each other point at the network, not at a job."""

POISON_WINDOW_MS = 600_000
"""A body that brings its machine down does so soon; after this long it is churn, not the job."""


# --- silence ---


def heard(w: World, node: NodeId, pulse: Pulse) -> None:
    """Anything at all arrived from the node."""
    if w.fleet[node].held:
        gap = max(0, w.patience - max(pulse.heard_ms, pulse.watched_ms))
        pulse.rhythm = pulse.rhythm.heard(min(gap, w.settings.silence_ceiling_ms))
    pulse.heard_ms = w.patience
    pulse.contested_ms = None


def silence_limit(w: World, node: NodeId, pulse: Pulse) -> int:
    s = w.settings
    if not w.fleet[node].held:
        return s.idle_silence_ms
    return silence_limit_ms(pulse.rhythm, s.keepalive_ms, s.silence_floor_ms, s.silence_ceiling_ms)


def silence_due(w: World, node_id: NodeId) -> None:
    """The moment came at which the node should have been heard: judge, or look again later."""
    node = w.nodes.get(node_id)
    if node is None or node.state in (NodeState.SUSPECT, NodeState.LOST, NodeState.GONE):
        return
    pulse = w.pulse(node_id)
    if pulse.session is None:
        if pulse.grace_until_ms > w.patience:
            w.deadlines.add(pulse.grace_until_ms, "silence", node_id)
        else:
            suspect(w, node_id, "it did not dial in again after the orchestrator was away")
        return
    limit = silence_limit(w, node_id, pulse)
    since = max(pulse.heard_ms, pulse.watched_ms if w.fleet[node_id].held else Instant(0))
    due = Instant(since + limit)
    if due > w.patience:
        w.deadlines.add(due, "silence", node_id)
    elif w.patience < w.forgive_until_ms and pulse.heard_ms <= w.woke_ms:
        disconnect(w, node_id, "not heard since the orchestrator was frozen; dial in again")
        await_return(w, node_id)
    else:
        suspect(w, node_id, f"silent for {w.patience - since} ms, limit {limit} ms")


def forgive(w: World, late_ms: int) -> None:
    """The orchestrator itself was away for long. Nodes may have given up their streams meanwhile: those that are
    found broken or silent now get time to dial in again before anyone is blamed."""
    if late_ms >= 2 * w.settings.silence_ceiling_ms:
        w.woke_ms = w.patience
        w.forgive_until_ms = w.soon(w.settings.silence_ceiling_ms + 2 * w.settings.keepalive_ms)


def await_return(w: World, node_id: NodeId) -> None:
    """The node is not connected, through no fault of its own: suspect it only if it does not dial in again."""
    grace = w.soon(w.settings.reconnect_grace_ms)
    w.pulse(node_id).grace_until_ms = grace
    w.deadlines.add(grace, "silence", node_id)


# --- going down ---


def change(w: World, node: Node, state: NodeState, cause: str, bound_ms: int = 0, **changes: object) -> Node:
    """Put a node into a state, on the record (SPEC H4)."""
    until = w.soon(bound_ms) if bound_ms else Instant(0)
    node = replace(node, state=state, cause=cause, state_since_ms=w.now, state_until_ms=until, **changes)
    w.put(node)
    w.note(f"node.{state.value}", f"{node_label(node)}: {cause}", node=node.id)
    if state in (NodeState.READY, NodeState.PROBATION):
        for attempt in w.held_by(node.id):
            seek(w, attempt.job)  # what it holds is in good hands again: no takeover is wanted
    return node


def disconnect(w: World, node_id: NodeId, why: str) -> None:
    pulse = w.pulse(node_id)
    if pulse.session is not None:
        w.send(CloseSession(pulse.session, why))
        pulse.session = None
        w.reindex(node_id)


def suspect(w: World, node_id: NodeId, cause: str) -> None:
    """No new work from this instant, and a second contender for everything repeatable it holds."""
    node = w.nodes[node_id]
    if node.state in (NodeState.SUSPECT, NodeState.LOST, NodeState.GONE):
        return
    disconnect(w, node_id, cause)
    change(w, node, NodeState.SUSPECT, cause, w.settings.suspect_ms_max)
    w.went.pop(node_id, None)
    w.went[node_id] = w.patience
    while w.went[first := next(iter(w.went))] <= w.patience - MASS_WINDOW_MS:
        del w.went[first]
    for attempt in w.held_by(node_id):
        if attempt.may_win:
            blame_job(w, attempt)
            take_over(w, attempt, cause)


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
    others = len(w.went) - sum(n in w.went for n in {*job.felled, attempt.node})
    present = sum(w.states.get(s, 0) for s in (NodeState.READY, NodeState.PROBATION, NodeState.SUSPECT))
    if others >= 1 and (others + 1) * 5 >= present:
        return
    w.put(replace(job, felled=(*job.felled, attempt.node)))


def take_over(w: World, attempt: Attempt, cause: str) -> None:
    """The attempt's node cannot be relied on: let the job go on elsewhere, as its class allows."""
    job = w.jobs.get(attempt.job)
    if job is None:
        return
    if (later := hindered(w, job, attempt, cause)) is not job:
        w.put(later)
        job = later
        if attempt.purpose is Purpose.MOVE and any(a.may_win for a in w.attempts_of(job.id) if a.id != attempt.id):
            revoke(w, attempt, Failure(FailureCode.NODE_LOST, f"it had not started there: {cause}"))
            refresh(w, job.id)
            seek(w, job.id)
            return
    if must_not_repeat(job, attempt):
        if w.pulse(attempt.node).session is not None:
            return  # a sick or struck machine that can still be reached: let it finish what nobody else may do
        w.put(replace(job, waiting=WAITS_FOR_LEASE))
        w.deadlines.add(lease_over_ms(w, attempt), "lease", attempt.id)
        w.note("job.lease", WAITS_FOR_LEASE, job.id, attempt.id, attempt.node)
        return
    if job.spec.recovery is Recovery.NEVER:
        revoke(w, attempt, Failure(FailureCode.NODE_LOST, f"it had not started, and its machine is away: {cause}"))
        refresh(w, job.id)
    elif poisonous(w, job):
        return
    else:
        if (later := got_on(w, job, attempt)) is not job:
            w.put(later)
        w.note("job.takeover", f"another machine takes over: {cause}", job.id, attempt.id, attempt.node)
    seek(w, job.id)


def poisonous(w: World, job: Job) -> bool:
    """Stop a job under which several different machines went down (SPEC J8)."""
    if len(job.felled) < w.settings.poison_nodes:
        return False
    names = ", ".join(job.felled)
    end_job(
        w,
        job.id,
        Verdict.FAILED,
        Failure(FailureCode.POISON, f"these machines went down with it running: {names}"),
    )
    return True


def strike(w: World, node_id: NodeId, failure: Failure) -> None:
    """A fault of the node's own."""
    points = STRIKES.get(failure.code, 0)
    node = w.nodes.get(node_id)
    if not points or node is None:
        return
    node = replace(node, strikes=node.strikes + points)
    w.put(node)
    w.note("node.strike", f"{node_label(node)}: {failure.code.value}: {failure.detail}", node=node_id)
    if node.state is NodeState.PROBATION or node.strikes >= w.settings.strikes_to_quarantine:
        quarantine(w, node, f"{node.strikes} faults, the last: {failure.code.value}")


def fleet_too_thin(w: World) -> bool:
    """Whether one more node set aside would be more than the share that may be."""
    aside = w.states.get(NodeState.QUARANTINED, 0)
    present = aside + w.states.get(NodeState.READY, 0) + w.states.get(NodeState.PROBATION, 0)
    return (aside + 1) * 1000 > present * w.settings.quarantine_share_max_permille


def quarantine(w: World, node: Node, cause: str, sick: bool = False) -> None:
    """Set a node aside, unless that would take too much of the fleet: then fail open, on the record.

    A node that calls itself sick is always believed: the cap guards against our own judgement."""
    if node.state not in (NodeState.READY, NodeState.PROBATION):
        return
    s = w.settings
    if not sick and fleet_too_thin(w):
        w.note(
            "node.spared",
            f"{node_label(node)} would be quarantined ({cause}), but too few would be left",
            node=node.id,
        )
        return
    times = max(0, node.strikes - s.strikes_to_quarantine)
    length = min(s.quarantine_ms_max, s.quarantine_ms << min(times, 20))
    change(w, node, NodeState.QUARANTINED, cause, length, quarantined_until_ms=w.soon(length))
    for attempt in w.held_by(node.id):
        if attempt.may_win:
            take_over(w, attempt, f"its machine is quarantined: {cause}")


def load_reported(w: World, node_id: NodeId, pulse: Pulse, load: Load) -> None:
    pulse.load = load
    w.index.busy(w.fleet[node_id], load.cpu_permille)
    if load.sick:
        quarantine(w, w.nodes[node_id], f"it reports itself sick: {load.sick}", sick=True)


# --- coming back ---


def begin_probation(w: World, node: Node, cause: str) -> None:
    w.pulse(node.id).pings = 0
    change(w, node, NodeState.PROBATION, cause, w.settings.probation_ms, probation_wins=0)
    w.deadlines.add(w.patience, "ping", node.id)


def ping_due(w: World, node_id: NodeId) -> None:
    node = w.nodes.get(node_id)
    pulse = w.pulse(node_id)
    if node is None or node.state is not NodeState.PROBATION or pulse.session is None:
        return
    if pulse.pings < w.settings.probation_pings:
        pulse.nonce += 1
        w.send(ToSession(pulse.session, node_id, Ping(w.meta.epoch, pulse.nonce)))
        w.deadlines.add(w.soon(w.settings.ping_ms), "ping", node_id)


def ponged(w: World, node_id: NodeId, nonce: int) -> None:
    pulse = w.pulse(node_id)
    if not pulse.answered < nonce <= pulse.nonce:
        return
    pulse.answered = nonce
    pulse.pings += 1
    if pulse.pings == w.settings.probation_pings:
        w.freed[node_id] = None
        w.reindex(node_id)


def won(w: World, node_id: NodeId) -> None:
    """The node brought an attempt to an end without a fault of its own."""
    node = w.nodes.get(node_id)
    if node is None:
        return
    if node.state is NodeState.PROBATION:
        wins = node.probation_wins + 1
        if wins >= w.settings.probation_wins:
            change(w, node, NodeState.READY, "it proved itself", strikes=0, probation_wins=0)
        else:
            w.put(replace(node, probation_wins=wins))
    elif node.strikes and node.state is NodeState.READY:
        w.put(replace(node, strikes=0))


def state_due(w: World, node_id: NodeId) -> bool:
    """A node's state reached its deadline. True: it is lost now, and what it held must be written off."""
    node = w.nodes.get(node_id)
    if node is None or not node.state_until_ms:
        return False
    if node.state_until_ms > w.patience:
        w.deadlines.add(node.state_until_ms, "node", node_id)
        return False
    pulse = w.pulse(node_id)
    match node.state:
        case NodeState.SUSPECT:
            change(w, node, NodeState.LOST, "it stayed away too long")
            return True
        case NodeState.QUARANTINED if pulse.load.sick:
            change(w, node, NodeState.QUARANTINED, f"still sick: {pulse.load.sick}", w.settings.quarantine_ms)
        case NodeState.QUARANTINED:
            begin_probation(w, node, "its quarantine is over")
        case NodeState.PROBATION if pulse.session is None:
            w.put(replace(node, state_until_ms=w.soon(w.settings.probation_ms)))
        case NodeState.PROBATION if pulse.pings < w.settings.probation_pings:
            suspect(w, node_id, "it answers no probes")
        case NodeState.PROBATION:
            change(w, node, NodeState.READY, "no fault during its probation", strikes=0, probation_wins=0)
        case _:
            pass
    return False


def body_started_elsewhere(w: World, attempt: Attempt) -> None:
    """A contender's body runs: contenders on quarantined nodes are not needed any more."""
    for other in w.attempts_of(attempt.job):
        if other.id != attempt.id and other.may_win and w.nodes[other.node].state is NodeState.QUARANTINED:
            revoke(w, other, Failure(FailureCode.NODE_UNHEALTHY, f"{attempt.id} runs on a healthy machine"))


def returned(w: World, attempt: Attempt) -> None:
    """A contender turned out to be alive: it goes on, and one that has not started yet is not needed."""
    job = w.jobs.get(attempt.job)
    if job is None:
        return
    if attempt.node in job.felled:
        job = replace(job, felled=tuple(n for n in job.felled if n != attempt.node))
        w.put(job)
    if job.waiting == WAITS_FOR_LEASE:
        job = replace(job, waiting="")
        w.put(job)
    for other in w.attempts_of(job.id):
        if (
            other.fence > attempt.fence
            and other.may_win
            and other.purpose is not Purpose.MOVE  # a person wants it there, not only because this one was away
            and other.phase in (AttemptPhase.OFFERED, AttemptPhase.PREPARING)
        ):
            revoke(
                w,
                other,
                Failure(FailureCode.SUPERSEDED, f"{attempt.id} came back before this one had started"),
            )
    seek(w, job.id)
