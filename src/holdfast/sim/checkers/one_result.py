"""SPEC J5: a job has at most one accepted result, and it equals the output of its program.

`accepted` is set once, names an attempt of that job, and never changes.
"""

from holdfast.kernel.decision import Row
from holdfast.model import Job, job_of
from holdfast.sim.watch import Rule


class OneResult(Rule):
    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for before, row in rows:
            if not isinstance(row, Job) or row.accepted is None:
                continue
            if isinstance(before, Job) and before.accepted not in (None, row.accepted):
                self.fail(f"{row.id} accepted {before.accepted}, then {row.accepted}")
            if job_of(row.accepted) != row.id:
                self.fail(f"{row.id} accepted {row.accepted}, which is no attempt of it")
            program = self.scene.plan.programs[row.id]
            result = row.result
            if result is None or (result.stdout_sha256, result.stdout_bytes) != (
                program.stdout_sha256,
                program.stdout_bytes,
            ):
                self.fail(f"{row.id} accepted {result}, which its program did not print")
