"""SPEC J13: among the jobs of one owner, a job that lost its machine is placed before a job of equal or lower priority
that has not started yet, unless the lost job may have caused the loss of machines."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent, Submitted
from holdfast.kernel.placement import kind_serves
from holdfast.kernel.world import kind_of
from holdfast.model import Attempt, Instant, Job, JobPhase, JobSpec, Node, Purpose, Resources
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, View


class BegunFirst(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        if not any(isinstance(row, Attempt) and ("attempt", row.id) not in view for row in decision.changes):
            return
        rows = dict(view)
        for row in decision.changes:
            if isinstance(row, Attempt) and ("attempt", row.id) not in view and row.purpose is Purpose.PLACED:
                job = rows.get(("job", row.job))
                if isinstance(job, Job):
                    if not job.attempts_made and job.reserved is None:  # a reserved node is for that job alone
                        self._may_go(row, job.spec, rows)
                elif isinstance(event, Submitted):  # placed on submission: its own row follows
                    self._may_go(row, event.spec, rows)
            rows[row_key(row)] = row

    def _may_go(self, attempt: Attempt, spec: JobSpec, rows: View) -> None:
        live = [row for row in rows.values() if isinstance(row, Attempt) and row.live]
        placed = {row.job for row in live} | {attempt.job}
        node = rows[("node", attempt.node)]
        assert isinstance(node, Node)
        free = node.offered - sum((row.holds for row in live if row.node == node.id), Resources())
        for job in rows.values():
            if not isinstance(job, Job) or job.owner != attempt.owner or job.id in placed:
                continue
            waits = job.phase is JobPhase.QUEUED and not job.not_before_ms and job.pinned is None
            if job.pending_verdict is not None and job.pending_verdict.node == node.id:
                continue
            begun = job.attempts_made > 0 and len(job.felled) < 2
            fits = kind_serves(kind_of(node), job.spec.need) and job.spec.need.resources.fits_in(free)
            if waits and begun and fits and job.spec.priority >= spec.priority:
                self.fail(f"{attempt.id} is placed before {job.id}, which lost its machine")
