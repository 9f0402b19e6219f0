"""The base class of the mechanisms in `kernel.lifecycle`: the methods that it calls. Decides nothing.

A mechanism overrides the methods that concern it. It keeps its own state: it updates what is derived from rows in
`job_changed`, which a rebuild calls as well; the rest is ephemeral, as in `kernel.world`.
"""

from typing import TYPE_CHECKING

from holdfast.model import Attempt, Facts, Failure, Gate, Job, Node, NodeId
from holdfast.model.messages import Progress

if TYPE_CHECKING:
    from holdfast.kernel.world import World


class Mechanism:
    # --- an attempt ---

    def offered(self, w: "World", job: Job) -> Job:
        """An attempt is offered to a node. Returns the job row to write."""
        return job

    def body_started(self, w: "World", attempt: Attempt, first: bool) -> None:
        """Its node reports that the body runs or has run. `first`: this was not known before."""

    def progressed(self, w: "World", attempt: Attempt, progress: Progress | None) -> None:
        """Its node reports that the body runs, and its progress if known."""

    def checkpointed(self, w: "World", attempt: Attempt, manifest: str) -> None:
        """It delivered a checkpoint."""

    def reconnected(self, w: "World", attempt: Attempt) -> None:
        """Its node began a new session. What the attempt did meanwhile is not known yet."""

    def away(self, w: "World", attempt: Attempt, why: Facts) -> bool:
        """Its node is in doubt; the attempt may return. True: this mechanism handled it, and nothing else is done."""
        return False

    def returned(self, w: "World", attempt: Attempt) -> None:
        """Its node was away, is back, and still has it."""

    def lost(self, w: "World", job: Job, attempt: Attempt, failure: Failure) -> Job:
        """It failed or was given up. Returns the job row to write."""
        return job

    def accepted(self, w: "World", job: Job, attempt: Attempt) -> None:
        """Its result is the job's result. The attempt is not closed yet."""

    def closed(self, attempt: Attempt) -> None:
        """It is over: drop its state. Called while its row is loaded, so nothing may be decided."""

    # --- a job ---

    def due(self, w: "World", job: Job) -> None:
        """A deadline of the job was reached."""

    def ending(self, w: "World", job: Job) -> Job:
        """The job ends. Returns the job row to write."""
        return job

    def ended(self, w: "World", job: Job) -> None:
        """The row of the ended job is written."""

    def job_changed(self, w: "World", before: Job | None, job: Job) -> None:
        """The row of a job is written or loaded: update views. Nothing may be decided."""

    # --- a node ---

    def gate(self, w: "World", node: Node, to: str | None) -> Gate | None:
        """The gate that keeps work from a node in service, or None. `to`: for this job."""
        return None

    def node_lost(self, w: "World", node: NodeId) -> None:
        """The node is lost or gone; what it held is written off next."""

    # --- the queue ---

    def served(self, w: "World") -> None:
        """Free room was given out to waiting jobs."""

    # --- all of it ---

    def digest(self) -> object:
        """The state derived from rows, in a fixed order. A rebuild must give the same."""
        return None
