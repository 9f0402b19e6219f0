"""Decides whether a node can be trusted with work right now (SPEC H1–H4).

    ready ──stream broke, silent──► suspect ──too long──► lost
      │ ▲                              │                   │
      │ └── proven ── probation ◄──────┴──── came back ────┘
      │                 │   ▲
      └── strikes, sick ┴──►quarantined (time doubles with each)

In any state but `ready` and `probation` a node gets no new work from that instant, and what it holds is taken
over. Quarantine is capped: it never takes more than a share of the fleet, however bad things look.
"""

from msgspec.structs import replace

from holdfast.kernel import node_records
from holdfast.kernel.contenders import (
    got_on,
    lease_over_ms,
    must_not_repeat,
    refresh,
    revoke,
    seek,
    waits_for,
)
from holdfast.kernel.decision import CloseSession, ToSession
from holdfast.kernel.mechanism import Mechanism
from holdfast.kernel.poison import blame_job, poisonous, went_down
from holdfast.kernel.world import Presence, World, node_label
from holdfast.model import (
    Attempt,
    AttemptPhase,
    Facts,
    Failure,
    FailureCode,
    Instant,
    Node,
    NodeCause,
    NodeId,
    NodeState,
    Purpose,
    Recovery,
    RevokeCause,
    TakeoverCause,
    WaitReason,
)
from holdfast.model.cause_text import node_cause_text
from holdfast.model.messages import Load, Ping
from holdfast.policy import record
from holdfast.policy.suspicion import silence_limit_ms

STRIKES: dict[FailureCode, int] = {
    FailureCode.RUNTIME_FAULT: 1,
    FailureCode.OOM_NODE: 1,
    FailureCode.NODE_DISK_FULL: 1,
    FailureCode.PREPARE_TIMEOUT: 1,
    FailureCode.OFFER_UNANSWERED: 1,
    FailureCode.REFUTED: 1,
    FailureCode.INVALID_RESULT: 3,
}
"""Strikes for a node's own faults. A user's error and a refusal are no faults; absence is judged by suspicion."""


class NodeHealth(Mechanism):
    def __init__(self) -> None:
        self.woke_ms = self.forgive_until_ms = Instant(0)
        """Set after a long freeze of the orchestrator itself: no node is blamed for a stream that broke meanwhile."""

    def body_started(self, w: World, attempt: Attempt, first: bool) -> None:
        body_started_elsewhere(w, attempt)

    def returned(self, w: World, attempt: Attempt) -> None:
        returned(w, attempt)


# --- silence ---


def heard(w: World, node: NodeId, presence: Presence) -> None:
    """A message of any kind arrived from the node."""
    if w.fleet[node].held:
        gap = max(0, w.patience - max(presence.heard_ms, presence.watched_ms))
        presence.rhythm = presence.rhythm.heard(min(gap, w.settings.silence_ceiling_ms))
    presence.heard_ms = w.patience
    presence.contested_ms = None


def silence_limit(w: World, node: NodeId, presence: Presence) -> int:
    s = w.settings
    if not w.fleet[node].held:
        return s.idle_silence_ms
    return silence_limit_ms(presence.rhythm, s.keepalive_ms, s.silence_floor_ms, s.silence_ceiling_ms)


def silence_due(w: World, node_id: NodeId) -> None:
    """The node should have been heard by now: judge it, or check again later."""
    node = w.nodes.get(node_id)
    if node is None or node.state in (NodeState.SUSPECT, NodeState.LOST, NodeState.GONE):
        return
    presence = w.presence(node_id)
    if presence.session is None:
        if presence.grace_until_ms > w.patience:
            w.deadlines.add(presence.grace_until_ms, "silence", node_id)
        else:
            suspect(w, node_id, Facts(node_cause=NodeCause.NOT_BACK))
        return
    limit = silence_limit(w, node_id, presence)
    since = max(presence.heard_ms, presence.watched_ms if w.fleet[node_id].held else Instant(0))
    due = Instant(since + limit)
    if due > w.patience:
        w.deadlines.add(due, "silence", node_id)
    elif forgiven(w) and presence.heard_ms <= w.lifecycle.of(NodeHealth).woke_ms:
        disconnect(w, node_id, "not heard since the orchestrator was frozen; dial in again")
        await_return(w, node_id)
    else:
        suspect(w, node_id, Facts(node_cause=NodeCause.SILENT, ms=w.patience - since, limit_ms=limit))


