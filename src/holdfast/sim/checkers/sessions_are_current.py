"""SPEC N1: only messages of a node's current session count. Another agent process takes over the node's identity only
after the current one was probed and gave no sign of life for `silence_floor_ms`."""

from holdfast.kernel.decision import CloseSession, Decision, ToSession
from holdfast.kernel.events import AnyEvent, Led, NodeBroke, NodeJoined, NodeSaid
from holdfast.model import Instant, NodeId
from holdfast.model.messages import Ping, Pong, Report, Welcome
from holdfast.sim.watch import Rule, SceneView, View, patience_of


class SessionsAreCurrent(Rule):
    every_decision = True

    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._present: dict[str, dict[NodeId, tuple[int, str]]] = {}
        """By leader and node: the session, and the agent process it belongs to."""
        self._asked: dict[tuple[str, NodeId], int] = {}
        """When probing of the current session began."""

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        present = self._present.setdefault(leader, {})
        match event:
            case Led():
                present.clear()
                self._asked = {key: at for key, at in self._asked.items() if key[0] != leader}
            case NodeSaid() | NodeBroke():
                self._said(leader, event, decision, present)
            case NodeJoined():
                self._joined(leader, event, decision, present, patience_of(now, decision, view))
            case _:
                pass
        for send in decision.sends:
            if isinstance(send, CloseSession):
                for node in [node for node, (session, _) in present.items() if session == send.session]:
                    del present[node]

    def _said(self, leader: str, event: NodeSaid | NodeBroke, decision: Decision, present: dict) -> None:
        session = present.get(event.node, (0, ""))[0]
        if session != event.session:
            if decision.changes or decision.sends:
                said = type(event.message).__name__ if isinstance(event, NodeSaid) else "its end"
                self.fail(f"{said} of session {event.session} of {event.node} counts; {session} is the present one")
        elif isinstance(event, NodeBroke):
            del present[event.node]
        elif isinstance(event.message, Report | Pong):
            self._asked.pop((leader, event.node), None)

    def _joined(self, leader: str, event: NodeJoined, decision: Decision, present: dict, patience: int) -> None:
        node, instance = event.hello.node, event.hello.instance
        told = {type(s.message) for s in decision.sends if isinstance(s, ToSession) and s.session == event.session}
        known = present.get(node)
        if Welcome not in told:
            pinged = any(
                isinstance(s, ToSession) and known is not None and s.session == known[0] and isinstance(s.message, Ping)
                for s in decision.sends
            )
            if pinged:
                self._asked.setdefault((leader, node), patience)
            return
        asked = self._asked.pop((leader, node), None)
        waited = asked is not None and patience - asked >= self.scene.settings.silence_floor_ms
        if known is not None and known[1] != instance and not waited:
            self.fail(f"{instance} took the identity of {known[1]}, which was asked for a sign of life at {asked}")
        present[node] = (event.session, instance)
