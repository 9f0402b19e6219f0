"""Operators that move numbers unchanged: concat, split, reshape, transpose. Axes are those of one sample."""

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from holdfast.neural.arrays import Array
from holdfast.neural.operators.operator import Grads, Misfit, Operator, Option, RunContext, Shape, Signal, real_input


def axis_of(options: dict[str, Any], shape: Shape) -> int:
    """The axis counted from the end, which is the same with and without the batch."""
    axis: int = options["axis"]
    if not -len(shape) <= axis < len(shape):
        raise Misfit(f"its input has {len(shape)} axes; there is no axis {axis}", "axis")
    return axis - len(shape) if axis >= 0 else axis


def along(x: Array, axis: int, start: int, stop: int) -> Array:
    """x[start:stop] on an axis counted from the end."""
    return x[(..., slice(start, stop), *[slice(None)] * (-axis - 1))]


class Concat(Operator):
    """Inputs one after another along an axis."""

    kind = "concat"
    inputs_min, inputs_max = 2, 16
    accepts: ClassVar[dict[str, Option]] = {"axis": Option(int, -1)}
    sequential = False

    def signal(self, given: Sequence[Signal]) -> Signal:
        shape = list(real_input(given, 1).shape)
        axis = axis_of(self.options, given[0].shape)
        for other in given[1:]:
            same = list(real_input([other]).shape)
            if len(same) != len(shape) or any(
                a != b for i, (a, b) in enumerate(zip(shape, same, strict=True)) if i - len(shape) != axis
            ):
                raise Misfit(f"its inputs cannot be joined: {given[0]} and {other}")
        shape[axis] = sum(s.shape[axis] for s in given)
        return Signal(tuple(shape))

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 0

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        axis = axis_of(self.options, tuple(inputs[0].shape[1:]))
        return run.ar.xp.join(inputs, axis), (axis, [x.shape[axis] for x in inputs])

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        axis, sizes = saved
        parts: list[Array | None] = []
        start = 0
        for size in sizes:
            parts.append(along(grad, axis, start, start + size))
            start += size
        return parts, {}


class Split(Operator):
    """One of several equal parts of an axis."""

    kind = "split"
    accepts: ClassVar[dict[str, Option]] = {
        "axis": Option(int, -1),
        "parts": Option(int, required=True, at_least=1),
        "part": Option(int, required=True, at_least=0),
    }
    sequential = False

    def _cut(self, shape: Shape) -> tuple[int, int, int]:
        axis, parts, part = axis_of(self.options, shape), self.options["parts"], self.options["part"]
        if shape[axis] % parts:
            raise Misfit(f"its axis has {shape[axis]} entries, which {parts} parts do not share evenly", "parts")
        if part >= parts:
            raise Misfit(f"there is no part {part} of {parts}: they count from 0", "part")
        size = shape[axis] // parts
        return axis, part * size, size

    def signal(self, given: Sequence[Signal]) -> Signal:
        shape = list(real_input(given, 1).shape)
        axis, _, size = self._cut(given[0].shape)
        shape[axis] = size
        return Signal(tuple(shape))

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 0

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        axis, start, size = self._cut(tuple(inputs[0].shape[1:]))
        return along(inputs[0], axis, start, start + size), tuple(inputs[0].shape)

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        axis, start, size = self._cut(saved[1:])
        whole = run.ar.zeros(saved)
        target = along(whole, axis, start, start + size)
        target += grad
        return [whole], {}


class Reshape(Operator):
    """The same numbers in another shape."""

    kind = "reshape"
    accepts: ClassVar[dict[str, Option]] = {"shape": Option(list, required=True)}
    sequential = False

    def signal(self, given: Sequence[Signal]) -> Signal:
        shape = tuple(self.options["shape"])
        if prod(shape) != real_input(given).size:
            raise Misfit(f"its input has {given[0].size} numbers, and the shape asks for {prod(shape)}", "shape")
        return Signal(shape)

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 0

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        x = inputs[0]
        return x.reshape((x.shape[0], *self.options["shape"])), tuple(x.shape)

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        return [grad.reshape(saved)], {}


class Transpose(Operator):
    """The axes in another order."""

    kind = "transpose"
    accepts: ClassVar[dict[str, Option]] = {"axes": Option(list, required=True)}
    sequential = False

    def signal(self, given: Sequence[Signal]) -> Signal:
        axes: list[int] = self.options["axes"]
        shape = real_input(given).shape
        if sorted(axes) != list(range(len(shape))):
            raise Misfit(f"its axes must be 0 to {len(shape) - 1} in some order", "axes")
        return Signal(tuple(shape[a] for a in axes))

    def other_flops(self, given: Sequence[Signal]) -> int:
        return 0

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        return run.ar.xp.permute(inputs[0], [0, *(a + 1 for a in self.options["axes"])]), None

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        axes: list[int] = self.options["axes"]
        inverse = [axes.index(i) + 1 for i in range(len(axes))]
        return [run.ar.xp.permute(grad, [0, *inverse])], {}
