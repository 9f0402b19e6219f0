"""Normalisation over the last axis: layernorm, rmsnorm, softmax."""

from collections.abc import Sequence
from typing import Any, ClassVar

from holdfast.neural.arithmetic import Arithmetic
from holdfast.neural.arrays import Array, ratio
from holdfast.neural.operators.dense import flat
from holdfast.neural.operators.operator import Grads, Operator, Option, Parameter, Run, Signal, real_input


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

    def forward(self, run: Run, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        ar, x = run.ar, inputs[0]
        share = ratio(1.0, x.shape[-1])
        centred = x - ar.sum(x, -1, keep=True) * share
        variance = ar.sum(centred * centred, -1, keep=True) * share
        scale = ar.rsqrt(variance + self.options["epsilon"])
        centred *= scale
        y = centred * weights["gain"]
        if "bias" in weights:
            y += weights["bias"]
        return y, (centred, scale)

    def backward(self, run: Run, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        ar, (normal, scale) = run.ar, saved
        share = ratio(1.0, normal.shape[-1])
        found = {"gain": ar.sum(flat(grad * normal), 0)}
        if "bias" in weights:
            found["bias"] = ar.sum(flat(grad), 0)
        g = grad * weights["gain"]
        along = ar.sum(g * normal, -1, keep=True) * share
        back = (g - ar.sum(g, -1, keep=True) * share) - normal * along
        back *= scale
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

    def forward(self, run: Run, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        ar, x = run.ar, inputs[0]
        mean = ar.sum(x * x, -1, keep=True) * ratio(1.0, x.shape[-1])
        scale = ar.rsqrt(mean + self.options["epsilon"])
        normal = x * scale
        return normal * weights["gain"], (normal, scale)

    def backward(self, run: Run, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        ar, (normal, scale) = run.ar, saved
        g = grad * weights["gain"]
        along = ar.sum(g * normal, -1, keep=True) * ratio(1.0, normal.shape[-1])
        back = g - normal * along
        back *= scale
        return [back], {"gain": ar.sum(flat(grad * normal), 0)}


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

    def forward(self, run: Run, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        y = softmax(run.ar, inputs[0])
        return y, y

    def backward(self, run: Run, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        return [softmax_back(run.ar, saved, grad)], {}
