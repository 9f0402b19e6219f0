"""SPEC J8: the loss of many machines at once is a network fault. Once the leader has seen a fifth of the fleet go, no
job is blamed for a machine lost in that cut."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent, Led
from holdfast.model import Instant, Job, Node, NodeId, NodeState
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, SceneView, View, patience_of

WINDOW_MS = 10_000
"""Machines lost within this time of each other count as lost together."""
SHARE = 5
"""Losing one machine in this many is more than chance."""


class CutIsNoPoison(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._went: dict[str, dict[NodeId, int]] = {}
        """By leader: when it saw each machine go, on its patience clock."""

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        went = self._went.setdefault(leader, {})
        if isinstance(event, Led):
            went.clear()
        if not any(isinstance(row, Node | Job) for row in decision.changes):
            return
        patience = patience_of(now, decision, view)
        rows: View = {}
        for row in decision.changes:
            before = rows.get(row_key(row)) or view.get(row_key(row))
            if isinstance(row, Node) and row.state is NodeState.SUSPECT and isinstance(before, Node):
                if before.state is not NodeState.SUSPECT:
                    went[row.id] = patience
            elif isinstance(row, Job) and isinstance(before, Job):
                for node in row.felled:
                    if node not in before.felled:
                        self._not_cut(row, node, {n for n, at in went.items() if patience - at < WINDOW_MS})
            rows[row_key(row)] = row

    def _not_cut(self, job: Job, node: NodeId, went: set[NodeId]) -> None:
        together = self.scene.faults.cut_with(node) & went
        others = sorted(together - {*job.felled, node})
        if others and (len(others) + 1) * SHARE >= len(self.scene.machines):
            self.fail(f"{job.id} is blamed for {node}, which was cut off together with {', '.join(others)}")
