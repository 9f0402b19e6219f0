"""SPEC J13: among the waiting jobs of one owner that fit the free room, the one with the highest priority gets it. Room
on a node that is reserved for a job is not considered."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent, Submitted
from holdfast.kernel.placement import kind_serves
from holdfast.kernel.world import kind_of
from holdfast.model import Attempt, Instant, Job, JobPhase, JobSpec, Node, NodeId, Purpose, Resources
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, View


class PriorityFirst(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        if not any(isinstance(row, Attempt) and ("attempt", row.id) not in view for row in decision.changes):
            return
        rows = dict(view)
        for row in decision.changes:
            if isinstance(row, Attempt) and ("attempt", row.id) not in rows and row.purpose is Purpose.PLACED:
                job = rows.get(("job", row.job))
                if isinstance(job, Job):
                    if job.pinned is None:
                        self._may_go(row, job.spec, rows)
                elif isinstance(event, Submitted):
                    self._may_go(row, event.spec, rows)
            rows[row_key(row)] = row

    def _may_go(self, attempt: Attempt, spec: JobSpec, rows: View) -> None:
        node = rows[("node", attempt.node)]
        assert isinstance(node, Node)
        if any(isinstance(row, Job) and row.live and row.reserved == node.id for row in rows.values()):
            return
        live = [row for row in rows.values() if isinstance(row, Attempt) and row.live]
        free = node.offered - sum((row.holds for row in live if row.node == node.id), Resources())
        for job in rows.values():
            if not isinstance(job, Job) or job.owner != attempt.owner or job.spec.priority <= spec.priority:
                continue
            if self._waits(job, node.id, live) and self._fits(job, node, free):
                self.fail(
                    f"{attempt.id} (priority {spec.priority}) is given room on {node.id} that {job.id} "
                    f"(priority {job.spec.priority}) waits for"
                )

    def _waits(self, job: Job, node: NodeId, live: list[Attempt]) -> bool:
        """Whether it is queued, without a back-off, and not excluded from this node by an attempt that is still
        there."""
        waits = job.phase is JobPhase.QUEUED and not job.not_before_ms and job.pinned is None
        if job.pending_verdict is not None and job.pending_verdict.node == node:
            return False
        return waits and not any(row.job == job.id and (row.node == node or row.may_win) for row in live)

    def _fits(self, job: Job, node: Node, free: Resources) -> bool:
        return kind_serves(kind_of(node), job.spec.need) and job.spec.need.resources.fits_in(free)
