"""What happens once a batch is durable: its sends go to sessions and to the verifier, its rows to the views."""

from holdfast.kernel.commit import Batch
from holdfast.kernel.decision import CloseSession, Send, ToSession, Verify
from holdfast.orchestrator.bells import Bells
from holdfast.orchestrator.content import Content
from holdfast.orchestrator.fleet import Fleet
from holdfast.orchestrator.loop import Leader
from holdfast.orchestrator.sessions import Sessions
from holdfast.orchestrator.sweep import left_behind
from holdfast.orchestrator.verify import Verifier
from holdfast.state import Snapshot


class World:
    """The loop's `Outside`."""

    leader: Leader
    """Set right after both exist: they need each other."""

    def __init__(self, sessions: Sessions, fleet: Fleet, verifier: Verifier, bells: Bells, content: Content) -> None:
        self._sessions = sessions
        self._fleet = fleet
        self._verifier = verifier
        self._bells = bells
        self._content = content

    def rebuilt(self, snapshot: Snapshot) -> None:
        self._fleet.rebuilt(snapshot.attempts)
        self._content.led(self.leader.epoch, left_behind(snapshot))

    def committed(self, batch: Batch) -> None:
        self._fleet.committed(batch)

    def carry_out(self, send: Send) -> None:
        match send:
            case ToSession():
                self._sessions.tell(send)
            case CloseSession():
                self._sessions.close(send)
            case Verify():
                self._verifier.begin(send, self.leader)

    def leadership_ended(self, why: str) -> None:
        self._sessions.close_all(why)
        self._bells.ring_all()
