"""SPEC J8: the body of a job of class `never` starts only after a durable go, and a lease is renewed only for an
attempt that can still win."""

from holdfast.kernel.decision import Decision, Row, ToSession
from holdfast.kernel.events import AnyEvent
from holdfast.model import Attempt, AttemptId, AttemptPhase, Instant, JobId, NodeId, Recovery
from holdfast.model.messages import Renewed
from holdfast.sim.watch import Rule, SceneView, View

STARTED = (AttemptPhase.RUNNING, AttemptPhase.UPLOADING)


class NeverNeedsGo(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._never = {job.id for job in scene.plan.jobs if job.spec.recovery is Recovery.NEVER}
        self._given: set[AttemptId] = set()
        """Attempts whose go was durable, perhaps in a store that was lost since."""

    def body_started(self, node: NodeId, attempt: AttemptId, job: JobId) -> None:
        if job in self._never and attempt not in self._given:
            self.fail(f"the body of {attempt} started on {node} without a durable go")

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for _, row in rows:
            if isinstance(row, Attempt) and row.go:
                self._given.add(row.id)
            if isinstance(row, Attempt) and row.job in self._never and row.phase in STARTED and not row.go:
                self.fail(f"{row.id} counts as {row.phase} and never got a go")

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        for send in decision.sends:
            if isinstance(send, ToSession) and isinstance(send.message, Renewed):
                changed = {row.id: row for row in decision.changes if isinstance(row, Attempt)}
                for attempt in send.message.attempts:
                    row = changed.get(attempt) or view.get(("attempt", attempt))
                    if not isinstance(row, Attempt) or not row.go or not row.may_win:
                        self.fail(f"the lease of {attempt} is renewed, which cannot win any more")
