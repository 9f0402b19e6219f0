"""Continues a prompt letter by letter, with or without a cache of past positions: the letters are the same.

Every letter is drawn with its own random bits, keyed by seed and position, from probabilities in exact arithmetic.
"""

import numpy as np

from holdfast.neural import counter
from holdfast.neural.arrays import Array, NumpyArrays, ratio
from holdfast.neural.operators import RunContext
from holdfast.neural.operators.norms import softmax
from holdfast.neural.refusals import NeuralError
from holdfast.neural.stage import Stage
from holdfast.neural.training import Trainer

LENGTH_MAX = 65_536


def generate(
    trainer: Trainer, prompt: list[int], count: int, below: int, *, temperature: float = 0.0, seed: int = 1,
    cache: bool = True,
) -> list[int]:  # fmt: skip
    """The prompt and `count` more tokens. Temperature 0 takes the most likely one; tokens stay below `below`."""
    graph, ar = trainer.graph, trainer.ar
    if count < 0 or len(prompt) + count > LENGTH_MAX:
        raise NeuralError(f"a text has at most {LENGTH_MAX} letters")
    if not temperature >= 0.0:
        raise NeuralError("a temperature is at least 0")
    output = graph.outputs[0]
    stage = _speaking(trainer, output)
    tokens = list(prompt)
    past: dict[str, Array] = {}
    for place in range(count):
        start = len(tokens) - 1 if cache and place else 0
        run = RunContext(ar, train=False, cache=past if cache else None, position=start)
        given = {"tokens": ar.xp.index(np.array([tokens[start:]], dtype=np.int64))}
        values, _ = stage.forward(run, trainer.state, given)
        ar.settle()
        scores = values[output][:, -1, :below]
        tokens.append(_drawn(trainer, scores, temperature, f"{seed}/speak/{place}"))
    ar.forget()
    return tokens


def _drawn(trainer: Trainer, scores: Array, temperature: float, key: str) -> int:
    ar = trainer.ar
    if temperature == 0.0:
        return int(ar.xp.host(scores)[0].argmax())
    chances = ar.xp.host(softmax(ar, scores * ratio(1.0, temperature)))[0].tolist()
    drawn = float(counter.uniform(NumpyArrays(), key, 1)[0])
    total = 0.0
    for token, chance in enumerate(chances):
        total += chance
        if drawn < total:
            return token
    return len(chances) - 1


def _speaking(trainer: Trainer, output: str) -> Stage:
    """The part of the neural network that its output needs: it must depend on tokens alone, at past positions only."""
    graph = trainer.graph
    needed: set[str] = {output}
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(node.sources)
    fed = needed & set(graph.inputs)
    if fed != {"tokens"} or len(graph.signals[output].shape) != 2:
        raise NeuralError(f"{graph.name} cannot generate: its first output must be scores for the input tokens alone")
    stage = Stage(graph, tuple(n.name for n in graph.nodes if n.name in needed))
    for node in stage.nodes:
        if not node.operator.sequential or node.operator.options.get("causal") is False:
            raise NeuralError(
                f"{graph.name} cannot generate: node {node.name} ({node.operator.kind}) looks ahead or moves positions"
            )
    return stage
