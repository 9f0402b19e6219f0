"""SPEC H3, DESIGN "fail open": at most the configured share of the connected fleet is quarantined.

A node that reports itself sick is exempt: the cap protects against wrong judgements of the orchestrator.
"""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent, NodeSaid
from holdfast.model import Instant, Node, NodeState
from holdfast.model.messages import Report
from holdfast.sim.watch import Rule, View

AT_WORK = (NodeState.READY, NodeState.PROBATION)


class QuarantineCapped(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        if _says_it_is_sick(event):
            return
        changed = {row.id: row for row in decision.changes if isinstance(row, Node)}
        if not any(self._enters(row, view) for row in changed.values()):
            return
        nodes = {row.id: row for row in view.values() if isinstance(row, Node)} | changed
        states = [node.state for node in nodes.values()]
        aside = states.count(NodeState.QUARANTINED)
        present = aside + states.count(NodeState.READY) + states.count(NodeState.PROBATION)
        if aside * 1000 > present * self.scene.settings.quarantine_share_max_permille:
            self.fail(f"{aside} of {present} nodes are quarantined")

    def _enters(self, row: Node, view: View) -> bool:
        before = view.get(("node", row.id))
        return row.state is NodeState.QUARANTINED and isinstance(before, Node) and before.state in AT_WORK


def _says_it_is_sick(event: AnyEvent) -> bool:
    if not isinstance(event, NodeSaid) or not isinstance(event.message, Report):
        return False
    return event.message.load is not None and bool(event.message.load.sick)
