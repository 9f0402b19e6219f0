"""SPEC J8, A12: a checkpoint names its author and its ancestor. Once a machine delivered a false result, or exit codes
that others refuted brought it to the faults for which it is set aside, no job goes on from what it saved before, and no
attempt that grew from that can win. A result names only files that its attempt sent."""

from holdfast.kernel.decision import Decision, Row
from holdfast.kernel.events import AnyEvent
from holdfast.model import (
    Attempt,
    AttemptId,
    Checkpoint,
    FailureCode,
    Instant,
    Job,
    JobId,
    Node,
    NodeId,
    Verdict,
)
from holdfast.sim.watch import Rule, SceneView, View


class LiarsAreUndone(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._lied: dict[NodeId, Instant] = {}
        self._jobs: dict[JobId, Job] = {}
        """Those with a checkpoint."""
        self._attempts: dict[AttemptId, Attempt] = {}
        """Those that started from a checkpoint and may win, and those whose result may be accepted."""
        self._refuted: dict[JobId, tuple[NodeId, Instant]] = {}
        """Machines that are found out by the end of a job, once that is durable."""

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        for row in decision.changes:
            if isinstance(row, Job) and row.verdict is not None:
                self._refuted.pop(row.id, None)
                if row.verdict is Verdict.SUCCEEDED and (liar := self._found_out(row, decision, view)) is not None:
                    self._refuted[row.id] = liar, now

    def _found_out(self, job: Job, decision: Decision, view: View) -> NodeId | None:
        before = view.get(("job", job.id))
        pending = before.pending_verdict if isinstance(before, Job) else None
        if pending is None or pending.excused or pending.failure.code is not FailureCode.EXIT_CODE:
            return None
        rows = (*decision.changes, *view.values())
        winner = next((a.node for a in rows if isinstance(a, Attempt) and a.id == job.accepted), None)
        struck = next((n.strikes for n in rows if isinstance(n, Node) and n.id == pending.node), 0)
        enough = struck >= self.scene.settings.strikes_to_quarantine
        return pending.node if enough and winner != pending.node else None

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
                if row.verdict is Verdict.SUCCEEDED and row.id in self._refuted:
                    liar, found_ms = self._refuted.pop(row.id)
                    self._lied[liar] = found_ms
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
