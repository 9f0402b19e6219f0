"""SPEC J7: a job's verdict and failure code agree with what its program does and what its owner did."""

from holdfast.kernel.decision import Row
from holdfast.model import Attempt, FailureCode, Job, Verdict
from holdfast.sim.watch import Rule, SceneView


class HonestVerdict(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._plans = {job.id: job for job in scene.plan.jobs}

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for _, row in rows:
            if isinstance(row, Job) and row.verdict is not None:
                self._judge(row)

    def _judge(self, job: Job) -> None:
        plan = self._plans[job.id]
        program = plan.program
        code = job.failure.code if job.failure is not None else None
        if job.verdict is Verdict.SUCCEEDED and program.exit_code != 0:
            self.fail(f"{job.id} succeeded, but its program exits with {program.exit_code}")
        if job.verdict is Verdict.CANCELLED and plan.stop_at is None:
            self.fail(f"{job.id} was cancelled, and nobody asked for it")
        if job.verdict is Verdict.FAILED and code is None:
            self.fail(f"{job.id} failed without a reason")
        made_up = program.exit_code == 0 and job.failure is not None and job.failure.signal is None
        if code is FailureCode.EXIT_CODE and made_up and not self._believed(job):
            self.fail(
                f"{job.id} is said to have exited with {job.failure and job.failure.exit_code}, its program does not"
            )
        if code is FailureCode.TIME_LIMIT and plan.spec.time_limit_ms is None:
            self.fail(f"{job.id} is said to have run into a time limit it does not have")
        if code is FailureCode.POISON and program.fells_machine_at_ms is None and len(job.felled) < 2:
            self.fail(f"{job.id} is called poison after {job.felled}")

    def _believed(self, job: Job) -> bool:
        """Whether a machine that lies was believed. `blame_is_confirmed` judges when the word of one machine counts."""
        rows = self.scene.store.rows.values()
        said = [a for a in rows if isinstance(a, Attempt) and a.job == job.id and a.failure is not None]
        return job.confirmation is not None and any(a.node in self.scene.faults.blamers for a in said)
