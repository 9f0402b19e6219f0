"""SPEC H3: a node that was suspect, lost or quarantined becomes ready only through probation; on probation it gets one
attempt at a time."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.model import Attempt, Instant, Node, NodeId, NodeState
from holdfast.sim.watch import Rule, View

AWAY = (NodeState.SUSPECT, NodeState.LOST, NodeState.QUARANTINED)


class ProbationFirst(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        nodes: dict[NodeId, Node] = {}
        for row in decision.changes:
            if isinstance(row, Node):
                before = nodes.get(row.id) or view.get(("node", row.id))
                if isinstance(before, Node) and before.state in AWAY and row.state is NodeState.READY:
                    self.fail(f"{row.id} was {before.state} and is ready again without probation: {row.cause}")
                nodes[row.id] = row
            elif isinstance(row, Attempt) and ("attempt", row.id) not in view:
                self._one_at_a_time(row, nodes.get(row.node) or view.get(("node", row.node)), decision, view)

    def _one_at_a_time(self, attempt: Attempt, node: object, decision: Decision, view: View) -> None:
        if not isinstance(node, Node) or node.state is not NodeState.PROBATION:
            return
        ended = {row.id for row in decision.changes if isinstance(row, Attempt) and not row.live}
        held = [
            row.id for row in view.values()
            if isinstance(row, Attempt) and row.live and row.node == node.id and row.id not in ended
        ]  # fmt: skip
        if held:
            self.fail(f"{node.id} is on probation and was given {attempt.id} beside {', '.join(held)}")
