"""SPEC H4, J14: the stored journal has no gap and no duplicate, its times never decrease, and the orchestrator's
counter equals the number of the last entry. Only a restored store skips numbers."""

from holdfast.kernel.decision import Row
from holdfast.model import Entry, Meta
from holdfast.sim.watch import Rule, SceneView


class JournalUnbroken(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._seq = 0
        self._at_ms = 0

    def journaled(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.seq <= self._seq or (entry.seq != self._seq + 1 and not self.scene.store.skipped):
                self.fail(f"line {entry.seq} of the journal follows line {self._seq}: {entry.kind}")
            if entry.at_ms < self._at_ms:
                self.fail(
                    f"line {entry.seq} of the journal is {self._at_ms - entry.at_ms} ms older than the one before"
                )
            if not entry.text:
                self.fail(f"line {entry.seq} of the journal says nothing: {entry.kind}")
            self._seq, self._at_ms, self.scene.store.skipped = entry.seq, entry.at_ms, False

    def restored(self) -> None:
        last = self.scene.store.journal[-1][1] if self.scene.store.journal else None
        self._at_ms = last.at_ms if last is not None else 0

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for _, row in rows:
            if isinstance(row, Meta) and row.entry_seq != self._seq and not self.scene.store.skipped:
                self.fail(f"the orchestrator counts {row.entry_seq} lines; the journal's last is {self._seq}")
