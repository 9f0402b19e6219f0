"""SPEC J8: a job without progress is tried a bounded number of times, and a job that felled several machines is not
tried again."""

from holdfast.kernel.contenders import TRIES_PER_FAILURE
from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.model import Attempt, Instant, Job, Meta, Purpose
from holdfast.sim.watch import Rule, View


class TriesBounded(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        before = view.get(("meta", 0))
        now = max(now, before.now_ms if isinstance(before, Meta) else Instant(0))
        jobs: View = {}
        for row in decision.changes:
            if isinstance(row, Attempt) and ("attempt", row.id) not in view and row.purpose is not Purpose.MOVE:
                job = jobs.get(("job", row.job)) or view.get(("job", row.job))
                if isinstance(job, Job):
                    self._may_try(job, row)
            elif isinstance(row, Job):
                job = jobs.get(("job", row.id)) or view.get(("job", row.id))
                if isinstance(job, Job) and row.tries < job.tries:
                    self._got_on(job, now, view)
                jobs["job", row.id] = row

    def _may_try(self, job: Job, attempt: Attempt) -> None:
        settings = self.scene.settings
        bound = settings.attempts_max if job.spec.attempts_max is None else job.spec.attempts_max
        if job.tries >= TRIES_PER_FAILURE * bound:
            self.fail(f"{attempt.id} is made after {job.tries} tries; {bound} failures are allowed")
        if job.failures >= bound:
            self.fail(f"{attempt.id} is made after {job.failures} failures; {bound} are allowed")
        if len(job.felled) >= settings.poison_nodes:
            self.fail(f"{attempt.id} is made after {job.id} felled {', '.join(job.felled)}")

    def _got_on(self, job: Job, now: Instant, view: View) -> None:
        """Tries are forgiven only if a body has run for long since the last of them."""
        attempts = [row for row in view.values() if isinstance(row, Attempt) and row.job == job.id]
        made = max(attempt.offered_ms for attempt in attempts)
        started = min((a.started_ms for a in attempts if a.started_ms is not None), default=now)
        if now - max(made, started) < self.scene.settings.lasting_ms:
            self.fail(f"{job.id} is forgiven {job.tries} tries, the last {now - made} ms ago")
