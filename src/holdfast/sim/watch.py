"""Lets rules observe a world. The world calls `InvariantWatch` at every relevant moment; a broken rule ends the run.

Rules see decisions as they are made, rows when they are durable, messages that leave an orchestrator, commands that a
node receives, and the bodies that really run. They never act.
"""

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.kernel.commit import CommitBatch
from holdfast.kernel.decision import Decision, Row
from holdfast.kernel.events import AnyEvent
from holdfast.kernel.kernel import Kernel
from holdfast.model import AttemptId, Entry, Instant, JobId, Meta, NodeId, Settings
from holdfast.model.rows import row_key

if TYPE_CHECKING:
    from holdfast.sim.faults import Injector
    from holdfast.sim.node import Machine
    from holdfast.sim.people import People
    from holdfast.sim.plan import WorldPlan
    from holdfast.sim.store import SimStore
    from holdfast.sim.world import SimWorld


class SceneView(Protocol):
    """What a rule may read."""

    plan: "WorldPlan"
    settings: Settings
    world: "SimWorld"
    store: "SimStore"
    machines: "dict[NodeId, Machine]"
    people: "People"
    faults: "Injector"


View = dict[tuple[str, Hashable], Row]
"""Rows by key, from one leader's memory or from the store."""


class Broken(Exception):
    """A rule was broken."""

    def __init__(self, rule: str, says: str) -> None:
        super().__init__(f"{rule}: {says}")
        self.rule = rule
        self.says = says


def patience_of(now: Instant, decision: Decision, view: View) -> int:
    """The patience clock at this decision: it stands still while the leader was late."""
    meta = next((row for row in reversed(decision.changes) if isinstance(row, Meta)), None) or view.get(("meta", 0))
    return max(now, meta.now_ms) - meta.late_ms if isinstance(meta, Meta) else now


class Rule:
    """One invariant. Overrides the hooks it needs; the others cost nothing."""

    every_decision = False
    """Whether it also sees decisions that change nothing and send nothing, which most do."""

    def __init__(self, scene: SceneView) -> None:
        self.scene = scene

    def fail(self, says: str) -> None:
        raise Broken(type(self).__module__.rpartition(".")[2], says)

    def checked(self, decision: Decision) -> None:
        """A check was made at a leader just before it receives the same job."""

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        """A leader made a decision; `view` is its state before the decision."""

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        """A batch is in the store: (before, after) for each row except journal entries."""

    def journaled(self, entries: list[Entry]) -> None:
        """The journal entries of the same batch are in the store; called before `durable`."""

    def released(self, leader: str, batch: CommitBatch, epoch: int) -> None:
        """The messages that a batch held back are sent now."""

    def at_rest(self, kernel: Kernel) -> None:
        """Everything a leader decided is durable, and nothing is due."""

    def acknowledged(self, job: JobId) -> None:
        """A user was told that a submission is stored."""

    def body_started(self, node: NodeId, attempt: AttemptId, job: JobId) -> None: ...

    def body_ended(self, node: NodeId, attempt: AttemptId, job: JobId) -> None: ...

    def commanded(self, node: NodeId, message: Any, did: bool) -> None:
        """A node received a command; `did`: the command had an effect."""

    def restored(self) -> None:
        """The store was replaced by an older copy of it. Nobody knows what happened since that was made."""

    def healed(self) -> None:
        """All faults are healed, and no more will be injected."""

    def finished(self) -> None:
        """The world has ended."""


class InvariantWatch:
    def __init__(self) -> None:
        self._rules: list[Rule] = []
        self._durable: View = {}
        self._by_moment: dict[str, list[Any]] = {}
        self._always: list[Any] = []

    def add(self, rules: Iterable[Rule]) -> None:
        self._rules.extend(rules)
        moments = [name for name in vars(Rule) if not name.startswith("_") and name not in ("fail", "every_decision")]
        self._by_moment = {
            name: [getattr(r, name) for r in self._rules if getattr(type(r), name) is not getattr(Rule, name)]
            for name in moments
        }
        self._always = [look for look in self._by_moment["decided"] if look.__self__.every_decision]

    def decided(self, leader: str, event: AnyEvent, now: Instant, decision: Decision, view: View) -> None:
        for look in self._by_moment["decided"] if decision.changes or decision.sends else self._always:
            look(leader, event, now, decision, view)

    def durable(self, rows: Iterable[Row]) -> None:
        pairs: list[tuple[Row | None, Row]] = []
        entries: list[Entry] = []
        for row in rows:
            if isinstance(row, Entry):
                entries.append(row)
                continue
            key = row_key(row)
            pairs.append((self._durable.get(key), row))
            self._durable[key] = row
        for look in self._by_moment["journaled"]:
            look(entries)
        for look in self._by_moment["durable"]:
            look(pairs)

    def restored(self, rows: View) -> None:
        self._durable = dict(rows)
        self.tell("restored")

    def wants(self, moment: str) -> bool:
        """Whether any rule uses this hook."""
        return bool(self._by_moment.get(moment))

    def tell(self, moment: str, *what: Any) -> None:
        for look in self._by_moment[moment]:
            look(*what)
