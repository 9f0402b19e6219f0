"""exp, log, tanh, erf, sigmoid, sin, cos and 1/√ from + − × ÷ √ alone, float64, elementwise.

Libraries round these differently from machine to machine; the operations used here are fixed by IEEE 754. No step may
be contracted into a fused multiply-add, so each is a separate array operation.

Bounds, tested against arbitrary precision (tests/neural/test_functions.py), relative unless said otherwise:

    exp      2^-51   for −708 <= x <= 709; 0 below, and above the value at 709
    expm1    2^-50   same range
    log      2^-51   for positive normal and denormal numbers; absolute 2^-52 near 1
    tanh     2^-50
    sigmoid  2^-50
    erf      2^-50
    rsqrt    2^-52   for positive normal numbers
    sin, cos 2^-50 absolute for |x| <= 2^20

Special values are not handled here: operators reject Inf and NaN before and after.
"""

from collections.abc import Callable

from holdfast.neural.arrays import Array, NumpyArrays, ratio
from holdfast.neural.exact import power_of_two

_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH = float.fromhex("0x1.62e42fef00000p-1")
"""33 bits of ln 2: its product with an exponent is exact."""
_LN2_LOW = float.fromhex("0x1.473de6af278edp-34")
_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
_HALF_PI = (
    float.fromhex("0x1.921fb54000000p+0"),
    float.fromhex("0x1.10b4611800000p-30"),
    float.fromhex("0x1.313198a2e0370p-61"),
)
"""π/2 in three parts, the first two short enough that their products with a quadrant number are exact."""


def _factorials(n: int) -> list[int]:
    values = [1]
    for i in range(1, n + 1):
        values.append(values[-1] * i)
    return values


_FACTORIAL = _factorials(20)
_EXP = [ratio(1, _FACTORIAL[n]) for n in range(13, 0, -1)]
"""(e^r − 1)/r by Taylor's series, highest power first; |r| <= 0.347 leaves 5e-18."""
_ATANH = [ratio(2, 2 * n + 1) for n in range(11, 0, -1)]
"""2·artanh(s)/s − 2 in powers of s², highest first; s² <= 0.0295 leaves 4e-19."""
_SIN = [ratio((-1) ** n, _FACTORIAL[2 * n + 1]) for n in range(8, 0, -1)]
_COS = [ratio((-1) ** n, _FACTORIAL[2 * n]) for n in range(9, 0, -1)]

_ERF_SMALL = [
    float.fromhex(h)
    for h in (
        "0x1.05ffd737fb32ep-34", "-0x1.389d4f2641625p-30", "0x1.f7b4bf3b13964p-27", "-0x1.5f1ecb6f0764cp-23",
        "0x1.b9df224ca4b97p-20", "-0x1.f4d1e3183f7aep-17", "0x1.f9a321d5b8e1ep-14", "-0x1.c02db3dac435fp-11",
        "0x1.565bcd0dbaa38p-8", "-0x1.b82ce31284e00p-6", "0x1.ce2f21a042b30p-4", "-0x1.812746b0379e6p-2",
        "0x1.20dd750429b6dp+0",
    )
]  # fmt: skip
"""erf(x)/x in powers of x² for |x| <= 1: Chebyshev's fit, error 1.3e-19."""
_ERF_LARGE = [
    float.fromhex(h)
    for h in (
        "0x1.5d5e7634f4ca6p-24", "-0x1.a36ff5774dd16p-20", "-0x1.32951befcce73p-19", "0x1.f64be7b5a367bp-18",
        "0x1.38381b1459556p-16", "-0x1.1ea84db776574p-15", "-0x1.0e460ac2287b2p-13", "0x1.def25794251e9p-13",
        "0x1.cb3b600ad87b6p-11", "-0x1.5a57167cd25c8p-9", "-0x1.05bb2fe3d797cp-8", "0x1.470ba1f66220cp-5",
        "-0x1.001154371704cp-3", "0x1.01c11a735ce12p-2", "-0x1.7ca88dec217a4p-2", "0x1.afbb3f3b7343ap-3",
    )
]  # fmt: skip
"""erfc(x)·exp(x²) in powers of (x − 2.5)/(x + 2.5) for 1 <= x <= 6: error 1e-17."""


def _horner(x: Array, coefficients: list[float]) -> Array:
    total = x * coefficients[0]
    for c in coefficients[1:-1]:
        total += c
        total *= x
    total += coefficients[-1]
    return total


