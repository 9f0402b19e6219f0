"""Carries out a batch once it is durable: its sends go to sessions and to the verifier, its rows to the views."""

from holdfast.kernel.commit import CommitBatch
from holdfast.kernel.decision import CloseSession, Inspect, Send, ToSession, Verify
from holdfast.model import AccessToken
from holdfast.orchestrator.access_directory import AccessDirectory
from holdfast.orchestrator.content.damage import Inspector
from holdfast.orchestrator.content.service import ContentService
from holdfast.orchestrator.content.sweep import left_behind
from holdfast.orchestrator.content.verify import Verifier
from holdfast.orchestrator.leader.loop import Leader
from holdfast.orchestrator.nodes.fleet import Fleet
from holdfast.orchestrator.nodes.sessions import Sessions
from holdfast.orchestrator.wakeups import Wakeups
from holdfast.state import Snapshot


class Effects:
    """The `LeaderEffects` of the leader's loop."""

    leader: Leader
    """Set right after both exist: they need each other."""

    def __init__(
        self,
        sessions: Sessions,
        fleet: Fleet,
        access: AccessDirectory,
        verifier: Verifier,
        inspector: Inspector,
        wakeups: Wakeups,
        content: ContentService,
    ) -> None:
        self._sessions = sessions
        self._fleet = fleet
        self._access = access
        self._verifier = verifier
        self._inspector = inspector
        self._wakeups = wakeups
        self._content = content

    def rebuilt(self, snapshot: Snapshot) -> None:
        self._fleet.rebuilt(snapshot.attempts)
        self._access.rebuilt(snapshot.of(AccessToken))
        self._content.led(self.leader.epoch, left_behind(snapshot))

    def committed(self, batch: CommitBatch) -> None:
        self._fleet.committed(batch)
        self._access.committed(batch)

    def carry_out(self, send: Send) -> None:
        match send:
            case ToSession():
                self._sessions.tell(send)
            case CloseSession():
                self._sessions.close(send)
            case Verify():
                self._verifier.begin(send, self.leader)
            case Inspect():
                self._inspector.begin(send, self.leader)

    def leadership_ended(self, why: str) -> None:
        self._access.leadership_ended()
        self._sessions.close_all(why)
        self._wakeups.wake_all()
