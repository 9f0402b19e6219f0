"""SPEC J8: a job is tried a bounded number of times, and one that felled several machines is not tried again."""

from holdfast.kernel.contenders import ATTEMPTS_PER_FAILURE
from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.model import Attempt, Instant, Job
from holdfast.sim.watch import Rule, View


class TriesBounded(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        for row in decision.changes:
            if isinstance(row, Attempt) and ("attempt", row.id) not in view:
                job = view.get(("job", row.job))
                if isinstance(job, Job):
                    self._may_try(job, row)

    def _may_try(self, job: Job, attempt: Attempt) -> None:
        settings = self.scene.settings
        bound = settings.attempts_max if job.spec.attempts_max is None else job.spec.attempts_max
        if job.attempts_made >= ATTEMPTS_PER_FAILURE * bound:
            self.fail(f"{attempt.id} is made after {job.attempts_made} others; {bound} failures are allowed")
        if job.failures >= bound:
            self.fail(f"{attempt.id} is made after {job.failures} failures; {bound} are allowed")
        if len(job.felled) >= settings.poison_nodes:
            self.fail(f"{attempt.id} is made after {job.id} felled {', '.join(job.felled)}")
