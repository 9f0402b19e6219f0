"""Ways to forge a product, for measuring how reliably the checks detect them (tests and bench/neural.py)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from holdfast.neural import exact
from holdfast.neural.arrays import NumpyArrays

Host = Any
MERSENNE = 2**31 - 1


def honest(a: Host, b: Host) -> tuple[Host, Host, Host]:
    """The rounded operands and their true product."""
    xp = NumpyArrays()
    qa, qb = exact.quantise(xp, a, -1)[0], exact.quantise(xp, b, -2)[0]
    return qa, qb, exact.multiply(xp, qa, qb)


def _unit(qa: Host, qb: Host, i: int, j: int) -> float:
    """The power of two that entry (i, j) is a multiple of."""
    xp = NumpyArrays()
    e = exact.exponents(xp, xp.magnitude(qa, -1))[i, 0] + exact.exponents(xp, xp.magnitude(qb, -2))[0, j]
    return 2.0 ** int(e)


def one_unit(qa: Host, qb: Host, c: Host, random: Any) -> Host:
    """A single entry off by the smallest possible amount."""
    wrong = c.copy()
    i, j = (int(random.integers(n)) for n in c.shape)
    wrong[i, j] += _unit(qa, qb, i, j)
    return wrong


def one_row(qa: Host, qb: Host, c: Host, random: Any) -> Host:
    """One row left out."""
    wrong = c.copy()
    wrong[int(random.integers(c.shape[0]))] = 0.0
    return wrong


def nothing(qa: Host, qb: Host, c: Host, random: Any) -> Host:
    """Zeros, which take no work."""
    return np.zeros_like(c)


def single_precision(qa: Host, qb: Host, c: Host, random: Any) -> Host:
    """Computed in float32, at half the cost."""
    return np.matmul(qa.astype(np.float32), qb.astype(np.float32)).astype(np.float64)


def prime_multiple(qa: Host, qb: Host, c: Host, random: Any) -> Host:
    """Off by a multiple of 2^31 − 1: it would pass a test modulo that prime."""
    wrong = c.copy()
    i, j = (int(random.integers(n)) for n in c.shape)
    wrong[i, j] += _unit(qa, qb, i, j) * MERSENNE
    return wrong


def balanced(qa: Host, qb: Host, c: Host, random: Any) -> Host:
    """Two errors in a row that cancel in its sum."""
    wrong = c.copy()
    i = int(random.integers(c.shape[0]))
    unit = max(_unit(qa, qb, i, 0), _unit(qa, qb, i, 1))
    wrong[i, 0] += unit
    wrong[i, 1] -= unit
    return wrong


def someone_elses(qa: Host, qb: Host, c: Host, random: Any) -> Host:
    """The result for other inputs: rows in another order."""
    return np.roll(c, 1, axis=0)


CHEATS: dict[str, Callable[[Host, Host, Host, Any], Host]] = {
    f.__name__: f for f in (one_unit, one_row, nothing, single_precision, prime_multiple, balanced, someone_elses)
}
