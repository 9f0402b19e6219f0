"""Products and sums with one exact result: the same bits for any machine, kernel, thread count and split.

**Products.** Only the operands of a matrix product are rounded. Each row of A and each column of B (each index
that is not summed over) gets its own power of two, and its entries are rounded to 20-bit integers times that
power: at most 2^19 in size. A product of two is at most 2^38, and a sum of up to 8192 = 2^13 of them at most
2^51, which float64 holds exactly. All terms of one entry of C share the same power of two. So every partial sum
is exact, and no order of summation, fused multiply-add or blocking can change it. Longer sums are cut into
blocks of 8192 by index, and the blocks are added in that order.

Rounding to a multiple of 2^e, ties to even, is (x + M) − M with M = 1.5·2^(52+e). Operands of 2^499 and more are
rejected like Inf, and those below 2^-481 count as zero: between these no product overflows or becomes denormal.

**Sums** are a fixed tree over logical indices: neighbours first (0+1, 2+3, …), then those sums, and so on. The result
does not depend on the memory layout, and zeros appended at the end do not change it, so generation with a cache equals
generation without one. **Scattered sums** (the gradient of a table) use 40-bit integers.
"""

from holdfast.neural.arrays import Array, NumpyArrays
from holdfast.neural.refusals import NotFinite

BITS = 19
"""|q| <= 2^BITS: with the sign, 20-bit integers."""
BLOCK_K = 8192
"""How many products of two such integers float64 sums exactly."""
EXPONENT_MAX = 480
LIMIT = 2.0 ** (EXPONENT_MAX + BITS)
"""Operands of this size and more are rejected."""
SCATTER_BITS = 40
"""Leaves room to add 2^22 rows in 63 bits."""


def exponents(xp: NumpyArrays, magnitude: Array, bits: int = BITS) -> Array:
    """e such that each magnitude is at most 2^(e+bits), as integers, clamped to ±EXPONENT_MAX."""
    # The biased exponent is floor(log2) + 1023, and 0 for denormals.
    e = ((xp.bits(magnitude) >> 52) & 0x7FF) - (1023 - 1 + bits)
    e = xp.where(e < -EXPONENT_MAX, -EXPONENT_MAX, e)
    return xp.where(e > EXPONENT_MAX, EXPONENT_MAX, e)


def power_of_two(xp: NumpyArrays, e: Array) -> Array:
    """2^e for integers in the range of normal numbers."""
    return xp.from_bits((e + 1023) << 52)


def quantise(xp: NumpyArrays, x: Array, axis: int) -> tuple[Array, Array]:
    """x rounded to 20-bit integers times one power of two for each line along `axis`; and whether x is in range.

    The axis is one of the last two. A transposed operand is rounded in its memory order, and stays transposed.
    """
    axis = axis if axis < 0 else axis - len(x.shape)
    if xp.is_turned(x) and axis >= -2:
        rounded, fine = quantise(xp, xp.turned(x), -3 - axis)
        return xp.turned(rounded), fine
    if axis == -1:
        return xp.each_row(_round_rows, x, light=True)
    magnitude = xp.magnitude(x, axis)
    return xp.each(_round_by, x, xp.each(_magic, magnitude), light=True), in_range(xp, magnitude)


def _magic(xp: NumpyArrays, magnitude: Array) -> Array:
    """The number that rounds values of this magnitude when it is added and subtracted again."""
    return 1.5 * power_of_two(xp, exponents(xp, magnitude) + 52)


def _round_by(xp: NumpyArrays, x: Array, magic: Array) -> Array:
    rounded = x + magic
    rounded -= magic
    return rounded


def _round_rows(xp: NumpyArrays, x: Array) -> tuple[Array, Array]:
    magnitude = xp.magnitude(x, -1)
    return _round_by(xp, x, _magic(xp, magnitude)), in_range(xp, magnitude)


def in_range(xp: NumpyArrays, magnitude: Array) -> Array:
    """Whether operands of this magnitude are allowed: finite, and below the limit."""
    return xp.all_below(magnitude, LIMIT)


def absorb(xp: NumpyArrays, weights: Array, values: Array) -> tuple[Array, Array, Array]:
    """Operands of weights·values in which each row of `values` has its own scale, which is multiplied into weights.

    The scale of a value then depends only on that value, not on how many others there are: a query over past positions
    gets the same bits whether or not future positions are present (with weight zero).
    """
    whole, scales, values_fine = xp.each_row(_whole_rows, values, light=True)
    scaled, fine = xp.each_row(_round_scaled, weights, xp.turned(scales), light=True)
    return scaled, whole, fine & values_fine


def _whole_rows(xp: NumpyArrays, x: Array) -> tuple[Array, Array, Array]:
    """Each row as integers, and the power of two that was factored out."""
    magnitude = xp.magnitude(x, -1)
    e = exponents(xp, magnitude)
    whole = _round_by(xp, x, 1.5 * power_of_two(xp, e + 52))
    whole *= power_of_two(xp, -e)
    return whole, power_of_two(xp, e), in_range(xp, magnitude)


def _round_scaled(xp: NumpyArrays, x: Array, scales: Array) -> tuple[Array, Array]:
    return _round_rows(xp, x * scales)


def multiply(xp: NumpyArrays, a: Array, b: Array) -> Array:
    """The product of two quantised operands, [..., M, K] by [..., K, N]."""
    k = a.shape[-1]
    if k <= BLOCK_K:
        total = xp.matmul(a, b)
    else:
        total = xp.matmul(a[..., :BLOCK_K], b[..., :BLOCK_K, :])
        for start in range(BLOCK_K, k, BLOCK_K):
            total += xp.matmul(a[..., start : start + BLOCK_K], b[..., start : start + BLOCK_K, :])
    # The sign of a sum of zeros depends on the kernel; adding +0 makes it the same for all.
    total += 0.0
    return total


def product(xp: NumpyArrays, a: Array, b: Array, operator: str = "product") -> Array:
    """A·B with quantised operands; raises NotFinite with the operator's name if an operand is out of range."""
    left, left_fine = quantise(xp, a, -1)
    right, right_fine = quantise(xp, b, -2)
    if not (bool(left_fine) and bool(right_fine)):
        raise NotFinite(operator, "an operand of a product")
    return multiply(xp, left, right)


def tree_sum(xp: NumpyArrays, x: Array, axis: int, keep: bool = False) -> Array:
    """The sum over an axis as a fixed tree of neighbours."""
    return xp.tree_sum(x, axis, keep)


def scatter_rows(xp: NumpyArrays, count: int, index: Array, rows: Array) -> Array:
    """`count` rows, each the sum of the rows with its index; every column in integers with its own power of two."""
    e = exponents(xp, xp.magnitude(rows, 0), SCATTER_BITS)
    scaled = rows * power_of_two(xp, -e)
    whole = xp.cast(xp.rint(scaled), "int64")
    return xp.cast(xp.add_rows(count, index, whole), "float64") * power_of_two(xp, e)
