"""SPEC N4, S5: no node is assigned more than it offers, and no machine ever runs more than it offers."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.model import Attempt, AttemptId, Instant, JobId, Node, NodeId, Resources
from holdfast.sim.watch import Rule, SceneView, View


class WithinOffer(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._needs = {job.id: job.spec.need.resources for job in scene.plan.jobs}
        self._running: dict[NodeId, dict[AttemptId, JobId]] = {}

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        offered = {r.node for r in decision.changes if isinstance(r, Attempt) and ("attempt", r.id) not in view}
        if not offered:
            return
        after = dict(view)
        after.update({("attempt", r.id): r for r in decision.changes if isinstance(r, Attempt)})
        after.update({("node", r.id): r for r in decision.changes if isinstance(r, Node)})
        for node_id in sorted(offered):
            node = after[("node", node_id)]
            used = Resources()
            for row in after.values():
                if isinstance(row, Attempt) and row.live and row.node == node_id:
                    used += self._needs[row.job]
            if isinstance(node, Node) and not used.fits_in(node.offered):
                self.fail(f"{node_id} was given {used}, but offers {node.offered}")

    def body_started(self, node: NodeId, attempt: AttemptId, job: JobId) -> None:
        running = self._running.setdefault(node, {})
        running[attempt] = job
        used = sum((self._needs[j] for j in running.values()), Resources())
        offered = self.scene.machines[node].spec.offered
        if not used.fits_in(offered):
            self.fail(f"{node} runs {sorted(running)} at once: {used} of {offered}")

    def body_ended(self, node: NodeId, attempt: AttemptId, job: JobId) -> None:
        self._running.get(node, {}).pop(attempt, None)
