"""Products and sums that have one right answer: against big integers, in any layout, order and range."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.neural import exact
from holdfast.neural.arrays import Array, NumpyArrays, arrays
from holdfast.neural.refusals import NotFinite

pytestmark = pytest.mark.spec("V5")

NUMPY, TORCH = arrays("numpy"), arrays("torch")


def bits(a: Array) -> bytes:
    return np.ascontiguousarray(a).tobytes()


def rounded_line(line: list[float]) -> tuple[list[int], int]:
    """20-bit integers and their exponent, by rational arithmetic."""
    largest = max((abs(v) for v in line), default=0.0)
    e = -480
    if largest >= 2.0**-1022:
        floor = Fraction(largest).limit_denominator(10**400)
        power = len(bin(int(floor))) - 3 if floor >= 1 else -len(bin(int(1 / floor))) + 2
        while Fraction(2) ** (power + 1) <= Fraction(largest):
            power += 1
        while Fraction(2) ** power > Fraction(largest):
            power -= 1
        e = max(power + 1 - 19, -480)
    return [round(Fraction(v) / Fraction(2) ** e) for v in line], e


def by_big_integers(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    rows = [rounded_line(r) for r in a.tolist()]
    columns = [rounded_line(c) for c in b.T.tolist()]
    return np.array(
        [
            [
                float(Fraction(sum(x * y for x, y in zip(q, p, strict=True))) * Fraction(2) ** (e + f))
                for p, f in columns
            ]
            for q, e in rows
        ]
    ).reshape(a.shape[0], b.shape[1])


@st.composite
def operands(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    m, k, n = draw(st.integers(0, 5)), draw(st.integers(0, 7)), draw(st.integers(0, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0, 3, 60, 200]))
    a = random.normal(size=(m, k)) * 2.0 ** random.integers(-spread, spread + 1, (m, k))
    b = random.normal(size=(k, n)) * 2.0 ** random.integers(-spread, spread + 1, (k, n))
    special = draw(st.sampled_from([None, 0.0, -0.0, 5e-324, 2.0**-1022, 2.0**498, -(2.0**-481), 1.0]))
    if special is not None and a.size:
        a.flat[draw(st.integers(0, a.size - 1))] = special
    return a, b


@settings(max_examples=150, deadline=None)
@given(operands())
def test_products_equal_big_integers(pair: tuple[np.ndarray, np.ndarray]) -> None:
    """Sizes 0 and 1, denormals, zeros of both signs and scales from 2^-480 to 2^498 among them."""
    a, b = pair
    want = by_big_integers(a, b) + 0.0
    for xp in (NUMPY, TORCH):
        got = xp.host(exact.product(xp, xp.real(a), xp.real(b)))
        assert bits(got) == bits(want)


def layouts(x: np.ndarray) -> list[np.ndarray]:
    strided = np.zeros((x.shape[0] * 3, x.shape[1] * 2))
    strided[::3, ::2] = x
    padded = np.zeros((x.shape[0], x.shape[1] + 5))
    padded[:, 2 : 2 + x.shape[1]] = x
    return [x, np.asfortranarray(x), strided[::3, ::2], padded[:, 2 : 2 + x.shape[1]], x[::-1][::-1]]


def test_memory_layout_cannot_be_told_from_the_result() -> None:
    random = np.random.default_rng(1)
    a, b = random.normal(size=(33, 70)), random.normal(size=(70, 21))
    want = bits(exact.product(NUMPY, a, b))
    sums = [bits(exact.tree_sum(NUMPY, a, axis)) for axis in (0, 1)]
    for left in layouts(a):
        assert [bits(exact.tree_sum(NUMPY, left, axis)) for axis in (0, 1)] == sums
        for right in layouts(b):
            assert bits(exact.product(NUMPY, left, right)) == want


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**32))
def test_the_order_of_summation_cannot_be_told_from_a_product(k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(4, k)) * 10.0 ** random.integers(-6, 6, (4, 1)), random.normal(size=(k, 3))
    order = random.permutation(k)
    assert bits(exact.product(NUMPY, a[:, order], b[order])) == bits(exact.product(NUMPY, a, b))


def test_rows_can_be_computed_apart() -> None:
    random = np.random.default_rng(2)
    a, b = random.normal(size=(50, 64)), random.normal(size=(64, 40))
    whole = exact.product(NUMPY, a, b)
    assert bits(np.concatenate([exact.product(NUMPY, a[i : i + 1], b) for i in range(50)])) == bits(whole)
    assert bits(np.concatenate([exact.product(NUMPY, a, b[:, i : i + 8]) for i in range(0, 40, 8)], 1)) == bits(whole)


def test_long_sums_are_blocks_in_order_of_their_indices() -> None:
    # given a sum of two and a half blocks
    random = np.random.default_rng(3)
    k = exact.BLOCK_K * 5 // 2
    a, b = random.normal(size=(3, k)), random.normal(size=(k, 2))
    qa, qb = exact.quantise(NUMPY, a, -1)[0], exact.quantise(NUMPY, b, -2)[0]
    want = np.zeros((3, 2))
    for start in range(0, k, exact.BLOCK_K):
        here = slice(start, start + exact.BLOCK_K)
        for i, j in np.ndindex(3, 2):
            want[i, j] += float(sum(map(Fraction, (qa[i, here] * qb[here, j]).tolist())))
    assert bits(exact.product(NUMPY, a, b)) == bits(want)
    assert bits(TORCH.host(exact.product(TORCH, TORCH.real(a), TORCH.real(b)))) == bits(want)


def test_the_worst_case_is_still_exact() -> None:
    """8192 products of the two largest integers, which is where float64 would first lose one."""
    a = np.full((1, exact.BLOCK_K), 1.0 - 2.0**-30)
    got = exact.product(NUMPY, a, a.T)
    assert got[0, 0] == 8192.0
    odd = a.copy()
    odd[0, 0] = 2.0**-19
    q = exact.quantise(NUMPY, odd, -1)[0]
    assert exact.multiply(NUMPY, q, q.T)[0, 0] == 8191.0 + 2.0**-38


def test_zeros_have_one_sign() -> None:
    for k in (1, 2, 5, 64):
        a, b = np.full((3, k), -1.0), np.zeros((k, 4))
        for xp in (NUMPY, TORCH):
            assert not np.signbit(xp.host(exact.product(xp, xp.real(a), xp.real(b)))).any()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 2.0**499, -1e300])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("xp", [NUMPY, TORCH], ids=["numpy", "torch"])
def test_what_is_no_number_is_refused_by_the_operators_name(bad: float, side: int, xp: NumpyArrays) -> None:
    pair = [np.ones((3, 4)), np.ones((4, 2))]
    pair[side][1, 1] = bad
    with pytest.raises(NotFinite, match="operator head") as refused:
        exact.product(xp, xp.real(pair[0]), xp.real(pair[1]), "head")
    assert refused.value.operator == "head"


def tree(values: list[float]) -> float:
    while len(values) > 1:
        pairs = [a + b for a, b in zip(values[0::2], values[1::2], strict=False)]
        values = pairs + ([values[-1]] if len(values) % 2 else [])
    return values[0] if values else 0.0


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 70), st.integers(0, 2**32))
def test_sums_are_a_tree_of_neighbours(n: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(n, 3)) * 1e3
    want = np.array([tree(x[:, j].tolist()) for j in range(3)])
    for xp in (NUMPY, TORCH):
        before = xp.real(x)
        assert bits(xp.host(exact.tree_sum(xp, before, 0))) == bits(want)
        assert bits(xp.host(exact.tree_sum(xp, xp.real(x.T), -1, keep=True))[:, 0]) == bits(want)
        assert bits(xp.host(before)) == bits(x), "the summands were changed"


@given(st.integers(1, 40), st.integers(0, 30), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_appended_zeros_change_no_sum_and_no_mixture(n: int, more: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    weights, values = random.uniform(0, 1, (2, n)), random.normal(size=(n, 5))
    longer = np.concatenate([weights, np.zeros((2, more))], 1)
    others = np.concatenate([values, random.normal(size=(more, 5)) * 1e9])

    assert bits(exact.tree_sum(NUMPY, longer, -1)) == bits(exact.tree_sum(NUMPY, weights, -1))
    short = exact.multiply(NUMPY, *exact.absorb(NUMPY, weights, values)[:2])
    assert bits(exact.multiply(NUMPY, *exact.absorb(NUMPY, longer, others)[:2])) == bits(short)
    assert np.allclose(short, weights @ values, atol=1e-4)


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_scattered_sums_do_not_depend_on_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    index, rows = random.integers(0, 6, 50), random.normal(size=(50, 4)) * 10.0 ** random.integers(-3, 3, 4)
    order = random.permutation(50)
    got = exact.scatter_rows(NUMPY, 6, index, rows)
    want = np.zeros((6, 4))
    np.add.at(want, index, rows)
    assert np.allclose(got, want, rtol=1e-9, atol=1e-9)
    assert bits(exact.scatter_rows(NUMPY, 6, index[order], rows[order])) == bits(got)
    there = exact.scatter_rows(TORCH, 6, TORCH.index(index), TORCH.real(rows))
    assert bits(TORCH.host(there)) == bits(got)


def test_rounding_costs_a_few_parts_in_a_million() -> None:
    random = np.random.default_rng(4)
    a, b = random.normal(size=(64, 512)), random.normal(size=(512, 64))
    error = exact.product(NUMPY, a, b) - a @ b
    assert 1e-7 < np.sqrt((error**2).mean()) / np.sqrt(((a @ b) ** 2).mean()) < 4e-6