def forgive(w: World, late_ms: int) -> None:
    """The orchestrator itself was away for long. Nodes may have closed their streams meanwhile: those that are
    found disconnected or silent now get time to reconnect before they are suspected."""
    if late_ms >= 2 * w.settings.silence_ceiling_ms:
        health = w.lifecycle.of(NodeHealth)
        health.woke_ms = w.patience
        health.forgive_until_ms = w.soon(w.settings.silence_ceiling_ms + 2 * w.settings.keepalive_ms)


def forgiven(w: World) -> bool:
    return w.patience < w.lifecycle.of(NodeHealth).forgive_until_ms


def await_return(w: World, node_id: NodeId) -> None:
    """The node is not connected, through no fault of its own: suspect it only if it does not reconnect."""
    grace = w.soon(w.settings.reconnect_grace_ms)
    w.presence(node_id).grace_until_ms = grace
    w.deadlines.add(grace, "silence", node_id)


# --- going down ---


def change(w: World, node: Node, state: NodeState, why: Facts, bound_ms: int = 0, **changes: object) -> Node:
    """Put a node into a state, and record why (SPEC H4)."""
    until = w.soon(bound_ms) if bound_ms else Instant(0)
    because = {"cause_code": why.node_cause, "cause": node_cause_text(why)}
    node = replace(node, state=state, state_since_ms=w.now, state_until_ms=until, **because, **changes)
    w.put(node)
    w.note(f"node.{state.value}", replace(why, label=node_label(node)), node=node.id)
    if state in (NodeState.READY, NodeState.PROBATION):
        for attempt in w.held_by(node.id):
            seek(w, attempt.job)  # the node is trusted again: its attempts need no takeover
    return node


def disconnect(w: World, node_id: NodeId, why: str) -> None:
    presence = w.presence(node_id)
    if presence.session is not None:
        w.send(CloseSession(presence.session, why))
        presence.session = None
        w.reindex(node_id)


def suspect(w: World, node_id: NodeId, why: Facts) -> None:
    """The node gets no new work from this instant, and everything repeatable it holds gets a second contender."""
    node = w.nodes[node_id]
    if node.state in (NodeState.SUSPECT, NodeState.LOST, NodeState.GONE):
        return
    disconnect(w, node_id, node_cause_text(why))
    change(w, node, NodeState.SUSPECT, why, w.settings.suspect_ms_max)
    went_down(w, node_id)
    for attempt in w.held_by(node_id):
        if attempt.may_win:
            blame_job(w, attempt)
            take_over(w, attempt, replace(why, takeover=TakeoverCause.LOST))


def take_over(w: World, attempt: Attempt, why: Facts) -> None:
    """The attempt's node is in doubt: let the job continue elsewhere, as its recovery class allows."""
    job = w.jobs.get(attempt.job)
    if job is None:
        return
    if w.lifecycle.away(w, attempt, why):
        return
    job = w.jobs[job.id]
    if must_not_repeat(job, attempt):
        if w.presence(attempt.node).session is not None:
            return  # a sick or struck machine that is still connected: let it finish what no other machine may do
        w.put(waits_for(job, WaitReason.LEASE))
        w.deadlines.add(lease_over_ms(w, attempt), "lease", attempt.id)
        w.note("job.lease", Facts(wait=WaitReason.LEASE), job.id, attempt.id, attempt.node)
        return
    if job.spec.recovery is Recovery.NEVER:
        revoke(w, attempt, replace(why, revoke=RevokeCause.AWAY_BEFORE_START))
        refresh(w, job.id)
    elif poisonous(w, job):
        return
    else:
        if (later := got_on(w, job, attempt)) is not job:
            w.put(later)
        w.note("job.takeover", why, job.id, attempt.id, attempt.node)
    seek(w, job.id)


