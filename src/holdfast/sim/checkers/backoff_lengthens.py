"""SPEC J8: after a failure that counts, a job without a healthy attempt waits. The wait is at most doubled with each
such failure and never exceeds `backoff_ms_max`. No attempt is made before it ends, unless a person moves the job."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.model import Attempt, Instant, Job, Node, NodeState
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, View, patience_of

AT_WORK = (NodeState.READY, NodeState.PROBATION)


class BackoffLengthens(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        if not any(isinstance(row, Attempt) for row in decision.changes):
            return
        patience = patience_of(now, decision, view)
        last = {row.id: row for row in decision.changes if isinstance(row, Job)}
        rows: View = {}
        for row in decision.changes:
            before = rows.get(row_key(row)) or view.get(row_key(row))
            if isinstance(row, Job) and isinstance(before, Job) and last[row.id].live:
                self._waits(before, row, (rows, view), patience)
            elif isinstance(row, Attempt) and before is None and row.purpose.in_turn:
                job = rows.get(("job", row.job)) or view.get(("job", row.job))
                if isinstance(job, Job) and job.not_before_ms > patience:
                    self.fail(f"{row.id} is made {job.not_before_ms - patience} ms before the job's back-off ends")
            rows[row_key(row)] = row

    def _waits(self, before: Job, job: Job, seen: tuple[View, View], patience: int) -> None:
        if job.not_before_ms in (before.not_before_ms, 0):
            if job.failures > before.failures and not self._cared_for(job, {**seen[1], **seen[0]}):
                self.fail(f"{job.id} has failed {job.failures} times, and is tried again without a wait")
            return
        number = job.failures if job.failures > before.failures else job.attempts_made - job.failures
        settings = self.scene.settings
        most = min(settings.backoff_ms_max, settings.backoff_ms * 2 ** (number - 1)) if number > 0 else 0
        wait = job.not_before_ms - patience
        if not most - most // 2 <= wait <= most:
            self.fail(f"{job.id} waits {wait} ms after try {number}; half of {most} ms to all of it is the rule")

    def _cared_for(self, job: Job, rows: View) -> bool:
        """Whether it has an attempt on a working node that can still win."""
        for row in rows.values():
            if isinstance(row, Attempt) and row.job == job.id and row.may_win:
                node = rows.get(("node", row.node))
                if isinstance(node, Node) and node.state in AT_WORK:
                    return True
        return False
