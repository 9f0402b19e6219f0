"""Small networks for tests: one operator alone, a random graph, the example texts."""

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from holdfast.neural.arithmetic import Arithmetic, arithmetic
from holdfast.neural.arrays import Array, arrays
from holdfast.neural.graph import Batch, Graph, GraphNode
from holdfast.neural.operators import Operator, Signal
from holdfast.neural.stage import Stage, StageKey
from holdfast.neural.state import State, fresh

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "neural"

SMALL = """
name: small
seed: 3
batch: {size: 4, microbatches: 2}
inputs:
  tokens: {shape: [10], below: 48}
  next: {shape: [10], below: 48}
nodes:
  - {name: embed, op: embedding, from: tokens, width: 16, spread: 0.3}
  - repeat: 2
    name: block
    nodes:
      - {name: norm1, op: rmsnorm, from: input}
      - {name: look, op: attention, heads: 2}
      - {name: drop, op: dropout, rate: 0.1}
      - {name: middle, op: add, from: [input, drop]}
      - {name: norm2, op: layernorm}
      - {name: gates, op: linear, width: 32}
      - {name: gated, op: swiglu}
      - {name: back, op: linear, width: 16}
      - {name: out, op: add, from: [middle, back]}
  - {name: norm, op: rmsnorm}
  - {name: scores, op: tied_head, rows: 48, share: {weight: embed.weight}}
losses:
  - {name: loss, op: cross_entropy, from: [scores, next]}
outputs: [scores]
optimizer: {kind: adamw, rate: 1e-2, clip: 1.0}
"""


def alone(
    operator: Operator, given: list[Signal], backend: str
) -> tuple[Stage, State, Mapping[str, Array], StageKey, Arithmetic]:
    """A stage of one operator, with ordinary inputs."""
    inputs = {f"in{i}": signal for i, signal in enumerate(given)}
    graph = Graph("alone", inputs, (GraphNode("mine", operator, tuple(inputs)),), ("mine",), {}, batch=Batch(2))
    ar = arithmetic("exact", arrays(backend))
    rng = np.random.default_rng(2)
    values = {
        name: ar.xp.index(rng.integers(0, s.below, (2, *s.shape)))
        if s.is_index
        else ar.real(rng.normal(size=(2, *s.shape)))
        for name, s in inputs.items()
    }
    if operator.kind == "mask":
        values["in1"] = values["in1"] * 0 + 1
    return Stage(graph, ("mine",)), fresh(graph, ar), values, StageKey("job"), ar


def random_stages(graph: Graph, seed: int) -> tuple[tuple[str, ...], ...]:
    """Any split in which nothing flows backwards: a node goes to its sources' latest stage, or a later one."""
    drawn = random.Random(seed)
    count = drawn.randint(1, 6)
    stage_of: dict[str, int] = {}
    for node in graph.nodes:
        first = max((stage_of.get(s, 0) for s in node.sources), default=0)
        stage_of[node.name] = min(count - 1, first + (drawn.random() < 0.25) + (drawn.random() < 0.1))
    stages = [tuple(n.name for n in graph.nodes if stage_of[n.name] == i) for i in range(count)]
    return tuple(s for s in stages if s)
