"""SPEC J8, A12: a checkpoint names its author and its ancestor. Once a machine delivered a false result, no job goes on
from what it saved before, and no attempt that grew from that can win. A result names only files that its attempt
sent."""

from holdfast.kernel.decision import Row
from holdfast.model import Attempt, AttemptId, Checkpoint, FailureCode, Instant, Job, JobId, NodeId
from holdfast.sim.watch import Rule, SceneView


class LiarsAreUndone(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._lied: dict[NodeId, Instant] = {}
        self._jobs: dict[JobId, Job] = {}
        """Those with a checkpoint."""
        self._attempts: dict[AttemptId, Attempt] = {}
        """Those that started from a checkpoint and may win, and those whose result may be accepted."""

    def restored(self) -> None:
        """Also that a machine lied is only known if the backup says so."""
        rows = list(self.scene.store.rows.values())
        attempts = [row for row in rows if isinstance(row, Attempt)]
        self._lied = {a.node: a.ended_ms for a in attempts if a.ended_ms and _is_false(a)}
        self._attempts = {a.id: a for a in attempts}
        self._jobs = {row.id: row for row in rows if isinstance(row, Job) and row.live and row.checkpoint is not None}

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for _, row in rows:
            if isinstance(row, Attempt):
                if row.ended_ms and _is_false(row):
                    self._lied[row.node] = row.ended_ms
                self._attempts[row.id] = row
        for _, row in rows:
            if isinstance(row, Job):
                self._job(row)
        for job in self._jobs.values():
            self._believes(job.id, job.checkpoint)
        for attempt in list(self._attempts.values()):
            if attempt.may_win:
                self._believes(attempt.id, attempt.resumed)
            elif not attempt.live:
                del self._attempts[attempt.id]

    def _job(self, job: Job) -> None:
        made = job.checkpoint
        author = self._attempts.get(made.attempt) if made is not None else None
        if made is not None and author is not None:
            started = author.resumed.manifest if author.resumed is not None else None
            ancestor = made.ancestor.manifest if made.ancestor is not None else None
            if made.node != author.node or ancestor != started:
                self.fail(f"{made} of {job.id} names another author or ancestor than {author}")
        if job.result is not None and job.result.manifest and job.accepted is not None:
            winner = self._attempts.get(job.accepted)
            if winner is None or job.result.manifest not in winner.delivered:
                self.fail(f"the result of {job.id} names files that {job.accepted} did not send")
        if made is not None and job.live:
            self._jobs[job.id] = job
        else:
            self._jobs.pop(job.id, None)

    def _believes(self, who: str, checkpoint: Checkpoint | None) -> None:
        for one in checkpoint.line if checkpoint is not None else ():
            lied_ms = self._lied.get(one.node)
            if lied_ms is not None and one.made_ms <= lied_ms:
                self.fail(f"{who} relies on {one}, whose machine delivered something false at {lied_ms}")


def _is_false(attempt: Attempt) -> bool:
    return attempt.failure is not None and attempt.failure.code is FailureCode.INVALID_RESULT
