"""Linear maps and tables: linear, embedding, tied_head."""

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, ClassVar

from holdfast.neural.arrays import Array, ratio
from holdfast.neural.operators.operator import (
    Grads,
    Misfit,
    Operator,
    Option,
    Parameter,
    Product,
    RunContext,
    Signal,
    real_input,
)


def flat(x: Array) -> Array:
    """All axes but the last combined into one."""
    return x.reshape((prod(x.shape[:-1]), x.shape[-1]))


def reach_of(spread: float | None, fan_in: int) -> float:
    """The range of initial values: for a given standard deviation, or 1/√fan_in (uniform in both cases)."""
    return spread * sqrt(3.0) if spread else ratio(1.0, sqrt(max(fan_in, 1)))


class Linear(Operator):
    """x·W + b over the last axis."""

    kind = "linear"
    multiplies_rows = True
    accepts: ClassVar[dict[str, Option]] = {
        "width": Option(int, required=True, at_least=1),
        "bias": Option(bool, True),
        "spread": Option(float, at_least=0.0),
    }

    def signal(self, given: Sequence[Signal]) -> Signal:
        return Signal((*real_input(given, 1).shape[:-1], self.options["width"]))

    def parameters(self, given: Sequence[Signal]) -> dict[str, Parameter]:
        width_in, width = given[0].shape[-1], self.options["width"]
        found = {"weight": Parameter((width_in, width), reach_of(self.options["spread"], width_in))}
        if self.options["bias"]:
            found["bias"] = Parameter((width,), decays=False)
        return found

    def products(self, given: Sequence[Signal]) -> list[Product]:
        shape = given[0].shape
        return [Product("xw", prod(shape[:-1]), shape[-1], self.options["width"])]

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        x = inputs[0]
        y = run.ar.product(flat(x), run.ar.weight(weights["weight"], 0), self.name, "xw")
        if "bias" in weights:
            y += weights["bias"]
        return y.reshape((*x.shape[:-1], y.shape[-1])), x

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        x, g = flat(saved), flat(grad)
        found = {"weight": run.ar.product(x.T, g, self.name, "dw")}
        if "bias" in weights:
            found["bias"] = run.ar.sum(g, 0)
        back = run.ar.product(g, run.ar.weight(weights["weight"], 1).turned, self.name, "dx")
        return [back.reshape(saved.shape)], found


class Embedding(Operator):
    """A row of a table for each index."""

    kind = "embedding"
    accepts: ClassVar[dict[str, Option]] = {
        "width": Option(int, required=True, at_least=1),
        "spread": Option(float, 0.02, at_least=0.0),
    }

    def signal(self, given: Sequence[Signal]) -> Signal:
        if not given[0].is_index:
            raise Misfit("its input holds real numbers; it needs indices (an input with `below`)")
        return Signal((*given[0].shape, self.options["width"]))

    def parameters(self, given: Sequence[Signal]) -> dict[str, Parameter]:
        below, width = given[0].below, self.options["width"]
        return {"weight": Parameter((below, width), reach_of(self.options["spread"], width))}

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        return run.ar.xp.rows(weights["weight"], inputs[0]), inputs[0]

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        table = weights["weight"]
        total = run.ar.scatter_rows(table.shape[0], saved.reshape(-1), flat(grad), self.name)
        return [None], {"weight": total}


class TiedHead(Operator):
    """x·Eᵀ: scores against every row of a table that belongs to another operator."""

    kind = "tied_head"
    multiplies_rows = True
    accepts: ClassVar[dict[str, Option]] = {"rows": Option(int, required=True, at_least=1)}

    def signal(self, given: Sequence[Signal]) -> Signal:
        return Signal((*real_input(given, 1).shape[:-1], self.options["rows"]))

    def parameters(self, given: Sequence[Signal]) -> dict[str, Parameter]:
        width = given[0].shape[-1]
        return {"weight": Parameter((self.options["rows"], width), reach_of(None, width))}

    def products(self, given: Sequence[Signal]) -> list[Product]:
        shape = given[0].shape
        return [Product("xe", prod(shape[:-1]), shape[-1], self.options["rows"])]

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        x = inputs[0]
        y = run.ar.product(flat(x), run.ar.weight(weights["weight"], 1).turned, self.name, "xe")
        return y.reshape((*x.shape[:-1], y.shape[-1])), x

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        x, g = flat(saved), flat(grad)
        back = run.ar.product(g, run.ar.weight(weights["weight"], 0), self.name, "dx")
        return [back.reshape(saved.shape)], {"weight": run.ar.product(g.T, x, self.name, "dw")}
