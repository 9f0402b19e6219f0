"""A stage: operators that are placed, run and committed together. `run` is a pure function.

    run(state, inputs, key) -> Outcome(outputs, state)

The result depends only on the arguments, so any machine can recompute it. A step has four phases:

    forward   activations in, activations out                              (each microbatch)
    backward  the same plus the gradients of its outputs in; gradients out  (each microbatch)
    gather    the weights' gradients of all microbatches in; their sums and squared norms out
    update    those sums and the clip factor in; the next state out

Names of inputs and outputs: `tokens`, `block0.out` is an activation; `weight:embed.weight` is a weight that another
stage owns; `grad:X@C` is the gradient of X that consumer C sends back; `wgrad:W@N` is the gradient of weight W from its
user N; with the suffix `#3`, that of microbatch 3; `sum:W` and `square:W` are the results of gather.

Splitting changes no bit. Gradients of a value with several consumers are added from the last consumer to the first,
those of a shared weight from the first user to the last, and each is sent separately until it is added; random bits are
keyed by the operator, not by the stage.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.neural import fusion
from holdfast.neural.arithmetic import Arithmetic
from holdfast.neural.arrays import Array, ratio
from holdfast.neural.graph import Graph, GraphNode
from holdfast.neural.operators import RunContext
from holdfast.neural.operators.pointwise import Pointwise
from holdfast.neural.optimizers import updated
from holdfast.neural.refusals import StateError
from holdfast.neural.state import State

PHASES = ("forward", "backward", "gather", "update")


@dataclass(frozen=True)
class StageKey:
    """Identifies a computation. Random bits depend on it and on the operator's name."""

    job: str
    step: int = 0
    microbatch: int = 0
    phase: str = "forward"
    train: bool = True

    @property
    def text(self) -> str:
        return f"{self.job}/{self.step}/{self.microbatch}"


@dataclass(frozen=True)
class StageOutcome:
    outputs: Mapping[str, Array]
    state: State | None = None
    """The next state, after `update`."""


@dataclass
class Memo:
    """Values that forward kept for backward. Without it backward recomputes forward: slower, the same bits."""

    saved: dict[tuple[int, str], Any] = field(default_factory=dict[tuple[int, str], Any])


