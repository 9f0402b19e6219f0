"""SPEC H6: every state has a deadline within the limits of the settings and the job, and no deadline passes without an
action.

A leader that was away gives nodes time to dial in before it judges the attempts they hold. For attempts that much may
be added, once for each time that it begins to lead. Queued jobs and states of nodes wait for no dial-in.
"""

from holdfast.kernel.decision import Decision, Row
from holdfast.kernel.events import AnyEvent, Led, Tick
from holdfast.model import Attempt, AttemptPhase, Instant, Job, JobPhase, Meta, Node, NodeState
from holdfast.sim.watch import Rule, SceneView, View

SLACK_MS = 3_000
"""The allowed delay between a deadline and the action: one pulse, one commit, and one message to the node."""
EVERY = 20
"""Scanning all rows costs as much as many events."""
BOUNDED = (NodeState.SUSPECT, NodeState.QUARANTINED, NodeState.PROBATION)


class EveryStateBounded(Rule):
    every_decision = True

    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._ticks = 0
        self._slack_ms = SLACK_MS + scene.settings.reconnect_grace_ms
        self._overdue: dict[tuple[str, str], int] = {}
        """When each row was first seen past its deadline, on the patience clock."""

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        meta = next((row for row in decision.changes if isinstance(row, Meta)), None) or view.get(("meta", 0))
        if not isinstance(meta, Meta):
            return
        if isinstance(event, Led):
            self._overdue = {
                (whose, id): since
                for (whose, id), since in self._overdue.items()
                if whose != leader or ("attempt", id) not in view
            }
        patience = max(now, meta.now_ms) - meta.late_ms
        for row in decision.changes:
            self._has_bound(row, patience)
        if isinstance(event, Tick):
            self._ticks += 1
            if self._ticks % EVERY == 0 and not decision.changes:
                for row in list(view.values()):
                    self._not_overdue(leader, row, patience, view)

    def _has_bound(self, row: Row, patience: int) -> None:
        settings = self.scene.settings
        match row:
            case Job(phase=JobPhase.QUEUED):
                limit = settings.queue_ms_max if row.spec.queue_limit_ms is None else row.spec.queue_limit_ms
                if row.attempts_made:
                    limit = settings.backoff_ms_max + max(limit, settings.offer_ms_max)
                self._within(row.id, row.queue_until_ms - patience, limit, row.queue_until_ms)
            case Attempt(revoked=None) if row.live:
                run_ms = self._time_limit(row) or settings.run_ms_max
                limit = {
                    AttemptPhase.OFFERED: settings.offer_ms_max,
                    AttemptPhase.PREPARING: settings.prepare_ms_max,
                    AttemptPhase.READY: settings.prepare_ms_max,
                    AttemptPhase.RUNNING: run_ms + settings.run_slack_ms,
                    AttemptPhase.UPLOADING: settings.upload_ms_max,
                }[row.phase]
                self._within(row.id, row.phase_until_ms - patience, limit, row.phase_until_ms)
            case Node() if row.state in BOUNDED:
                limit = max(settings.suspect_ms_max, settings.quarantine_ms_max, settings.probation_ms)
                self._within(row.id, row.state_until_ms - patience, limit, row.state_until_ms)
            case _:
                pass

    def _within(self, what: str, left_ms: int, limit_ms: int, until_ms: int) -> None:
        if until_ms <= 0:
            self.fail(f"{what} is in a state without a deadline")
        # Lateness counts only once it exceeds the tolerance, but then in full, which moves a deadline by as much.
        if left_ms > limit_ms + self.scene.settings.late_tolerance_ms:
            self.fail(f"{what} is in a state for another {left_ms} ms, its limit is {limit_ms} ms")

    def _time_limit(self, attempt: Attempt) -> int | None:
        return next(job.spec.time_limit_ms for job in self.scene.plan.jobs if job.id == attempt.job)

    def _not_overdue(self, leader: str, row: Row, patience: int, view: View) -> None:
        match row:
            case Job(phase=JobPhase.QUEUED):
                until_ms = row.queue_until_ms
            case Attempt(revoked=None) if row.live and self._at_work(view.get(("node", row.node))):
                until_ms = row.phase_until_ms
            case Node() if row.state in BOUNDED:
                until_ms = row.state_until_ms
            case Job() | Attempt() | Node():
                self._overdue.pop((leader, row.id), None)
                return
            case _:
                return
        if until_ms > patience:
            self._overdue.pop((leader, row.id), None)
        elif patience - self._overdue.setdefault((leader, row.id), patience) > self._slack_ms:
            self.fail(f"the deadline of {row.id} passed {patience - until_ms} ms ago and nothing happened")

    def _at_work(self, node: Row | None) -> bool:
        """An attempt is not judged while its machine is away, so it is overdue only after the machine's return."""
        return isinstance(node, Node) and node.state in (NodeState.READY, NodeState.PROBATION)
