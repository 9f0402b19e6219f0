"""Translates a function of arrays into one CUDA C++ kernel, so that all its steps run in one pass.

The function is called once with symbols in place of arrays, and every operation becomes a line of source. The bits
cannot change: each + − × ÷ √ is an intrinsic that rounds separately and that no compiler may contract (`__dadd_rn` and
others), and the sum of a row is the same tree of neighbours as everywhere (`exact.tree_sum`). Nothing is compiled or
run here, and the purpose of the functions is not known.
"""

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.neural.arrays import Array, NumpyArrays, itself

REAL, WHOLE, TRUTH = "double", "long long", "bool"
KINDS = {"float64": REAL, "int64": WHOLE, "bool": TRUTH}
STORED = {REAL: "double", WHOLE: "long long", TRUTH: "unsigned char"}
"""The type of each kind in memory."""
DIMENSIONS = 4
"""The axes of a kernel: three that number the rows, and the row itself."""

_ARITHMETIC = {"+": "__dadd_rn({}, {})", "-": "__dsub_rn({}, {})", "*": "__dmul_rn({}, {})"}

_HEAD = r"""
#define FULL 0xffffffffu
__device__ __forceinline__ double meet(double v, int o) { return __shfl_xor_sync(FULL, v, o); }
__device__ __forceinline__ double more(double a, double b) { return (a > b || a != a) ? a : b; }
#define OVER_ROW(NAME, JOIN, NOTHING) \
__device__ __forceinline__ double NAME(double v) { \
  __shared__ double of_warps[32]; \
  for (int o = 1; o < 32; o *= 2) { double w = meet(v, o); v = JOIN(v, w); } \
  if (THREADS > 32) { \
    __syncthreads(); \
    if ((threadIdx.x & 31) == 0) of_warps[threadIdx.x >> 5] = v; \
    __syncthreads(); \
    v = (threadIdx.x & 31) < THREADS / 32 ? of_warps[threadIdx.x & 31] : NOTHING; \
    for (int o = 1; o < 32; o *= 2) { double w = meet(v, o); v = JOIN(v, w); } \
  } \
  return v; }
"""
_ROW_HEAD = r"""
OVER_ROW(row_sum, __dadd_rn, -0.0)
OVER_ROW(row_largest, more, -__longlong_as_double(0x7ff0000000000000LL))
"""


_AXES = {
    0: "const long long i0 = 0, i1 = 0, i2 = 0;",
    1: "const long long i0 = 0, i1 = 0, i2 = row;",
    3: "const unsigned line = row; const long long i2 = line % d2, i1 = line / d2 % d1, i0 = line / d2 / d1;",
}
"""A row's index on the axes that number rows. Divisions cost more than everything else in a short kernel."""


@dataclass(frozen=True)
class Layout:
    """How threads cover rows: `lines` rows at once, `threads` threads for each, `width` elements for each thread."""

    threads: int
    width: int = 1
    lines: int = 1
    whole_rows: bool = False
    """Whether one block holds a whole row, so that it can be summed."""
    axes: int = 3
    """How many axes number the rows."""


@dataclass
class Flag:
    """Whether all elements satisfy a condition."""

    conditions: list["Symbol"]

    def __and__(self, other: "Flag") -> "Flag":
        return Flag([*self.conditions, *other.conditions])