def strike(w: World, node_id: NodeId, failure: Failure) -> None:
    """Record a fault of the node's own; too many among its last ends lead to quarantine."""
    points = STRIKES.get(failure.code, 0)
    if not points or node_id not in w.nodes:
        return
    node = ended(w, node_id, record.fault_mark(points))
    struck = Facts(label=node_label(node), failure=failure.code, detail=failure.detail)
    w.note("node.strike", struck, node=node_id)
    if node.state is NodeState.PROBATION or node.strikes >= w.settings.strikes_to_quarantine:
        quarantine(w, node, Facts(node_cause=NodeCause.FAULTS, count=node.strikes, fault=failure.code))


def ended(w: World, node_id: NodeId, mark: str) -> Node:
    """An attempt on the node ended: add it to the record, and count the faults among the last ends."""
    node_records.add_end(w, node_id, mark)
    node = w.nodes[node_id]
    strikes = node_records.fault_points(w, node_id)
    if strikes != node.strikes:
        node = replace(node, strikes=strikes)
        w.put(node)
    return node


def fleet_too_thin(w: World) -> bool:
    """Whether one more node in quarantine would exceed the permitted share of the fleet."""
    aside = w.states.get(NodeState.QUARANTINED, 0)
    present = aside + w.states.get(NodeState.READY, 0) + w.states.get(NodeState.PROBATION, 0)
    return (aside + 1) * 1000 > present * w.settings.quarantine_share_max_permille


def quarantine(w: World, node: Node, why: Facts, sick: bool = False) -> None:
    """Quarantine a node, unless that would take too much of the fleet: then fail open, and record that.

    A node that reports itself sick is always believed: the cap guards only against the orchestrator's own judgement."""
    if node.state not in (NodeState.READY, NodeState.PROBATION):
        return
    s = w.settings
    if not sick and fleet_too_thin(w):
        w.note("node.spared", replace(why, label=node_label(node)), node=node.id)
        return
    times = max(0, node.strikes - s.strikes_to_quarantine)
    length = min(s.quarantine_ms_max, s.quarantine_ms << min(times, 20))
    change(w, node, NodeState.QUARANTINED, why, length, quarantined_until_ms=w.soon(length))
    for attempt in w.held_by(node.id):
        if attempt.may_win:
            take_over(w, attempt, replace(why, takeover=TakeoverCause.QUARANTINED))


def load_reported(w: World, node_id: NodeId, presence: Presence, load: Load) -> None:
    presence.load = load
    w.index.busy(w.fleet[node_id], load.cpu_permille)
    if load.sick:
        quarantine(w, w.nodes[node_id], Facts(node_cause=NodeCause.SICK, detail=load.sick), sick=True)


# --- coming back ---


def begin_probation(w: World, node: Node, cause: NodeCause) -> None:
    w.presence(node.id).pings = 0
    change(w, node, NodeState.PROBATION, Facts(node_cause=cause), w.settings.probation_ms, probation_wins=0)
    w.deadlines.add(w.patience, "ping", node.id)


def ping_due(w: World, node_id: NodeId) -> None:
    node = w.nodes.get(node_id)
    presence = w.presence(node_id)
    if node is None or node.state is not NodeState.PROBATION or presence.session is None:
        return
    if presence.pings < w.settings.probation_pings:
        presence.nonce += 1
        w.send(ToSession(presence.session, node_id, Ping(w.meta.epoch, presence.nonce)))
        w.deadlines.add(w.soon(w.settings.ping_ms), "ping", node_id)


