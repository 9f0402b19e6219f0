"""SPEC H2, J1: served time never runs back, and advances by no more than the time that really passed, however wall
clocks are set and however long nobody led. Lifetimes and retention are counted on it."""

from holdfast.kernel.decision import Row
from holdfast.model import Meta
from holdfast.sim.watch import Rule, SceneView

SLACK_MS = 60_000
"""Boot clocks drift, and a store that stalls writes late what was decided before."""


class ServedTime(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._first: tuple[int, int] | None = None
        """The first stored served time, and when that was."""

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for before, row in rows:
            if not isinstance(row, Meta):
                continue
            if isinstance(before, Meta) and row.now_ms < before.now_ms:
                self.fail(f"served time ran back from {before.now_ms} to {row.now_ms}")
            served_ms, since = self._first = self._first or (row.now_ms, self.scene.world.now)
            passed_ms = self.scene.world.now - since
            if row.now_ms - served_ms > passed_ms + SLACK_MS:
                self.fail(f"{row.now_ms - served_ms} ms were served in {passed_ms} ms")