class Symbol:
    """A traced value: one for each element of a row, or one for the row."""

    __array_ufunc__ = None
    """Makes NumPy numbers on the left leave the operation to us."""

    def __init__(self, trace: "Tracer", name: str, kind: str, of_row: bool) -> None:
        self.trace = trace
        self.name = name
        self.kind = kind
        self.of_row = of_row

    def read(self) -> str:
        return self.name if self.of_row else f"{self.name}[e]"

    def _with(self, sign: str, other: Any, turned: bool = False) -> "Symbol":
        a, b = (other, self) if turned else (self, other)
        kind = REAL if REAL in (self.kind, self.trace.kind_of(other)) else self.kind
        form = _ARITHMETIC[sign] if kind == REAL else "(long long)((unsigned long long){} " + sign + " {})"
        return self.trace.line(kind, form, a, b, read_as=kind)

    def _compared(self, sign: str, other: Any) -> "Symbol":
        kind = REAL if REAL in (self.kind, self.trace.kind_of(other)) else self.kind
        return self.trace.line(TRUTH, "({} " + sign + " {})", self, other, read_as=kind)

    def _bitwise(self, sign: str, other: Any) -> "Symbol":
        form = "({} " + sign + " {})" if self.kind == WHOLE else "((bool)({} " + sign + " {}))"
        return self.trace.line(self.kind, form, self, other, read_as=self.kind)

    def __add__(self, other: Any) -> "Symbol":
        return self._with("+", other)

    def __radd__(self, other: Any) -> "Symbol":
        return self._with("+", other, turned=True)

    def __sub__(self, other: Any) -> "Symbol":
        return self._with("-", other)

    def __rsub__(self, other: Any) -> "Symbol":
        return self._with("-", other, turned=True)

    def __mul__(self, other: Any) -> "Symbol":
        return self._with("*", other)

    def __rmul__(self, other: Any) -> "Symbol":
        return self._with("*", other, turned=True)

    def __neg__(self) -> "Symbol":
        return self.trace.line(self.kind, "(-{})", self)

    def __lt__(self, other: Any) -> "Symbol":
        return self._compared("<", other)

    def __gt__(self, other: Any) -> "Symbol":
        return self._compared(">", other)

    def __ge__(self, other: Any) -> "Symbol":
        return self._compared(">=", other)

    def __eq__(self, other: object) -> "Symbol":  # type: ignore[override]
        return self._compared("==", other)

    def __ne__(self, other: object) -> "Symbol":  # type: ignore[override]
        return self._compared("!=", other)

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Any) -> "Symbol":
        return self._bitwise("&", other)

    def __or__(self, other: Any) -> "Symbol":
        return self._bitwise("|", other)

    def __xor__(self, other: Any) -> "Symbol":
        return self._bitwise("^", other)

    def __rshift__(self, other: Any) -> "Symbol":
        return self._bitwise(">>", other)

    def __lshift__(self, other: Any) -> "Symbol":
        return self.trace.line(WHOLE, "(long long)((unsigned long long){} << {})", self, other)


@dataclass
class Written:
    """The lines of a traced function."""

    lines: list[tuple[bool, str]] = field(default_factory=list[tuple[bool, str]])
    """(whether it runs for every element, the statement)."""
    names: list[str] = field(default_factory=list[str])
    """Declarations of all values."""


