"""Renders causes: the only place that turns a code and its facts into a sentence. No code parses the sentences.

`entry_text` renders a journal entry; `wait_text` what a job waits for; `node_cause_text`, `straggle_text` and
`revoke_text` the cause in the row of a machine or an attempt. The code `unknown` keeps the words it came with.
"""

from collections.abc import Callable

from holdfast.model.causes import (
    DrainChange,
    Gate,
    NodeCause,
    PauseCause,
    RevokeCause,
    StraggleKind,
    TakeoverCause,
    WaitReason,
)
from holdfast.model.failure import MEANINGS, Failure, FailureCode
from holdfast.model.job import Confirmation, JobPhase, MoveState
from holdfast.model.journal import Facts
from holdfast.model.node import Node, NodeState
from holdfast.model.resources import Resources

# --- what a job waits for ---

_WAITS: dict[WaitReason, Callable[[Facts], str]] = {
    WaitReason.ROOM: lambda f: "a machine with room" + (f"; {held_back_text(f.count, f.gate)}" if f.gate else ""),
    WaitReason.NODE_ROOM: lambda f: f"room on {f.label}, the machine it was moved to",
    WaitReason.RESERVED_ROOM: lambda f: f"room on {f.label}, which takes nothing new until this job fits there",
    WaitReason.LEASE: lambda f: "its machine is away; the job must not run twice, so its lease has to run out first",
    WaitReason.CONFIRMATION: lambda f: (
        f"another machine to confirm that it failed by its owner's fault, as {f.label} says ({failure_text(f)})"
    ),
    WaitReason.BACKOFF: lambda f: f"its back-off after {f.count} failures, {f.ms} ms more",
    WaitReason.MACHINE: lambda f: "a machine to join the network",
    WaitReason.ANSWER: lambda f: "its machine to answer the offer",
    WaitReason.PREPARATION: lambda f: "its machine to prepare it",
    WaitReason.START: lambda f: "its machine to start it",
    WaitReason.PROGRAM: lambda f: "its program to end",
    WaitReason.RESULT: lambda f: "its result to be delivered and verified",
    WaitReason.MOVE_SAVE: lambda f: f"its state to be saved; then it starts on {f.label}, where it is moved to",
    WaitReason.MOVE_START: lambda f: (
        f"an attempt to start on {f.label}, where it is moved to; until then it goes on where it is"
    ),
    WaitReason.UNKNOWN: lambda f: f.detail,
}
_NOTHING = Facts()


def wait_text(reason: WaitReason, facts: Facts = _NOTHING) -> str:
    return _WAITS[reason](facts)


# --- what keeps a job from a machine ---

_GATES: dict[Gate, tuple[str, str]] = {
    Gate.SUSPECT: ("suspect", ""),
    Gate.QUARANTINED: ("quarantined", ""),
    Gate.LOST: ("lost", ""),
    Gate.GONE: ("gone", ""),
    Gate.DISCONNECTED: ("disconnected", ""),
    Gate.DRAINING: ("draining", ""),
    Gate.RESERVED: ("held free for another job", ""),
    Gate.PROBATION_PROBES: ("probation", "probing"),
    Gate.PROBATION_BUSY: ("probation", "one at a time"),
    Gate.ATTEMPTS_MAX: ("too many attempts", ""),
    Gate.UNPROVEN: ("no record yet", "few attempts at a time"),
    Gate.DOUBTED: ("the job failed there, which another machine is to confirm", ""),
    Gate.SAME_JOB: ("holds an attempt of this job", ""),
    Gate.EARLIER_ATTEMPT: ("an earlier attempt of this job is not gone from there yet", ""),
    Gate.NOT_CHOSEN: ("not the machine it was moved to", ""),
    Gate.KIND: ("architecture, GPU or features", ""),
    Gate.CPU: ("cpu", ""),
    Gate.MEMORY: ("memory", ""),
    Gate.DISK: ("disk", ""),
    Gate.GPUS: ("gpus", ""),
    Gate.HELD_BACK: ("held back", ""),
    Gate.UNKNOWN: ("unknown", ""),
}


def gate_title(gate: Gate) -> str:
    """The gate without details, as used for counting machines."""
    return _GATES[gate][0]


def gate_text(gate: Gate) -> str:
    title, more = _GATES[gate]
    return f"{title}: {more}" if more else title


