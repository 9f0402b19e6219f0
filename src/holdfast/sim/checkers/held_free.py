"""SPEC J13: a node reserved for a job takes no new work except that job and work of owners with a smaller share; and
only few nodes are reserved at a time."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.kernel.world import weight
from holdfast.model import Attempt, Instant, Job, Node, NodeState, Owner
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, View


class HeldFree(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        if not any(isinstance(row, Attempt | Job) for row in decision.changes):
            return
        rows = dict(view)
        for row in decision.changes:  # in order: reservations may change in the middle of a decision
            if isinstance(row, Attempt) and ("attempt", row.id) not in view:
                self._may_have(row, rows)
            if isinstance(row, Job) and row.reserved is not None:
                self._few(row, rows)
            rows[row_key(row)] = row

    def _may_have(self, attempt: Attempt, rows: View) -> None:
        for job in rows.values():
            if isinstance(job, Job) and job.live and job.reserved == attempt.node and job.id != attempt.job:
                mine, theirs = self._share(attempt.owner, rows), self._share(job.owner, rows)
                if mine >= theirs:
                    self.fail(f"{attempt.id} was given to {attempt.node}, which is held free for {job.id}")

    def _share(self, owner: Owner, rows: View) -> int:
        held = (row for row in rows.values() if isinstance(row, Attempt) and row.owner == owner and row.may_win)
        return sum(weight(row.holds) for row in held)

    def _few(self, changed: Job, rows: View) -> None:
        live = [row for row in rows.values() if isinstance(row, Job) and row.live and row.id != changed.id]
        held = [job.id for job in live if job.reserved is not None]
        if changed.reserved in {job.reserved for job in live}:
            self.fail(f"{changed.reserved} is held free for {changed.id} and for another job")
        before = rows.get(("job", changed.id))
        if isinstance(before, Job) and before.reserved == changed.reserved:
            return
        ready = sum(isinstance(row, Node) and row.state is NodeState.READY for row in rows.values())
        most = max(1, ready * self.scene.settings.reserved_share_max_permille // 1000)
        if len(held) >= most:
            self.fail(f"{changed.reserved} is held free beside {len(held)} others; {most} may be")
