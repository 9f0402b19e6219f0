"""Losses: cross_entropy from scores, mse. Each computes one number per sample: the mean over its positions."""

from collections.abc import Sequence
from math import prod
from typing import Any

from holdfast.neural.arrays import Array, ratio
from holdfast.neural.operators.dense import flat
from holdfast.neural.operators.operator import Grads, Misfit, Operator, RunContext, Signal, real_input


class Loss(Operator):
    is_loss = True
    inputs_min = inputs_max = 2


class CrossEntropy(Loss):
    """−log softmax(scores)[label], from the scores themselves."""

    kind = "cross_entropy"
    no_gradient = frozenset({1})

    def signal(self, given: Sequence[Signal]) -> Signal:
        scores, labels = real_input(given, 1), given[1]
        if not labels.is_index:
            raise Misfit("its second input holds real numbers; it needs labels (an input with `below`)")
        if scores.shape[:-1] != labels.shape:
            raise Misfit(f"its scores are {scores} and its labels {labels}; scores need one more axis, the classes")
        if labels.below > scores.shape[-1]:
            raise Misfit(f"labels reach up to {labels.below - 1}, and there are scores for {scores.shape[-1]} classes")
        return Signal(())

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 40 * given[0].size

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        ar = run.ar
        x, label = flat(inputs[0]), inputs[1].reshape(-1)
        shifted = x - ar.xp.largest(x, -1)
        grown = ar.exp(shifted)
        total = ar.sum(grown, -1, keep=True)
        loss = ar.log(total[:, 0]) - ar.xp.pick(shifted, label)
        samples = inputs[0].shape[0]
        positions = prod(inputs[0].shape[1:-1])
        mean = ar.sum(loss.reshape((samples, positions)), 1) * ratio(1.0, max(positions, 1))
        return mean, (grown, total, label, tuple(inputs[0].shape))

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        ar, (grown, total, label, shape) = run.ar, saved
        chance = ar.xp.divide(grown, total)
        chance = ar.xp.put(chance, label, ar.xp.pick(chance, label) - 1.0)
        positions = prod(shape[1:-1])
        each = (grad * ratio(1.0, max(positions, 1)))[:, None]
        spread = ar.xp.spread(each, (shape[0], positions)).reshape(-1)
        return [(chance * spread[:, None]).reshape(shape), None], {}


class Mse(Loss):
    """The mean of squared differences."""

    kind = "mse"

    def signal(self, given: Sequence[Signal]) -> Signal:
        if real_input(given).shape != real_input(given[1:]).shape:
            raise Misfit(f"its inputs differ in shape: {given[0]} and {given[1]}")
        return Signal(())

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        difference = inputs[0] - inputs[1]
        lines = difference.reshape((difference.shape[0], prod(difference.shape[1:])))
        return run.ar.sum(lines * lines, 1) * ratio(1.0, max(lines.shape[1], 1)), difference

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        each = (grad * ratio(2.0, max(prod(saved.shape[1:]), 1))).reshape((-1, *[1] * (len(saved.shape) - 1)))
        back = saved * each
        return [back, -back], {}
