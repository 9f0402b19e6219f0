"""A network as a checked graph: nodes in order, what flows between them, their weights and their cost.

Everything here holds by construction: names resolve, shapes fit, there is no cycle. Files and numbers are not
known here.
"""

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from holdfast.neural.operators import Operator, Parameter, Product, Signal


@dataclass(frozen=True)
class Node:
    """An operator in its place: where its inputs come from, and whose weights it uses instead of its own."""

    name: str
    operator: Operator
    sources: tuple[str, ...]
    share: dict[str, str] = field(default_factory=dict[str, str])
    """parameter -> `node.parameter` of its owner."""
    line: int = 0
    column: int = 0


@dataclass(frozen=True)
class Batch:
    size: int = 32
    microbatches: int = 1
    """Belongs to the network: gradients are rounded per microbatch, so another number gives other bits."""

    @property
    def micro(self) -> int:
        return self.size // self.microbatches


@dataclass(frozen=True)
class Training:
    """How weights follow gradients."""

    kind: str = "adamw"
    rate: float = 1e-3
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    decay: float = 0.01
    clip: float = 0.0
    """Gradients are scaled down to this norm; 0: never."""
    schedule: str = "constant"
    warmup: int = 0
    steps: int = 1000
    """Where the schedule ends."""
    floor: float = 0.0
    """The share of `rate` that is left at the end."""


@dataclass(frozen=True)
class Graph:
    """A whole network, checked."""

    name: str
    inputs: dict[str, Signal]
    nodes: tuple[Node, ...]
    """Each stands after those it takes from."""
    outputs: tuple[str, ...]
    losses: dict[str, float]
    """Loss node -> its weight in the total."""
    profile: str = "exact"
    seed: int = 1
    batch: Batch = field(default_factory=Batch)
    training: Training = field(default_factory=Training)
    stages: tuple[tuple[str, ...], ...] = ()
    source: str = ""

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def place(self) -> dict[str, int]:
        """Node -> where it stands in order."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def signals(self) -> dict[str, Signal]:
        """What each input and node gives."""
        found = dict(self.inputs)
        for node in self.nodes:
            found[node.name] = node.operator.signal([found[s] for s in node.sources])
        return found

    def given(self, node: Node) -> list[Signal]:
        return [self.signals[s] for s in node.sources]

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """Who takes from each input and node, in order."""
        found: dict[str, list[str]] = {name: [] for name in self.signals}
        for node in self.nodes:
            for source in dict.fromkeys(node.sources):
                found[source].append(node.name)
        return {name: tuple(who) for name, who in found.items()}

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """`node.parameter` -> what it is; shared ones under their owner only. In order: norms are summed in it."""
        return {
            f"{node.name}.{label}": parameter
            for node in self.nodes
            for label, parameter in node.operator.parameters(self.given(node)).items()
            if label not in node.share
        }

    def weights_of(self, node: Node) -> dict[str, str]:
        """The operator's word for each weight it uses -> the weight's name."""
        labels = node.operator.parameters(self.given(node))
        return {label: node.share.get(label, f"{node.name}.{label}") for label in labels}

    @cached_property
    def users(self) -> dict[str, tuple[str, ...]]:
        """Who uses each weight, in order."""
        found: dict[str, list[str]] = {name: [] for name in self.parameters}
        for node in self.nodes:
            for weight in self.weights_of(node).values():
                found[weight].append(node.name)
        return {name: tuple(who) for name, who in found.items()}

    @property
    def parameter_count(self) -> int:
        return sum(p.size for p in self.parameters.values())

    def flops(self, node: Node) -> int:
        """One sample's forward and backward through a node."""
        given = self.given(node)
        return 3 * sum(p.flops for p in node.operator.products(given)) + 2 * node.operator.other_flops(given)

    def products(self) -> list[tuple[str, Product]]:
        """Every inner product of one sample's forward."""
        return [(node.name, p) for node in self.nodes for p in node.operator.products(self.given(node))]

    @cached_property
    def learns(self) -> frozenset[str]:
        """Nodes through which a gradient flows to some weight, or that have weights themselves."""
        found: set[str] = set()
        for node in self.nodes:
            if self.weights_of(node) or any(s in found for s in node.sources):
                found.add(node.name)
        return frozenset(found)

    @cached_property
    def graded(self) -> frozenset[str]:
        """Nodes on which some loss depends."""
        found = set(self.losses)
        for node in reversed(self.nodes):
            if node.name in found:
                found.update(s for i, s in enumerate(node.sources) if i not in node.operator.no_gradient)
        return frozenset(found)

    def sends_back(self, source: str, consumer: str) -> bool:
        """Whether the consumer has a gradient for this source."""
        node = self.by_name[consumer]
        slots = [i for i, s in enumerate(node.sources) if s == source and i not in node.operator.no_gradient]
        return bool(slots) and source in self.learns and consumer in self.graded

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what the network computes: names, operators, options, shapes, seed, batch, training."""
        lines = [repr((self.name, self.profile, self.seed, self.batch, self.training, self.outputs, self.losses))]
        lines += [repr(item) for item in self.inputs.items()]
        lines += [
            repr((n.name, n.operator.kind, sorted(n.operator.options.items()), n.sources, sorted(n.share.items())))
            for n in self.nodes
        ]
        return sha256("\n".join(lines).encode()).hexdigest()