class Stage:
    """Some nodes of a graph, in the graph's order."""

    def __init__(self, graph: Graph, names: tuple[str, ...]) -> None:
        self.graph = graph
        inside = set(names)
        self.nodes: tuple[GraphNode, ...] = tuple(n for n in graph.nodes if n.name in inside)
        self._inside = inside
        self.incoming = tuple(dict.fromkeys(s for n in self.nodes for s in n.sources if s not in inside))
        """Activations and inputs from outside the stage."""
        self.outgoing = tuple(
            n.name
            for n in self.nodes
            if n.name in graph.outputs or n.name in graph.losses or set(graph.consumers[n.name]) - inside
        )
        used = dict.fromkeys(w for n in self.nodes for w in graph.weights_of(n).values())
        self.groups = fusion.groups(graph, self.nodes, self.outgoing)
        """The same nodes as groups for fused passes."""
        users = {s: [c for c in graph.consumers[s] if c in inside] for n in self.nodes for s in n.sources}
        multiply = {n.name for n in self.nodes if n.operator.multiplies_rows}
        self._multiplied = {s: len(multiply & set(c)) for s, c in users.items() if len(multiply & set(c)) > 1}
        """Values whose rows several operators multiply: rounded once for all of them."""
        self._alone = [fusion.Group((n,)) for n in self.nodes]
        self.owned = tuple(w for w in used if w.rpartition(".")[0] in inside)
        self.borrowed = tuple(w for w in used if w.rpartition(".")[0] not in inside)

    def run(
        self, ar: Arithmetic, state: State, inputs: Mapping[str, Array], key: StageKey, memo: Memo | None = None
    ) -> StageOutcome:
        """Run one phase. Raises NotFinite with the operator's name if a number is out of range."""
        if key.phase == "forward":
            run = self.circumstances(ar, key)
            values, saved = self.forward(run, state, inputs)
            if memo is not None:
                memo.saved.update({(key.microbatch, name): kept for name, kept in saved.items()})
            outcome = StageOutcome({name: values[name] for name in self.outgoing})
        elif key.phase == "backward":
            outcome = StageOutcome(self._backward(ar, state, inputs, key, memo))
        elif key.phase == "gather":
            outcome = StageOutcome(self._gather(ar, inputs))
        elif key.phase == "update":
            grads = {w: self._wanted(inputs, f"sum:{w}") for w in self.owned}
            factor = float(ar.xp.host(self._wanted(inputs, "clip")).reshape(-1)[0])
            outcome = StageOutcome({}, updated(self.graph, ar, state, grads, factor))
        else:
            raise StateError(f"a stage has no phase {key.phase}", hint=f"There are: {', '.join(PHASES)}.")
        ar.settle()
        return outcome

    def circumstances(self, ar: Arithmetic, key: StageKey) -> RunContext:
        return RunContext(ar, key.text, key.train)

    @staticmethod
    def _wanted(inputs: Mapping[str, Array], name: str) -> Array:
        if name not in inputs:
            raise StateError(f"a stage was run without its input {name}")
        return inputs[name]

    def _weights(self, node: GraphNode, state: State, inputs: Mapping[str, Array]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for label, name in self.graph.weights_of(node).items():
            if name in state.tensors:
                found[label] = state.tensors[name]
            else:
                found[label] = self._wanted(inputs, f"weight:{name}")
        return found

    def forward(
        self, run: RunContext, state: State, inputs: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Every value of this stage, and for each node the values that backward needs."""
        values: dict[str, Array] = {name: self._wanted(inputs, name) for name in self.incoming}
        for name in self.incoming:
            if not self.graph.signals[name].is_index:
                user = next(c for c in self.graph.consumers[name] if c in self._inside)
                run.ar.finite(values[name], user, f"its input {name}")
        saved: dict[str, Any] = {}
        for group in self._groups(run.ar):
            node = group.last
            if run.ar.xp.fuses and isinstance(node.operator, Pointwise):
                values[node.name], kept = fusion.forward(run, group, values)
                saved.update(kept)
                continue
            given = [values[s] for s in node.sources]
            for source in set(node.sources) & self._multiplied.keys():
                run.ar.share(values[source], self._multiplied[source])
            result, saved[node.name] = node.operator.forward(run, self._weights(node, state, inputs), given)
            values[node.name] = run.ar.finite(result, node.name, "its result")
        return values, saved

    def _groups(self, ar: Arithmetic) -> list[fusion.Group]:
        return self.groups if ar.xp.fuses else self._alone

    def _backward(
        self, ar: Arithmetic, state: State, inputs: Mapping[str, Array], key: StageKey, memo: Memo | None
    ) -> dict[str, Array]:
        run = self.circumstances(ar, key)
        if memo is None:
            _, saved = self.forward(run, state, inputs)
        else:
            saved = {n.name: memo.saved.pop((key.microbatch, n.name)) for n in self.nodes}
        graph = self.graph
        sent: dict[tuple[str, str], Array] = {}
        found: dict[str, Array] = {}
        for group in reversed(self._groups(ar)):
            node = group.last
            kept = {n.name: saved.pop(n.name) for n in group.nodes}
            grad = self._arrived(ar, node, sent, inputs)
            if grad is None:
                continue
            if ar.xp.fuses and isinstance(node.operator, Pointwise):
                back_by_edge, wgrads = fusion.backward(run, group, graph, kept, grad), {}
            else:
                weights = self._weights(node, state, inputs)
                backs, wgrads = node.operator.backward(run, weights, kept[node.name], grad)
                back_by_edge = self._by_edge(node, backs)
            sent.update(back_by_edge)
            for (source, consumer), back in back_by_edge.items():
                if source not in self._inside:
                    found[f"grad:{source}@{consumer}"] = back
            for label, wgrad in wgrads.items():
                found[f"wgrad:{graph.weights_of(node)[label]}@{node.name}"] = wgrad
        return found

    def _by_edge(self, node: GraphNode, backs: list[Array | None]) -> dict[tuple[str, str], Array]:
        """The gradients that a node sends back; those of a source that it takes twice are added in order."""
        found: dict[tuple[str, str], Array] = {}
        for source, back in zip(node.sources, backs, strict=True):
            if back is not None and self.graph.sends_back(source, node.name):
                at = (source, node.name)
                found[at] = found[at] + back if at in found else back
        return found

    def _arrived(
        self, ar: Arithmetic, node: GraphNode, sent: dict[tuple[str, str], Array], inputs: Mapping[str, Array]
    ) -> Array | None:
        """The gradient of a node's result: the sum over its consumers, from the last to the first. None: not needed."""
        total: Array | None = None
        if node.name not in self.graph.graded or node.name not in self.graph.learns:
            return None
        if node.name in self.graph.losses:
            weight = ratio(self.graph.losses[node.name], self.graph.batch.size)
            total = ar.zeros((self.graph.batch.micro,)) + weight
        for consumer in reversed(self.graph.consumers[node.name]):
            if not self.graph.sends_back(node.name, consumer):
                continue
            if consumer in self._inside:
                part = sent.pop((node.name, consumer))
            else:
                part = self._wanted(inputs, f"grad:{node.name}@{consumer}")
            total = part if total is None else total + part
        return total

    def _gather(self, ar: Arithmetic, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Sums over microbatches in order, of sums over a weight's users in order; and the squared norm of each sum."""
        found: dict[str, Array] = {}
        for weight in self.owned:
            total: Array = None
            for microbatch in range(self.graph.batch.microbatches):
                part: Array = None
                for user in self.graph.users[weight]:
                    if user in self.graph.graded:
                        mine = self._wanted(inputs, f"wgrad:{weight}@{user}#{microbatch}")
                        part = mine if part is None else part + mine
                if part is not None:
                    total = part if total is None else total + part
            if total is None:
                total = ar.zeros(self.graph.parameters[weight].shape)
            ar.finite(total, weight.rpartition(".")[0], f"the gradient of {weight}")
            line = total.reshape(-1)
            found[f"sum:{weight}"] = total
            found[f"square:{weight}"] = ar.sum_of_squares(line)
        return found


def stages_of(graph: Graph) -> list[Stage]:
    """The stages of the neural network, in order; run one after another they compute the whole."""
    return [Stage(graph, names) for names in graph.stages]
