"""Elementwise operators: gelu, relu, silu, swiglu, dropout, add, mul, mask."""

from collections.abc import Sequence
from typing import Any, ClassVar

from holdfast.neural import counter
from holdfast.neural.arrays import Array, ratio
from holdfast.neural.operators.operator import Grads, Misfit, Operator, Option, Run, Signal, real_input

_SQRT_2_OVER_PI = float.fromhex("0x1.9884533d43651p-1")
_SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
_NORMAL_PEAK = float.fromhex("0x1.9884533d43651p-2")
"""1/√(2π)."""
_CUBE = 0.044715


class Elementwise(Operator):
    """One result for each input element."""

    def signal(self, given: Sequence[Signal]) -> Signal:
        return real_input(given)


def _inside_tanh(x: Array) -> Array:
    return (x * x * x * _CUBE + x) * _SQRT_2_OVER_PI


def _halved(x: Array, inner: Array) -> Array:
    return 0.5 * x * (inner + 1.0)


class Gelu(Elementwise):
    """x·Φ(x): by tanh as most language models have it, or by erf as it is defined."""

    kind = "gelu"
    accepts: ClassVar[dict[str, Option]] = {"form": Option(str, "tanh", choices=("tanh", "erf"))}

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 40 * given[0].size

    def forward(self, run: Run, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        ar, x = run.ar, inputs[0]
        by_tanh = self.options["form"] == "tanh"
        inner = ar.tanh(ar.xp.blockwise(_inside_tanh, x)) if by_tanh else ar.erf(x * _SQRT_HALF)
        return ar.xp.blockwise(_halved, x, inner), (x, inner)

    def backward(self, run: Run, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        ar, (x, inner) = run.ar, saved
        if self.options["form"] == "tanh":

            def slope(v: Array, t: Array, g: Array) -> Array:
                inside = (v * v * (3.0 * _CUBE) + 1.0) * _SQRT_2_OVER_PI
                return g * (0.5 * (t + 1.0) + 0.5 * v * (1.0 - t * t) * inside)

            return [ar.xp.blockwise(slope, x, inner, grad)], {}
        density = ar.exp(-0.5 * (x * x)) * _NORMAL_PEAK
        return [grad * (0.5 * (inner + 1.0) + x * density)], {}


class Relu(Elementwise):
    kind = "relu"

    def forward(self, run: Run, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        x = inputs[0]
        positive = x > 0.0
        return run.ar.xp.where(positive, x, 0.0), positive

    def backward(self, run: Run, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        return [run.ar.xp.where(saved, grad, 0.0)], {}


def silu_slope(x: Array, s: Array) -> Array:
    """The derivative of x·σ(x), given s = σ(x)."""
    return s * (x * (1.0 - s) + 1.0)


class Silu(Elementwise):
    """x·σ(x)."""

    kind = "silu"

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 30 * given[0].size

    def forward(self, run: Run, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        x = inputs[0]
        s = run.ar.sigmoid(x)
        return x * s, (x, s)

    def backward(self, run: Run, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        x, s = saved
        return [grad * silu_slope(x, s)], {}


class Swiglu(Operator):
    """silu(a)·b, where a and b are the halves of the last axis."""

    kind = "swiglu"

    def signal(self, given: Sequence[Signal]) -> Signal:
        shape = real_input(given, 1).shape
        if shape[-1] % 2:
            raise Misfit(f"its input's last axis has {shape[-1]} entries; it needs an even number")
        return Signal((*shape[:-1], shape[-1] // 2))

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 16 * given[0].size

    def forward(self, run: Run, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        x = inputs[0]
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        s = run.ar.sigmoid(a)
        return a * s * b, (a, b, s)

    def backward(self, run: Run, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        a, b, s = saved
        return [run.ar.xp.join([grad * b * silu_slope(a, s), grad * (a * s)], -1)], {}


class Dropout(Elementwise):
    """Drops each element with a probability, in training; what stays is scaled up."""

    kind = "dropout"
    accepts: ClassVar[dict[str, Option]] = {"rate": Option(float, required=True, at_least=0.0, below=1.0)}

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 30 * given[0].size

    def forward(self, run: Run, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        rate: float = self.options["rate"]
        x = inputs[0]
        if not run.train or rate == 0.0:
            return x, None
        size = 1
        for n in x.shape:
            size *= n
        drawn = counter.words(run.ar.xp, f"{run.key}/{self.name}", size).reshape(x.shape)
        stays = drawn >= int(rate * 2.0**32)
        return run.ar.xp.where(stays, x * ratio(1.0, 1.0 - rate), 0.0), stays

    def backward(self, run: Run, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        if saved is None:
            return [grad], {}
        return [run.ar.xp.where(saved, grad * ratio(1.0, 1.0 - self.options["rate"]), 0.0)], {}


class _Several(Elementwise):
    inputs_min = 2
    inputs_max = 16

    def signal(self, given: Sequence[Signal]) -> Signal:
        for other in given:
            real_input([other])
            if other.shape != given[0].shape:
                raise Misfit(f"its inputs differ in shape: {given[0]} and {other}")
        return given[0]


class Add(_Several):
    kind = "add"

    def forward(self, run: Run, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        total = inputs[0] + inputs[1]
        for x in inputs[2:]:
            total += x
        return total, len(inputs)

    def backward(self, run: Run, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        return [grad] * saved, {}


class Mul(_Several):
    kind = "mul"
    inputs_max = 2

    def forward(self, run: Run, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        return inputs[0] * inputs[1], (inputs[0], inputs[1])

    def backward(self, run: Run, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        a, b = saved
        return [grad * b, grad * a], {}


class Mask(Elementwise):
    """The first input where the second is not zero, and a fixed number elsewhere."""

    kind = "mask"
    inputs_min = inputs_max = 2
    accepts: ClassVar[dict[str, Option]] = {"fill": Option(float, 0.0)}
    no_gradient = frozenset({1})

    def signal(self, given: Sequence[Signal]) -> Signal:
        if real_input(given).shape != given[1].shape:
            raise Misfit(f"its mask is {given[1]} and its input {given[0]}; they must have the same shape")
        return given[0]

    def forward(self, run: Run, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        stays = inputs[1] != 0
        return run.ar.xp.where(stays, inputs[0], self.options["fill"]), stays

    def backward(self, run: Run, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        return [run.ar.xp.where(saved, grad, 0.0), None], {}
