"""SPEC J13: neither one owner nor all owners together have more live jobs than the settings allow; and no job is
refused for that reason below the limits."""

from collections import Counter

from holdfast.kernel.decision import Decision, Rejected
from holdfast.kernel.events import AnyEvent, Submitted
from holdfast.model import Instant, Job
from holdfast.sim.watch import Rule, View


class QueuesBounded(Rule):
    every_decision = True

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        if not isinstance(event, Submitted):
            return
        settings = self.scene.settings
        of = Counter(row.owner for row in view.values() if isinstance(row, Job) and row.live)
        full = of[event.owner] >= settings.owner_live_jobs_max or of.total() >= settings.live_jobs_max
        known = ("job", event.job) in view
        refused = isinstance(decision.answer, Rejected) and decision.answer.code in ("owner_limit", "network_full")
        if refused != (full and not known):
            self.fail(f"{event.owner} has {of[event.owner]} live jobs of {of.total()}: {decision.answer}")
