"""Updates weights from gradients: SGD, momentum, AdamW, clipping by the global norm, schedules.

Powers and cosines of Python numbers are computed here, because libraries differ in them. Pure.
"""

from collections.abc import Iterable, Mapping
from math import sqrt

import numpy as np

from holdfast.neural import functions
from holdfast.neural.arithmetic import Arithmetic
from holdfast.neural.arrays import Array, NumpyArrays, ratio
from holdfast.neural.graph import Graph, Training
from holdfast.neural.operators import Parameter
from holdfast.neural.refusals import NotFinite
from holdfast.neural.state import FIRST, SECOND, State

_PI = float.fromhex("0x1.921fb54442d18p+1")


def whole_power(base: float, exponent: int) -> float:
    """base^exponent by squaring: a fixed sequence of products."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def rate_at(training: Training, step: int) -> float:
    """The learning rate of a step, counted from 0: linear warm-up, then the schedule down to `floor`."""
    if step < training.warmup:
        return training.rate * ratio(step + 1, training.warmup)
    if training.schedule == "constant":
        return training.rate
    span = max(training.steps - training.warmup, 1)
    done = min(ratio(step - training.warmup, span), 1.0)
    if training.schedule == "linear":
        left = 1.0 - done
    else:
        cosine = functions.cos(NumpyArrays(), np.array([done * _PI]))
        left = 0.5 * (1.0 + float(cosine[0]))
    return training.rate * (training.floor + (1.0 - training.floor) * left)


def clip_factor(training: Training, squares: Mapping[str, float], order: Iterable[str]) -> tuple[float, float]:
    """The norm of the gradient and the factor that reduces it to `clip`. Squares are added in the graph's order."""
    total = 0.0
    for name in order:
        if not squares[name] < float("inf"):
            raise NotFinite(name.rpartition(".")[0], f"the gradient of {name}")
        total += squares[name]
    norm = sqrt(total)
    factor = ratio(training.clip, norm) if training.clip and norm > training.clip else 1.0
    return norm, factor


def updated(graph: Graph, ar: Arithmetic, state: State, grads: Mapping[str, Array], factor: float) -> State:
    """The state after one more step."""
    step = state.step + 1
    rate = rate_at(graph.training, state.step)
    tensors: dict[str, Array] = {}
    for name, grad in grads.items():
        scaled = grad if factor == 1.0 else grad * factor
        moved = _moved(graph.training, ar, state.tensors, name, graph.parameters[name], scaled, rate, step)
        tensors.update(moved)
    for name in grads:
        ar.finite(tensors[name], name.rpartition(".")[0], f"{name} after the step")
    return State({**state.tensors, **tensors}, step)


def _moved(
    training: Training, ar: Arithmetic, held: Mapping[str, Array], name: str, parameter: Parameter, grad: Array,
    rate: float, step: int,
) -> dict[str, Array]:  # fmt: skip
    w = held[name]
    keep = 1.0 - rate * training.decay if parameter.decays else 1.0
    if training.kind == "sgd":
        return {name: ar.each(_descend, w, grad, scalars=[keep, rate])}
    if training.kind == "momentum":
        moved, moment = ar.each(_roll, w, held[FIRST + name], grad, scalars=[keep, rate, training.momentum])
        return {name: moved, FIRST + name: moment}
    b1, b2 = training.betas
    # Both corrections in the scalars: rate/(1−b1^t) · m / (√v · 1/√(1−b2^t) + ε).
    pace = ratio(rate, 1.0 - whole_power(b1, step))
    grow = ratio(1.0, sqrt(1.0 - whole_power(b2, step)))
    how = [keep, pace, grow, training.epsilon, b1, 1.0 - b1, b2, 1.0 - b2]
    moved, first, second = ar.each(_follow, w, held[FIRST + name], held[SECOND + name], grad, scalars=how)
    return {name: moved, FIRST + name: first, SECOND + name: second}


def _descend(ar: Arithmetic, w: Array, g: Array, keep: float, rate: float) -> Array:
    return w * keep - g * rate


def _roll(
    ar: Arithmetic, w: Array, m: Array, g: Array, keep: float, rate: float, momentum: float
) -> tuple[Array, Array]:
    moment = m * momentum + g
    return w * keep - moment * rate, moment


def _follow(
    ar: Arithmetic, w: Array, m: Array, v: Array, g: Array, keep: float, pace: float, grow: float, epsilon: float,
    b1: float, rest1: float, b2: float, rest2: float,
) -> tuple[Array, Array, Array]:  # fmt: skip
    first = m * b1 + g * rest1
    second = v * b2 + g * g * rest2
    return w * keep - ar.xp.divide(first * pace, ar.xp.sqrt(second) * grow + epsilon), first, second
