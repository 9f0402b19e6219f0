"""DESIGN "a frozen orchestrator blames no one"; SPEC H2, H4: no node is suspected, quarantined or given a strike for
something that the orchestrator itself caused.

Every suspicion and every strike must have a cause in the world: a recent fault of that machine or its link, or an
orchestrator crash after which the node had to find the next orchestrator. A frozen orchestrator or a slow store is not
such a cause.
"""

from holdfast.kernel.decision import Row
from holdfast.model import Node, NodeState
from holdfast.sim.watch import Rule

LEADERLESS_MS = 40_000
"""How long a node may take to notice that its orchestrator disappeared without closing the connection."""
BAD = (NodeState.SUSPECT, NodeState.QUARANTINED)


class BlamelessFreeze(Rule):
    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for before, row in rows:
            if not isinstance(row, Node) or not isinstance(before, Node):
                continue
            blamed = (row.state in BAD and before.state not in (*BAD, NodeState.LOST)) or row.strikes > before.strikes
            if row.strikes > before.strikes and row.id in self.scene.faults.blamers:
                continue
            if blamed and not self.scene.faults.troubled(row.id) and not self._leaderless():
                self.fail(
                    f"{row.id} is {row.state} with {row.strikes} strikes though nothing was wrong there: {row.cause}"
                )

    def _leaderless(self) -> bool:
        return self.scene.world.now - self.scene.faults.leader_left_at < LEADERLESS_MS
