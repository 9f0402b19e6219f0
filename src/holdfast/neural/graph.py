"""A neural network as a checked graph: nodes in order, the signals between them, their weights and their cost.

Everything is valid by construction: names resolve, shapes fit, there is no cycle. Files and numbers are not known here.
"""

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from holdfast.neural.operators import Operator, Parameter, Product, Signal


@dataclass(frozen=True)
class GraphNode:
    """An operator in the graph: the sources of its inputs, and the weights that it shares instead of its own."""

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
    """Part of the neural network: gradients are rounded per microbatch, so another number gives other bits."""

    @property
    def micro(self) -> int:
        return self.size // self.microbatches


@dataclass(frozen=True)
class Training:
    """The training settings."""

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
    """The last step of the schedule."""
    floor: float = 0.0
    """The share of `rate` that is left at the end."""


@dataclass(frozen=True)
class Graph:
    """A complete, checked neural network."""

    name: str
    inputs: dict[str, Signal]
    nodes: tuple[GraphNode, ...]
    """Each node is after its sources."""
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
    def by_name(self) -> dict[str, GraphNode]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def place(self) -> dict[str, int]:
        """Node -> its position in the order."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def signals(self) -> dict[str, Signal]:
        """The signal of each input and node."""
        found = dict(self.inputs)
        for node in self.nodes:
            found[node.name] = node.operator.signal([found[s] for s in node.sources])
        return found

    def given(self, node: GraphNode) -> list[Signal]:
        return [self.signals[s] for s in node.sources]

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """The consumers of each input and node, in order."""
        found: dict[str, list[str]] = {name: [] for name in self.signals}
        for node in self.nodes:
            for source in dict.fromkeys(node.sources):
                found[source].append(node.name)
        return {name: tuple(who) for name, who in found.items()}

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """`node.parameter` -> its description; shared ones under their owner only. Norms are summed in this order."""
        return {
            f"{node.name}.{label}": parameter
            for node in self.nodes
            for label, parameter in node.operator.parameters(self.given(node)).items()
            if label not in node.share
        }

    def weights_of(self, node: GraphNode) -> dict[str, str]:
        """The operator's name for each weight it uses -> the weight's name."""
        labels = node.operator.parameters(self.given(node))
        return {label: node.share.get(label, f"{node.name}.{label}") for label in labels}

    @cached_property
    def users(self) -> dict[str, tuple[str, ...]]:
        """The users of each weight, in order."""
        found: dict[str, list[str]] = {name: [] for name in self.parameters}
        for node in self.nodes:
            for weight in self.weights_of(node).values():
                found[weight].append(node.name)
        return {name: tuple(who) for name, who in found.items()}

    @property
    def parameter_count(self) -> int:
        return sum(p.size for p in self.parameters.values())

    def flops(self, node: GraphNode) -> int:
        """One sample's forward and backward through a node."""
        given = self.given(node)
        return 3 * sum(p.flops for p in node.operator.products(given)) + 2 * node.operator.other_flops(given)

    def products(self) -> list[tuple[str, Product]]:
        """Every inner product of the forward pass of one sample."""
        return [(node.name, p) for node in self.nodes for p in node.operator.products(self.given(node))]

    @cached_property
    def learns(self) -> frozenset[str]:
        """Nodes that have weights or pass a gradient on to some weight."""
        found: set[str] = set()
        for node in self.nodes:
            if self.weights_of(node) or any(s in found for s in node.sources):
                found.add(node.name)
        return frozenset(found)

    @cached_property
    def graded(self) -> frozenset[str]:
        """Nodes that a loss depends on."""
        found = set(self.losses)
        for node in reversed(self.nodes):
            if node.name in found:
                found.update(s for i, s in enumerate(node.sources) if i not in node.operator.no_gradient)
        return frozenset(found)

    def sends_back(self, source: str, consumer: str) -> bool:
        """Whether the consumer computes a gradient for this source."""
        node = self.by_name[consumer]
        slots = [i for i, s in enumerate(node.sources) if s == source and i not in node.operator.no_gradient]
        return bool(slots) and source in self.learns and consumer in self.graded

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what the neural network computes: names, operators, options, shapes, seed, batch, training."""
        lines = [repr((self.name, self.profile, self.seed, self.batch, self.training, self.outputs, self.losses))]
        lines += [repr(item) for item in self.inputs.items()]
        lines += [
            repr((n.name, n.operator.kind, sorted(n.operator.options.items()), n.sources, sorted(n.share.items())))
            for n in self.nodes
        ]
        return sha256("\n".join(lines).encode()).hexdigest()
