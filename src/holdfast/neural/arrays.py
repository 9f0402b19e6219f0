"""Arrays on NumPy or PyTorch behind one small set of operations, so that each operator is written once.

Only operations whose result is fixed by IEEE 754 (or that move data) are here: + − × and comparisons come from the
arrays themselves, ÷ and √ from this module. PyTorch's own `/` is unusable for two reasons: on CUDA it divides by a
Python number by multiplying with a rounded reciprocal, and `number / tensor` does so everywhere. Its √ on the CPU is
not correctly rounded. This module knows nothing about summation order or neural networks.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from holdfast.neural import passes
from holdfast.neural.refusals import MissingPart
from holdfast.parts import install_hint

Array: TypeAlias = Any
"""A NumPy array or a PyTorch tensor, made by the same `Arrays`."""


def ratio(a: float, b: float) -> float:
    """A quotient of two Python numbers: correctly rounded on every machine."""
    return a / b


def itself(xp: "NumpyArrays") -> "NumpyArrays":
    return xp


class NumpyArrays:
    """The operations on NumPy."""

    name = "numpy"
    fuses = True
    """Whether to run steps in one pass over memory where possible. The bits do not depend on it."""

    @property
    def block(self) -> int:
        """Elements processed at a time by fused work: a few such blocks fit into a core's second-level cache."""
        return 32_768

    def real(self, host: Any, dtype: str = "float64") -> Array:
        """An array of this backend with the numbers of a host array."""
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
        """The maximum over an axis, which stays with length 1. NaN wins; the maximum of an empty axis is 0."""
        if a.shape[axis] == 0:
            return np.add.reduce(a, axis=axis, keepdims=True)
        return np.max(a, axis=axis, keepdims=True)

    def magnitude(self, a: Array, axis: int) -> Array:
        """The largest absolute value over an axis, which stays with length 1. NaN wins; for an empty axis it is 0."""
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
        """`count` rows of integers, each the sum of the rows with its index. Integer sums do not depend on the
        order."""
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
        """The library's own sum, in an order of its choice."""
        return np.sum(a, axis=axis, keepdims=keep)

    def native(self, name: str) -> Callable[..., Array]:
        """The library's own function of that name: fast, but different from machine to machine."""
        return getattr(np, name)

    # --- fusing ---

    def each(
        self, function: Callable[..., Any], *operands: Array, scalars: Sequence[float] = (), light: bool = False,
        speaker: "Callable[[NumpyArrays], Any]" = itself,
    ) -> Any:  # fmt: skip
        """function(xp, *operands, *scalars), which is elementwise, in one pass over memory.

        Operands are broadcast; the first has the shape of the result. The function must use the operations it is given.
        `light` says that it has so few steps that cutting into blocks would cost more than it saves; `speaker` converts
        the operations to what the function takes as its first argument.
        """
        return self._pass(function, speaker, operands, scalars, light, split_rows=True)

    def each_row(
        self, function: Callable[..., Any], *operands: Array, scalars: Sequence[float] = (), light: bool = False,
        speaker: "Callable[[NumpyArrays], Any]" = itself,
    ) -> Any:  # fmt: skip
        """The same for a function that processes each row (the last axis) separately, and may sum over it."""
        return self._pass(function, speaker, operands, scalars, light, split_rows=False)

    def _pass(
        self, function: Callable[..., Any], speaker: "Callable[[NumpyArrays], Any]", operands: Sequence[Array],
        scalars: Sequence[float], light: bool, *, split_rows: bool,
    ) -> Any:  # fmt: skip
        def block(*parts: Array) -> Any:
            return function(speaker(self), *parts, *scalars)

        if light or not self.fuses:
            return block(*operands)
        return passes.in_blocks(block, operands, self.block, self._like, split_rows=split_rows)

    def _like(self, shape: tuple[int, ...], a: Array) -> Array:
        return np.empty(shape, dtype=a.dtype)

    def address(self, a: Array) -> int:
        """The address of its first element."""
        return a.__array_interface__["data"][0]

    def is_turned(self, a: Array) -> bool:
        """Whether it is a transposed matrix: the second-to-last axis has a smaller stride than the last."""
        return a.ndim >= 2 and a.strides[-2] < a.strides[-1] and a.shape[-1] > 1

    def turned(self, a: Array) -> Array:
        """The last two axes exchanged."""
        return np.swapaxes(a, -1, -2)

    def tree_sum(self, a: Array, axis: int, keep: bool = False) -> Array:
        """The sum over an axis as a fixed tree over logical indices: neighbours first, then their sums."""
        lines = self.move_first(a, axis)
        n = lines.shape[0]
        if n <= 1:
            total = self.copy(lines[0]) if n else self.zeros(tuple(lines.shape[1:]), "float64")
        else:
            # An element without a neighbour waits at the end until it gets one.
            waiting: Array = None
            while n:
                if n % 2:
                    waiting = lines[n - 1] if waiting is None else lines[n - 1] + waiting
                # A new array each time: its elements are closer together in memory than the ones that were added.
                lines = lines[0 : n - 1 : 2] + lines[1:n:2]
                n //= 2
            total = waiting
        if not keep:
            return total
        axis %= len(a.shape)
        return total.reshape((*total.shape[:axis], 1, *total.shape[axis:]))


class TorchArrays(NumpyArrays):
    """The same operations on PyTorch, on the CPU or a CUDA device."""

    def __init__(self, device: str = "cpu") -> None:
        try:
            self._torch: Any = importlib.import_module("torch")
        except ImportError as missing:
            raise MissingPart(
                "the backend torch needs PyTorch, which is not installed", hint=install_hint("torch")
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
        """A number as a one-element tensor on the device: operations with Python numbers are not exact there (see
        above)."""
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
            # PyTorch's own square root uses a vector library here whose last bit is wrong for about one number in a
            # hundred.
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

    @property
    def block(self) -> int:
        # With fewer elements per thread, PyTorch uses a single thread.
        return 32_768 * self._torch.get_num_threads()

    def _like(self, shape: tuple[int, ...], a: Array) -> Array:
        return self._torch.empty(shape, dtype=a.dtype, device=a.device)

    def address(self, a: Array) -> int:
        return a.data_ptr()

    def is_turned(self, a: Array) -> bool:
        return a.dim() >= 2 and a.stride(-2) < a.stride(-1) and a.shape[-1] > 1

    def turned(self, a: Array) -> Array:
        return a.transpose(-1, -2)


def arrays(name: str = "numpy", *, fuses: bool = True) -> NumpyArrays:
    """The backend of that name: `numpy`, `torch` or `cuda`."""
    if name == "numpy":
        made = NumpyArrays()
    elif name == "torch":
        made = TorchArrays("cpu")
    elif name.startswith("cuda"):
        from holdfast.neural.kernels import KernelArrays

        made = KernelArrays(name)
    else:
        raise MissingPart(f"there is no backend {name}", hint="Choose numpy, torch or cuda.")
    made.fuses = fuses
    return made
