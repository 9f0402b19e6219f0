"""SPEC H5: a check predicts exactly what happens if the job is submitted at the same moment, and a check changes
nothing."""

from holdfast.kernel.decision import Checked, Decision, Rejected, Taken
from holdfast.kernel.events import AnyEvent, Submitted
from holdfast.model import Attempt, Instant
from holdfast.sim.watch import Rule, SceneView, View


class CheckPredicts(Rule):
    every_decision = True

    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._said: Checked | None = None

    def checked(self, decision: Decision) -> None:
        if decision.changes or decision.sends or not isinstance(decision.answer, Checked):
            self.fail(f"a check was answered with {decision}")
        else:
            self._said = decision.answer

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        said, self._said = self._said, None
        answer = decision.answer
        if said is None or not isinstance(event, Submitted) or (isinstance(answer, Taken) and answer.again):
            return
        nodes = [row.node for row in decision.changes if isinstance(row, Attempt) and row.job == event.job]
        match said.verdict:
            case "now":
                kept = isinstance(answer, Taken) and nodes == [said.node]
            case "waits":
                kept = isinstance(answer, Taken) and not nodes
            case _:
                kept = isinstance(answer, Rejected) and answer.code == said.code
        if not kept:
            self.fail(f"{event.job} was predicted {said.verdict} {said.node or said.code}: it got {answer} and {nodes}")
