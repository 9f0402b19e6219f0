"""SPEC J5: no result is accepted from a revoked attempt; an attempt is revoked at most once, for one reason."""

from holdfast.kernel.decision import Row
from holdfast.model import Attempt, AttemptId, Failure, Job
from holdfast.sim.watch import Rule, SceneView


class RevokedStaysOut(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._revoked: dict[AttemptId, Failure] = {}
        self._fences: dict[int, AttemptId] = {}

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
