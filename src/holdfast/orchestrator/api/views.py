"""Turns rows of the model into the public HTTP types. Reads nothing and decides nothing.

Rows hold served time. `dated` makes a date of it: people see no other time (docs/decisions/0028).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from holdfast.kernel.decision import Estimate, Explanation
from holdfast.model import Attempt, Entry, Failure, Job, JoinToken, Node, Resources, Score
from holdfast.model.cause_text import draining_text
from holdfast.model.messages import Load
from holdfast.wire.errors import FailureView
from holdfast.wire.http import (
    AttemptView,
    CheckpointView,
    EstimateView,
    EventView,
    ExplainView,
    FilesView,
    JobView,
    JoinTokenView,
    MoveView,
    NodeView,
    ScoreView,
)

Dated = Callable[[int], int]
"""Served time as the wall clock shows it: `WallTimes.wall_ms`."""


def _when(served_ms: int | None, dated: Dated) -> int | None:
    return None if served_ms is None else dated(served_ms)


def failure_view(failure: Failure | None) -> FailureView | None:
    if failure is None:
        return None
    meaning = failure.meaning
    return FailureView(
        code=failure.code.value,
        says=meaning.says,
        detail=failure.detail,
        blame=meaning.blame.value,
        retryable=meaning.retryable,
        billable=meaning.billable,
        exit_code=failure.exit_code,
        signal=failure.signal,
    )


def attempt_view(attempt: Attempt, dated: Dated) -> AttemptView:
    return AttemptView(
        id=attempt.id,
        node=attempt.node,
        phase=attempt.phase.value,
        offered_ms=dated(attempt.offered_ms),
        started_ms=_when(attempt.started_ms, dated),
        ended_ms=_when(attempt.ended_ms, dated),
        revoked=failure_view(attempt.revoked),
        failure=failure_view(attempt.failure),
        purpose=attempt.purpose.value,
        straggling=attempt.straggling if attempt.may_win else "",
        straggle=attempt.straggle if attempt.may_win else None,
        revoke_cause=attempt.revoke_cause,
    )


def event_view(entry: Entry, dated: Dated) -> EventView:
    facts = None if entry.facts is None else msgspec.to_builtins(entry.facts)
    at_ms = dated(entry.at_ms)
    return EventView(entry.seq, at_ms, entry.kind, entry.text, entry.job, entry.attempt, entry.node, facts)


def job_view(
    job: Job, dated: Dated, attempts: Sequence[Attempt] = (), events: Iterable[Entry] = (), again: bool = False
) -> JobView:
    exit_code = job.failure.exit_code if job.failure else job.result.exit_code if job.result else None
    return JobView(
        id=job.id,
        name=job.spec.name,
        owner=job.owner,
        argv=list(job.spec.argv),
        phase=job.phase.value,
        waiting=job.waiting,
        recovery=job.spec.recovery.value,
        priority=job.spec.priority,
        submitted_ms=dated(job.submitted_ms),
        ended_ms=_when(job.ended_ms, dated),
        verdict=job.verdict.value if job.verdict else None,
        failure=failure_view(job.failure),
        result_sha256=job.result.stdout_sha256 if job.result else None,
        result_bytes=job.result.stdout_bytes if job.result else None,
        exit_code=exit_code,
        attempts_made=job.attempts_made,
        node=_where(job, attempts),
        attempts=[attempt_view(attempt, dated) for attempt in attempts],
        events=[event_view(entry, dated) for entry in events],
        again=again,
        files=_files(job),
        checkpoint=_checkpoint(job, dated),
        accepted=job.accepted,
        move=None if job.move is None else MoveView(job.move.to, job.move.state.value, job.move.says),
        array=job.spec.array,
        item=job.spec.item,
        wait_reason=job.wait_reason,
        confirming=failure_view(job.pending_verdict.failure) if job.pending_verdict is not None else None,
        confirmation=job.confirmation.value if job.confirmation is not None else None,
    )


def _files(job: Job) -> FilesView | None:
    result = job.result
    return FilesView(result.manifest, result.files, result.files_bytes) if result and result.manifest else None


def _checkpoint(job: Job, dated: Dated) -> CheckpointView | None:
    saved = job.checkpoint
    if saved is None:
        return None
    return CheckpointView(saved.manifest, saved.attempt, saved.parent, saved.bytes, dated(saved.made_ms))


def _where(job: Job, attempts: Sequence[Attempt]) -> str | None:
    """The node of the accepted attempt, or else of the newest attempt: of a live job, of the newest that may still
    win."""
    for attempt in attempts:
        if attempt.id == job.accepted:
            return attempt.node
    return next((attempt.node for attempt in reversed(attempts) if attempt.may_win or not job.live), None)


def resources_view(amount: Resources) -> dict[str, int]:
    return {
        "cpu_milli": amount.cpu_milli,
        "memory_mib": amount.memory_mib,
        "disk_mib": amount.disk_mib,
        "gpus": amount.gpus,
    }


def node_view(
    node: Node,
    dated: Dated,
    held: Iterable[Attempt],
    connected: bool,
    load: Load | None,
    events: Iterable[Entry] = (),
    silent_ms: int | None = None,
) -> NodeView:
    attempts = list(held)
    free = node.offered
    for attempt in attempts:
        free = free - attempt.holds
    hardware = node.hardware
    return NodeView(
        id=node.id,
        name=node.name,
        state=node.state.value,
        cause=node.cause,
        draining=node.draining,
        connected=connected,
        isolation=node.isolation,
        version=node.version,
        arch=hardware.arch,
        cpu_model=hardware.cpu_model,
        hostname=hardware.hostname,
        site=node.site,
        total=resources_view(hardware.total),
        free=resources_view(free),
        gpus=[f"{gpu.model} {gpu.memory_mib} MiB" for gpu in hardware.gpus],
        attempts=[attempt.id for attempt in attempts],
        load=_load(load),
        joined_ms=dated(node.joined_ms),
        state_since_ms=dated(node.state_since_ms),
        events=[event_view(entry, dated) for entry in events],
        silent_ms=silent_ms,
        offered=resources_view(node.offered),
        drained=node.drained_by_network,
        draining_because=draining_text(node),
        cause_code=node.cause_code,
        pause_cause=node.pause_cause,
        holds=len(attempts),
        operator=node.operator,
    )


def token_view(token: JoinToken, now_ms: int, dated: Dated) -> JoinTokenView:
    """`now_ms`: served time, by which it expires."""
    state = "revoked" if token.revoked else "expired" if token.expires_ms <= now_ms else "good"
    if state == "good" and token.uses_left == 0:
        state = "used up"
    made_ms, expires_ms, left_ms = dated(token.made_ms), dated(token.expires_ms), max(0, token.expires_ms - now_ms)
    return JoinTokenView(token.id, state, made_ms, expires_ms, token.uses_left, token.note, left_ms, token.made_by)


def estimate_view(estimate: Estimate | None, dated: Dated) -> EstimateView | None:
    if estimate is None:
        return None
    start, end = _between(estimate.start, dated), _between(estimate.end, dated)
    return EstimateView(start, end, estimate.runs, estimate.says, _when(estimate.latest_ms, dated))


def _between(span: tuple[int, int] | None, dated: Dated) -> tuple[int, int] | None:
    return None if span is None else (dated(span[0]), dated(span[1]))


def scores_view(scores: Mapping[str, Score]) -> dict[str, ScoreView]:
    return {
        sort: ScoreView(score.right, score.early, score.late, score.right + score.early + score.late)
        for sort, score in sorted(scores.items())
    }


def _load(load: Load | None) -> dict[str, int]:
    if load is None:
        return {}
    return {
        "cpu_permille": load.cpu_permille,
        "memory_used_mib": load.memory_used_mib,
        "disk_free_mib": load.disk_free_mib,
    }


def explain_view(explanation: Explanation, dated: Dated) -> ExplainView:
    return ExplainView(
        job=explanation.job,
        phase=explanation.phase,
        waiting_for=explanation.waiting_for,
        until_ms=_when(explanation.until_ms, dated),
        then=explanation.then,
        attempts=list(explanation.attempts),
        gates=dict(explanation.gates),
        nearest=explanation.nearest,
        ahead=explanation.ahead,
        estimate=estimate_view(explanation.estimate, dated),
        wait_reason=explanation.wait_reason,
        gate_codes={gate.value: nodes for gate, nodes in explanation.gate_codes.items()},
    )