def shortfall_text(gate: Gate, free: int, wanted: int) -> str:
    """A gate that is closed for lack of room, with the amounts."""
    return gate_title(gate) if gate is Gate.KIND else f"{gate_title(gate)}: {free} free of {wanted} wanted"


def held_back_text(machines: int, most: Gate) -> str:
    return f"of {machines} most are held back by: {gate_title(most)}"


def gate_titles(gates: dict[Gate, int]) -> dict[str, int]:
    """Machines counted by gate, with the gates in words."""
    counted: dict[str, int] = {}
    for gate, machines in gates.items():
        counted[gate_title(gate)] = counted.get(gate_title(gate), 0) + machines
    return counted


# --- attempts ---


def straggle_text(facts: Facts) -> str:
    match facts.straggle:
        case StraggleKind.STALLED:
            return f"no progress: it has printed nothing and computed nothing for {facts.ms // 1000} s"
        case StraggleKind.SLOW:
            typical = f"{facts.median_ms / 1000:g}"
            return f"it has run for {facts.ms // 1000} s; the last {facts.count} like it took {typical} s"
        case _:
            return facts.detail


_REVOKES: dict[RevokeCause, tuple[FailureCode, Callable[[Facts], str]]] = {
    RevokeCause.OTHER_WON: (FailureCode.SUPERSEDED, lambda f: f"{f.attempt} delivered the result that counts"),
    RevokeCause.TAINTED: (
        FailureCode.SUPERSEDED,
        lambda f: f"it started from a checkpoint of {f.attempt}, which is not believed any more",
    ),
    RevokeCause.JOB_ENDED: (FailureCode.SUPERSEDED, lambda f: "the job has ended without a result"),
    RevokeCause.CANCELLED: (FailureCode.CANCELLED, lambda f: f"stopped by {f.by}"),
    RevokeCause.POISON: (
        FailureCode.POISON,
        lambda f: f"these machines went down with it running: {', '.join(f.nodes)}",
    ),
    RevokeCause.MOVED: (FailureCode.SUPERSEDED, lambda f: f"the job was moved: {f.attempt} runs on {f.label}"),
    RevokeCause.MOVED_BEFORE_START: (
        FailureCode.SUPERSEDED,
        lambda f: f"the job was moved to {f.label} before it started here",
    ),
    RevokeCause.CAME_BACK: (FailureCode.SUPERSEDED, lambda f: f"{f.attempt} came back before this one had started"),
    RevokeCause.UNHEALTHY: (FailureCode.NODE_UNHEALTHY, lambda f: f"{f.attempt} runs on a healthy machine"),
    RevokeCause.AWAY_BEFORE_START: (
        FailureCode.NODE_LOST,
        lambda f: f"it had not started, and its machine is away: {takeover_cause_text(f)}",
    ),
    RevokeCause.AWAY_BEFORE_MOVE: (
        FailureCode.NODE_LOST,
        lambda f: f"it had not started there: {takeover_cause_text(f)}",
    ),
    RevokeCause.OFFER_UNANSWERED: (FailureCode.OFFER_UNANSWERED, lambda f: f"no answer within {f.ms} ms"),
    RevokeCause.PREPARE_TIMEOUT: (FailureCode.PREPARE_TIMEOUT, lambda f: f"not ready within {f.ms} ms"),
    RevokeCause.TIME_LIMIT: (FailureCode.TIME_LIMIT, lambda f: "the machine did not stop it at its limit"),
    RevokeCause.UPLOAD_TIMEOUT: (FailureCode.UPLOAD_TIMEOUT, lambda f: f"not delivered within {f.ms} ms"),
    RevokeCause.LEASE_LOST: (
        FailureCode.LEASE_LOST,
        lambda f: "its machine was not heard from before the lease ran out",
    ),
    RevokeCause.DRAINED: (FailureCode.DRAINED, lambda f: "its machine is being drained"),
    RevokeCause.OFFERS_LESS: (FailureCode.DRAINED, lambda f: "its machine offers less than it did"),
}
"""By cause: the failure that a revoked attempt ends with, and its detail."""


def revoke_text(facts: Facts) -> str:
    known = _REVOKES.get(facts.revoke or RevokeCause.UNKNOWN)
    return facts.detail if known is None else known[1](facts)


def revoke_failure(facts: Facts) -> Failure:
    """The failure of an attempt that is revoked for this cause, which must not be `unknown`."""
    assert facts.revoke is not None
    code, detail = _REVOKES[facts.revoke]
    return Failure(code, detail(facts))


