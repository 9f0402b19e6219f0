"""The state that a node core keeps for one attempt. A record; the rules are in core.py."""

import msgspec

from holdfast.model import AttemptId, Failure, Instant, Resources, Result, after
from holdfast.model.messages import Held, HeldPhase, Progress
from holdfast.policy.lease import node_part_ms

_ORDER = (HeldPhase.PREPARING, HeldPhase.READY, HeldPhase.RUNNING, HeldPhase.UPLOADING, HeldPhase.FINISHED)

_MOVING = (HeldPhase.PREPARING, HeldPhase.RUNNING, HeldPhase.UPLOADING)


class HeldAttempt(msgspec.Struct):
    attempt: AttemptId
    fence: int
    need: Resources
    lease_ms: int = 0
    gpu_ids: tuple[str, ...] = ()
    phase: HeldPhase = HeldPhase.PREPARING
    alive: bool = True
    """The shim, and with it a body, may be alive: it was spawned, and its end was not reported."""
    progress: Progress | None = None
    verdict: Result | Failure | None = None
    """Known when the body has ended; reported when the logs are delivered."""
    granted: bool = False
    """Leased: the orchestrator allowed the body to start."""
    went: bool = False
    """Leased: the shim was told to go."""
    lease_until: Instant = Instant(0)
    unwanted: str = ""
    """Why it was discarded; empty while it is wanted."""
    has_folder: bool = False
    """There may be a folder of it on the disk."""
    removing: bool = False
    nudged: Instant = Instant(0)
    """When go or stop was last sent to the shim; it is repeated until it takes effect."""

    @property
    def leased(self) -> bool:
        return self.lease_ms > 0

    @property
    def occupies(self) -> bool:
        """Its body uses resources. An ended attempt uses none."""
        return self.alive

    @property
    def renews(self) -> bool:
        return self.leased and self.granted and self.alive and not self.unwanted

    def lease_from(self, said: Instant) -> Instant:
        """When the body must be dead, if the lease counts from the report sent at `said`."""
        return after(said, node_part_ms(self.lease_ms))

    def advance(self, phase: HeldPhase) -> bool:
        """Go to a later phase. A phase never goes back: a late status changes nothing, and a refusal is final."""
        if self.phase not in _ORDER or _ORDER.index(phase) <= _ORDER.index(self.phase):
            return False
        self.phase = phase
        return True

    def held(self) -> Held:
        told = self.verdict if self.phase in (HeldPhase.FINISHED, HeldPhase.REFUSED) else None
        progress = self.progress if self.phase in _MOVING else None
        if isinstance(told, Failure):
            return Held(self.attempt, self.fence, self.phase, failure=told, progress=progress)
        return Held(self.attempt, self.fence, self.phase, result=told, progress=progress)