class Tracer(NumpyArrays):
    """The operations of `Arrays`, recorded instead of performed."""

    name = "traced"

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.written = Written()
        self._count = 0

    def kind_of(self, value: Any) -> str:
        if isinstance(value, Symbol):
            return value.kind
        return TRUTH if isinstance(value, bool) else WHOLE if isinstance(value, int) else REAL

    def _term(self, value: Any, kind: str | None = None) -> str:
        """A value as source text; numbers by their bits, so that none is rounded."""
        if isinstance(value, Symbol):
            return f"((double){value.read()})" if kind == REAL and value.kind == WHOLE else value.read()
        if kind == REAL or isinstance(value, float):
            return f"__longlong_as_double({_bits_of(float(value))}LL)"
        return f"{int(value)}LL" if not isinstance(value, bool) else str(value).lower()

    def fresh(self, kind: str, of_row: bool) -> Symbol:
        self._count += 1
        symbol = Symbol(self, f"v{self._count}", kind, of_row)
        self.written.names.append(f"{kind} {symbol.name}{'' if of_row else '[WIDTH]'};")
        return symbol

    def line(self, kind: str, form: str, *values: Any, read_as: str | None = None) -> Symbol:
        of_row = all(v.of_row for v in values if isinstance(v, Symbol))
        result = self.fresh(kind, of_row)
        text = form.format(*(self._term(v, read_as) for v in values))
        self.written.lines.append((not of_row, f"{result.read()} = {text};"))
        return result

    # --- the operations ---

    def cast(self, a: Array, dtype: str) -> Array:
        kind = KINDS[dtype]
        return a if a.kind == kind else self.line(kind, f"(({kind}){{}})", a)

    def bits(self, a: Array) -> Array:
        return self.line(WHOLE, "__double_as_longlong({})", a)

    def from_bits(self, a: Array) -> Array:
        return self.line(REAL, "__longlong_as_double({})", a)

    def where(self, condition: Array, a: Array, b: Array) -> Array:
        kind = REAL if REAL in (self.kind_of(a), self.kind_of(b)) else self.kind_of(a)
        return self.line(kind, "({} ? {} : {})", condition, a, b, read_as=kind)

    def clamp(self, a: Array, low: float, high: float) -> Array:
        return self.where(a < low, low, self.where(a > high, high, a))

    def divide(self, a: Array, b: Array) -> Array:
        return self.line(REAL, "__ddiv_rn({}, {})", a, b, read_as=REAL)

    def sqrt(self, a: Array) -> Array:
        return self.line(REAL, "__dsqrt_rn({})", a)

    def rint(self, a: Array) -> Array:
        return self.line(REAL, "rint({})", a)

    def absolute(self, a: Array) -> Array:
        return self.line(REAL, "fabs({})", a)

    def all_below(self, a: Array, limit: float) -> Array:
        return Flag([(a < limit) & (a > -limit)])

    def largest(self, a: Array, axis: int) -> Array:
        return self._over_row(a, "row_largest", "more({}, {})", "-__longlong_as_double(0x7ff0000000000000LL)")

    def magnitude(self, a: Array, axis: int) -> Array:
        return self.largest(self.absolute(a), axis)

    def tree_sum(self, a: Array, axis: int, keep: bool = False) -> Array:
        # Adding −0 changes no number, not even −0: the tree over a row padded with it has the same bits.
        return self._over_row(a, "row_sum", "__dadd_rn({}, {})", "-0.0")

    def _over_row(self, a: Symbol, name: str, join: str, nothing: str) -> Symbol:
        """Neighbours within a thread first, then threads: in the order of the elements."""
        mine = self.fresh(REAL, False)
        self.written.lines.append((True, f"{mine.read()} = at + e * STEP < n ? {a.read()} : {nothing};"))
        width = self.layout.width
        while width > 1:
            width //= 2
            for i in range(width):
                joined = join.format(f"{mine.name}[{2 * i}]", f"{mine.name}[{2 * i + 1}]")
                self.written.lines.append((False, f"{mine.name}[{i}] = {joined};"))
        result = self.fresh(REAL, True)
        self.written.lines.append((False, f"{result.name} = {name}({mine.name}[0]);"))
        return result

    def each(
        self, function: Callable[..., Any], *operands: Array, scalars: Sequence[float] = (), light: bool = False,
        speaker: Callable[[NumpyArrays], Any] = itself,
    ) -> Any:  # fmt: skip
        return function(speaker(self), *operands, *scalars)

    each_row = each


