"""SPEC J9: at most one second attempt runs beside a straggler, and none for a job of class `never`. It takes no room
that a waiting job could use, and it does not count as a try of the job."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.kernel.placement import kind_serves
from holdfast.kernel.world import kind_of
from holdfast.model import Attempt, Instant, Job, JobPhase, Meta, Node, Purpose, Recovery
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, View


class ExtraAttemptsAreFew(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        fresh = [row for row in decision.changes if isinstance(row, Attempt) and ("attempt", row.id) not in view]
        if not any(not row.purpose.in_turn for row in fresh):
            return
        rows = dict(view)
        made: Attempt | None = None
        for row in decision.changes:  # in the order of the decision
            if isinstance(row, Attempt) and ("attempt", row.id) not in view:
                made = row
                if row.purpose is Purpose.SECOND:
                    self._may_be(row, rows, now)
            before = rows.get(row_key(row))
            if made is not None and isinstance(row, Job) and row.id == made.job and isinstance(before, Job):
                if not made.purpose.in_turn and row.tries > before.tries:
                    self.fail(f"{made.id} ({made.purpose.value}) cost {row.id} a try")
                made = None
            rows[row_key(row)] = row

    def _may_be(self, second: Attempt, rows: View, now: Instant) -> None:
        job, node = rows[("job", second.job)], rows[("node", second.node)]
        assert isinstance(job, Job) and isinstance(node, Node)
        others = [r for r in rows.values() if isinstance(r, Attempt) and r.job == second.job and r.may_win]
        if job.spec.recovery is Recovery.NEVER:
            self.fail(f"{second.id} is a second attempt at {job.id}, which must not repeat")
        if len(others) != 1 or others[0].straggle is None:
            self.fail(f"{second.id} is made beside {[(a.id, a.straggling) for a in others]}")
        if job.extra_attempts >= self.scene.settings.seconds_max:
            self.fail(f"{second.id} is made after {job.extra_attempts} of its kind")
        self._idle(second, node, rows, now)

    def _idle(self, second: Attempt, node: Node, rows: View, now: Instant) -> None:
        """No waiting job could have used the machine."""
        meta = rows.get(("meta", 0))
        patience = max(now, meta.now_ms) - meta.late_ms if isinstance(meta, Meta) else now
        for job in rows.values():
            if not isinstance(job, Job) or job.id == second.job:
                continue
            if job.reserved == node.id:
                self.fail(f"{second.id} was given to {node.id}, which is held free for {job.id}")
            # A job that arrived at this very moment, or whose back-off ends now, is placed afterwards.
            waits = job.phase is JobPhase.QUEUED and job.not_before_ms == 0 and job.submitted_ms < now
            need = job.spec.need
            if waits and kind_serves(kind_of(node), need) and need.resources.fits_in(node.offered):
                self.fail(f"{second.id} was given to {node.id} at {patience}, where {job.id} could run, which waits")
