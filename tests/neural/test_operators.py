"""Every operator: its result and gradients against PyTorch's autograd in float64 and against finite differences;
what it declares about its cost; and its refusals."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from holdfast.neural.arithmetic import Arithmetic, arithmetic
from holdfast.neural.arrays import Array, arrays
from holdfast.neural.operators import OPERATORS, Misfit, Operator, RunContext, Signal
from holdfast.neural.refusals import NotFinite

pytestmark = pytest.mark.spec("V1", "V5")

Tensor = torch.Tensor
BATCH = 3


@dataclass
class Case:
    """An operator, what goes into it, and the same thing said in PyTorch."""

    kind: str
    inputs: list[Signal]
    truth: Callable[..., Tensor]
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def operator(self) -> Operator:
        kind = OPERATORS[self.kind]
        defaults = {name: option.default for name, option in kind.accepts.items()}
        return kind("mine", {**defaults, **self.options})


def rotary(t: Tensor) -> Tensor:
    n, half = t.shape[-2], t.shape[-1] // 2
    angle = torch.arange(n, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = t[..., :half], t[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def attention(heads: int, causal: bool, rope: bool) -> Callable[..., Tensor]:
    def truth(w: dict[str, Tensor], x: Tensor) -> Tensor:
        batch, n, width = x.shape
        q, k, v = (p.reshape(batch, n, heads, -1).transpose(1, 2) for p in (x @ w["qkv"]).split(width, -1))
        if rope:
            q, k = rotary(q), rotary(k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return mixed.transpose(1, 2).reshape(batch, n, width) @ w["out"]

    return truth


def entropy(w: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
    each = F.cross_entropy(x.reshape(-1, x.shape[-1]), label.reshape(-1), reduction="none")
    return each.reshape(x.shape[0], -1).mean(1)


def halves(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


PLANE = Signal((4, 6))
CASES = [
    Case("linear", [PLANE], lambda w, x: x @ w["weight"] + w["bias"], {"width": 5}),
    Case("linear", [Signal((7,))], lambda w, x: x @ w["weight"], {"width": 3, "bias": False}),
    Case("embedding", [Signal((5,), 9)], lambda w, i: w["weight"][i], {"width": 4}),
    Case("tied_head", [PLANE], lambda w, x: x @ w["weight"].T, {"rows": 8}),
    Case("layernorm", [PLANE], lambda w, x: F.layer_norm(x, (6,), w["gain"], w["bias"], 1e-5)),
    Case("layernorm", [PLANE], lambda w, x: F.layer_norm(x, (6,), w["gain"], None, 1e-5), {"bias": False}),
    Case("rmsnorm", [PLANE], lambda w, x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w["gain"]),
    Case("softmax", [PLANE], lambda w, x: torch.softmax(x, -1)),
    Case("attention", [Signal((5, 8))], attention(2, True, True), {"heads": 2}),
    Case("attention", [Signal((5, 8))], attention(4, False, False), {"heads": 4, "causal": False, "rope": False}),
    Case("gelu", [PLANE], lambda w, x: F.gelu(x, approximate="tanh")),
    Case("gelu", [PLANE], lambda w, x: F.gelu(x), {"form": "erf"}),
    Case("relu", [PLANE], lambda w, x: F.relu(x)),
    Case("silu", [PLANE], lambda w, x: F.silu(x)),
    Case("swiglu", [PLANE], lambda w, x: halves(x)),
    Case("dropout", [PLANE], lambda w, x: x, {"rate": 0.0}),
    Case("add", [PLANE, PLANE, PLANE], lambda w, a, b, c: a + b + c),
    Case("mul", [PLANE, PLANE], lambda w, a, b: a * b),
    Case("mask", [PLANE, Signal((4, 6), 2)], lambda w, x, m: torch.where(m != 0, x, 0.7), {"fill": 0.7}),
    Case("concat", [PLANE, Signal((2, 6))], lambda w, a, b: torch.cat([a, b], 1), {"axis": 0}),
    Case("split", [PLANE], lambda w, x: x[..., 2:4], {"parts": 3, "part": 1}),
    Case("reshape", [PLANE], lambda w, x: x.reshape(-1, 3, 8), {"shape": [3, 8]}),
    Case("transpose", [Signal((2, 3, 4))], lambda w, x: x.permute(0, 3, 1, 2), {"axes": [2, 0, 1]}),
    Case("cross_entropy", [Signal((4, 6)), Signal((4,), 6)], entropy),
    Case("cross_entropy", [Signal((6,)), Signal((), 6)], entropy),
    Case("mse", [PLANE, PLANE], lambda w, a, b: ((a - b) ** 2).reshape(a.shape[0], -1).mean(1)),
]  # fmt: skip
IDS = [f"{case.kind}-{i}" for i, case in enumerate(CASES)]


class Wide(Arithmetic):
    """Exact arithmetic without rounding the operands: the formulas alone, to compare with another's formulas."""

    def _round(self, x: Array, axis: int, operator: str) -> Array:
        return x

    def mix(self, weights: Array, values: Array, operator: str, label: str) -> Array:
        return self.product(weights, values, operator, label)


