"""Attention over the positions of a sequence: several heads, causal or not, rotary positions, a cache of past
positions.

The cache changes no bit: a query's scores depend only on itself and each key, sums over keys are trees that appended
zeros do not change, and each value has its own scale (`exact.absorb`).
"""

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from holdfast.neural import functions
from holdfast.neural.arithmetic import Arithmetic
from holdfast.neural.arrays import Array, NumpyArrays, ratio
from holdfast.neural.operators.dense import flat, reach_of
from holdfast.neural.operators.norms import softmax, softmax_back
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

FAR_BELOW = -1e30
"""A score that softmax turns into exactly zero."""


@lru_cache(maxsize=16)
def rotations(positions: int, width: int, base: float) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """cos and sin of position·base^(−2i/width), for every position and i < width/2."""
    xp = NumpyArrays()
    pace = -ratio(2.0, width) * functions.log(xp, np.array([base]))
    angle = np.arange(positions, dtype=np.float64)[:, None] * functions.exp(xp, np.arange(width // 2) * pace)[None, :]
    return functions.cos(xp, angle), functions.sin(xp, angle)


class Attention(Operator):
    kind = "attention"
    multiplies_rows = True
    accepts: ClassVar[dict[str, Option]] = {
        "heads": Option(int, required=True, at_least=1),
        "causal": Option(bool, True),
        "rope": Option(bool, True),
        "base": Option(float, 10000.0, at_least=1.0),
        "spread": Option(float, at_least=0.0),
    }

    def signal(self, given: Sequence[Signal]) -> Signal:
        first = real_input(given, 2)
        heads: int = self.options["heads"]
        if len(first.shape) != 2:
            raise Misfit(f"its input is {first}; it needs positions × width")
        if first.shape[1] % heads:
            raise Misfit(f"its width {first.shape[1]} is not a multiple of {heads} heads", "heads")
        if self.options["rope"] and first.shape[1] // heads % 2:
            raise Misfit(f"rotary positions need an even width per head, not {first.shape[1] // heads}", "heads")
        return first

    def parameters(self, given: Sequence[Signal]) -> dict[str, Parameter]:
        width = given[0].shape[1]
        reach = reach_of(self.options["spread"], width)
        return {"qkv": Parameter((width, 3 * width), reach), "out": Parameter((width, width), reach)}

    def products(self, given: Sequence[Signal]) -> list[Product]:
        (n, width), heads = given[0].shape, self.options["heads"]
        each = width // heads
        return [
            Product("qkv", n, width, 3 * width),
            Product("scores", n, each, n, heads),
            Product("mix", n, n, each, heads),
            Product("out", n, width, width),
        ]

    def other_flops(self, given: Sequence[Signal]) -> int:
        n, width = given[0].shape
        return 40 * n * n * self.options["heads"] + 12 * n * width

    def saved_bytes(self, given: Sequence[Signal]) -> int:
        n, width = given[0].shape
        return 8 * (5 * n * width + n * n * self.options["heads"])

    def _rotate(self, ar: Arithmetic, x: Array, position: int, back: bool = False) -> Array:
        """Each pair (i, i + half) of a head, rotated by its position's angle."""
        n, width = x.shape[-2], x.shape[-1]
        room, base = _room(position + n), self.options["base"]
        cos = ar.constant(("cos", room, width, base), lambda: rotations(room, width, base)[0])[position : position + n]
        sin = ar.constant(("sin", room, width, base), lambda: rotations(room, width, base)[1])[position : position + n]
        return ar.xp.join(
            list(ar.each(_turn_back if back else _turn, x[..., : width // 2], x[..., width // 2 :], cos, sin)), -1
        )

    def _heads(self, ar: Arithmetic, x: Array) -> Array:
        batch, n, width = x.shape
        heads: int = self.options["heads"]
        return ar.xp.permute(x.reshape((batch, n, heads, width // heads)), (0, 2, 1, 3))

    def _whole(self, ar: Arithmetic, x: Array) -> Array:
        batch, heads, n, each = x.shape
        return ar.xp.permute(x, (0, 2, 1, 3)).reshape((batch, n, heads * each))

    def _allowed(self, ar: Arithmetic, queries: int, keys: int, position: int) -> Array:
        """Which query may attend to which key: to itself and earlier ones."""
        return (ar.xp.count(queries) + position)[:, None] >= ar.xp.count(keys)[None, :]

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        ar, x = run.ar, inputs[0]
        batch, n, width = x.shape
        all_three = ar.product(flat(x), ar.weight(weights["qkv"], 0), self.name, "qkv").reshape((batch, n, 3 * width))
        q, k, v = (self._heads(ar, all_three[..., i * width : (i + 1) * width]) for i in range(3))
        if self.options["rope"]:
            q, k = self._rotate(ar, q, run.position), self._rotate(ar, k, run.position)
        if run.cache is not None:
            if self.name in run.cache:
                past_k, past_v = run.cache[self.name]
                k, v = ar.xp.join([past_k, k], 2), ar.xp.join([past_v, v], 2)
            run.cache[self.name] = (k, v)
        scale = ratio(1.0, sqrt(width // self.options["heads"]))
        scores = ar.product(q, _turned(ar, k), self.name, "scores")
        if self.options["causal"]:
            allowed = self._allowed(ar, n, k.shape[2], run.position)
            chance = ar.each_row(_looking_back, scores, allowed, scalars=[scale])
        else:
            chance = ar.each_row(_looking, scores, scalars=[scale])
        mixed = self._whole(ar, ar.mix(chance, v, self.name, "mix"))
        y = ar.product(flat(mixed), ar.weight(weights["out"], 0), self.name, "out")
        return y.reshape(x.shape), (x, q, k, v, chance, mixed)

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        ar, (x, q, k, v, chance, mixed) = run.ar, saved
        g = flat(grad)
        d_out = ar.product(flat(mixed).T, g, self.name, "d_out")
        d_mixed = ar.product(g, ar.weight(weights["out"], 1).turned, self.name, "d_mixed").reshape(x.shape)
        d_heads = self._heads(ar, d_mixed)
        d_chance = ar.product(d_heads, _turned(ar, v), self.name, "d_chance")
        d_v = ar.product(_turned(ar, chance), d_heads, self.name, "d_v")
        scale = ratio(1.0, sqrt(x.shape[-1] // self.options["heads"]))
        # Where a query may not attend, its probability is zero, and so is this gradient.
        d_scores = ar.each_row(_looking_slope, chance, d_chance, scalars=[scale])
        d_q = ar.product(d_scores, k, self.name, "d_q")
        d_k = ar.product(_turned(ar, d_scores), q, self.name, "d_k")
        if self.options["rope"]:
            d_q, d_k = self._rotate(ar, d_q, run.position, back=True), self._rotate(ar, d_k, run.position, back=True)
        all_three = flat(ar.xp.join([self._whole(ar, d) for d in (d_q, d_k, d_v)], -1))
        d_qkv = ar.product(flat(x).T, all_three, self.name, "d_qkv")
        back = ar.product(all_three, ar.weight(weights["qkv"], 1).turned, self.name, "dx")
        return [back.reshape(x.shape)], {"qkv": d_qkv, "out": d_out}


def _turn(ar: Arithmetic, a: Array, b: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    return a * cos - b * sin, a * sin + b * cos


def _turn_back(ar: Arithmetic, a: Array, b: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    return _turn(ar, a, b, cos, -sin)


def _looking(ar: Arithmetic, scores: Array, scale: float) -> Array:
    return softmax(ar, scores * scale)


def _looking_back(ar: Arithmetic, scores: Array, allowed: Array, scale: float) -> Array:
    return softmax(ar, ar.xp.where(allowed, scores * scale, FAR_BELOW))


def _looking_slope(ar: Arithmetic, chance: Array, grad: Array, scale: float) -> Array:
    back = softmax_back(ar, chance, grad)
    back *= scale
    return back


def _turned(ar: Arithmetic, x: Array) -> Array:
    return ar.xp.permute(x, (0, 1, 3, 2))


def _room(n: int) -> int:
    """The next power of two, so that the table is not rebuilt at every step while a sequence grows."""
    return 1 << (n - 1).bit_length()
