"""SPEC H6: once all faults are healed, every request is answered and every job ends within the stated bound."""

from holdfast.model import Attempt, Job
from holdfast.sim.watch import Rule


class SettledInTime(Rule):
    def finished(self) -> None:
        rows = self.scene.store.rows.values()
        if not self.scene.people.satisfied:
            self.fail("a request was never answered")
        for row in rows:
            if isinstance(row, Job) and row.live:
                tries = [
                    f"{a.id} on {a.node}: {a.phase}"
                    for a in rows
                    if isinstance(a, Attempt) and a.job == row.id and a.live
                ]
                self.fail(
                    f"{row.id} is still {row.phase} {self.scene.plan.bound_ms} ms after healing, "
                    f"waiting for {row.waiting or 'nothing'}; {'; '.join(tries) or 'no attempt'}"
                )
