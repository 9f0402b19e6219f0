"""Checks that this machine computes the same bits as all others: trains small neural networks, compares their SHA-256.

    python -m holdfast.neural.golden [--backend numpy|torch|cuda] [--json]

They use every operator, all three optimizers, dropout, clipping, schedules, shared weights, several stages and
microbatches, and a sum longer than one block. The hashes are part of the product: a change of arithmetic that changes
them breaks every neural network in training, and must be announced.
"""

import argparse
import json
import sys

import numpy as np

from holdfast.neural import counter
from holdfast.neural.arrays import NumpyArrays
from holdfast.neural.data import Data
from holdfast.neural.graph import Graph
from holdfast.neural.network import NeuralNetwork
from holdfast.neural.topology import parse

STEPS = 20

LOOKING = """
name: looking
seed: 11
batch: {size: 8, microbatches: 2}
inputs:
  tokens: {shape: [24], below: 40}
  next: {shape: [24], below: 40}
nodes:
  - {name: embed, op: embedding, from: tokens, width: 32}
  - repeat: 2
    name: block
    nodes:
      - {name: norm1, op: rmsnorm, from: input}
      - {name: look, op: attention, heads: 4}
      - {name: drop, op: dropout, rate: 0.2}
      - {name: middle, op: add, from: [input, drop]}
      - {name: norm2, op: layernorm}
      - {name: gates, op: linear, width: 96}
      - {name: gated, op: swiglu}
      - {name: back, op: linear, width: 32, bias: false}
      - {name: out, op: add, from: [middle, back]}
  - {name: norm, op: rmsnorm}
  - {name: scores, op: tied_head, rows: 40, share: {weight: embed.weight}}
losses:
  - {name: loss, op: cross_entropy, from: [scores, next]}
outputs: [scores]
optimizer: {kind: adamw, rate: 5e-3, clip: 1.0, schedule: cosine, warmup: 5, steps: 20, floor: 0.1}
stages: 3
"""

SHAPING = """
name: shaping
seed: 12
batch: {size: 6, microbatches: 3}
inputs:
  plane: {shape: [6, 10]}
  shown: {shape: [6, 10], below: 2}
  wanted: {shape: [6, 8]}
nodes:
  - {name: masked, op: mask, from: [plane, shown], fill: 0.5}
  - {name: first, op: linear, width: 16}
  - {name: erf, op: gelu, form: erf}
  - {name: tanh, op: gelu, from: first}
  - {name: both, op: mul, from: [erf, tanh]}
  - {name: upper, op: split, parts: 2, part: 0}
  - {name: lower, op: split, from: both, parts: 2, part: 1}
  - {name: joined, op: concat, from: [lower, upper]}
  - {name: smooth, op: silu}
  - {name: bare, op: relu, from: first}
  - {name: total, op: add, from: [smooth, bare]}
  - {name: turned, op: transpose, axes: [1, 0]}
  - {name: shares, op: softmax}
  - {name: shaped, op: reshape, shape: [6, 16]}
  - {name: around, op: attention, heads: 2, causal: false, rope: false}
  - {name: last, op: linear, width: 8}
losses:
  - {name: loss, op: mse, from: [last, wanted]}
outputs: [last]
optimizer: {kind: momentum, rate: 0.05, schedule: linear, steps: 40, clip: 0.5}
stages: 4
"""

LONG = """
name: long
seed: 13
batch: {size: 4, microbatches: 1}
inputs:
  wave: {shape: [9000]}
  label: {shape: [], below: 5}
nodes:
  - {name: first, op: linear, from: wave, width: 12}
  - {name: active, op: relu}
  - {name: scores, op: linear, width: 5}
losses:
  - {name: loss, op: cross_entropy, from: [scores, label]}
outputs: [scores]
optimizer: {kind: sgd, rate: 0.05, decay: 0.001}
"""

NETWORKS = {"looking": LOOKING, "shaping": SHAPING, "long": LONG}
GOLDEN: dict[str, str] = {
    "looking": "a33048adaeacefdcca12b02cbb28927194b853394677d7eb64aea7091d58226f",
    "shaping": "92a17a04d1657954063e45f0d081eecc77733f57bd5efa9e4e5cb0f55426a6b9",
    "long": "6a84f832dc41e225c20a7af4c5d36e504f81f20f23386592b8e4f91cde5a2c66",
}
"""SHA-256 of the weights after 20 steps."""


def data_for(graph: Graph, count: int = 64) -> Data:
    """Synthetic samples, the same everywhere."""
    xp = NumpyArrays()
    arrays: dict[str, object] = {}
    for name, signal in graph.inputs.items():
        size = count * signal.size
        if signal.is_index:
            drawn = counter.words(xp, f"golden/{name}", size) % signal.below
        else:
            drawn = (counter.uniform(xp, f"golden/{name}", size) * 2.0 - 1.0) * 3.0
        arrays[name] = np.asarray(drawn).reshape((count, *signal.shape))
    return Data(arrays)


def weights_after(text: str, backend: str, steps: int = STEPS) -> str:
    """SHA-256 of a neural network's weights after this many steps on synthetic samples."""
    network = NeuralNetwork(parse(text), backend)
    network.train_local(data_for(network.graph), steps)
    return network.digest()


def main() -> int:
    words = argparse.ArgumentParser(description="Does this machine compute the same bits as all others?")
    words.add_argument("--backend", default="numpy", choices=("numpy", "torch", "cuda"))
    words.add_argument("--json", action="store_true")
    asked = words.parse_args()
    found = {name: weights_after(text, asked.backend) for name, text in NETWORKS.items()}
    if asked.json:
        print(json.dumps(found))
    else:
        for name, sha in found.items():
            print(f"{name:8} {sha} {'same' if sha == GOLDEN[name] else 'DIFFERENT, expected ' + GOLDEN[name]}")
    return 0 if found == GOLDEN else 1


if __name__ == "__main__":
    sys.exit(main())
