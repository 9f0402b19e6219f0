"""SPEC H3: a node that comes back is put on probation or serves the rest of its quarantine; only a node that left
properly with a clean record is ready at once. An attempt that it should hold but does not report has ended; an attempt
that it reports but should not hold is discarded."""

from holdfast.kernel.decision import Decision, ToSession
from holdfast.kernel.events import AnyEvent, NodeJoined
from holdfast.model import Attempt, AttemptPhase, Entry, Instant, Node, NodeId, NodeState
from holdfast.model.messages import Discard, HeldPhase, Welcome
from holdfast.sim.watch import Rule, View, patience_of

AWAY = (NodeState.SUSPECT, NodeState.LOST, NodeState.GONE)


class RejoiningIsJudged(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        if not isinstance(event, NodeJoined):
            return
        messages = [s.message for s in decision.sends if isinstance(s, ToSession) and s.session == event.session]
        before = view.get(("node", event.hello.node))
        if not any(isinstance(m, Welcome) for m in messages) or not isinstance(before, Node):
            return
        after = next((r for r in decision.changes if isinstance(r, Node) and r.id == before.id), before)
        want = self._standing(before, patience_of(now, decision, view), view)
        # What it came back without may be one fault too many.
        struck = any(isinstance(r, Entry) and r.kind == "node.strike" and r.node == before.id for r in decision.changes)
        if after.state is not want and not (struck and after.state is NodeState.QUARANTINED):
            self.fail(f"{before.id} was {before.state} with {before.strikes} strikes and came back {after.state}")
        if before.state in AWAY and (after.public_key, after.strikes) != (before.public_key, before.strikes):
            self.fail(f"{before.id} came back with another key, or {after.strikes} strikes for {before.strikes}")
        self._what_it_held(event, decision, view)
        self._what_it_should_not(event, view, {m.attempt for m in messages if isinstance(m, Discard)})

    def _standing(self, before: Node, patience: int, view: View) -> NodeState:
        if before.state not in AWAY:
            return before.state
        if before.quarantined_until_ms > patience and not self._too_thin(view):
            return NodeState.QUARANTINED
        clean = before.state is NodeState.GONE and not before.strikes
        return NodeState.READY if clean else NodeState.PROBATION

    def _too_thin(self, view: View) -> bool:
        states = [row.state for row in view.values() if isinstance(row, Node)]
        aside = states.count(NodeState.QUARANTINED)
        present = aside + states.count(NodeState.READY) + states.count(NodeState.PROBATION)
        return (aside + 1) * 1000 > present * self.scene.settings.quarantine_share_max_permille

    def _what_it_held(self, event: NodeJoined, decision: Decision, view: View) -> None:
        named = {item.attempt for item in event.hello.held}
        last = {row.id: row for row in decision.changes if isinstance(row, Attempt)}
        for row in _held(event.hello.node, view):
            offered = row.phase is AttemptPhase.OFFERED and row.revoked is None
            if row.id not in named and not offered and last.get(row.id, row).live:
                self.fail(f"{row.node} came back without {row.id}, which still counts as {row.phase}")

    def _what_it_should_not(self, event: NodeJoined, view: View, discarded: set[str]) -> None:
        wanted = {(row.id, row.fence) for row in _held(event.hello.node, view) if row.revoked is None}
        for item in event.hello.held:
            gone = item.phase in (HeldPhase.GONE, HeldPhase.REFUSED)
            if (item.attempt, item.fence) not in wanted and not gone and item.attempt not in discarded:
                self.fail(f"{event.hello.node} came back with {item.attempt}, and is not told to discard it")


def _held(node: NodeId, view: View) -> list[Attempt]:
    return [row for row in view.values() if isinstance(row, Attempt) and row.live and row.node == node]
