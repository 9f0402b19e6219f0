"""SPEC J5, J8: the body of a job of class `never` starts at most once, as observed on the machines themselves.
The one exception is documented (docs/backups.md): a job that had no go when a backup was made may start again after
that was restored. No attempt ever starts twice, so that nothing is added to the output of another one."""

from holdfast.model import Attempt, AttemptId, JobId, NodeId, Recovery
from holdfast.sim.watch import Rule, SceneView


class NeverRunsOnce(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._never = {job.id for job in scene.plan.jobs if job.spec.recovery is Recovery.NEVER}
        self._started: dict[JobId, tuple[AttemptId, NodeId]] = {}
        self._lives: set[AttemptId] = set()

    def restored(self) -> None:
        rows = self.scene.store.rows.values()
        gone = {row.job for row in rows if isinstance(row, Attempt) and row.go}
        for job in [job for job in self._started if job not in gone]:
            del self._started[job]

    def body_started(self, node: NodeId, attempt: AttemptId, job: JobId) -> None:
        if attempt in self._lives:
            self.fail(f"the body of {attempt} started a second time on {node}")
        self._lives.add(attempt)
        if job not in self._never:
            return
        if job in self._started:
            first, where = self._started[job]
            self.fail(f"{job} must not repeat, but {attempt} started on {node} after {first} had on {where}")
        self._started[job] = (attempt, node)
