"""SPEC H3: a quarantine lasts `quarantine_ms`, doubled for every strike beyond those that lead to it, and at most
`quarantine_ms_max`. Disconnecting does not shorten it: a node that comes back serves the rest."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.model import Instant, Node, NodeState
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, View, patience_of

ASIDE = NodeState.QUARANTINED
AT_WORK = (NodeState.READY, NodeState.PROBATION)
AWAY = (NodeState.SUSPECT, NodeState.LOST, NodeState.GONE)


class QuarantineLengthens(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        rows: View = {}
        for row in decision.changes:
            if isinstance(row, Node):
                before = rows.get(row_key(row)) or view.get(row_key(row))
                if isinstance(before, Node) and ASIDE in (row.state, before.state):
                    self._judge(before, row, patience_of(now, decision, view))
                rows[row_key(row)] = row

    def _judge(self, before: Node, row: Node, patience: int) -> None:
        settings = self.scene.settings
        length = row.state_until_ms - patience
        if before.state is ASIDE and row.state in AT_WORK and before.state_until_ms > patience:
            self.fail(f"{row.id} leaves its quarantine {before.state_until_ms - patience} ms early: {row.cause}")
        if row.state is not ASIDE:
            return
        if before.state in AT_WORK:
            doublings = max(0, row.strikes - settings.strikes_to_quarantine)
            want = min(settings.quarantine_ms_max, settings.quarantine_ms * 2**doublings)
            if length != want or row.quarantined_until_ms != row.state_until_ms:
                self.fail(f"{row.id} has {row.strikes} strikes and is quarantined for {length} ms, not {want} ms")
        elif before.state in AWAY and row.state_until_ms != before.quarantined_until_ms:
            left = before.quarantined_until_ms - patience
            self.fail(f"{row.id} came back with {left} ms of its quarantine left, and is set aside for {length} ms")
        elif before.state is ASIDE and row.state_until_ms < before.state_until_ms:
            self.fail(f"the quarantine of {row.id} was shortened by {before.state_until_ms - row.state_until_ms} ms")
