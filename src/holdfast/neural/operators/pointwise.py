"""Elementwise operators: gelu, relu, silu, swiglu, dropout, add, mul, mask.

Those with inputs of one shape are `Pointwise`: each defines its effect on one element, so that a chain of them can run
in one pass (`holdfast.neural.fusion`). Alone, each is a separate pass; the bits are the same.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from holdfast.neural import counter
from holdfast.neural.arithmetic import Arithmetic
from holdfast.neural.arrays import Array, ratio
from holdfast.neural.operators.operator import Grads, Misfit, Operator, Option, RunContext, Signal, real_input

_SQRT_2_OVER_PI = float.fromhex("0x1.9884533d43651p-1")
_SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
_NORMAL_PEAK = float.fromhex("0x1.9884533d43651p-2")
"""1/√(2π)."""
_CUBE = 0.044715


class Pointwise(Operator):
    """One result for each element of inputs of one shape."""

    keeps: ClassVar[tuple[str, ...]] = ()
    """What `slope` needs: `in0` … an input, `drawn0` … a random bit, `made0` … what `point` returns beside its
    result."""
    passes_gradient = False
    """Whether the gradient of every input equals that of the result."""

    def signal(self, given: Sequence[Signal]) -> Signal:
        return real_input(given)

    def drawn(self, run: RunContext, shape: tuple[int, ...]) -> list[Array]:
        """Random bits for this run; the context decides whether any are needed."""
        return []

    def point(self, ar: Arithmetic, inputs: list[Array], drawn: list[Array]) -> tuple[Array, ...]:
        """The result, and further values that were computed for it."""
        raise AssertionError(f"{type(self).__name__} has no point")

    def slope(self, ar: Arithmetic, grad: Array, *kept: Array) -> list[Array | None]:
        """The gradients of the inputs, given the values that `keeps` names."""
        raise AssertionError(f"{type(self).__name__} has no slope")

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        drawn = self.drawn(run, tuple(inputs[0].shape))
        count = len(inputs)

        def point(ar: Arithmetic, *given: Array) -> tuple[Array, ...]:
            return self.point(ar, list(given[:count]), list(given[count:]))

        result, *made = run.ar.each(point, *inputs, *drawn)
        kinds = {"in": inputs, "drawn": drawn, "made": made}
        kept = [kinds[name.rstrip("0123456789")][int(name[-1])] for name in self.kept_names(len(drawn))]
        return result, (kept, len(inputs))

    def kept_names(self, drawn: int) -> tuple[str, ...]:
        """The names of the kept values, if this many random arrays were drawn."""
        return tuple(name for name in self.keeps if not (name.startswith("drawn") and drawn == 0))

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        kept, count = saved
        if self.passes_gradient:
            return [grad] * count, {}

        def slope(ar: Arithmetic, grad: Array, *kept: Array) -> tuple[Array, ...]:
            return tuple(g for g in self.slope(ar, grad, *kept) if g is not None)

        found = iter(run.ar.each(slope, grad, *kept))
        return [None if i in self.no_gradient else next(found) for i in range(count)], {}


class Gelu(Pointwise):
    """x·Φ(x): by tanh as in most language models, or by erf as it is defined."""

    kind = "gelu"
    accepts: ClassVar[dict[str, Option]] = {"form": Option(str, "tanh", choices=("tanh", "erf"))}
    keeps = ("in0", "made0")

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 40 * given[0].size

    def point(self, ar: Arithmetic, inputs: list[Array], drawn: list[Array]) -> tuple[Array, ...]:
        x = inputs[0]
        if self.options["form"] == "tanh":
            inner = ar.tanh((x * x * x * _CUBE + x) * _SQRT_2_OVER_PI)
        else:
            inner = ar.erf(x * _SQRT_HALF)
        return 0.5 * x * (inner + 1.0), inner

    def slope(self, ar: Arithmetic, grad: Array, *kept: Array) -> list[Array | None]:
        x, inner = kept
        if self.options["form"] == "tanh":
            inside = (x * x * (3.0 * _CUBE) + 1.0) * _SQRT_2_OVER_PI
            return [grad * (0.5 * (inner + 1.0) + 0.5 * x * (1.0 - inner * inner) * inside)]
        density = ar.exp(-0.5 * (x * x)) * _NORMAL_PEAK
        return [grad * (0.5 * (inner + 1.0) + x * density)]


class Relu(Pointwise):
    kind = "relu"
    keeps = ("made0",)

    def point(self, ar: Arithmetic, inputs: list[Array], drawn: list[Array]) -> tuple[Array, ...]:
        positive = inputs[0] > 0.0
        return ar.xp.where(positive, inputs[0], 0.0), positive

    def slope(self, ar: Arithmetic, grad: Array, *kept: Array) -> list[Array | None]:
        return [ar.xp.where(kept[0], grad, 0.0)]


def silu_slope(x: Array, s: Array) -> Array:
    """The derivative of x·σ(x), given s = σ(x)."""
    return s * (x * (1.0 - s) + 1.0)


class Silu(Pointwise):
    """x·σ(x)."""

    kind = "silu"
    keeps = ("in0", "made0")

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 30 * given[0].size

    def point(self, ar: Arithmetic, inputs: list[Array], drawn: list[Array]) -> tuple[Array, ...]:
        s = ar.sigmoid(inputs[0])
        return inputs[0] * s, s

    def slope(self, ar: Arithmetic, grad: Array, *kept: Array) -> list[Array | None]:
        x, s = kept
        return [grad * silu_slope(x, s)]


def _gated(ar: Arithmetic, a: Array, b: Array) -> tuple[Array, Array]:
    s = ar.sigmoid(a)
    return a * s * b, s


def _gated_slope(ar: Arithmetic, a: Array, b: Array, s: Array, grad: Array) -> tuple[Array, Array]:
    return grad * b * silu_slope(a, s), grad * (a * s)


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

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        x = inputs[0]
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        y, s = run.ar.each(_gated, a, b)
        return y, (a, b, s)

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        return [run.ar.xp.join(list(run.ar.each(_gated_slope, *saved, grad)), -1)], {}


class Dropout(Pointwise):
    """Drops each element with a probability, in training; the others are scaled up."""

    kind = "dropout"
    accepts: ClassVar[dict[str, Option]] = {"rate": Option(float, required=True, at_least=0.0, below=1.0)}
    keeps = ("drawn0",)

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 30 * given[0].size

    def drawn(self, run: RunContext, shape: tuple[int, ...]) -> list[Array]:
        rate: float = self.options["rate"]
        if not run.train or rate == 0.0:
            return []
        return [counter.at_least(run.ar.xp, f"{run.key}/{self.name}", shape, int(rate * 2.0**32))]

    def _scaled(self, ar: Arithmetic, x: Array, stays: Sequence[Array]) -> Array:
        return ar.xp.where(stays[0], x * ratio(1.0, 1.0 - self.options["rate"]), 0.0) if stays else x

    def point(self, ar: Arithmetic, inputs: list[Array], drawn: list[Array]) -> tuple[Array, ...]:
        return (self._scaled(ar, inputs[0], drawn),)

    def slope(self, ar: Arithmetic, grad: Array, *kept: Array) -> list[Array | None]:
        return [self._scaled(ar, grad, kept)]


class _Several(Pointwise):
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
    passes_gradient = True

    def point(self, ar: Arithmetic, inputs: list[Array], drawn: list[Array]) -> tuple[Array, ...]:
        total = inputs[0] + inputs[1]
        for x in inputs[2:]:
            total += x
        return (total,)

    def slope(self, ar: Arithmetic, grad: Array, *kept: Array) -> list[Array | None]:
        return [grad]


class Mul(_Several):
    kind = "mul"
    inputs_max = 2
    keeps = ("in0", "in1")

    def point(self, ar: Arithmetic, inputs: list[Array], drawn: list[Array]) -> tuple[Array, ...]:
        return (inputs[0] * inputs[1],)

    def slope(self, ar: Arithmetic, grad: Array, *kept: Array) -> list[Array | None]:
        a, b = kept
        return [grad * b, grad * a]


class Mask(Pointwise):
    """The first input where the second is not zero, and a fixed number elsewhere."""

    kind = "mask"
    inputs_min = inputs_max = 2
    accepts: ClassVar[dict[str, Option]] = {"fill": Option(float, 0.0)}
    no_gradient = frozenset({1})
    keeps = ("made0",)

    def signal(self, given: Sequence[Signal]) -> Signal:
        if real_input(given).shape != given[1].shape:
            raise Misfit(f"its mask is {given[1]} and its input {given[0]}; they must have the same shape")
        return given[0]

    def point(self, ar: Arithmetic, inputs: list[Array], drawn: list[Array]) -> tuple[Array, ...]:
        stays = inputs[1] != 0
        return ar.xp.where(stays, inputs[0], self.options["fill"]), stays

    def slope(self, ar: Arithmetic, grad: Array, *kept: Array) -> list[Array | None]:
        return [ar.xp.where(kept[0], grad, 0.0), None]
