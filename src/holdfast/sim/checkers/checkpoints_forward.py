"""SPEC J8, A12: over the whole life of a job, its checkpoint only moves forward, except that nothing goes on from what
a machine saved whose word on the job had to be confirmed, that delivered a false result, or that was refuted. Every
attempt of a job of class `resume` starts from the current one."""

from holdfast.kernel.decision import Decision, Row
from holdfast.kernel.events import AnyEvent
from holdfast.model import (
    Attempt,
    Checkpoint,
    Entry,
    FailureCode,
    Instant,
    Job,
    JobId,
    NodeId,
    Recovery,
    job_of,
)
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, SceneView, View


class CheckpointsForward(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._kept: dict[JobId, Checkpoint] = {}
        self._doubted: set[tuple[JobId, NodeId]] = set()
        """Jobs, and machines whose word on them had to be confirmed. The job goes back to what others saved."""
        self._liars: set[NodeId] = set()
        """Machines that delivered a false result, or were refuted. The job goes back to an ancestor of what they saved;
        `liars_are_undone` says when it must."""

    def restored(self) -> None:
        jobs = [row for row in self.scene.store.rows.values() if isinstance(row, Job)]
        self._kept = {job.id: job.checkpoint for job in jobs if job.checkpoint is not None}

    def journaled(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.kind == "job.confirming" and entry.job and entry.node:
                self._doubted.add((entry.job, entry.node))
            refuted = entry.facts is not None and entry.facts.failure is FailureCode.REFUTED
            if entry.kind == "node.strike" and entry.node and refuted:
                self._liars.add(entry.node)

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for _, row in rows:
            if isinstance(row, Attempt) and row.failure is not None and row.failure.code is FailureCode.INVALID_RESULT:
                self._liars.add(row.node)
        for before, row in rows:
            if isinstance(row, Attempt) and before is None and row.resumed is not None:
                kept = self._kept.get(row.job)
                if kept is not None and row.resumed.depth < kept.depth and not self._undone(row.job, kept):
                    self.fail(f"{row.id} starts from depth {row.resumed.depth}; depth {kept.depth} was kept before")
        for _, row in rows:
            if isinstance(row, Job):
                self._moved_on(row)

    def _undone(self, job: JobId, kept: Checkpoint) -> bool:
        """A contender that started from what a doubted machine saved is not believed either, if it fails."""
        doubted = any((job, one.node) in self._doubted for one in kept.line[:2])
        return doubted or any(one.node in self._liars for one in kept.line)

    def _moved_on(self, job: Job) -> None:
        kept, now = self._kept.get(job.id), job.checkpoint
        back = kept is not None and (now is None or now.depth < kept.depth or now.made_ms < kept.made_ms)
        if kept is not None and back and not self._undone(job.id, kept):
            self.fail(f"{job.id} kept {kept} and goes back to {now}")
        self._kept.pop(job.id, None)
        if now is not None:
            if job_of(now.attempt) != job.id or now.depth < 1:
                self.fail(f"{job.id} goes on from {now}, which none of its attempts saved")
            self._kept[job.id] = now

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        if not any(isinstance(row, Attempt) and ("attempt", row.id) not in view for row in decision.changes):
            return
        rows = dict(view)
        for row in decision.changes:
            job = rows.get(("job", row.job)) if isinstance(row, Attempt) and row_key(row) not in rows else None
            if isinstance(row, Attempt) and isinstance(job, Job):
                start = job.checkpoint if job.spec.recovery is Recovery.RESUME else None
                if row.resumed != start:
                    self.fail(f"{row.id} starts from {row.resumed}; {job.id} goes on from {start}")
            rows[row_key(row)] = row
