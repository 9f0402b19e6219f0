"""SPEC J5: no result is accepted from a revoked attempt; an attempt is revoked at most once, for one reason,
also within one decision."""

from holdfast.kernel.decision import Decision, Row
from holdfast.kernel.events import AnyEvent
from holdfast.model import Attempt, AttemptId, Failure, Instant, Job
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, SceneView, View


class RevokedStaysOut(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._revoked: dict[AttemptId, Failure] = {}
        self._fences: dict[int, AttemptId] = {}

    def restored(self) -> None:
        """What was revoked since the backup may win after all. But no fence is used for another attempt."""
        kept = [row for row in self.scene.store.rows.values() if isinstance(row, Attempt)]
        self._revoked = {row.id: row.revoked for row in kept if row.revoked is not None}

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        """Each version counts, and not only the last one, which becomes durable."""
        seen: dict[AttemptId, Attempt] = {}
        for row in decision.changes:
            if isinstance(row, Attempt):
                before = seen.get(row.id) or view.get(row_key(row))
                if isinstance(before, Attempt) and before.revoked is not None and row.revoked != before.revoked:
                    self.fail(f"{row.id} was revoked for {before.revoked.code}, now {row.revoked}")
                seen[row.id] = row

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for _, row in rows:
            if isinstance(row, Attempt):
                self._attempt(row)
        for _, row in rows:
            if isinstance(row, Job) and row.accepted is not None and row.accepted in self._revoked:
                self.fail(f"{row.id} accepted {row.accepted}, revoked before: {self._revoked[row.accepted].code}")

    def _attempt(self, attempt: Attempt) -> None:
        known = self._revoked.get(attempt.id)
        if known is not None and attempt.revoked != known:
            self.fail(f"{attempt.id} was revoked for {known.code}, now {attempt.revoked}")
        if attempt.revoked is not None:
            self._revoked[attempt.id] = attempt.revoked
        if self._fences.setdefault(attempt.fence, attempt.id) != attempt.id:
            self.fail(f"fence {attempt.fence} belongs to {self._fences[attempt.fence]} and to {attempt.id}")
