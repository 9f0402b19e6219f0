"""SPEC J5, H2: while a job is live, a leader decides nothing if it has not read its clock for longer than it promises.
Each reading is a tick, or is reported as lateness by one; ticks keep the recorded time current."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent, Led, Submitted, Tick
from holdfast.model import Instant, Job
from holdfast.orchestrator.leader.core import pulse_ms_of
from holdfast.sim.watch import Rule, SceneView, View


class LeaderTicks(Rule):
    every_decision = True

    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        tolerance_ms = scene.settings.late_tolerance_ms
        self._gap_ms_max = 2 * pulse_ms_of(tolerance_ms) + tolerance_ms
        """The lateness tolerance, plus the pulse that detects it."""
        self._ticked: dict[str, int] = {}
        """By leader: its last tick, in kernel time."""

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        if isinstance(event, Tick | Led) or (isinstance(event, Submitted) and not _lives(view)):
            self._ticked[leader] = now  # no ticks are due before the first job
        elif now - self._ticked[leader] > self._gap_ms_max and _lives(view):
            self.fail(f"{leader} decided {type(event).__name__} {now - self._ticked[leader]} ms after it ticked")


def _lives(view: View) -> bool:
    return any(isinstance(row, Job) and row.live for row in view.values())
