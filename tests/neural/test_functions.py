"""exp, log, tanh, erf … against arbitrary precision, on both libraries to the bit; and the random bits."""

import ast
from pathlib import Path

import mpmath
import numpy as np
import pytest

from holdfast.neural import arrays as arrays_module
from holdfast.neural import counter, functions
from holdfast.neural.arrays import arrays

pytestmark = pytest.mark.spec("V5")

NUMPY, TORCH = arrays("numpy"), arrays("torch")
RANDOM = np.random.default_rng(5)
N = 1_500


def mixed(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts)


NORMAL, UNIFORM = RANDOM.normal, RANDOM.uniform
CASES = {
    "exp": (mixed(UNIFORM(-708, 709, N), NORMAL(0, 1e-8, N)), 2.0**-51, mpmath.exp),
    "expm1": (mixed(UNIFORM(-40, 40, N), NORMAL(0, 1e-5, N), UNIFORM(-1, 1, N)), 2.0**-50, mpmath.expm1),
    "log": (
        mixed(RANDOM.lognormal(0, 99, N), UNIFORM(0.5, 2, N), 5e-324 * RANDOM.integers(1, 2**40, N)),
        2.0**-51,
        mpmath.log,
    ),
    "tanh": (mixed(NORMAL(0, 3, N), NORMAL(0, 1e-6, N), UNIFORM(-25, 25, N)), 2.0**-50, mpmath.tanh),
    "sigmoid": (NORMAL(0, 30, N), 2.0**-50, lambda v: 1 / (1 + mpmath.exp(-v))),
    "erf": (mixed(NORMAL(0, 2, N), NORMAL(0, 1e-6, N), UNIFORM(0.9, 1.1, N)), 2.0**-50, mpmath.erf),
    "rsqrt": (RANDOM.lognormal(0, 50, N), 2.0**-52, lambda v: 1 / mpmath.sqrt(v)),
}


@pytest.mark.parametrize("name", CASES)
def test_errors_stay_within_their_bounds(name: str) -> None:
    x, bound, truth = CASES[name]
    got = getattr(functions, name)(NUMPY, x)
    with mpmath.workprec(160):
        for given, value in zip(x.tolist(), got.tolist(), strict=True):
            true = truth(mpmath.mpf(given))
            assert abs(mpmath.mpf(value) - true) <= bound * abs(true), f"{name}({given!r}) = {value!r}"


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_turns_stay_within_their_bounds(name: str) -> None:
    x = mixed(RANDOM.uniform(-(2.0**20), 2.0**20, N), RANDOM.uniform(-4, 4, N))
    got = getattr(functions, name)(NUMPY, x)
    with mpmath.workprec(160):
        worst = max(
            abs(mpmath.mpf(v) - getattr(mpmath, name)(mpmath.mpf(g)))
            for g, v in zip(x.tolist(), got.tolist(), strict=True)
        )
    assert worst <= 2.0**-50  # fmt: skip


@pytest.mark.parametrize("name", [*CASES, "sin", "cos"])
def test_both_libraries_give_the_same_bits(name: str) -> None:
    # given more elements than one cache block, in another memory layout as well
    x = np.abs(RANDOM.normal(0, 5, (200, 101))) + 1e-3
    here = getattr(functions, name)(NUMPY, x)
    there = TORCH.host(getattr(functions, name)(TORCH, TORCH.real(x)))
    turned = getattr(functions, name)(NUMPY, np.asfortranarray(x))

    assert np.array_equal(here.view(np.int64), there.view(np.int64))
    assert np.array_equal(here.view(np.int64), np.ascontiguousarray(turned).view(np.int64))


def test_ends_of_the_range() -> None:
    x = np.array([-1e6, -709.0, 0.0, 40.0, -40.0])
    assert functions.exp(NUMPY, x[:3]).tolist() == [0.0, 0.0, 1.0]
    assert functions.tanh(NUMPY, x[3:]).tolist() == [1.0, -1.0]
    assert functions.erf(NUMPY, x[3:]).tolist() == [1.0, -1.0]
    assert functions.sigmoid(NUMPY, np.array([0.0, 800.0])).tolist() == [0.5, 1.0]
    assert functions.sigmoid(NUMPY, np.array([-800.0]))[0] == 0.0


def test_random_bits_are_those_of_philox() -> None:
    """The known answers of its authors: all zero, and all ones."""
    zero = np.zeros(1, dtype=np.int64)
    ones = zero + 0xFFFFFFFF
    assert [int(w[0]) for w in counter.philox((zero,) * 4, (0, 0))] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert [int(w[0]) for w in counter.philox((ones,) * 4, (0xFFFFFFFF,) * 2)] == [
        0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD,
    ]  # fmt: skip


def test_random_bits_depend_on_key_and_index_alone() -> None:
    many = counter.words(NUMPY, "job/1/drop/0", 1001)
    assert np.array_equal(many[:10], counter.words(NUMPY, "job/1/drop/0", 10))
    assert np.array_equal(many, TORCH.host(counter.words(TORCH, "job/1/drop/0", 1001)))
    assert not np.array_equal(many, counter.words(NUMPY, "job/1/drop/1", 1001))
    assert sorted(counter.order(NUMPY, "k", 100)) == list(range(100))


def test_uniform_numbers_are_spread_evenly() -> None:
    drawn = counter.uniform(NUMPY, "spread", 100_000)
    assert 0.0 < drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() < 1.0
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    assert (abs(counts - 5000) < 5 * np.sqrt(5000)).all()


def test_square_roots_and_quotients_are_correctly_rounded_on_both_libraries() -> None:
    x, y = RANDOM.lognormal(0, 20, 20_000), RANDOM.lognormal(0, 20, 20_000)
    assert np.array_equal(TORCH.host(TORCH.sqrt(TORCH.real(x))), np.sqrt(x))
    assert np.array_equal(TORCH.host(TORCH.divide(TORCH.real(x), TORCH.real(y))), x / y)
    assert np.array_equal(TORCH.host(TORCH.divide(TORCH.real(x), 3.0)), x / 3.0)
    assert np.array_equal(TORCH.host(TORCH.divide(1.0, TORCH.real(x))), 1.0 / x)


def test_nobody_divides_arrays_but_through_the_backend() -> None:
    """`/` on a tensor is not always a division (see arrays.py), so in this room it stands nowhere else."""
    room = Path(arrays_module.__file__).parent
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted(room.rglob("*.py"))
        if path.name not in {"arrays.py", "checks.py"}  # the backend itself, and Python numbers on the host
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div)
    ]
    assert found == []
