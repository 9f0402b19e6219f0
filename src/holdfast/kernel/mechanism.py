"""What a mechanism may answer to: the base of everything in the list of `kernel.lifecycle`. Decides nothing.

A mechanism overrides what concerns it and leaves the rest. It keeps its own state: what follows from rows it keeps in
step by `job_changed`, which a rebuild calls as well; anything else is ephemeral, as in `kernel.world`.
"""

from typing import TYPE_CHECKING

from holdfast.model import Attempt, Facts, Failure, Gate, Job, Node, NodeId
from holdfast.model.messages import Progress

if TYPE_CHECKING:
    from holdfast.kernel.world import World


class Mechanism:
    # --- an attempt ---

    def offered(self, w: "World", job: Job) -> Job:
        """An attempt is given to a node. Returns the job as it is written now."""
        return job

    def body_started(self, w: "World", attempt: Attempt, first: bool) -> None:
        """Its body was seen running, or to have run. `first`: nobody knew of it before."""

    def progressed(self, w: "World", attempt: Attempt, progress: Progress | None) -> None:
        """Its node says that the body runs, and how far it is if it knows."""

    def checkpointed(self, w: "World", attempt: Attempt, manifest: str) -> None:
        """What it saved is kept."""

    def reconnected(self, w: "World", attempt: Attempt) -> None:
        """Its node began a new session. What the attempt did meanwhile is not known yet."""

    def away(self, w: "World", attempt: Attempt, why: Facts) -> bool:
        """Its node cannot be relied on; the attempt may return. True: it is dealt with, and nothing else is done."""
        return False

    def returned(self, w: "World", attempt: Attempt) -> None:
        """Its node was away, is back, and still has it."""

    def lost(self, w: "World", job: Job, attempt: Attempt, failure: Failure) -> Job:
        """It failed, or was given up. Returns the job as it is written now."""
        return job

    def accepted(self, w: "World", job: Job, attempt: Attempt) -> None:
        """Its result is the job's result. The attempt is not closed yet."""

    def closed(self, attempt: Attempt) -> None:
        """It is over, and what is remembered of it is dropped. Called for the row, so nothing may be decided."""

    # --- a job ---

    def due(self, w: "World", job: Job) -> None:
        """A deadline of the job was reached."""

    def ending(self, w: "World", job: Job) -> Job:
        """The job ends. Returns the job as it is written now."""
        return job

    def ended(self, w: "World", job: Job) -> None:
        """The row of the ended job is written."""

    def job_changed(self, w: "World", before: Job | None, job: Job) -> None:
        """A row of a job is written or loaded: views are brought into step. Nothing may be decided."""

    # --- a node ---

    def gate(self, w: "World", node: Node, to: str | None) -> Gate | None:
        """Why a node in service takes no work now; None: it does. `to`: for this job."""
        return None

    def node_lost(self, w: "World", node: NodeId) -> None:
        """The node will not come back; what it held is written off next."""

    # --- all of it ---

    def digest(self) -> object:
        """What follows from rows and is kept here, in a fixed order: a rebuild must give the same."""
        return None