def ponged(w: World, node_id: NodeId, nonce: int) -> None:
    presence = w.presence(node_id)
    if not presence.answered < nonce <= presence.nonce:
        return
    presence.answered = nonce
    presence.pings += 1
    if presence.pings == w.settings.probation_pings:
        w.freed[node_id] = None
        w.reindex(node_id)


def won(w: World, node_id: NodeId) -> None:
    """The node delivered the result that counts."""
    if node_id in w.nodes:
        ended(w, node_id, record.SUCCEEDED)
        cleared(w, node_id)


def cleared(w: World, node_id: NodeId) -> None:
    """Nobody doubts how an attempt on the node ended: it counts for its record, and for its probation."""
    node_records.add_good(w, node_id)
    node = w.nodes[node_id]
    if node.state is NodeState.PROBATION:
        wins = node.probation_wins + 1
        if wins >= w.settings.probation_wins:
            _trust(w, node, NodeCause.PROVEN)
        else:
            w.put(replace(node, probation_wins=wins))


def _trust(w: World, node: Node, cause: NodeCause) -> None:
    """Its probation is over. Earlier faults are forgiven."""
    node_records.forgive(w, node.id)
    change(w, node, NodeState.READY, Facts(node_cause=cause), strikes=0, probation_wins=0)


def state_due(w: World, node_id: NodeId) -> bool:
    """A node's state reached its deadline. True: it is lost now, and what it held must be written off."""
    node = w.nodes.get(node_id)
    if node is None or not node.state_until_ms:
        return False
    if node.state_until_ms > w.patience:
        w.deadlines.add(node.state_until_ms, "node", node_id)
        return False
    presence = w.presence(node_id)
    match node.state:
        case NodeState.SUSPECT:
            change(w, node, NodeState.LOST, Facts(node_cause=NodeCause.AWAY_TOO_LONG), w.settings.nodes_keep_ms)
            return True
        case NodeState.QUARANTINED if presence.load.sick:
            why = Facts(node_cause=NodeCause.STILL_SICK, detail=presence.load.sick)
            change(w, node, NodeState.QUARANTINED, why, w.settings.quarantine_ms)
        case NodeState.QUARANTINED:
            begin_probation(w, node, NodeCause.QUARANTINE_OVER)
        case NodeState.PROBATION if presence.session is None:
            w.put(replace(node, state_until_ms=w.soon(w.settings.probation_ms)))
        case NodeState.PROBATION if presence.pings < w.settings.probation_pings:
            suspect(w, node_id, Facts(node_cause=NodeCause.NO_PROBES))
        case NodeState.PROBATION:
            _trust(w, node, NodeCause.NO_FAULT)
        case _:
            pass
    return False


def body_started_elsewhere(w: World, attempt: Attempt) -> None:
    """A contender's body runs: contenders on quarantined nodes are not needed any more."""
    for other in w.attempts_of(attempt.job):
        if other.id != attempt.id and other.may_win and w.nodes[other.node].state is NodeState.QUARANTINED:
            revoke(w, other, Facts(revoke=RevokeCause.UNHEALTHY, attempt=attempt.id))


def returned(w: World, attempt: Attempt) -> None:
    """A contender turned out to be alive: it continues, and later ones that have not started are not needed."""
    job = w.jobs.get(attempt.job)
    if job is None:
        return
    if job.wait_reason is WaitReason.LEASE:
        job = waits_for(job, None)
        w.put(job)
    for other in w.attempts_of(job.id):
        if (
            other.fence > attempt.fence
            and other.may_win
            and other.purpose is not Purpose.MOVE  # a person requested it, whether or not this one was away
            and other.phase in (AttemptPhase.OFFERED, AttemptPhase.PREPARING)
        ):
            revoke(w, other, Facts(revoke=RevokeCause.CAME_BACK, attempt=attempt.id))
    seek(w, job.id)
