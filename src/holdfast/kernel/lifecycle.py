"""Tells the mechanisms, in a fixed order, what happens to attempts and jobs.

The modules that move an attempt from phase to phase (`contenders`, `reconcile`, `recovery`, `health`) report here what
happened, and know no mechanism. A mechanism overrides the methods that concern it, and keeps its own state
(`kernel.mechanism`). To add one, write its module and add it to `MECHANISMS`.

    offered → body started → progressed, checkpointed → accepted → closed
                   │   ▲
                   ▼   │ returned
                  away ──► lost

The order of `MECHANISMS` is part of the contract: it is the order of rows and journal entries in a decision, and
later mechanisms read what earlier ones wrote. `BEFORE` says where it matters.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from holdfast.kernel.confirming import Confirming
from holdfast.kernel.estimates import Estimates
from holdfast.kernel.files import Files
from holdfast.kernel.health import NodeHealth
from holdfast.kernel.mechanism import Mechanism
from holdfast.kernel.moving import Moving
from holdfast.kernel.poison import Poison
from holdfast.kernel.recovery import Draining
from holdfast.kernel.reservation import Reservations
from holdfast.kernel.straggling import Straggling
from holdfast.kernel.tainting import SavedJobs
from holdfast.model import Attempt, AttemptId, Facts, Failure, Gate, Job, Node, NodeId
from holdfast.model.messages import Progress

if TYPE_CHECKING:
    from holdfast.kernel.world import World

M = TypeVar("M", bound=Mechanism)
P = ParamSpec("P")
R = TypeVar("R")

MECHANISMS: tuple[type[Mechanism], ...] = (
    Estimates,
    Poison,
    NodeHealth,
    Straggling,
    Moving,
    Confirming,
    Draining,
    Reservations,
    Files,
    SavedJobs,
)
"""In the order in which they are called."""

BEFORE: tuple[tuple[type[Mechanism], type[Mechanism], str], ...] = (
    (Estimates, NodeHealth, "a start is judged before other attempts are revoked because of it"),
    (Estimates, Moving, "a start is judged before other attempts are revoked because of it"),
    (Poison, NodeHealth, "a node that is back no longer counts as felled when its job is examined again"),
    (NodeHealth, Moving, "what a quarantined node holds is revoked for that reason, not because the job moves"),
    (Straggling, Moving, "a body that saved something made progress, even if it is moved now"),
    (Straggling, Draining, "a body that saved something made progress, even if its node is emptied now"),
    (Moving, Confirming, "a move that is due may start the attempt that confirms the failure"),
    (Moving, Draining, "a job that a person moves has its new attempt before its node is emptied"),
)
"""Which of two mechanisms is called first, and why. A list in another order is rejected."""


class Lifecycle:
    """One instance of each mechanism. Every method calls the mechanisms that override it, in the order of the list."""

    def __init__(self, mechanisms: Sequence[type[Mechanism]] = MECHANISMS) -> None:
        for first, second, why in BEFORE:
            if {first, second} <= set(mechanisms) and mechanisms.index(first) > mechanisms.index(second):
                raise ValueError(f"{first.__name__} answers before {second.__name__}: {why}")
        made = [mechanism() for mechanism in mechanisms]
        self._made: dict[type[Mechanism], Any] = {type(mechanism): mechanism for mechanism in made}
        self._offered = _answers(made, Mechanism.offered)
        self._body_started = _answers(made, Mechanism.body_started)
        self._progressed = _answers(made, Mechanism.progressed)
        self._checkpointed = _answers(made, Mechanism.checkpointed)
        self._reconnected = _answers(made, Mechanism.reconnected)
        self._away = _answers(made, Mechanism.away)
        self._returned = _answers(made, Mechanism.returned)
        self._lost = _answers(made, Mechanism.lost)
        self._accepted = _answers(made, Mechanism.accepted)
        self._closed = _answers(made, Mechanism.closed)
        self._due = _answers(made, Mechanism.due)
        self._ending = _answers(made, Mechanism.ending)
        self._ended = _answers(made, Mechanism.ended)
        self.job_changed = _answers(made, Mechanism.job_changed)
        """The world calls these itself, which saves a call in every decision."""
        self._gate = _answers(made, Mechanism.gate)
        self._node_lost = _answers(made, Mechanism.node_lost)
        self._served = _answers(made, Mechanism.served)
        self._digest = _answers(made, Mechanism.digest)

    def of(self, kind: type[M]) -> M:
        """The mechanism of this kind, for callers that need its state."""
        return self._made[kind]

    # --- an attempt ---

    def offered(self, w: "World", job: Job) -> Job:
        for answer in self._offered:
            job = answer(w, job)
        return job

    def body_started(self, w: "World", attempt: Attempt, first: bool) -> None:
        for answer in self._body_started:
            answer(w, attempt, first)

    def progressed(self, w: "World", attempt: Attempt, progress: Progress | None) -> None:
        for answer in self._progressed:
            answer(w, attempt, progress)

    def checkpointed(self, w: "World", attempt: AttemptId, manifest: str) -> None:
        """Each mechanism gets the attempt as the previous one left it."""
        for answer in self._checkpointed:
            answer(w, w.attempts[attempt], manifest)

    def reconnected(self, w: "World", attempt: Attempt) -> None:
        for answer in self._reconnected:
            answer(w, attempt)

    def away(self, w: "World", attempt: Attempt, why: Facts) -> bool:
        """Stops at the first mechanism that handles it."""
        return any(answer(w, attempt, why) for answer in self._away)

    def returned(self, w: "World", attempt: Attempt) -> None:
        for answer in self._returned:
            answer(w, attempt)

    def lost(self, w: "World", job: Job, attempt: Attempt, failure: Failure) -> Job:
        for answer in self._lost:
            job = answer(w, job, attempt, failure)
        return job

    def accepted(self, w: "World", job: Job, attempt: Attempt) -> None:
        for answer in self._accepted:
            answer(w, job, attempt)

    def closed(self, attempt: Attempt) -> None:
        for answer in self._closed:
            answer(attempt)

    # --- a job ---

    def due(self, w: "World", job: Job) -> None:
        for answer in self._due:
            answer(w, job)

    def ending(self, w: "World", job: Job) -> Job:
        for answer in self._ending:
            job = answer(w, job)
        return job

    def ended(self, w: "World", job: Job) -> None:
        for answer in self._ended:
            answer(w, job)

    # --- a node ---

    def gate(self, w: "World", node: Node, to: str | None) -> Gate | None:
        """The first gate that a mechanism reports, or None."""
        for answer in self._gate:
            if gate := answer(w, node, to):
                return gate
        return None

    def node_lost(self, w: "World", node: NodeId) -> None:
        for answer in self._node_lost:
            answer(w, node)

    # --- the queue ---

    def served(self, w: "World") -> None:
        for answer in self._served:
            answer(w)

    # --- all of it ---

    def digest(self) -> list[object]:
        return [answer() for answer in self._digest]


def _answers(made: Sequence[Mechanism], happening: Callable[Concatenate[Any, P], R]) -> tuple[Callable[P, R], ...]:
    """The methods of the mechanisms that override it. Found once, because most decisions concern none of them."""
    name = happening.__name__
    return tuple(getattr(m, name) for m in made if getattr(type(m), name) is not happening)
