"""SPEC J7: the terminal state of a job or an attempt never changes."""

from holdfast.kernel.decision import Row
from holdfast.model import Attempt, Job
from holdfast.sim.watch import Rule


class TerminalStays(Rule):
    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for before, row in rows:
            if isinstance(before, Job | Attempt) and not before.live and before != row:
                self.fail(f"{before.id} had ended and was changed: {before} became {row}")
