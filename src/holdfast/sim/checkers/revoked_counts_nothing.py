"""SPEC J5: once an attempt is revoked, nothing it does counts: its row can only end, it saves no checkpoint, it is
never commanded to start, to go or to save, and nothing it delivered is verified."""

from msgspec.structs import replace

from holdfast.kernel.decision import Decision, Rejected, ToSession, Verify
from holdfast.kernel.events import AnyEvent, Checkpointed
from holdfast.model import Attempt, AttemptId, Instant, Job
from holdfast.model.messages import Discard, Go, Save, Start
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, View


class RevokedCountsNothing(Rule):
    every_decision = True

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        if isinstance(event, Checkpointed) and not isinstance(decision.answer, Rejected):
            saver = view.get(("attempt", event.attempt))
            if not isinstance(saver, Attempt) or not saver.may_win or saver.fence != event.fence:
                self.fail(f"a checkpoint of {event.attempt} was taken: {saver}")
        rows: View = {}
        for row in decision.changes:
            before = rows.get(row_key(row)) or view.get(row_key(row))
            if isinstance(row, Attempt) and isinstance(before, Attempt) and before.revoked is not None:
                self._only_ends(before, row)
            if isinstance(row, Job) and row.checkpoint is not None:
                known = before.checkpoint if isinstance(before, Job) else None
                saver = row.checkpoint.attempt
                doubted = isinstance(before, Job) and row.pending_verdict != before.pending_verdict
                # What a doubted or dishonest attempt saved is dropped, and the job goes back to an ancestor of it.
                back = doubted or (known is not None and row.checkpoint in known.line)
                if not back and self._revoked(saver, rows, view):
                    self.fail(f"{row.id} goes on from what {saver} saved, which was revoked")
            rows[row_key(row)] = row
        for send in decision.sends:
            self._sent(send, view)

    def _only_ends(self, before: Attempt, row: Attempt) -> None:
        ended = replace(
            before, phase=row.phase, phase_until_ms=row.phase_until_ms, failure=row.failure, ended_ms=row.ended_ms
        )
        if row != ended or (row.live and row.phase is not before.phase):
            self.fail(f"{row.id} was revoked and went on: {before} became {row}")

    def _revoked(self, attempt: AttemptId, rows: View, view: View) -> bool:
        row = rows.get(("attempt", attempt)) or view.get(("attempt", attempt))
        return isinstance(row, Attempt) and row.revoked is not None

    def _sent(self, send: object, view: View) -> None:
        match send:
            case ToSession(message=Start(attempt=attempt) | Go(attempt=attempt) | Save(attempt=attempt)):
                pass
            case ToSession(message=Discard(attempt=attempt, accepted=True)) | Verify(attempt=attempt):
                pass
            case _:
                return
        if self._revoked(attempt, {}, view):
            self.fail(f"{attempt} was revoked before, and {send} is sent for it")
