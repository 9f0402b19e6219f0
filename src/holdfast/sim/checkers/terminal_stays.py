"""SPEC J7: the terminal state of a job or an attempt never changes, also within one decision."""

from holdfast.kernel.decision import Decision, Row
from holdfast.kernel.events import AnyEvent
from holdfast.model import Attempt, Instant, Job
from holdfast.model.rows import row_key
from holdfast.sim.watch import Rule, View


class TerminalStays(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        ended: View = {}
        for row in decision.changes:
            if isinstance(row, Job | Attempt):
                before = ended.get(row_key(row)) or view.get(row_key(row))
                self._stays(before, row)
                if not row.live:
                    ended[row_key(row)] = row

    def _stays(self, before: Row | None, row: Row) -> None:
        if isinstance(before, Job | Attempt) and not before.live and before != row:
            self.fail(f"{before.id} had ended and was changed: {before} became {row}")

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for before, row in rows:
            self._stays(before, row)