def _parts(xp: NumpyArrays, x: Array) -> tuple[Array, Array]:
    """k and e^r − 1 with x = k·ln 2 + r and |r| <= (ln 2)/2."""
    k = xp.rint(x * _LOG2_E)
    r = x - k * _LN2_HIGH
    r -= k * _LN2_LOW
    return k, _horner(r, _EXP) * r


def _exp(xp: NumpyArrays, x: Array) -> Array:
    k, grown = _parts(xp, xp.clamp(x, -708.0, 709.0))
    grown += 1.0
    grown *= power_of_two(xp, xp.cast(k, "int64"))
    return xp.where(x < -708.0, 0.0, grown)


def _expm1(xp: NumpyArrays, x: Array) -> Array:
    k, grown = _parts(xp, xp.clamp(x, -708.0, 709.0))
    scale = power_of_two(xp, xp.cast(k, "int64"))
    return grown * scale + (scale - 1.0)


def _log(xp: NumpyArrays, x: Array) -> Array:
    tiny = x < 2.0**-1022
    bits = xp.bits(xp.where(tiny, x * 2.0**54, x))
    # The exponent is chosen so that the mantissa lies within [√½, √2).
    e = (bits - 0x3FE6A09E667F3BCD) >> 52
    mantissa = xp.from_bits(bits - (e << 52))
    e = xp.cast(e, "float64") - xp.where(tiny, 54.0, 0.0)
    f = mantissa - 1.0
    s = xp.divide(f, mantissa + 1.0)
    # log(1+f) = f − s·(f − rest): the large part, f, is exact.
    rest = _horner(s * s, [*_ATANH, 0.0])
    return e * _LN2_HIGH + (f - (s * (f - rest) - e * _LN2_LOW))


def _tanh(xp: NumpyArrays, x: Array) -> Array:
    size = xp.absolute(x)
    grown = _expm1(xp, 2.0 * xp.clamp(size, 0.0, 22.0))
    value = xp.divide(grown, grown + 2.0)
    return xp.where(x < 0.0, -value, value)


def _sigmoid(xp: NumpyArrays, x: Array) -> Array:
    e = _exp(xp, -xp.absolute(x))
    return xp.divide(xp.where(x < 0.0, e, 1.0), 1.0 + e)


def _erf(xp: NumpyArrays, x: Array) -> Array:
    size = xp.clamp(xp.absolute(x), 0.0, 6.0)
    square = size * size
    small = _horner(xp.clamp(square, 0.0, 1.0), _ERF_SMALL) * size
    t = xp.divide(size - 2.5, size + 2.5)
    large = 1.0 - _exp(xp, -square) * _horner(t, _ERF_LARGE)
    value = xp.where(size < 1.0, small, large)
    return xp.where(x < 0.0, -value, value)


def _turns(xp: NumpyArrays, x: Array) -> tuple[Array, Array, Array]:
    """The quadrant of x, and the sine and cosine of the remainder."""
    k = xp.rint(x * _TWO_OVER_PI)
    r = ((x - k * _HALF_PI[0]) - k * _HALF_PI[1]) - k * _HALF_PI[2]
    square = r * r
    sine = r + r * (square * _horner(square, _SIN))
    cosine = 1.0 + square * _horner(square, _COS)
    return xp.cast(k, "int64") & 3, sine, cosine


def _sin(xp: NumpyArrays, x: Array) -> Array:
    quadrant, sine, cosine = _turns(xp, x)
    value = xp.where((quadrant & 1) == 1, cosine, sine)
    return xp.where(quadrant >= 2, -value, value)


def _cos(xp: NumpyArrays, x: Array) -> Array:
    quadrant, sine, cosine = _turns(xp, x)
    value = xp.where((quadrant & 1) == 1, sine, cosine)
    return xp.where((quadrant == 1) | (quadrant == 2), -value, value)


def _in_one_pass(function: Callable[[NumpyArrays, Array], Array]) -> Callable[[NumpyArrays, Array], Array]:
    """The function in one pass over memory."""

    def whole(xp: NumpyArrays, x: Array) -> Array:
        return xp.each(function, x)

    return whole


exp = _in_one_pass(_exp)
expm1 = _in_one_pass(_expm1)
log = _in_one_pass(_log)
tanh = _in_one_pass(_tanh)
sigmoid = _in_one_pass(_sigmoid)
erf = _in_one_pass(_erf)
sin = _in_one_pass(_sin)
cos = _in_one_pass(_cos)


def rsqrt(xp: NumpyArrays, x: Array) -> Array:
    """1/√x."""
    return xp.divide(1.0, xp.sqrt(x))
