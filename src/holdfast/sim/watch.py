"""Where rules look on. The world calls `Watch` whenever a rule may care; a rule that is broken ends the run.

Rules see decisions as they are made, rows when they are durable, what leaves an orchestrator, what a node is told,
and the bodies that really run. They never act.
"""

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.kernel.commit import Batch, row_key
from holdfast.kernel.decision import Decision, Row
from holdfast.kernel.events import AnyEvent
from holdfast.kernel.kernel import Kernel
from holdfast.model import AttemptId, Instant, JobId, NodeId, Settings

if TYPE_CHECKING:
    from holdfast.sim.faults import Injector
    from holdfast.sim.node import Machine
    from holdfast.sim.people import People
    from holdfast.sim.plan import Plan
    from holdfast.sim.store import Store
    from holdfast.sim.world import World


class Scene(Protocol):
    """What a rule may look at."""

    plan: "Plan"
    settings: Settings
    world: "World"
    store: "Store"
    machines: "dict[NodeId, Machine]"
    people: "People"
    faults: "Injector"


View = dict[tuple[str, Hashable], Row]
"""Rows by key, as one leader has them in mind or as the store holds them."""


class Broken(Exception):
    """A rule that must hold did not."""

    def __init__(self, rule: str, says: str) -> None:
        super().__init__(f"{rule}: {says}")
        self.rule = rule
        self.says = says


class Rule:
    """One invariant. Overrides the moments it needs; the others cost nothing."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def fail(self, says: str) -> None:
        raise Broken(type(self).__module__.rpartition(".")[2], says)

    def checked(self, decision: Decision) -> None:
        """A leader that will now be given a new job was asked first what would become of it."""

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        """A leader decided; `view` is its mind before this decision."""

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        """A batch is in the store: (before, after) for each row but the journal's."""

    def released(self, leader: str, batch: Batch, epoch: int) -> None:
        """What a batch held back leaves now."""

    def at_rest(self, kernel: Kernel) -> None:
        """Everything a leader decided is durable, and nothing is due."""

    def acknowledged(self, job: JobId) -> None:
        """A person was told that a submission stands."""

    def body_started(self, node: NodeId, attempt: AttemptId, job: JobId) -> None: ...

    def body_ended(self, node: NodeId, attempt: AttemptId, job: JobId) -> None: ...

    def commanded(self, node: NodeId, message: Any, did: bool) -> None:
        """A node took in a command; `did`: something came of it."""

    def healed(self) -> None:
        """No fault is active from now on, and none will come."""

    def finished(self) -> None:
        """The world is over."""


class Watch:
    def __init__(self) -> None:
        self._rules: list[Rule] = []
        self._durable: View = {}
        self._by_moment: dict[str, list[Any]] = {}

    def add(self, rules: Iterable[Rule]) -> None:
        self._rules.extend(rules)
        moments = [name for name in vars(Rule) if not name.startswith("_") and name != "fail"]
        self._by_moment = {
            name: [getattr(r, name) for r in self._rules if getattr(type(r), name) is not getattr(Rule, name)]
            for name in moments
        }

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        for look in self._by_moment["decided"]:
            look(leader, event, now, decision, view)

    def durable(self, rows: Iterable[Row]) -> None:
        pairs: list[tuple[Row | None, Row]] = []
        for row in rows:
            key = row_key(row)
            if key[0] != "entry":
                pairs.append((self._durable.get(key), row))
                self._durable[key] = row
        for look in self._by_moment["durable"]:
            look(pairs)

    def wants(self, moment: str) -> bool:
        """Whether any rule looks at such a moment."""
        return bool(self._by_moment.get(moment))

    def tell(self, moment: str, *what: Any) -> None:
        for look in self._by_moment[moment]:
            look(*what)
