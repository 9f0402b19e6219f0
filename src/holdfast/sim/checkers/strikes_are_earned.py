"""SPEC H3: a fault is added to a node's record only for an attempt that failed by the node's fault, was not stopped in
time, or blamed an owner wrongly. Faults are forgiven only when the node has proven itself: by attempts that nobody
doubts, or by a probation without a fault. The row of the node always shows the faults among its last ends, and enough
of them lead to quarantine, unless too few nodes would be left."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.model import (
    Attempt,
    AttemptPhase,
    Confirmation,
    Entry,
    FailureCode,
    Instant,
    Job,
    Node,
    NodeRecord,
    NodeState,
    Verdict,
)
from holdfast.model.rows import row_key
from holdfast.policy.record import fault_points, forgiven
from holdfast.sim.watch import Rule, View, patience_of

POINTS = {
    FailureCode.RUNTIME_FAULT: 1, FailureCode.OOM_NODE: 1, FailureCode.NODE_DISK_FULL: 1,
    FailureCode.PREPARE_TIMEOUT: 1, FailureCode.OFFER_UNANSWERED: 1, FailureCode.INVALID_RESULT: 3,
}  # fmt: skip
UNDOUBTED = (Confirmation.CONFIRMED, Confirmation.RECORD)


class StrikesAreEarned(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        rows: View = {}
        for place, row in enumerate(decision.changes):
            if isinstance(row, Entry):
                continue
            before = rows.get(row_key(row)) or view.get(row_key(row))
            if isinstance(row, NodeRecord):
                ends = before.ends if isinstance(before, NodeRecord) else ""
                node = rows.get(("node", row.id)) or view[("node", row.id)]
                assert isinstance(node, Node)
                if row.ends == forgiven(ends) != ends:
                    self._proven(node, decision, patience_of(now, decision, view))
                elif row.ends[-1:].isdigit() and row.ends != ends[: len(row.ends)]:
                    self._struck(row, rows, view, patience_of(now, decision, view))
                    self._set_aside(node, row, decision, place)
            rows[row_key(row)] = row
            if isinstance(row, Node):
                record = rows.get(("record", row.id)) or view.get(("record", row.id))
                points = fault_points(record.ends) if isinstance(record, NodeRecord) else 0
                if row.strikes != points:
                    self.fail(f"{row.id} has {row.strikes} strikes, and its record {points}")

    def _struck(self, row: NodeRecord, rows: View, view: View, patience: int) -> None:
        gained = int(row.ends[-1])
        spoiled = [
            failure.code for a in rows.values() if isinstance(a, Attempt) and a.node == row.id
            for failure in (a.failure, a.revoked) if failure is not None
        ]  # fmt: skip
        overrun = any(
            isinstance(a, Attempt) and a.node == row.id and a.live and a.phase_until_ms <= patience
            and (a.revoked is not None or a.phase is AttemptPhase.RUNNING)
            for a in view.values()
        )  # fmt: skip
        refuted = any(
            isinstance(j, Job) and j.pending_verdict is not None and j.pending_verdict.node == row.id
            for j in (*view.values(), *rows.values())
        )  # fmt: skip
        if not any(POINTS.get(code) == gained for code in spoiled) and not ((overrun or refuted) and gained == 1):
            self.fail(f"{row.id} got {gained} strikes; its attempts just ended with {spoiled}")

    def _set_aside(self, node: Node, row: NodeRecord, decision: Decision, place: int) -> None:
        strikes = fault_points(row.ends)
        due = node.state is NodeState.PROBATION or strikes >= self.scene.settings.strikes_to_quarantine
        if not due or node.state not in (NodeState.READY, NodeState.PROBATION):
            return
        rest = decision.changes[place + 1 :]
        aside = any(isinstance(r, Node) and r.id == row.id and r.state is NodeState.QUARANTINED for r in rest)
        spared = any(isinstance(r, Entry) and r.node == row.id and r.kind == "node.spared" for r in rest)
        if aside == spared:
            self.fail(f"{row.id} was {node.state} and has {strikes} strikes; aside: {aside}, spared: {spared}")

    def _proven(self, node: Node, decision: Decision, patience: int) -> None:
        good = any(
            (isinstance(r, Attempt) and r.node == node.id and not r.live and r.revoked is None and r.failure is None)
            or (isinstance(r, Job) and (r.verdict is Verdict.SUCCEEDED or r.confirmation in UNDOUBTED))
            for r in decision.changes
        )  # fmt: skip
        served = node.state_until_ms <= patience
        enough = node.probation_wins + 1 >= self.scene.settings.probation_wins
        if node.state is not NodeState.PROBATION or not (served or (good and enough)):
            self.fail(f"{node.id} was {node.state} with {node.strikes} strikes and is forgiven")