# --- machines ---

_NODE_CAUSES: dict[NodeCause, Callable[[Facts], str]] = {
    NodeCause.JOINED: lambda f: "it joined",
    NodeCause.JOINED_AGAIN: lambda f: "it joined again",
    NodeCause.CAME_BACK: lambda f: "it came back",
    NodeCause.CAME_BACK_EARLY: lambda f: "it came back before its quarantine was over",
    NodeCause.NOT_BACK: lambda f: "it did not dial in again after the orchestrator was away",
    NodeCause.SILENT: lambda f: f"silent for {f.ms} ms, limit {f.limit_ms} ms",
    NodeCause.LINK_BROKE: lambda f: f"its connection broke: {f.detail}",
    NodeCause.NO_PROBES: lambda f: "it answers no probes",
    NodeCause.FAULTS: lambda f: f"{f.count} faults, the last: {f.fault.value if f.fault else 'unknown'}",
    NodeCause.SICK: lambda f: f"it reports itself sick: {f.detail}",
    NodeCause.STILL_SICK: lambda f: f"still sick: {f.detail}",
    NodeCause.QUARANTINE_OVER: lambda f: "its quarantine is over",
    NodeCause.PROVEN: lambda f: "it proved itself",
    NodeCause.NO_FAULT: lambda f: "no fault during its probation",
    NodeCause.RESTLESS: lambda f: "it changes what it offers too often",
    NodeCause.AWAY_TOO_LONG: lambda f: "it stayed away too long",
    NodeCause.GOODBYE: lambda f: "it said goodbye",
    NodeCause.UNKNOWN: lambda f: f.detail,
}


def node_cause_text(facts: Facts) -> str:
    return _NODE_CAUSES[facts.node_cause or NodeCause.UNKNOWN](facts)


def pause_text(cause: PauseCause, stated: str = "") -> str:
    """`stated`: the node's own words."""
    match cause:
        case PauseCause.OPERATOR:
            return "paused by its own operator"
        case PauseCause.LEAVING:
            return "asked to leave by its own operator"
        case PauseCause.STATED | PauseCause.UNKNOWN:
            return stated


def draining_text(node: Node) -> str:
    """Who drains the node; empty: it is not draining."""
    network = "drained by the network's operator" if node.drained_by_network else ""
    own = (node.leaving_why or pause_text(PauseCause.OPERATOR)) if node.leaving else ""
    return " and ".join(filter(None, (network, own)))


def takeover_cause_text(facts: Facts) -> str:
    """What happened to the machine, as shown for the job that it held."""
    unfit = "its machine is quarantined: " if facts.takeover is TakeoverCause.QUARANTINED else ""
    return unfit + node_cause_text(facts)


def resources_text(amount: Resources) -> str:
    amounts = f"{amount.cpu_milli / 1000:g} cores, {amount.memory_mib} MiB memory, {amount.disk_mib} MiB disk"
    return f"{amounts}, {amount.gpus} GPUs"


# --- the journal ---


def failure_text(facts: Facts) -> str:
    """A failure's code, and its detail or general meaning."""
    code = facts.failure
    return facts.detail if code is None else f"{code.value}: {facts.detail or MEANINGS[code].says}"


def _revoked(f: Facts) -> str:
    return f"{f.failure.value if f.failure else 'unknown'}: {revoke_text(f)}"


_CONFIRMATIONS: dict[Confirmation | None, str] = {
    Confirmation.CONFIRMED: " (confirmed by another machine)",
    Confirmation.UNCONFIRMED: " (unconfirmed: no other machine was asked)",
    Confirmation.TAKEN: " (unconfirmed: its owner did not wait for it)",
}


def _ended(f: Facts) -> str:
    verdict = f.verdict.value if f.verdict else "unknown"
    if f.failure is None:
        return verdict
    return f"{verdict}: {failure_text(f)}{_CONFIRMATIONS.get(f.confirmation, '')}"


def _move(f: Facts) -> str:
    if f.move is MoveState.WAITING:
        return f"it runs on {f.label} and nowhere else, once there is room (asked by {f.by})"
    return f"it moves to {f.label} (asked by {f.by})"


def _of(f: Facts, says: str) -> str:
    """With the machine as its subject."""
    return f"{f.label} {says}" if f.label else says


def _about(f: Facts, says: str) -> str:
    return f"{f.label}: {says}" if f.label else says


def _node(f: Facts) -> str:
    return _about(f, node_cause_text(f))


