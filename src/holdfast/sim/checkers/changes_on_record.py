"""SPEC H4: every change of the state of a node, job or attempt has a journal entry made by the same decision; no such
entry exists without a change; and no entry is about an attempt that had already ended."""

from collections import Counter

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.model import Attempt, AttemptPhase, Entry, Instant, Job, JobId, JobPhase, Node, NodeRecord, NodeState
from holdfast.model.rows import row_key
from holdfast.policy.record import with_end
from holdfast.sim.watch import Rule, View

Line = tuple[str, str]
"""A kind of entry and its subject."""
OF_NODES = {f"node.{state.value}" for state in NodeState} | {"node.strike"}
OF_JOBS = {f"job.{phase.value}" for phase in JobPhase} | {"job.accepted", "job.saved", "job.tainted", "job.reserved"}
OF_ATTEMPTS = {"attempt.failed", "attempt.go", "attempt.moves_again", "attempt.revoked", "attempt.running"} | {
    "attempt.straggling"
}


class ChangesOnRecord(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        rows: View = {}
        owed: list[Line] = []
        told: list[Line] = []
        placed: set[JobId] = set()
        for row in decision.changes:
            if isinstance(row, Entry):
                told += _told(row)
                self._of_the_living(row, rows, view)
                continue
            key = row_key(row)
            before = rows.get(key) or view.get(key)
            match row:
                case Node():
                    owed += _node(before, row)
                case NodeRecord():
                    owed += _record(before, row)
                case Job():
                    owed += _job(before, row, row.id in placed)
                case Attempt():
                    if before is None:
                        placed.add(row.job)
                    owed += _attempt(before, row)
                case _:
                    pass
            rows[key] = row
        if sorted(owed) != sorted(told):
            untold, made_up = Counter(owed) - Counter(told), Counter(told) - Counter(owed)
            said = f"changes without a line: {dict(untold)}; lines without a change: {dict(made_up)}"
            self.fail(f"{type(event).__name__}: {said}")

    def _of_the_living(self, entry: Entry, rows: View, view: View) -> None:
        if entry.attempt is None:
            return
        before = view.get(("attempt", entry.attempt))
        if isinstance(before, Attempt) and not before.live:
            self.fail(f"{entry.kind} is written about {entry.attempt}, which had ended: {entry.text}")
        if before is None and ("attempt", entry.attempt) not in rows:
            self.fail(f"{entry.kind} is written about {entry.attempt}, which is not held: {entry.text}")


def _told(entry: Entry) -> list[Line]:
    if entry.kind in OF_NODES:
        return [(entry.kind, entry.node or "")]
    if entry.kind in OF_ATTEMPTS:
        return [(entry.kind, entry.attempt or "")]
    if entry.kind == "job.assigned":
        return [(entry.kind, entry.attempt or entry.job or "")]
    return [(entry.kind, entry.job or "")] if entry.kind in OF_JOBS else []


def _node(before: object, row: Node) -> list[Line]:
    owed: list[Line] = []
    if not isinstance(before, Node) or _standing(before) != _standing(row):
        owed.append((f"node.{row.state.value}", row.id))
    return owed


def _record(before: object, row: NodeRecord) -> list[Line]:
    ends = before.ends if isinstance(before, NodeRecord) else ""
    added = row.ends == with_end(ends, row.ends[-1:])
    return [("node.strike", row.id)] if added and row.ends[-1:].isdigit() else []


def _standing(node: Node) -> tuple[object, ...]:
    return node.state, node.state_since_ms, node.cause


def _job(before: object, row: Job, placed: bool) -> list[Line]:
    """`placed`: by this decision; that entry names the attempt."""
    known = before if isinstance(before, Job) else None
    owed: list[Line] = [] if known is not None else [("job.queued", row.id)]
    phase = JobPhase.QUEUED if known is None else known.phase
    if row.phase is not phase and not (placed and phase is JobPhase.QUEUED and row.phase is JobPhase.ASSIGNED):
        owed.append((f"job.{row.phase.value}", row.id))
    if row.accepted is not None and (known is None or known.accepted is None):
        owed.append(("job.accepted", row.id))
    doubted = known is not None and row.pending_verdict != known.pending_verdict  # it goes back to an earlier one
    kept = known.checkpoint if known is not None else None
    if doubted:
        pass
    elif kept is not None and (row.checkpoint is None or row.checkpoint in kept.line[1:]):
        owed.append(("job.tainted", row.id))
    elif row.checkpoint is not None and kept != row.checkpoint:
        owed.append(("job.saved", row.id))
    if row.reserved is not None and (known is None or known.reserved != row.reserved):
        owed.append(("job.reserved", row.id))
    return owed


def _attempt(before: object, row: Attempt) -> list[Line]:
    if not isinstance(before, Attempt):
        return [("job.assigned", row.id)]
    owed: list[Line] = []
    if row.revoked is not None and before.revoked is None:
        owed.append(("attempt.revoked", row.id))
    if row.go and not before.go and row.phase is AttemptPhase.READY:  # else it started by itself: a failure
        owed.append(("attempt.go", row.id))
    if row.started_ms is not None and before.started_ms is None:
        owed.append(("attempt.running", row.id))
    if not row.live and before.live and row.revoked is None and row.failure is not None:
        owed.append(("attempt.failed", row.id))
    if (row.straggle is None) != (before.straggle is None):
        owed.append(("attempt.straggling" if row.straggle is not None else "attempt.moves_again", row.id))
    return owed