def _bits_of(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


@dataclass(frozen=True)
class Operand:
    """What a kernel reads or writes: its kind, and its memory layout."""

    kind: str
    of_row: bool = False
    """One value for each row, instead of one for each element."""
    dense: bool = False
    """Neighbours in a row are neighbours in memory."""


@dataclass(frozen=True)
class FusedKernel:
    """The source of a kernel, and its results."""

    name: str
    source: str
    results: tuple[Operand, ...]
    flags: tuple[int, ...]
    """The positions of flags among the function's results."""
    single: bool
    """Whether the function returns a single result."""


def write(
    function: Callable[..., Any],
    speaker: Callable[[NumpyArrays], Any],
    operands: Sequence[Operand],
    scalars: Sequence[float],
    layout: Layout,
) -> FusedKernel:
    """A function of rows as a kernel, with its name, so that profilers show it.

    Its parameters: n, rows, the three row axes; for each operand a pointer and four strides; for each result a
    pointer; a pointer to the flags, which it sets where a condition is violated; the scalars.
    """
    tracer = Tracer(layout)
    given = [_loaded(tracer, i, operand) for i, operand in enumerate(operands)]
    given += [_scalar(tracer, i, value) for i, value in enumerate(scalars)]
    told = function(speaker(tracer), *given)
    several: list[Any] = list(told) if isinstance(told, tuple) else [told]  # pyright: ignore[reportUnknownArgumentType]
    kept: list[Symbol] = [r for r in several if not isinstance(r, Flag)]
    flags: list[Flag] = [r for r in several if isinstance(r, Flag)]
    for i, result in enumerate(kept):
        _store(tracer, i, result)
    for i, flag in enumerate(flags):
        for condition in flag.conditions:
            there = "" if condition.of_row else "at + e * STEP < n && "
            tracer.written.lines.append((not condition.of_row, f"if ({there}!{condition.read()}) bad[{i}] = 1;"))
    results = tuple(Operand(r.kind, r.of_row and layout.whole_rows) for r in kept)
    places = tuple(i for i, r in enumerate(several) if isinstance(r, Flag))
    name = re.sub(r"\W", "", f"fused_{function.__name__.strip('_')}")
    source = _source(name, tracer, operands, results, len(scalars))
    return FusedKernel(name, source, results, places, not isinstance(told, tuple))


def _loaded(tracer: Tracer, number: int, operand: Operand) -> Symbol:
    symbol = tracer.fresh(operand.kind, operand.of_row)
    cast = "" if operand.kind != TRUTH else "(bool)"
    base = f"i0 * s{number}_0 + i1 * s{number}_1 + i2 * s{number}_2"
    if operand.of_row:
        tracer.written.lines.append((False, f"{symbol.name} = {cast}a{number}[{base}];"))
    else:
        step = "" if operand.dense else f" * s{number}_3"
        read = f"{cast}a{number}[{base} + (long long)(at + e * STEP){step}]"
        tracer.written.lines.append((True, f"{symbol.read()} = at + e * STEP < n ? {read} : ({operand.kind})0;"))
    return symbol


def _scalar(tracer: Tracer, number: int, value: float) -> Symbol:
    """A number that is passed at each launch: in the source, it would need a new kernel for each value."""
    return tracer.line(
        WHOLE if isinstance(value, int) else REAL, f"((long long)q{number})" if isinstance(value, int) else f"q{number}"
    )


def _store(tracer: Tracer, number: int, result: Symbol) -> None:
    if result.of_row and tracer.layout.whole_rows:
        tracer.written.lines.append((False, f"if (threadIdx.x == 0) o{number}[row] = {result.read()};"))
    else:
        stored = f"o{number}[row * n + at + e * STEP] = {result.read()};"
        tracer.written.lines.append((True, f"if (at + e * STEP < n) {stored}"))


def _source(name: str, tracer: Tracer, operands: Sequence[Operand], results: Sequence[Operand], scalars: int) -> str:
    layout = tracer.layout
    parameters = ["int n", "int rows", "unsigned d0", "unsigned d1", "unsigned d2"]
    for i, operand in enumerate(operands):
        parameters.append(f"const {STORED[operand.kind]}* __restrict__ a{i}")
        parameters += [f"int s{i}_{axis}" for axis in range(DIMENSIONS)]
    parameters += [f"{STORED[r.kind]}* __restrict__ o{i}" for i, r in enumerate(results)]
    parameters += ["int* bad", *(f"double q{i}" for i in range(scalars))]
    body: list[str] = list(tracer.written.names)
    inside = False
    for for_each, line in tracer.written.lines:
        if for_each and not inside:
            body += ["#pragma unroll", "for (int e = 0; e < WIDTH; e++) {"]
        elif inside and not for_each:
            body.append("}")
        inside = for_each
        body.append(line)
    if inside:
        body.append("}")
    axes = _AXES[layout.axes]
    if layout.whole_rows:
        loops = (
            f"for (long long row = blockIdx.x; row < rows; row += gridDim.x) {{ {axes}\nint at = threadIdx.x * WIDTH;"
        )
        closing = "}"
    else:
        loops = (
            "for (long long row = blockIdx.y * LINES + threadIdx.y; row < rows; row += gridDim.y * LINES) { "
            f"{axes}\nfor (long long at = blockIdx.x * THREADS * WIDTH + threadIdx.x; at < n; "
            "at += gridDim.x * THREADS * WIDTH) {"
        )
        closing = "} }"
    sizes = f"#define THREADS {layout.threads}\n#define WIDTH {layout.width}\n#define LINES {layout.lines}\n"
    # With whole rows, a thread has neighbouring elements, which it sums first; otherwise neighbouring elements go to
    # neighbouring threads, which gives coalesced memory access.
    sizes += f"#define STEP {1 if layout.whole_rows else layout.threads}\n"
    head = sizes + (_HEAD + _ROW_HEAD if layout.whole_rows else "")
    signature = f'extern "C" __global__ void __launch_bounds__(THREADS * LINES) {name}({", ".join(parameters)}) {{'
    return "\n".join([head, signature, loops, *body, closing, "}", ""])
