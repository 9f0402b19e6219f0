"""SPEC A12, J7: no machine's word alone ends a job by its owner's fault, unless the machine has a record, the job may
not be repeated, or no other machine could take it. Such an end always says which of these it was."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.model import (
    Attempt,
    Blame,
    Confirmation,
    FailureCode,
    Instant,
    Job,
    Node,
    NodeId,
    NodeRecord,
    NodeState,
    Recovery,
    Verdict,
)
from holdfast.sim.watch import Rule, SceneView, View

DECIDED_HERE = (FailureCode.CANCELLED, FailureCode.NO_FIT, FailureCode.POISON)
"""Failures with the owner's blame that no machine reports."""


class BlameIsConfirmed(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._stopped = {job.id for job in scene.plan.jobs if job.stop_at is not None}

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        for row in decision.changes:
            if isinstance(row, Job) and row.verdict is Verdict.FAILED and row.failure is not None:
                blamed = row.failure.meaning.blame is Blame.USER and row.failure.code not in DECIDED_HERE
                if blamed:
                    self._judge(row, decision, view)
                elif row.confirmation is not None:
                    self.fail(f"{row.id} ended as {row.failure.code} and is {row.confirmation}")

    def _judge(self, job: Job, decision: Decision, view: View) -> None:
        said = next(
            (a.node for a in decision.changes if isinstance(a, Attempt) and a.job == job.id and self._blames(a)), None
        )
        before = view.get(("job", job.id))
        doubted = before.pending_verdict.node if isinstance(before, Job) and before.pending_verdict else None
        match job.confirmation:
            case None:
                self.fail(f"{job.id} ended by its owner's fault as {said} says, and nobody knows why that counts")
            case Confirmation.CONFIRMED:
                if doubted is None or said is None or said == doubted:
                    self.fail(f"{job.id} is confirmed by {said}; {doubted} said so before")
                for attempt in decision.changes:
                    if isinstance(attempt, Attempt) and attempt.job == job.id and self._blames(attempt):
                        self._is_independent(attempt, doubted)
            case Confirmation.TAKEN:
                if doubted is None or job.id not in self._stopped:
                    self.fail(f"nobody took the verdict on {job.id}")
            case Confirmation.RECORD:
                self._has_record(job, said, decision, view)
            case Confirmation.UNCONFIRMED:
                once = job.spec.recovery is Recovery.NEVER or job.spec.attempts_max == 1 or self._spent(before)
                others = self._others(job, said or doubted, decision, view)
                if not once and others:
                    self.fail(f"{job.id} ended unconfirmed as {said or doubted} says, though {others} could be asked")

    def _is_independent(self, attempt: Attempt, doubted: NodeId | None) -> None:
        if attempt.resumed is not None and attempt.resumed.node == doubted:
            self.fail(f"{attempt.id} confirms what {doubted} said, and started from what {doubted} saved")

    def _spent(self, job: object) -> bool:
        """Whether the job had all its attempts: none is left to confirm anything."""
        if not isinstance(job, Job):
            return False
        most = job.spec.attempts_max or self.scene.settings.attempts_max
        return job.failures >= most or job.tries >= 4 * most or job.attempts_made >= 1_000

    @staticmethod
    def _blames(attempt: Attempt) -> bool:
        failure = attempt.failure or attempt.revoked
        return failure is not None and failure.meaning.blame is Blame.USER

    def _others(self, job: Job, said: NodeId | None, decision: Decision, view: View) -> list[NodeId]:
        """Other machines that are in service and large enough."""
        rows = {**view, **{("node", r.id): r for r in decision.changes if isinstance(r, Node)}}
        need = job.spec.need
        return [
            node.id for node in rows.values()
            if isinstance(node, Node) and node.id != said and not node.draining
            and node.state in (NodeState.READY, NodeState.PROBATION)
            and need.resources.fits_in(node.offered)
            and need.arch in ("", node.hardware.arch) and set(need.features) <= set(node.features)
        ]  # fmt: skip

    def _has_record(self, job: Job, said: NodeId | None, decision: Decision, view: View) -> None:
        records = {row.id: row.ends for row in view.values() if isinstance(row, NodeRecord)}
        records.update({row.id: row.ends for row in decision.changes if isinstance(row, NodeRecord)})
        settings = self.scene.settings
        own = records.get(said, "") if said is not None else ""
        others = "".join(ends for id, ends in records.items() if id != said)
        few = min(len(own), len(others)) < settings.record_ends_min
        often = own.count("u") * len(others) > settings.record_share_factor * others.count("u") * len(own)
        if few or often:
            self.fail(f"{job.id} ended by the word of {said}, whose record is {own!r}; others: {others!r}")
