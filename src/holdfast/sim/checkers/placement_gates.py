"""SPEC H3: no work is placed on a node that is suspect, quarantined, lost, gone, draining or not connected."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.model import Attempt, Instant, Node, NodeState
from holdfast.sim.watch import Rule, View

OPEN = (NodeState.READY, NodeState.PROBATION)


class PlacementGates(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        for row in decision.changes:
            if isinstance(row, Attempt) and row.live and ("attempt", row.id) not in view:
                node = view.get(("node", row.node))
                for changed in decision.changes:
                    if isinstance(changed, Node) and changed.id == row.node:
                        node = changed
                if not isinstance(node, Node) or node.state not in OPEN or node.draining:
                    state = "unknown" if not isinstance(node, Node) else f"{node.state}, draining: {node.draining}"
                    self.fail(f"{row.id} was given to {row.node}, which is {state} ({type(event).__name__})")
