"""SPEC H3: a node that reports itself sick is taken out of service at once, until it reports itself well."""

from holdfast.kernel.decision import CloseSession, Decision, ToSession
from holdfast.kernel.events import AnyEvent, Led, NodeJoined, NodeSaid
from holdfast.model import Instant, Node, NodeId, NodeState
from holdfast.model.messages import Report, Welcome
from holdfast.sim.watch import Rule, SceneView, View

AT_WORK = (NodeState.READY, NodeState.PROBATION)


class SickStaysOut(Rule):
    every_decision = True

    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._sessions: dict[tuple[str, NodeId], tuple[int, int]] = {}
        """By leader and node: the current session, and the last report that counted."""
        self._sick: dict[tuple[str, NodeId], str] = {}

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        match event:
            case NodeSaid(message=Report() as report):
                self._reported(leader, event, report)
            case NodeJoined() if _welcomed(event, decision):
                self._sessions[leader, event.hello.node] = (event.session, 0)
                self._sick.pop((leader, event.hello.node), None)
            case Led():
                for known in (self._sessions, self._sick):
                    for key in [key for key in known if key[0] == leader]:
                        del known[key]
            case _:
                pass
        self._hung_up(leader, decision)
        if not self._sick:
            return
        changed = {row.id: row for row in decision.changes if isinstance(row, Node)}
        for whose, node_id in self._sick:
            if whose == leader and (node_id in changed or isinstance(event, NodeSaid)):
                node = changed.get(node_id) or view.get(("node", node_id))
                if isinstance(node, Node) and node.state in AT_WORK:
                    self.fail(f"{node_id} is {node.state} ({node.cause}) and said last: {self._sick[whose, node_id]}")

    def _hung_up(self, leader: str, decision: Decision) -> None:
        """What still arrives over a session that the leader has closed does not count. What was reported before does,
        until the node is welcomed again."""
        closed = {send.session for send in decision.sends if isinstance(send, CloseSession)}
        for key in [key for key, (session, _) in self._sessions.items() if key[0] == leader and session in closed]:
            del self._sessions[key]

    def _reported(self, leader: str, event: NodeSaid, report: Report) -> None:
        key = (leader, event.node)
        session, seq = self._sessions.get(key, (0, 0))
        if session != event.session or report.seq <= seq:
            return
        self._sessions[key] = (session, report.seq)
        if report.load is not None:
            self._sick.pop(key, None)
            if report.load.sick:
                self._sick[key] = report.load.sick


def _welcomed(event: NodeJoined, decision: Decision) -> bool:
    return any(
        isinstance(send, ToSession) and send.session == event.session and isinstance(send.message, Welcome)
        for send in decision.sends
    )
