"""DESIGN "a frozen orchestrator blames no one"; SPEC H2, H4: no node is suspected, quarantined or struck for what
the orchestrator did itself.

Every suspicion and every strike must have a cause in the world: something was wrong with that machine or its
link not long before, or the node lost its orchestrator to a crash and had to find the next one. That
an orchestrator stood still, or that its store was slow, is no cause.
"""

from holdfast.kernel.decision import Row
from holdfast.model import Node, NodeState
from holdfast.sim.plan import FaultKind
from holdfast.sim.watch import Rule

LEADERLESS_MS = 40_000
"""A node whose orchestrator vanished without a word may take this long to notice."""
BAD = (NodeState.SUSPECT, NodeState.QUARANTINED)


class BlamelessFreeze(Rule):
    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for before, row in rows:
            if not isinstance(row, Node) or not isinstance(before, Node):
                continue
            blamed = (row.state in BAD and before.state not in (*BAD, NodeState.LOST)) or row.strikes > before.strikes
            if blamed and not self.scene.faults.troubled(row.id) and not self._leaderless():
                self.fail(
                    f"{row.id} is {row.state} with {row.strikes} strikes though nothing was wrong there: {row.cause}"
                )

    def _leaderless(self) -> bool:
        faults = self.scene.faults
        kinds = (FaultKind.ORCHESTRATOR_CRASH, FaultKind.ORCHESTRATOR_RESTART, FaultKind.TWO_LEADERS)
        return any(self.scene.world.now - faults.last.get(kind, -(10**9)) < LEADERLESS_MS for kind in kinds)
