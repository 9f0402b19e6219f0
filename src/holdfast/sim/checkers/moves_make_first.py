"""SPEC J12: a moved job is stopped on its old node only once it runs on the new one; a job of class `never` is moved
only before its body may have started; a job that waits for one machine is placed on no other; and every move ends."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.kernel.kernel import Kernel
from holdfast.model import Attempt, Instant, Job, MoveState, Purpose, Recovery, RevokeCause
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, SceneView, View

MOVED = (RevokeCause.MOVED, RevokeCause.MOVED_BEFORE_START)
EVERY = 4
"""Scanning all rows costs as much as many events, so only some quiet moments are checked."""


class MovesMakeFirst(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._moments = 0

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        touched = [row for row in decision.changes if isinstance(row, Attempt)]
        if not any(row.revoked is not None or ("attempt", row.id) not in view for row in touched):
            return
        rows = dict(view)
        for row in decision.changes:
            before = rows.get(row_key(row))
            if isinstance(row, Attempt) and before is None:
                self._placed(row, rows, view, event)
            if isinstance(row, Attempt) and isinstance(before, Attempt) and before.revoked is None:
                self._revoked(before, row.revoke_cause, rows)
            rows[row_key(row)] = row

    def _placed(self, attempt: Attempt, rows: View, view: View, event: AnyEvent) -> None:
        job = rows.get(("job", attempt.job))
        if not isinstance(job, Job):
            return  # submitted and placed in one step
        if job.pinned not in (None, attempt.node):
            self.fail(f"{attempt.id} was given to {attempt.node}; {job.id} waits for {job.pinned}")
        if attempt.purpose is Purpose.MOVE:
            same = [r for r in rows.values() if isinstance(r, Attempt) and r.job == job.id and r.may_win]
            if job.spec.recovery is Recovery.NEVER:
                self.fail(f"{attempt.id} moves {job.id}, which must not repeat, while it may run elsewhere")
            # One whose move was given up, because its machine was silent, may still come back.
            earlier = view.get(("job", attempt.job))
            move = earlier.move if isinstance(earlier, Job) else None
            to = move.to if move is not None and move.under_way else None
            if any(a.purpose is Purpose.MOVE and a.started_ms is None and a.node == to for a in same):
                self.fail(f"{attempt.id} moves {job.id}, which is being moved already ({type(event).__name__})")

    def _revoked(self, old: Attempt, why: RevokeCause | None, rows: View) -> None:
        if why not in MOVED:
            return
        job = rows[("job", old.job)]
        assert isinstance(job, Job)
        if old.go:
            self.fail(f"{old.id} may have started and must not repeat, and was revoked for a move")
        if job.spec.recovery is Recovery.NEVER:
            return
        rivals = [r for r in rows.values() if isinstance(r, Attempt) and r.job == old.job and r.id != old.id]
        if not any(r.purpose is Purpose.MOVE and r.may_win and r.started_ms is not None for r in rivals):
            self.fail(f"{old.id} was revoked for a move before its job ran anywhere else")

    def at_rest(self, kernel: Kernel) -> None:
        """A move in the state `starting` has an attempt that is starting."""
        self._moments += 1
        if self._moments % EVERY:
            return
        rows = self.scene.store.rows
        for job in rows.values():
            if isinstance(job, Job) and job.live and job.move is not None and job.move.state is MoveState.STARTING:
                last = [rows.get(("attempt", job.nth_attempt(n))) for n in range(1, job.attempts_made + 1)]
                arriving = [a for a in last if isinstance(a, Attempt) and a.purpose is Purpose.MOVE and a.may_win]
                if not arriving:
                    self.fail(f"{job.id} is said to start on {job.move.to}, and no attempt of it does")

    def finished(self) -> None:
        for row in self.scene.store.rows.values():
            if isinstance(row, Job) and not row.live and row.move is not None and row.move.under_way:
                self.fail(f"{row.id} has ended and is still being moved to {row.move.to} ({row.move.state.value})")
