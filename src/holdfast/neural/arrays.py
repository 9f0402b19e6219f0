"""Arrays on NumPy or PyTorch behind one small set of words, so that each operator is written once.

Only operations whose result is fixed by IEEE 754 (or that move data) are here: + − × and comparisons come from
the arrays themselves, ÷ and √ from this module. Two habits of PyTorch make its own `/` unusable: by a Python
number it multiplies with a rounded reciprocal on CUDA, and `number / tensor` does so everywhere; its √ on the
CPU is not correctly rounded. What is summed
in which order, and what a network is, this module does not know.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from holdfast.neural.refusals import MissingPart

Array: TypeAlias = Any
"""A NumPy array or a PyTorch tensor; always one that the same `Arrays` made."""

BLOCK = 16_384
"""Elements that elementwise work takes at a time on NumPy: a few such blocks stay in a core's second-level cache."""


def ratio(a: float, b: float) -> float:
    """A quotient of two Python numbers: correctly rounded on every machine."""
    return a / b


class Arrays:
    """The words, spoken by NumPy."""

    name = "numpy"

    def real(self, host: Any, dtype: str = "float64") -> Array:
        """An array of ours with the numbers of a host array."""
        return np.array(host, dtype=dtype, order="C")

    def index(self, host: Any) -> Array:
        return np.array(host, dtype=np.int64, order="C")

    def host(self, a: Array) -> "np.ndarray[Any, Any]":
        return np.asarray(a)

    def zeros(self, shape: Sequence[int], dtype: str = "float64") -> Array:
        return np.zeros(tuple(shape), dtype=dtype)

    def count(self, n: int) -> Array:
        return np.arange(n, dtype=np.int64)

    def cast(self, a: Array, dtype: str) -> Array:
        return a.astype(dtype)

    def bits(self, a: Array) -> Array:
        """The float64 array read as 64-bit integers."""
        return np.ascontiguousarray(a).view(np.int64)

    def from_bits(self, a: Array) -> Array:
        return np.ascontiguousarray(a).view(np.float64)

    def where(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)  # pyright: ignore[reportUnknownVariableType]

    def clamp(self, a: Array, low: float, high: float) -> Array:
        return np.minimum(np.maximum(a, low), high)

    def divide(self, a: Array, b: Array) -> Array:
        return np.true_divide(a, b)

    def sqrt(self, a: Array) -> Array:
        return np.sqrt(a)

    def rint(self, a: Array) -> Array:
        return np.rint(a)

    def absolute(self, a: Array) -> Array:
        return np.abs(a)

    def largest(self, a: Array, axis: int) -> Array:
        """The maximum over an axis, which stays with length 1. NaN wins; of an empty axis it is 0."""
        if a.shape[axis] == 0:
            return np.add.reduce(a, axis=axis, keepdims=True)
        return np.max(a, axis=axis, keepdims=True)

    def magnitude(self, a: Array, axis: int) -> Array:
        """The largest absolute value over an axis, which stays with length 1. NaN wins; of an empty axis it is 0."""
        if a.shape[axis] == 0:
            return self.largest(a, axis)
        return np.maximum(np.max(a, axis=axis, keepdims=True), -np.min(a, axis=axis, keepdims=True))

    def matmul(self, a: Array, b: Array) -> Array:
        return np.matmul(a, b)

    def join(self, parts: Sequence[Array], axis: int) -> Array:
        return np.concatenate(list(parts), axis=axis)

    def permute(self, a: Array, axes: Sequence[int]) -> Array:
        return np.transpose(a, tuple(axes))

    def move_first(self, a: Array, axis: int) -> Array:
        return np.moveaxis(a, axis, 0)

    def rows(self, table: Array, index: Array) -> Array:
        return table[index]

    def pick(self, a: Array, index: Array) -> Array:
        """a[i, index[i]] for every row i of a matrix."""
        return np.take_along_axis(a, index[:, None], axis=1)[:, 0]

    def put(self, a: Array, index: Array, values: Array) -> Array:
        """A copy of the matrix in which a[i, index[i]] is values[i]."""
        changed = a.copy()
        np.put_along_axis(changed, index[:, None], values[:, None], axis=1)
        return changed

    def add_rows(self, count: int, index: Array, rows: Array) -> Array:
        """`count` rows of integers, each the sum of those rows whose index names it. Integer sums have no order."""
        total = np.zeros((count, rows.shape[1]), dtype=np.int64)
        np.add.at(total, index, rows)
        return total

    def copy(self, a: Array) -> Array:
        return np.array(a, order="K", copy=True)

    def spread(self, a: Array, shape: Sequence[int]) -> Array:
        return np.broadcast_to(a, tuple(shape))

    def all_below(self, a: Array, limit: float) -> Array:
        """Whether every element lies strictly between −limit and limit; false where one is not a number."""
        if a.size == 0:
            return np.bool_(True)
        return (np.max(a) < limit) & (np.min(a) > -limit)

    def plain_sum(self, a: Array, axis: int, keep: bool) -> Array:
        """The library's own sum: in whatever order it likes."""
        return np.sum(a, axis=axis, keepdims=keep)

    def native(self, name: str) -> Callable[..., Array]:
        """The library's own function of that name: quick, and different from machine to machine."""
        return getattr(np, name)

    def blockwise(self, function: Callable[..., Array], *operands: Array) -> Array:
        """An elementwise function of equally shaped arrays, a cache-sized block at a time: same bits, less traffic."""
        first = operands[0]
        if first.size <= BLOCK:
            return function(*operands)
        flat = [np.ascontiguousarray(o).reshape(-1) for o in operands]
        out: Array = np.empty(first.size, dtype=first.dtype)
        for start in range(0, first.size, BLOCK):
            out[start : start + BLOCK] = function(*(o[start : start + BLOCK] for o in flat))
        return out.reshape(first.shape)


