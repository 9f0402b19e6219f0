"""SPEC J14, H3: no node gets a strike for an attempt from before a restored backup, if nothing was wrong there. What
happened to such an attempt since the backup was made is not known: it may have started, ended, sent its output and been
discarded, all of it by order of a leader whose state is lost."""

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent, NodeJoined, NodeSaid
from holdfast.model import Attempt, Entry, Instant, Meta
from holdfast.model.messages import Report
from holdfast.sim.watch import Rule, View


class RestoredBlamesNobody(Rule):
    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        struck = {row.node for row in decision.changes if isinstance(row, Entry) and row.kind == "node.strike"}
        meta = view.get(("meta", 0))
        if not struck or not isinstance(meta, Meta):
            return
        for row in decision.changes:
            if isinstance(row, Attempt) and row.node in struck and row.fence <= meta.restored_fence:
                faults = self.scene.faults
                failure = row.failure or row.revoked
                if failure is None or _own_word(event, row) or row.node in faults.blamers:
                    continue
                if not faults.troubled(row.node):
                    self.fail(f"{row.node} is blamed for {row.id}, which was made before the backup: {failure}")


def _own_word(event: AnyEvent, attempt: Attempt) -> bool:
    """Whether its node itself says that it failed there, such as after a loss of power."""
    if isinstance(event, NodeJoined):
        held = event.hello.held
    elif isinstance(event, NodeSaid) and isinstance(event.message, Report):
        held = event.message.held
    else:
        return False
    return any(item.attempt == attempt.id and item.failure is not None for item in held)