class Given:
    def __init__(self, case: Case) -> None:
        random = np.random.default_rng(len(case.kind))
        self.operator = case.operator()
        shapes = self.operator.parameters(case.inputs)
        self.weights = {name: random.normal(size=p.shape) for name, p in shapes.items()}
        self.inputs = [
            random.integers(0, s.below, (BATCH, *s.shape)) if s.is_index else random.normal(size=(BATCH, *s.shape))
            for s in case.inputs
        ]
        self.out = random.normal(size=(BATCH, *self.operator.signal(case.inputs).shape))


def computed(given: Given, ar: Arithmetic) -> tuple[Array, list[Array | None], dict[str, Array]]:
    """Result, gradients of the inputs and of the weights, as host arrays."""
    run = RunContext(ar, "key", train=True)
    inputs = [ar.xp.index(x) if x.dtype == np.int64 else ar.real(x) for x in given.inputs]
    weights = {k: ar.real(v) for k, v in given.weights.items()}
    y, saved = given.operator.forward(run, weights, inputs)
    backs, wgrads = given.operator.backward(run, weights, saved, ar.real(given.out))
    ar.settle()
    host = ar.xp.host
    return host(y), [None if b is None else host(b) for b in backs], {k: host(v) for k, v in wgrads.items()}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_gradients_equal_those_of_autograd(case: Case) -> None:
    # given the same numbers on both sides
    given = Given(case)
    weights = {k: torch.tensor(v, requires_grad=True) for k, v in given.weights.items()}
    inputs = [torch.tensor(x, requires_grad=x.dtype != np.int64) for x in given.inputs]

    # when both go forward and backward
    truth = case.truth(weights, *inputs)
    truth.backward(torch.tensor(given.out))
    y, backs, wgrads = computed(given, Wide(arrays()))

    # then they agree but for the last digits
    assert np.allclose(y, truth.detach().numpy(), rtol=1e-12, atol=1e-12)
    for back, tensor in zip(backs, inputs, strict=True):
        if tensor.requires_grad:
            assert back is not None
            assert np.allclose(back, tensor.grad, rtol=1e-9, atol=1e-10)
        else:
            assert back is None
    assert set(wgrads) == set(weights)
    for name, wgrad in wgrads.items():
        assert np.allclose(wgrad, weights[name].grad, rtol=1e-9, atol=1e-10), name


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_gradients_equal_finite_differences(case: Case) -> None:
    given = Given(case)
    ar = Wide(arrays())
    _, backs, wgrads = computed(given, ar)

    def total(weights: dict[str, Array], inputs: list[Array]) -> float:
        y, _ = given.operator.forward(RunContext(ar, "key", train=True), weights, inputs)
        return float((y * given.out).sum())

    step = 1e-6
    pairs = [(given.weights[n], g) for n, g in wgrads.items()]
    pairs += [(x, g) for x, g in zip(given.inputs, backs, strict=True) if g is not None]
    random = np.random.default_rng(1)
    for values, grad in pairs:
        for at in random.integers(0, values.size, 4):
            kept = values.flat[at]
            values.flat[at] = kept + step
            ar.forget()
            above = total(given.weights, given.inputs)
            values.flat[at] = kept - step
            ar.forget()
            below = total(given.weights, given.inputs)
            values.flat[at] = kept
            assert (above - below) / (2 * step) == pytest.approx(np.asarray(grad).flat[at], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_profiles_stay_near_each_other_and_libraries_give_the_same_bits(case: Case) -> None:
    given = Given(case)
    true = computed(given, Wide(arrays()))
    here, there = computed(given, arithmetic("exact", arrays())), computed(given, arithmetic("exact", arrays("torch")))
    assert here[0].tobytes() == np.ascontiguousarray(there[0]).tobytes()
    for a, b in [*zip(here[1], there[1], strict=True), *((here[2][k], there[2][k]) for k in here[2])]:
        assert (a is None) == (b is None)
        assert a is None or np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
    for profile, tolerance in (("exact", 1e-4), ("f32", 1e-4), ("bf16", 0.12)):
        for backend in ("numpy", "torch"):
            near = computed(given, arithmetic(profile, arrays(backend)))
            assert np.allclose(near[0], true[0], rtol=tolerance, atol=tolerance * 3)
            for name in true[2]:
                assert np.allclose(near[2][name], true[2][name], rtol=tolerance, atol=tolerance * 10), (profile, name)


class Tally:
    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def saw(self, operator: str, label: str, a: Array, b: Array, c: Array) -> None:
        self.seen[label] = 2 * prod(a.shape[:-2]) * a.shape[-2] * a.shape[-1] * b.shape[-1]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_products_are_those_it_declares(case: Case) -> None:
    # given an operator and somebody who counts
    given, ar, tally = Given(case), arithmetic("exact", arrays()), Tally()
    ar.witness = tally

    # when it runs forward, and backward as well
    given.operator.forward(RunContext(ar, train=True), given.weights, given.inputs)
    forward = dict(tally.seen)
    computed(given, ar)

    # then its forward products are the declared ones, and backward does twice as much
    declared = {p.label: p.flops * BATCH for p in given.operator.products(case.inputs)}
    assert forward == declared
    assert sum(tally.seen.values()) == 3 * sum(declared.values())
    assert given.operator.flops(case.inputs) >= sum(declared.values()) // BATCH
    assert given.operator.saved_bytes(case.inputs) > 0


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("case", [c for c in CASES if not c.inputs[0].is_index], ids=lambda c: c.kind)
def test_numbers_that_are_none_are_refused_by_name(case: Case, backend: str, bad: float) -> None:
    from tests.neural.networks import alone

    stage, state, inputs, key, ar = alone(case.operator(), case.inputs, backend)
    assert stage.run(ar, state, inputs, key).outputs
    name = next(iter(n for n, s in stage.graph.inputs.items() if not s.is_index))
    spoiled = ar.xp.host(inputs[name]).copy()
    spoiled.flat[1] = bad
    with pytest.raises(NotFinite) as refused:
        stage.run(ar, state, {**inputs, name: ar.real(spoiled)}, key)
    assert refused.value.operator == "mine"


def test_dropout_drops_the_share_it_says_and_nothing_outside_of_training() -> None:
    operator = OPERATORS["dropout"]("mine", {"rate": 0.25})
    ar = arithmetic("exact", arrays())
    x = np.ones((50, 400))
    y, saved = operator.forward(RunContext(ar, "a", train=True), {}, [x])
    again, _ = operator.forward(RunContext(ar, "a", train=True), {}, [x])
    other, _ = operator.forward(RunContext(ar, "b", train=True), {}, [x])
    quiet, _ = operator.forward(RunContext(ar, "a", train=False), {}, [x])

    assert abs((y == 0).mean() - 0.25) < 0.01
    assert set(np.unique(y)) == {0.0, 1 / 0.75}
    assert np.array_equal(y, again)
    assert not np.array_equal(y, other)
    assert np.array_equal(quiet, x)
    assert np.array_equal(operator.backward(RunContext(ar), {}, saved, x)[0][0], y)


@pytest.mark.parametrize(
    ("kind", "options", "given", "says"),
    [
        ("linear", {"width": 3}, [Signal((4,), 9)], "needs real numbers"),
        ("embedding", {"width": 3}, [Signal((4,))], "needs indices"),
        ("attention", {"heads": 3}, [Signal((4, 8))], "not a multiple"),
        ("attention", {"heads": 8}, [Signal((4, 8))], "even width"),
        ("add", {}, [PLANE, Signal((6, 4))], "differ in shape"),
        ("swiglu", {}, [Signal((4, 5))], "even number"),
        ("split", {"parts": 4, "part": 0}, [PLANE], "share evenly"),
        ("split", {"parts": 3, "part": 3}, [PLANE], "no part 3"),
        ("concat", {"axis": 1}, [PLANE, Signal((2, 6))], "cannot be joined"),
        ("concat", {"axis": 2}, [PLANE, PLANE], "no axis 2"),
        ("reshape", {"shape": [5, 5]}, [PLANE], "asks for 25"),
        ("transpose", {"axes": [0, 0]}, [PLANE], "some order"),
        ("mask", {}, [PLANE, Signal((4,), 2)], "same shape"),
        ("cross_entropy", {}, [PLANE, Signal((6,), 6)], "one more axis"),
        ("cross_entropy", {}, [PLANE, Signal((4,), 7)], "scores for 6 classes"),
        ("mse", {}, [PLANE, Signal((4,))], "differ in shape"),
        ("layernorm", {}, [Signal(())], "at least 1 dimension"),
    ],
)
def test_misfits_are_told_apart(kind: str, options: dict[str, Any], given: list[Signal], says: str) -> None:
    operator = OPERATORS[kind]("mine", {**{n: o.default for n, o in OPERATORS[kind].accepts.items()}, **options})
    with pytest.raises(Misfit, match=says):
        operator.signal(given)