class TorchArrays(Arrays):
    """The same words, spoken by PyTorch on the CPU or a CUDA device."""

    def __init__(self, device: str = "cpu") -> None:
        try:
            self._torch: Any = importlib.import_module("torch")
        except ImportError as missing:
            raise MissingPart(
                "the backend torch needs PyTorch, which is not installed", hint="pip install 'holdfast[torch]'"
            ) from missing
        if device.startswith("cuda") and not self._torch.cuda.is_available():
            raise MissingPart("no CUDA device can be reached from here", hint="Use the backend torch or numpy.")
        self.device = device
        self.name = "torch" if device == "cpu" else f"torch-{device}"

    def real(self, host: Any, dtype: str = "float64") -> Array:
        given = np.array(host, dtype=dtype, order="C")
        return self._torch.from_numpy(given).to(self.device)

    def index(self, host: Any) -> Array:
        return self._torch.from_numpy(np.array(host, dtype=np.int64, order="C")).to(self.device)

    def host(self, a: Array) -> "np.ndarray[Any, Any]":
        return np.asarray(a.detach().cpu().numpy()) if hasattr(a, "detach") else np.asarray(a)

    def zeros(self, shape: Sequence[int], dtype: str = "float64") -> Array:
        return self._torch.zeros(tuple(shape), dtype=getattr(self._torch, dtype), device=self.device)

    def count(self, n: int) -> Array:
        return self._torch.arange(n, dtype=self._torch.int64, device=self.device)

    def cast(self, a: Array, dtype: str) -> Array:
        return a.to(getattr(self._torch, dtype))

    def bits(self, a: Array) -> Array:
        return a.contiguous().view(self._torch.int64)

    def from_bits(self, a: Array) -> Array:
        return a.contiguous().view(self._torch.float64)

    def _lift(self, a: Array, like: Array) -> Array:
        """A number as a one-element tensor on the device: there, numbers are not what they seem (see above)."""
        if isinstance(a, (int, float)):
            return self._torch.full((1,), a, dtype=like.dtype, device=like.device)
        return a

    def where(self, condition: Array, a: Array, b: Array) -> Array:
        # Two Python numbers would give float32 here.
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            a = self._torch.full((1,), a, dtype=self._torch.float64, device=condition.device)
        return self._torch.where(condition, a, b)

    def clamp(self, a: Array, low: float, high: float) -> Array:
        return self._torch.clamp(a, low, high)

    def divide(self, a: Array, b: Array) -> Array:
        return self._torch.true_divide(self._lift(a, b), self._lift(b, a))

    def sqrt(self, a: Array) -> Array:
        if self.device == "cpu":
            # PyTorch's own takes a vector library here whose last bit is wrong for about one number in a hundred.
            return self._torch.from_numpy(np.sqrt(np.asarray(a.numpy())))
        return self._torch.sqrt(a)

    def rint(self, a: Array) -> Array:
        return self._torch.round(a)

    def absolute(self, a: Array) -> Array:
        return self._torch.abs(a)

    def largest(self, a: Array, axis: int) -> Array:
        if a.shape[axis] == 0:
            return a.sum(dim=axis, keepdim=True)
        return self._torch.amax(a, dim=axis, keepdim=True)

    def magnitude(self, a: Array, axis: int) -> Array:
        if a.numel() == 0:
            return a.sum(dim=axis, keepdim=True)
        low, high = self._torch.aminmax(a, dim=axis, keepdim=True)
        return self._torch.maximum(high, -low)

    def matmul(self, a: Array, b: Array) -> Array:
        return self._torch.matmul(a, b)

    def join(self, parts: Sequence[Array], axis: int) -> Array:
        return self._torch.cat(list(parts), dim=axis)

    def permute(self, a: Array, axes: Sequence[int]) -> Array:
        return a.permute(tuple(axes))

    def move_first(self, a: Array, axis: int) -> Array:
        return self._torch.movedim(a, axis, 0)

    def pick(self, a: Array, index: Array) -> Array:
        return self._torch.gather(a, 1, index[:, None])[:, 0]

    def put(self, a: Array, index: Array, values: Array) -> Array:
        return a.scatter(1, index[:, None], values[:, None])

    def add_rows(self, count: int, index: Array, rows: Array) -> Array:
        total = self._torch.zeros((count, rows.shape[1]), dtype=self._torch.int64, device=rows.device)
        return total.index_add_(0, index, rows)

    def copy(self, a: Array) -> Array:
        return a.clone()

    def spread(self, a: Array, shape: Sequence[int]) -> Array:
        return self._torch.broadcast_to(a, tuple(shape))

    def all_below(self, a: Array, limit: float) -> Array:
        if a.numel() == 0:
            return self._torch.ones((), dtype=self._torch.bool, device=a.device)
        low, high = self._torch.aminmax(a)
        return (high < limit) & (low > -limit)

    def plain_sum(self, a: Array, axis: int, keep: bool) -> Array:
        return self._torch.sum(a, dim=axis, keepdim=keep)

    def native(self, name: str) -> Callable[..., Array]:
        return getattr(self._torch, name)

    def blockwise(self, function: Callable[..., Array], *operands: Array) -> Array:
        return function(*operands)


def arrays(name: str = "numpy") -> Arrays:
    """The backend of that name: `numpy`, `torch` or `cuda`."""
    if name == "numpy":
        return Arrays()
    if name == "torch":
        return TorchArrays("cpu")
    if name.startswith("cuda"):
        return TorchArrays(name)
    raise MissingPart(f"there is no backend {name}", hint="Choose numpy, torch or cuda.")
