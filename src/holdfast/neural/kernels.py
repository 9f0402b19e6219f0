"""Fusion on a CUDA device: functions of arrays become kernels that read their operands once and write once.

`tracing` writes the source, PyTorch compiles it with NVIDIA's runtime compiler, and the kernel is cached for the life
of the process. Without a compiler (an older PyTorch, no compiler library), and for unsupported shapes, the same
function runs one operation at a time: slower, with the same bits.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from holdfast.neural import passes, tracing
from holdfast.neural.arrays import Array, NumpyArrays, TorchArrays, itself
from holdfast.neural.tracing import DIMENSIONS, KINDS, REAL, TRUTH, WHOLE, FusedKernel, Layout, Operand

ROW_MAX = 8192
"""Rows up to this length are held by the threads of one block: 1024 threads with eight elements each."""
SIZE_MAX = 2**31 - 1
_GRID_MAX = 65_535
_BLOCKS_MAX = 8192
"""Blocks along a row: enough for any device, each with enough work."""
Speaker = Callable[[NumpyArrays], Any]
Launch = Callable[..., None]


class KernelArrays(TorchArrays):
    """PyTorch on a CUDA device, with our own kernels where steps can be fused."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._kernels: dict[str, Launch] = {}
        self._known: dict[Any, FusedKernel] = {}
        self._dtypes = {REAL: self._torch.float64, WHOLE: self._torch.int64, TRUTH: self._torch.bool}

    def each(
        self, function: Callable[..., Any], *operands: Array, scalars: Sequence[float] = (), light: bool = False,
        speaker: Speaker = itself,
    ) -> Any:  # fmt: skip
        return self._fused(function, speaker, operands, scalars, whole_rows=False)

    def each_row(
        self, function: Callable[..., Any], *operands: Array, scalars: Sequence[float] = (), light: bool = False,
        speaker: Speaker = itself,
    ) -> Any:  # fmt: skip
        return self._fused(function, speaker, operands, scalars, whole_rows=True)

    def _fused(
        self, function: Callable[..., Any], speaker: Speaker, operands: Sequence[Array], scalars: Sequence[float], *,
        whole_rows: bool,
    ) -> Any:  # fmt: skip
        shape = passes.broadcast([tuple(o.shape) for o in operands])
        sizes, strides = _collapsed(shape, [_strides(o, shape) for o in operands], whole_rows)
        kinds = [KINDS.get(str(o.dtype).rpartition(".")[2]) for o in operands]
        fits = 0 < prod(shape) <= SIZE_MAX and len(sizes) == DIMENSIONS and None not in kinds
        if not (self.fuses and fits and (not whole_rows or sizes[-1] <= ROW_MAX)):
            return function(speaker(self), *operands, *scalars)
        layout = self.layout(sizes, whole_rows)
        n = sizes[-1]
        told = tuple(Operand(k or REAL, s[-1] == 0 and n > 1, s[-1] == 1) for k, s in zip(kinds, strides, strict=True))
        kernel = self._written(function, speaker, told, scalars, layout)
        launch = self._compiled(kernel)
        if launch is None:
            return function(speaker(self), *operands, *scalars)
        return self._run(kernel, launch, layout, shape, sizes, strides, operands, scalars)

    def _written(
        self, function: Callable[..., Any], speaker: Speaker, told: tuple[Operand, ...], scalars: Sequence[float],
        layout: Layout,
    ) -> FusedKernel:  # fmt: skip
        """The function as a kernel; cached, unless it was made for this one call."""
        if getattr(function, "__closure__", ()) is not None:
            return tracing.write(function, speaker, told, scalars, layout)
        known = (function, told, tuple(type(s) for s in scalars), layout)
        if known not in self._known:
            self._known[known] = tracing.write(function, speaker, told, scalars, layout)
        return self._known[known]

    def layout(self, sizes: Sequence[int], whole_rows: bool) -> Layout:
        """How many threads process rows of this length."""
        n, axes = sizes[-1], axes_of(sizes)
        if whole_rows:
            width = 8 if n > 4096 else 4
            return Layout(max(32, _power_of_two(-(-n // width))), width, whole_rows=True, axes=axes)
        threads = min(256, _power_of_two(n))
        return Layout(threads, 4 if n >= 4 * threads else 1, 256 // threads, axes=axes)

    def compile(self, kernel: FusedKernel) -> Launch:
        # Contraction is prevented twice: by this option, and by the intrinsics in the source.
        return self._torch.cuda._compile_kernel(kernel.source, kernel.name, nvcc_options=["--fmad=false"])

    def _compiled(self, kernel: FusedKernel) -> Launch | None:
        found = self._kernels.get(kernel.source)
        if found is None:
            try:
                found = self._kernels[kernel.source] = self.compile(kernel)
            except (AttributeError, OSError, RuntimeError, TypeError):
                # There is no compiler: run without kernels from now on.
                self.fuses = False
        return found

    def _run(
        self, kernel: FusedKernel, launch: Launch, layout: Layout, shape: tuple[int, ...], sizes: Sequence[int],
        strides: Sequence[Sequence[int]], operands: Sequence[Array], scalars: Sequence[float],
    ) -> Any:  # fmt: skip
        n, rows = sizes[-1], prod(sizes[:-1])
        arguments: list[Any] = [n, rows, *sizes[:-1]]
        for operand, steps in zip(operands, strides, strict=True):
            arguments += [operand, *steps]
        made: list[Array] = []
        for result in kernel.results:
            full = (*shape[:-1], 1) if result.of_row else shape
            made.append(self._torch.empty(full, dtype=self._dtypes[result.kind], device=operands[0].device))
        bad = self._torch.zeros(max(len(kernel.flags), 1), dtype=self._torch.int32, device=operands[0].device)
        arguments += [*made, bad, *(float(s) for s in scalars)]
        if layout.whole_rows:
            grid = (min(rows, SIZE_MAX), 1, 1)
        else:
            across = min(-(-n // (layout.threads * layout.width)), _BLOCKS_MAX)
            grid = (across, min(-(-rows // layout.lines), _GRID_MAX), 1)
        launch(grid=grid, block=(layout.threads, layout.lines, 1), args=arguments)
        for number, place in enumerate(kernel.flags):
            made.insert(place, bad[number] == 0)
        return made[0] if kernel.single else tuple(made)


def axes_of(sizes: Sequence[int]) -> int:
    """How many axes number the rows, as far as kernels distinguish them."""
    return 3 if sizes[0] * sizes[1] > 1 else 1 if sizes[2] > 1 else 0


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _strides(a: Array, shape: Sequence[int]) -> list[int]:
    """The distance between neighbours along each axis of the common shape; 0 where the array is repeated."""
    missing = len(shape) - len(a.shape)
    return [0] * missing + [0 if size == 1 else step for size, step in zip(a.shape, a.stride(), strict=True)]


def _collapsed(shape: Sequence[int], strides: list[list[int]], whole_rows: bool) -> tuple[list[int], list[list[int]]]:
    """The shape with as few axes as the operands allow, and at least four; `whole_rows` keeps rows intact."""
    sizes, steps = [1], [[0] for _ in strides]
    for axis, size in enumerate(shape):
        mine = [s[axis] for s in strides]
        keep = whole_rows and axis == len(shape) - 1
        joins = all(before[-1] == step * size for before, step in zip(steps, mine, strict=True))
        if size == 1 and not keep:
            continue
        if not keep and (sizes[-1] == 1 or joins):
            sizes[-1] *= size
            for line, step in zip(steps, mine, strict=True):
                line[-1] = step
        else:
            sizes.append(size)
            for line, step in zip(steps, mine, strict=True):
                line.append(step)
    pad = max(0, DIMENSIONS - len(sizes))
    return [1] * pad + sizes, [[0] * pad + line for line in steps]
