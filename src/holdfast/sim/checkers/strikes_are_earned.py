"""SPEC H3: a strike is given only for an attempt that failed by the node's fault or was not stopped in time. Strikes
are cleared only when the node has proven itself: by an attempt that it completed, or by a probation without a fault.
Enough strikes lead to quarantine, unless too few nodes would be left."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.model import Attempt, AttemptPhase, Blame, Entry, FailureCode, Instant, Node, NodeState
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, View, patience_of

POINTS = {
    FailureCode.RUNTIME_FAULT: 1, FailureCode.OOM_NODE: 1, FailureCode.NODE_DISK_FULL: 1,
    FailureCode.PREPARE_TIMEOUT: 1, FailureCode.OFFER_UNANSWERED: 1, FailureCode.INVALID_RESULT: 3,
}  # fmt: skip


class StrikesAreEarned(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        rows: View = {}
        for place, row in enumerate(decision.changes):
            if isinstance(row, Entry):
                continue
            if isinstance(row, Node):
                before = rows.get(row_key(row)) or view.get(row_key(row))
                if isinstance(before, Node) and row.strikes > before.strikes:
                    self._struck(before, row, rows, view, patience_of(now, decision, view))
                    self._set_aside(before, row, decision, place)
                elif isinstance(before, Node) and row.strikes < before.strikes:
                    self._proven(before, row, rows, view, patience_of(now, decision, view))
            rows[row_key(row)] = row

    def _struck(self, before: Node, row: Node, rows: View, view: View, patience: int) -> None:
        gained = row.strikes - before.strikes
        spoiled = [
            failure.code for a in rows.values() if isinstance(a, Attempt) and a.node == row.id
            for failure in (a.failure, a.revoked) if failure is not None
        ]  # fmt: skip
        overrun = any(
            isinstance(a, Attempt) and a.node == row.id and a.live and a.phase_until_ms <= patience
            and (a.revoked is not None or a.phase is AttemptPhase.RUNNING)
            for a in view.values()
        )  # fmt: skip
        if not any(POINTS.get(code) == gained for code in spoiled) and not (overrun and gained == 1):
            self.fail(f"{row.id} got {gained} strikes; its attempts just ended with {spoiled}")

    def _set_aside(self, before: Node, row: Node, decision: Decision, place: int) -> None:
        due = before.state is NodeState.PROBATION or row.strikes >= self.scene.settings.strikes_to_quarantine
        if not due or before.state not in (NodeState.READY, NodeState.PROBATION):
            return
        rest = decision.changes[place + 1 :]
        aside = any(isinstance(r, Node) and r.id == row.id and r.state is NodeState.QUARANTINED for r in rest)
        spared = any(isinstance(r, Entry) and r.node == row.id and r.kind == "node.spared" for r in rest)
        if aside == spared:
            self.fail(f"{row.id} was {before.state} and has {row.strikes} strikes; aside: {aside}, spared: {spared}")

    def _proven(self, before: Node, row: Node, rows: View, view: View, patience: int) -> None:
        good = any(
            isinstance(a, Attempt) and a.node == row.id and not a.live and a.revoked is None
            and (a.failure is None or a.failure.meaning.blame is Blame.USER)
            for a in rows.values()
        )  # fmt: skip
        served = before.state is NodeState.PROBATION and before.state_until_ms <= patience
        wins = self.scene.settings.probation_wins
        enough = before.state is NodeState.READY or before.probation_wins + 1 >= wins
        if row.strikes or row.state is not NodeState.READY or not (served or (good and enough)):
            self.fail(f"{row.id} was {before.state} with {before.strikes} strikes; {row.strikes} are left: {row.cause}")
