"""Kernels for a CUDA device, run on the processor: compiled as C++, one thread that holds a whole row.

What is tested so is everything but the exchange between threads: the lines that a traced function became, the
addresses they read and write, and the choice of shapes.
"""

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from holdfast.neural.kernels import KernelArrays, axes_of
from holdfast.neural.tracing import FusedKernel, Layout

SHIM = r"""
#include <math.h>
#include <string.h>
struct Three { unsigned x, y, z; };
static const Three threadIdx = {0, 0, 0}, blockIdx = {0, 0, 0}, gridDim = {1, 1, 1};
#define __global__
#define __launch_bounds__(n)
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __restrict__
#define __shfl_xor_sync(mask, v, o) (v)
#define __syncthreads()
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __longlong_as_double(long long a) { double d; memcpy(&d, &a, 8); return d; }
static inline long long __double_as_longlong(double a) { long long d; memcpy(&d, &a, 8); return d; }
"""


class EmulatedArrays(KernelArrays):
    """The kernels of a CUDA device without one."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.launched = 0
        self._folder = tempfile.TemporaryDirectory()

    def layout(self, sizes: Sequence[int], whole_rows: bool) -> Layout:
        width = 1 << (sizes[-1] - 1).bit_length() if whole_rows else 1
        return Layout(1, width, whole_rows=whole_rows, axes=axes_of(sizes))

    def compile(self, kernel: FusedKernel) -> Any:
        # One thread has the whole row in hand, so there is nobody to exchange with.
        alone = kernel.source.replace("o < 32; o *= 2", "o < 1; o *= 2")
        path = Path(self._folder.name) / f"{sha256(kernel.source.encode()).hexdigest()[:16]}.cpp"
        path.write_text(SHIM + alone)
        library = path.with_suffix(".so")
        flags = ["-O0", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
        done = subprocess.run(["g++", *flags, "-o", library, path], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr + alone
        function = getattr(ctypes.CDLL(str(library)), kernel.name)

        def launch(grid: Any, block: Any, args: list[Any]) -> None:
            self.launched += 1
            given = [
                ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor)
                else ctypes.c_int(a) if isinstance(a, int) else ctypes.c_double(a)
                for a in args
            ]  # fmt: skip
            function(*given)

        return launch
