"""Normalisation over the last axis: layernorm, rmsnorm, softmax."""

from collections.abc import Sequence
from typing import Any, ClassVar

from holdfast.neural.arithmetic import Arithmetic
from holdfast.neural.arrays import Array, ratio
from holdfast.neural.operators.dense import flat
from holdfast.neural.operators.operator import Grads, Operator, Option, Parameter, RunContext, Signal, real_input


def _centred(ar: Arithmetic, x: Array, gain: Array, share: float, epsilon: float) -> tuple[Array, Array, Array]:
    """The normalised row, the same before its gain, and its scale."""
    centred = x - ar.sum(x, -1, keep=True) * share
    variance = ar.sum(centred * centred, -1, keep=True) * share
    scale = ar.rsqrt(variance + epsilon)
    centred *= scale
    return centred * gain, centred, scale


def _shifted(
    ar: Arithmetic, x: Array, gain: Array, bias: Array, share: float, epsilon: float
) -> tuple[Array, Array, Array]:
    y, normal, scale = _centred(ar, x, gain, share, epsilon)
    y += bias
    return y, normal, scale


def _centred_slope(
    ar: Arithmetic, grad: Array, normal: Array, scale: Array, gain: Array, share: float
) -> tuple[Array, Array]:
    """The gradient of the row, and each element's part of the gradient of its gain."""
    g = grad * gain
    along = ar.sum(g * normal, -1, keep=True) * share
    back = (g - ar.sum(g, -1, keep=True) * share) - normal * along
    back *= scale
    return back, grad * normal


def _scaled(ar: Arithmetic, x: Array, gain: Array, share: float, epsilon: float) -> tuple[Array, Array, Array]:
    mean = ar.sum(x * x, -1, keep=True) * share
    scale = ar.rsqrt(mean + epsilon)
    normal = x * scale
    return normal * gain, normal, scale


def _scaled_slope(
    ar: Arithmetic, grad: Array, normal: Array, scale: Array, gain: Array, share: float
) -> tuple[Array, Array]:
    g = grad * gain
    along = ar.sum(g * normal, -1, keep=True) * share
    back = g - normal * along
    back *= scale
    return back, grad * normal


class LayerNorm(Operator):
    """(x − mean)/√(variance + ε) · gain + bias."""

    kind = "layernorm"
    accepts: ClassVar[dict[str, Option]] = {"epsilon": Option(float, 1e-5, at_least=1e-12), "bias": Option(bool, True)}

    def signal(self, given: Sequence[Signal]) -> Signal:
        return real_input(given, 1)

    def parameters(self, given: Sequence[Signal]) -> dict[str, Parameter]:
        width = given[0].shape[-1]
        found = {"gain": Parameter((width,), fill=1.0, decays=False)}
        if self.options["bias"]:
            found["bias"] = Parameter((width,), decays=False)
        return found

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 8 * given[0].size

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        x = inputs[0]
        how = [ratio(1.0, x.shape[-1]), self.options["epsilon"]]
        if "bias" in weights:
            y, normal, scale = run.ar.each_row(_shifted, x, weights["gain"], weights["bias"], scalars=how)
        else:
            y, normal, scale = run.ar.each_row(_centred, x, weights["gain"], scalars=how)
        return y, (normal, scale)

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        ar, (normal, scale) = run.ar, saved
        share = ratio(1.0, normal.shape[-1])
        back, gains = ar.each_row(_centred_slope, grad, normal, scale, weights["gain"], scalars=[share])
        found = {"gain": ar.sum(flat(gains), 0)}
        if "bias" in weights:
            found["bias"] = ar.sum(flat(grad), 0)
        return [back], found


class RmsNorm(Operator):
    """x/√(mean of x² + ε) · gain."""

    kind = "rmsnorm"
    accepts: ClassVar[dict[str, Option]] = {"epsilon": Option(float, 1e-5, at_least=1e-12)}

    def signal(self, given: Sequence[Signal]) -> Signal:
        return real_input(given, 1)

    def parameters(self, given: Sequence[Signal]) -> dict[str, Parameter]:
        return {"gain": Parameter((given[0].shape[-1],), fill=1.0, decays=False)}

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 5 * given[0].size

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        x = inputs[0]
        how = [ratio(1.0, x.shape[-1]), self.options["epsilon"]]
        y, normal, scale = run.ar.each_row(_scaled, x, weights["gain"], scalars=how)
        return y, (normal, scale)

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        ar, (normal, scale) = run.ar, saved
        share = ratio(1.0, normal.shape[-1])
        back, gains = ar.each_row(_scaled_slope, grad, normal, scale, weights["gain"], scalars=[share])
        return [back], {"gain": ar.sum(flat(gains), 0)}


def softmax(ar: Arithmetic, x: Array) -> Array:
    """e^x over the last axis, divided by its sum."""
    grown = ar.exp(x - ar.xp.largest(x, -1))
    return ar.xp.divide(grown, ar.sum(grown, -1, keep=True))


def softmax_back(ar: Arithmetic, y: Array, grad: Array) -> Array:
    """The gradient of softmax, given its result."""
    along = ar.sum(grad * y, -1, keep=True)
    back = grad - along
    back *= y
    return back


class Softmax(Operator):
    kind = "softmax"

    def signal(self, given: Sequence[Signal]) -> Signal:
        return real_input(given, 1)

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 40 * given[0].size

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        y = run.ar.each_row(softmax, inputs[0])
        return y, y

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        return [run.ar.each_row(softmax_back, saved, grad)], {}
