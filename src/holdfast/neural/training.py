"""Training in one process: stages run one after another, microbatch by microbatch, with one update per step.

This is the reference: any distributed run with the same neural network, data and seed must end in the same bits. Time
and files are not known here; metrics are passed to the caller after every step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.neural.arithmetic import Arithmetic
from holdfast.neural.arrays import Array, ratio
from holdfast.neural.data import Data, Host
from holdfast.neural.graph import Graph
from holdfast.neural.optimizers import clip_factor, rate_at
from holdfast.neural.stage import Memo, Stage, StageKey, stages_of
from holdfast.neural.state import State, digest, fresh


@dataclass(frozen=True)
class StepMetrics:
    """The metrics of a step."""

    step: int
    loss: float
    norm: float
    """Norm of the gradient, before clipping."""
    rate: float


class Trainer:
    """A neural network in training: its state, and the position in its data."""

    def __init__(self, graph: Graph, ar: Arithmetic, state: State | None = None, cursor: int = 0) -> None:
        self.graph = graph
        self.ar = ar
        self.stages = stages_of(graph)
        self.state = state or fresh(graph, ar)
        self.cursor = cursor
        self.remember = True
        """Keep activations for backward. Otherwise each stage recomputes them from its inputs."""

    @property
    def job(self) -> str:
        return f"{self.graph.name}/{self.graph.seed}"

    def train(self, data: Data, steps: int, tell: Callable[[StepMetrics], None] = lambda _: None) -> list[StepMetrics]:
        """Run this many more steps."""
        told: list[StepMetrics] = []
        for _ in range(steps):
            batch = data.batch(self.graph.seed, self.cursor, self.graph.batch.size)
            told.append(self.step(batch))
            self.cursor += self.graph.batch.size
            tell(told[-1])
        return told

    def step(self, batch: Mapping[str, Host]) -> StepMetrics:
        """One step on one batch."""
        graph, ar, step = self.graph, self.ar, self.state.step
        held = [self.state.part(stage.owned) for stage in self.stages]
        lent = {f"weight:{w}": self.state.tensors[w] for stage in self.stages for w in stage.borrowed}
        losses: list[dict[str, Array]] = []
        wgrads: dict[str, Array] = {}
        for microbatch in range(graph.batch.microbatches):
            key = StageKey(self.job, step, microbatch)
            memo = Memo() if self.remember else None
            edges = {**lent, **self.inputs(batch, microbatch)}
            edges = self._forward(held, edges, key, memo)
            losses.append({name: edges[name] for name in graph.losses})
            for name, wgrad in self._backward(held, edges, key, memo).items():
                wgrads[f"{name}#{microbatch}"] = wgrad
        sums: dict[str, Array] = {}
        for stage, own in zip(self.stages, held, strict=True):
            sums.update(stage.run(ar, own, wgrads, StageKey(self.job, step, phase="gather")).outputs)
        squares = self._squares(sums)
        norm, factor = clip_factor(graph.training, squares, graph.parameters)
        sums["clip"] = ar.xp.real([factor])
        update = StageKey(self.job, step, phase="update")
        after = [stage.run(ar, own, sums, update) for stage, own in zip(self.stages, held, strict=True)]
        ar.forget()
        self.state = State.join(o.state for o in after if o.state is not None)
        return StepMetrics(step + 1, self._total(losses), norm, rate_at(graph.training, step))

    def inputs(self, batch: Mapping[str, Host], microbatch: int) -> dict[str, Array]:
        """A microbatch's share of a batch."""
        size = self.graph.batch.micro
        found: dict[str, Array] = {}
        for name, signal in self.graph.inputs.items():
            part = batch[name][microbatch * size : (microbatch + 1) * size]
            found[name] = self.ar.xp.index(part) if signal.is_index else self.ar.real(part)
        return found

    def _forward(
        self, held: list[State], edges: dict[str, Array], key: StageKey, memo: Memo | None
    ) -> dict[str, Array]:
        for stage, own in zip(self.stages, held, strict=True):
            edges = {**edges, **stage.run(self.ar, own, edges, key, memo).outputs}
        return edges

    def _backward(
        self, held: list[State], edges: dict[str, Array], key: StageKey, memo: Memo | None
    ) -> dict[str, Array]:
        back = StageKey(key.job, key.step, key.microbatch, "backward")
        for stage, own in zip(reversed(self.stages), reversed(held), strict=True):
            edges = {**edges, **stage.run(self.ar, own, edges, back, memo).outputs}
        return {name: grad for name, grad in edges.items() if name.startswith("wgrad:")}

    def _squares(self, sums: Mapping[str, Array]) -> dict[str, float]:
        """All squared norms, fetched from the device together."""
        names = list(self.graph.parameters)
        if not names:
            return {}
        line = self.ar.xp.join([sums[f"square:{w}"].reshape(1) for w in names], 0)
        return dict(zip(names, (float(v) for v in self.ar.xp.host(line).tolist()), strict=True))

    def _total(self, losses: list[dict[str, Array]]) -> float:
        """The loss of the batch: each loss over all samples as one tree, weighted, in the graph's order."""
        total = 0.0
        for name, weight in self.graph.losses.items():
            line = self.ar.xp.join([part[name] for part in losses], 0)
            mean = float(self.ar.xp.host(self.ar.sum(line, 0))) * ratio(1.0, self.graph.batch.size)
            total += weight * mean
        return total

    def evaluate(self, data: Data, samples: int) -> dict[str, float]:
        """The loss, and for scores with labels the share that is right, over the first samples of the data."""
        graph, ar = self.graph, self.ar
        whole = Stage(graph, tuple(n.name for n in graph.nodes))
        seen = right = places = 0
        total = 0.0
        while seen < min(samples, data.count):
            size = min(graph.batch.size, min(samples, data.count) - seen)
            batch = data.take(list(range(seen, seen + size)))
            given = {n: ar.xp.index(batch[n]) if s.is_index else ar.real(batch[n]) for n, s in graph.inputs.items()}
            values, _ = whole.forward(whole.circumstances(ar, StageKey(self.job, train=False)), self.state, given)
            ar.settle()
            for name, weight in graph.losses.items():
                total += weight * float(ar.xp.host(ar.sum(values[name], 0)))
                node = graph.by_name[name]
                if node.operator.kind == "cross_entropy":
                    best = ar.xp.host(values[node.sources[0]]).argmax(-1)
                    right += int((best == ar.xp.host(given[node.sources[1]])).sum())
                    places += best.size
            seen += size
        ar.forget()
        found = {"samples": float(seen), "loss": ratio(total, max(seen, 1))}
        if places:
            found["right"] = ratio(right, places)
        return found

    def digest(self) -> str:
        """SHA-256 of the weights."""
        return digest(self.ar.xp, self.state.weights())