_DRAINS: dict[DrainChange, str] = {
    DrainChange.DRAINED: "is being drained ({by})",
    DrainChange.STILL_DRAINED: "gets no work yet: {detail} ({by} took it back)",
    DrainChange.UNDRAINED: "takes work again ({by})",
    DrainChange.FORGOTTEN: "is not drained any more ({by})",
    DrainChange.UNKNOWN: "{detail}",
}


def _drain(f: Facts) -> str:
    return _of(f, _DRAINS[f.drain or DrainChange.UNKNOWN].format(by=f.by, detail=f.detail))


def _access(f: Facts) -> str:
    whose = f" of {f.detail}" if f.detail else ""
    return f"access token {f.label}{whose} ({f.role.value if f.role else 'unknown'})"


def _phase(phase: JobPhase) -> Callable[[Facts], str]:
    return lambda f: f"the job is {phase.value}"


_ENTRIES: dict[str, Callable[[Facts], str]] = {
    **{f"job.{phase.value}": _phase(phase) for phase in JobPhase},
    **{f"node.{state.value}": _node for state in NodeState},
    "job.assigned": lambda f: f"attempt {f.count} goes to {f.label}" if f.count else "the job is assigned",
    "job.accepted": lambda f: f"the result of attempt {f.attempt} counts",
    "job.confirming": lambda f: f"it failed on {f.label} ({failure_text(f)}); another machine confirms that",
    "job.ended": _ended,
    "job.lease": lambda f: wait_text(f.wait or WaitReason.LEASE, f),
    "job.move": _move,
    "job.moved": lambda f: f"it runs on {f.label} now",
    "job.not_moved": lambda f: f"it could not be moved to {f.label}: {f.detail}",
    "job.received": lambda f: "its owner has the files",
    "job.reserved": lambda f: f"{f.label} takes nothing new until this job fits there",
    "job.saved": lambda f: f"a checkpoint of {f.bytes} bytes is kept",
    "job.tainted": lambda f: (
        f"the checkpoints of {f.attempt} and what grew from them are not used: "
        + (f"it goes on from checkpoint {f.count}" if f.count else "it starts over")
    ),
    "job.second": lambda f: f"another attempt starts beside {f.attempt}; the first result wins",
    "job.takeover": lambda f: f"another machine takes over: {takeover_cause_text(f)}",
    "attempt.failed": failure_text,
    "attempt.go": lambda f: "may start; it will not be started anywhere else",
    "attempt.moves_again": lambda f: "it makes progress again",
    "attempt.refused": lambda f: f"its result is refused: {failure_text(f)}",
    "attempt.revoked": _revoked,
    "attempt.running": lambda f: "its body runs",
    "attempt.straggling": lambda f: f"straggling: {straggle_text(f)}",
    "node.draining": _drain,
    "node.undrained": _drain,
    "node.offers": lambda f: _of(f, f"offers {resources_text(f.room or Resources())} (its own operator)"),
    "node.refused": lambda f: _about(f, f"{f.refusal}: {f.detail}"),
    "node.forgotten": lambda f: _of(f, "was away for so long that only its id and its key's fingerprint are kept"),
    "node.spared": lambda f: _of(f, f"would be quarantined ({node_cause_text(f)}), but too few would be left"),
    "node.strike": lambda f: _about(f, f"{f.failure.value if f.failure else 'unknown'}: {f.detail}"),
    "access.made": lambda f: f"{_access(f)} was made by {f.by}, for {f.ms // 1000} s",
    "access.revoked": lambda f: f"{_access(f)} was revoked by {f.by}",
    "orchestrator.led": lambda f: f"epoch {f.count}; {f.ms} ms without a leader are charged to nobody",
    "orchestrator.clock": lambda f: (
        f"the wall clock went {'ahead' if f.ms > 0 else 'back'} by {abs(f.ms) // 1000} s: nobody led meanwhile, or it "
        "was set; dates shown follow it, and no deadline moves"
    ),
    "orchestrator.late": lambda f: f"{f.ms} ms late; every deadline moves by that, and nobody is blamed",
}
"""By kind. `job.assigned` is written both for an attempt and for the phase; `job.ended` also says how the job ended."""
KINDS = frozenset(_ENTRIES)


def entry_text(kind: str, facts: Facts) -> str:
    """The sentence of a journal entry. Without `label`, a sentence about a machine does not name it."""
    return _ENTRIES[kind](facts)
