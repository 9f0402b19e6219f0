"""Arithmetic profiles: `exact` (the same bits on any machine), `f32` and `bf16` (fast, within a tolerance).

Operators are written once against `Arithmetic`. It knows backends and rounding; it does not know operators.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from holdfast.neural import counter, exact, functions
from holdfast.neural.arrays import Array, NumpyArrays
from holdfast.neural.refusals import NeuralError, NotFinite

PROFILES = ("exact", "f32", "bf16")
FLOAT_LIMIT = 3.0e38


_SUBTREE = 4096


def _square_rows(ar: "Arithmetic", x: Array) -> Array:
    return ar.sum(x * x, -1, keep=True)


class Witness(Protocol):
    """Records the products that were computed."""

    def saw(self, operator: str, label: str, a: Array, b: Array, c: Array) -> None: ...


@dataclass(frozen=True)
class Ready:
    """An operand that is already rounded: a weight, rounded once for all microbatches of a step."""

    array: Array

    @property
    def turned(self) -> "Ready":
        return Ready(self.array.T)


@dataclass
class Shared:
    """An operand that several products share."""

    whole: Array
    """Kept, so that its address in memory is not reused."""
    left: int
    rounded: Array = None


class Arithmetic:
    """The profile `exact`, and the interface of all profiles."""

    profile = "exact"
    dtype = "float64"
    limit = exact.LIMIT

    def __init__(self, xp: NumpyArrays) -> None:
        self.xp = xp
        self.witness: Witness | None = None
        self._kept: dict[tuple[int, int], tuple[Array, Ready]] = {}
        self._constants: dict[Any, Array] = {}
        self._shared: dict[int, Shared] = {}
        self._doubts: list[tuple[str, str, Array]] = []

    # --- moving in and out ---

    def real(self, host: Any) -> Array:
        return self.xp.real(host, self.dtype)

    def constant(self, name: Any, make: Callable[[], Any]) -> Array:
        """A constant array, identified by a name: copied to the device once."""
        if name not in self._constants:
            self._constants[name] = self.real(make())
        return self._constants[name]

    def zeros(self, shape: tuple[int, ...]) -> Array:
        return self.xp.zeros(shape, self.dtype)

    def uniform(self, key: str, count: int) -> Array:
        return self.xp.cast(counter.uniform(self.xp, key, count), self.dtype)

    # --- checks ---

    def require(self, fine: Array, operator: str, what: str) -> None:
        """Reject the computation unless `fine`. A device reports the result once, at `settle`: each check would stall
        it."""
        if self.xp.name == "numpy":
            if not fine:
                raise NotFinite(operator, what)
        else:
            self._doubts.append((operator, what, fine))

    def finite(self, x: Array, operator: str, what: str) -> Array:
        self.require(self.xp.all_below(x, self.limit), operator, what)
        return x

    def settle(self) -> None:
        """Raise for the first check that failed."""
        doubts, self._doubts = self._doubts, []
        if not doubts:
            return
        answers = self.xp.host(self.xp.join([fine.reshape(1) for _, _, fine in doubts], 0)).tolist()
        for (operator, what, _), fine in zip(doubts, answers, strict=True):
            if not fine:
                raise NotFinite(operator, what)

    # --- products ---

    def weight(self, w: Array, axis: int) -> Ready:
        """A weight as an operand that is summed over `axis`; rounded once, until `forget`."""
        kept = self._kept.get((id(w), axis))
        if kept is None:
            # The array itself is kept too, so that its id is not reused.
            kept = self._kept[(id(w), axis)] = (w, Ready(self._round(w, axis, "weight")))
        return kept[1]

    def forget(self) -> None:
        self._kept.clear()
        self._shared.clear()

    def share(self, x: Array, times: int) -> None:
        """Announce that the rows of `x` are operands of `times` products: they are rounded for the first and kept until
        the last.

        Repeating the announcement for each product changes nothing.
        """
        if self.profile == "exact" and self.xp.fuses:
            self._shared.setdefault(self.xp.address(x), Shared(x, times))

    def _rows_of(self, x: Array, operator: str) -> Array:
        """x rounded along its rows, or the kept result."""
        place = self.xp.address(x)
        shared = self._shared.get(place)
        # The same memory may be read with another shape, or transposed: that is another operand.
        if (
            shared is None
            or self.xp.is_turned(x)
            or tuple(x.shape) != (prod(shared.whole.shape[:-1]), shared.whole.shape[-1])
        ):
            return self._round(x, -1, operator)
        if shared.rounded is None:
            shared.rounded = self._round(x, -1, operator)
        shared.left -= 1
        if shared.left == 0:
            del self._shared[place]
        return shared.rounded

    def _round(self, x: Array, axis: int, operator: str) -> Array:
        rounded, fine = exact.quantise(self.xp, x, axis)
        self.require(fine, operator, "an operand of a product")
        return rounded

    def _multiply(self, a: Array, b: Array) -> Array:
        return exact.multiply(self.xp, a, b)

    def product(self, a: Array | Ready, b: Array | Ready, operator: str, label: str) -> Array:
        """A·B; [..., M, K] by [..., K, N]."""
        left = a.array if isinstance(a, Ready) else self._rows_of(a, operator)
        right = b.array if isinstance(b, Ready) else self._round(b, -2, operator)
        return self._noted(left, right, operator, label)

    def mix(self, weights: Array, values: Array, operator: str, label: str) -> Array:
        """weights·values, where each row of `values` has its own scale (see `exact.absorb`)."""
        left, right, fine = exact.absorb(self.xp, weights, values)
        self.require(fine, operator, "an operand of a product")
        return self._noted(left, right, operator, label)

    @property
    def observed(self) -> bool:
        """Whether products are recorded one by one."""
        return self.witness is not None

    def _noted(self, left: Array, right: Array, operator: str, label: str) -> Array:
        """The product; if it is recorded, block by block as it is summed."""
        k = left.shape[-1]
        if not self.observed or k <= exact.BLOCK_K or self.profile != "exact":
            return self._multiply_noted(left, right, operator, label)
        total: Array | None = None
        for number, start in enumerate(range(0, k, exact.BLOCK_K)):
            a = left[..., start : start + exact.BLOCK_K]
            b = right[..., start : start + exact.BLOCK_K, :]
            part = self._multiply_noted(a, b, operator, f"{label}[{number}]")
            total = part if total is None else total + part
        return total

    def _multiply_noted(self, left: Array, right: Array, operator: str, label: str) -> Array:
        result = self._multiply(left, right)
        if self.witness is not None:
            self.witness.saw(operator, label, left, right, result)
        return result

    # --- fusing ---

    def on(self, xp: NumpyArrays) -> "Arithmetic":
        """This arithmetic with other array operations."""
        return self if xp is self.xp else Arithmetic(xp)

    def each(self, function: Callable[..., Any], *operands: Array, scalars: Sequence[float] = ()) -> Any:
        """An elementwise function(arithmetic, *operands, *scalars) in one pass over memory."""
        return self.xp.each(function, *operands, scalars=scalars, speaker=self.on)

    def each_row(self, function: Callable[..., Any], *operands: Array, scalars: Sequence[float] = ()) -> Any:
        """The same for a function of rows, which may sum over them."""
        return self.xp.each_row(function, *operands, scalars=scalars, speaker=self.on)

    # --- everything else ---

    def sum(self, x: Array, axis: int, keep: bool = False) -> Array:
        return exact.tree_sum(self.xp, x, axis, keep)

    def sum_of_squares(self, line: Array) -> Array:
        """The sum of squares of all elements of a line. Blocks of 4096 first: they are whole subtrees of the tree."""
        n = line.shape[0]
        whole = n - n % _SUBTREE
        if not whole:
            return self.sum(line * line, 0)
        parts = self.each_row(_square_rows, line[:whole].reshape((whole // _SUBTREE, _SUBTREE))).reshape(-1)
        if whole < n:
            rest = line[whole:]
            parts = self.xp.join([parts, self.sum(rest * rest, 0, keep=True)], 0)
        return self.sum(parts, 0)

    def scatter_rows(self, count: int, index: Array, rows: Array, operator: str) -> Array:
        self.finite(rows, operator, "a gradient")
        return exact.scatter_rows(self.xp, count, index, rows)

    def exp(self, x: Array) -> Array:
        return functions.exp(self.xp, x)

    def log(self, x: Array) -> Array:
        return functions.log(self.xp, x)

    def tanh(self, x: Array) -> Array:
        return functions.tanh(self.xp, x)

    def sigmoid(self, x: Array) -> Array:
        return functions.sigmoid(self.xp, x)

    def erf(self, x: Array) -> Array:
        return functions.erf(self.xp, x)

    def rsqrt(self, x: Array) -> Array:
        return functions.rsqrt(self.xp, x)


class FloatArithmetic(Arithmetic):
    """Profiles `f32` and `bf16`: the library's own functions and sums, in float32.

    With bf16 the operands of products are rounded to bfloat16; they are multiplied and summed in float32, and
    everything else stays float32.
    """

    dtype = "float32"
    limit = FLOAT_LIMIT

    def __init__(self, xp: NumpyArrays, profile: str) -> None:
        super().__init__(xp)
        self.profile = profile

    def _round(self, x: Array, axis: int, operator: str) -> Array:
        return self._short(x) if self.profile == "bf16" else x

    def _short(self, x: Array) -> Array:
        """x rounded to 8 significant bits by Veltkamp's splitting, which every backend has the operations for."""
        shifted = x * 65537.0
        return shifted - (shifted - x)

    def _multiply(self, a: Array, b: Array) -> Array:
        return self.xp.matmul(a, b)

    def mix(self, weights: Array, values: Array, operator: str, label: str) -> Array:
        return self.product(weights, values, operator, label)

    def sum(self, x: Array, axis: int, keep: bool = False) -> Array:
        return self.xp.plain_sum(x, axis, keep)

    def scatter_rows(self, count: int, index: Array, rows: Array, operator: str) -> Array:
        wide = self.xp.cast(rows, "float64")
        return self.xp.cast(super().scatter_rows(count, index, wide, operator), self.dtype)

    def exp(self, x: Array) -> Array:
        return self.xp.native("exp")(x)

    def log(self, x: Array) -> Array:
        return self.xp.native("log")(x)

    def tanh(self, x: Array) -> Array:
        return self.xp.native("tanh")(x)

    def sigmoid(self, x: Array) -> Array:
        return self.xp.divide(1.0, 1.0 + self.exp(-x))

    def erf(self, x: Array) -> Array:
        return self.xp.cast(functions.erf(self.xp, self.xp.cast(x, "float64")), self.dtype)

    def rsqrt(self, x: Array) -> Array:
        return self.xp.divide(1.0, self.xp.sqrt(x))


def arithmetic(profile: str, xp: NumpyArrays) -> Arithmetic:
    """The arithmetic of a profile on a backend."""
    if profile == "exact":
        return Arithmetic(xp)
    if profile in PROFILES:
        return FloatArithmetic(xp, profile)
    raise NeuralError(f"there is no profile {profile}", hint=f"Choose one of {', '.join(PROFILES)}.")
