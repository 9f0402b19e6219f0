"""Fusion inside a stage: fewer passes over memory, the same bits, the same refusals."""

import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.neural.emulated import EmulatedArrays
from tests.neural.networks import SMALL, random_stages

from holdfast.neural import exact, functions, golden, passes
from holdfast.neural.arithmetic import Arithmetic, arithmetic
from holdfast.neural.arrays import NumpyArrays, TorchArrays, arrays
from holdfast.neural.graph import Batch, Graph, GraphNode
from holdfast.neural.operators import OPERATORS, Signal
from holdfast.neural.operators.norms import softmax, softmax_back
from holdfast.neural.refusals import NotFinite
from holdfast.neural.stage import Stage, StageKey, stages_of
from holdfast.neural.state import digest, fresh
from holdfast.neural.topology import parse
from holdfast.neural.training import Trainer

pytestmark = pytest.mark.spec("V1", "V5")


class SmallBlocks(NumpyArrays):
    """Blocks so small that even a test's arrays are cut into many."""

    block = 17


class SmallTorchBlocks(TorchArrays):
    block = 29


KINDS: list[tuple[str, dict[str, Any], int]] = [
    ("relu", {}, 1), ("silu", {}, 1), ("gelu", {"form": "tanh"}, 1), ("gelu", {"form": "erf"}, 1),
    ("dropout", {"rate": 0.3}, 1), ("add", {}, 2), ("add", {}, 3), ("mul", {}, 2), ("mask", {"fill": 0.5}, 1),
    ("linear", {"width": 6, "bias": True, "spread": None}, 1), ("rmsnorm", {"epsilon": 1e-5}, 1),
    ("layernorm", {"epsilon": 1e-5, "bias": True}, 1), ("softmax", {}, 1),
]  # fmt: skip


def random_graph(seed: int) -> Graph:
    """Operators of one shape, mostly elementwise, each on whatever came before it; all loose ends meet in a loss."""
    drawn = random.Random(seed)
    nodes: list[GraphNode] = []
    known = ["x"]
    for i in range(drawn.randint(3, 14)):
        kind, options, inputs = drawn.choice(KINDS)
        sources = [drawn.choice(known[-3:]) for _ in range(inputs)] + (["shown"] if kind == "mask" else [])
        name = f"n{i}"
        nodes.append(GraphNode(name, OPERATORS[kind](name, dict(options)), tuple(sources)))
        known.append(name)
    taken = {s for n in nodes for s in n.sources}
    ends = [n.name for n in nodes if n.name not in taken]
    total = ends[0]
    if len(ends) > 1:
        total = "sum"
        nodes.append(GraphNode("sum", OPERATORS["add"]("sum", {}), tuple(ends[:16])))
    nodes.append(GraphNode("loss", OPERATORS["mse"]("loss", {}), (total, "wanted")))
    real = Signal((5, 6))
    inputs = {"x": real, "shown": Signal((5, 6), 2), "wanted": real}
    outputs = tuple(drawn.sample([n.name for n in nodes[:-1]], 1))
    graph = Graph("random", inputs, tuple(nodes), outputs, {"loss": 1.0}, seed=seed, batch=Batch(4, 2))
    return replace(graph, stages=random_stages(graph, seed))


def trained(graph: Graph, xp: NumpyArrays, steps: int = 2) -> tuple[str, list[float]]:
    trainer = Trainer(graph, arithmetic("exact", xp))
    losses = [m.loss for m in trainer.train(golden.data_for(graph), steps)]
    return digest(xp, trainer.state.tensors), losses


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_fused_and_unfused_runs_of_random_graphs_give_the_same_bits(seed: int) -> None:
    graph = random_graph(seed)
    apart = trained(graph, arrays("numpy", fuses=False))
    assert trained(graph, arrays("numpy")) == apart
    assert trained(graph, SmallBlocks() if seed % 2 else SmallTorchBlocks()) == apart


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_without_fusion_the_golden_networks_have_the_same_bits(backend: str) -> None:
    for text in golden.NETWORKS.values():
        graph = parse(text)
        assert trained(graph, arrays(backend, fuses=False), 1) == trained(graph, arrays(backend), 1)


def test_random_graphs_do_have_something_to_fuse() -> None:
    """Otherwise the property above would say nothing."""
    sizes = [len(g.nodes) for seed in range(40) for s in stages_of(random_graph(seed)) for g in s.groups]
    assert max(sizes) >= 4
    assert sum(size > 1 for size in sizes) >= 30


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.booleans())
def test_blocks_of_broadcast_operands_are_those_of_the_whole(seed: int, block: int, split_rows: bool) -> None:
    drawn = random.Random(seed)
    shape = tuple(drawn.randint(1, 5) for _ in range(drawn.randint(1, 4)))
    rng = np.random.default_rng(seed)
    operands = [rng.normal(size=shape)]
    for _ in range(2):
        axes = shape[drawn.randint(0, len(shape) - 1) :]
        operands.append(rng.normal(size=tuple(n if drawn.random() < 0.6 else 1 for n in axes)))

    def together(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        first = a * b + c
        return first, first > 0.0, (first < 1e9).all() & True

    found = passes.in_blocks(together, operands, block, lambda s, a: np.empty(s, a.dtype), split_rows=split_rows)
    for mine, whole in zip(found, together(*operands), strict=True):
        assert np.array_equal(mine, whole)


class TestGroups:
    def names(self, text: str) -> list[list[str]]:
        graph = parse(text)
        return [[n.name for n in group.nodes] for stage in stages_of(graph) for group in stage.groups]

    def test_hold_an_operator_and_those_that_only_feed_it(self) -> None:
        groups = self.names(SMALL + "stages: 1\n")
        assert ["block0.drop", "block0.middle"] in groups
        assert ["block0.out"] in groups, "its other source is a product"
        assert ["block0.norm1"] in groups, "a norm is not elementwise"

    def test_end_where_a_stage_ends(self) -> None:
        graph = parse(SMALL)
        before = [n.name for n in graph.nodes]
        cut = before.index("block0.middle")
        split = replace(graph, stages=(tuple(before[:cut]), tuple(before[cut:])))
        groups = [[n.name for n in g.nodes] for s in stages_of(split) for g in s.groups]
        assert ["block0.drop"] in groups
        assert ["block0.middle"] in groups

    def test_leave_out_what_is_wanted_elsewhere(self) -> None:
        text = golden.SHAPING.replace("outputs: [last]", "outputs: [last, smooth]")
        joined = [g for g in self.names(golden.SHAPING + "") if len(g) > 1]
        assert any("smooth" in g and "total" in g for g in joined)
        assert not any("smooth" in g and "total" in g for g in self.names(text))


@pytest.mark.parametrize(
    "xp", [NumpyArrays(), SmallBlocks(), TorchArrays("cpu"), EmulatedArrays()], ids=lambda x: type(x).__name__
)
def test_a_group_names_the_operator_that_met_what_is_no_number(xp: NumpyArrays) -> None:
    # given a chain in which the second of three operators overflows, and the third would hide it
    nodes = (
        GraphNode("first", OPERATORS["relu"]("first", {}), ("x",)),
        GraphNode("second", OPERATORS["mul"]("second", {}), ("first", "first")),
        GraphNode("third", OPERATORS["mask"]("third", {"fill": 0.0}), ("second", "shown")),
    )
    inputs = {"x": Signal((40,)), "shown": Signal((40,), 2)}
    graph = Graph("hiding", inputs, nodes, ("third",), {}, batch=Batch(2))
    stage = Stage(graph, ("first", "second", "third"))
    assert [len(g.nodes) for g in stage.groups] == [3]
    ar = arithmetic("exact", xp)
    x = np.ones((2, 40))
    x[1, 33] = 1e100
    values = {"x": ar.real(x), "shown": ar.xp.index(np.zeros((2, 40)))}

    # when it runs, then it is the second that is named
    with pytest.raises(NotFinite) as refused:
        stage.run(ar, fresh(graph, ar), values, StageKey("job"))
    assert refused.value.operator == "second"


def test_rows_that_several_operators_multiply_are_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # given three linear maps of one value
    text = """
name: three
batch: {size: 2}
inputs: {x: {shape: [4, 4]}, wanted: {shape: [4, 12]}}
nodes:
  - {name: q, op: linear, from: x, width: 4}
  - {name: k, op: linear, from: x, width: 4}
  - {name: v, op: linear, from: x, width: 4}
  - {name: all, op: concat, from: [q, k, v]}
losses: [{name: loss, op: mse, from: [all, wanted]}]
outputs: [all]
"""
    graph = parse(text)
    rounded: list[str] = []
    kept = Arithmetic._round

    def counted(self: Arithmetic, x: Any, axis: int, operator: str) -> Any:
        if operator != "weight":
            rounded.append(operator)
        return kept(self, x, axis, operator)

    monkeypatch.setattr(Arithmetic, "_round", counted)

    def outputs(fuses: bool) -> tuple[str, list[str]]:
        rounded.clear()
        ar = arithmetic("exact", arrays("numpy", fuses=fuses))
        data = golden.data_for(graph, 2).take([0, 1])
        given = {name: ar.real(value) for name, value in data.items()}
        stage = stages_of(graph)[0]
        found = stage.run(ar, fresh(graph, ar), given, StageKey("job")).outputs
        again = stage.run(ar, fresh(graph, ar), {**given, "x": given["x"] * 2.0}, StageKey("job")).outputs
        assert digest(ar.xp, again) != digest(ar.xp, found), "what was kept must not serve another value"
        return digest(ar.xp, found), list(rounded)

    # when they run, then the value is rounded once for all three, and once for each without fusion; same bits
    fused, times = outputs(fuses=True)
    apart, many = outputs(fuses=False)
    assert fused == apart
    assert times == ["q"] * 2
    assert many == ["q", "k", "v"] * 2


class TestKernels:
    """The code for a CUDA device, compiled for this processor."""

    xp = EmulatedArrays()
    plain = arrays("torch", fuses=False)

    def same(self, a: Any, b: Any) -> bool:
        several = zip(a if isinstance(a, tuple) else (a,), b if isinstance(b, tuple) else (b,), strict=True)
        return all(x.numpy().tobytes() == y.contiguous().numpy().tobytes() for x, y in several)

    @pytest.mark.parametrize("shape", [(1,), (2, 3, 4, 9), (6, 33)])
    def test_compute_the_bits_of_single_steps(self, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(3)
        x = torch.from_numpy(rng.normal(size=shape) * np.exp(5 * rng.normal(size=shape)))
        before = self.xp.launched
        for name in ("exp", "expm1", "tanh", "sigmoid", "erf", "sin", "cos"):
            assert self.same(getattr(functions, name)(self.xp, x), getattr(functions, name)(self.plain, x)), name
        assert self.same(functions.log(self.xp, x.abs()), functions.log(self.plain, x.abs()))
        mine, theirs = arithmetic("exact", self.xp), arithmetic("exact", self.plain)
        assert self.same(mine.each_row(softmax, x), theirs.each_row(softmax, x))
        assert self.same(mine.each_row(softmax_back, x, x * 3.0), theirs.each_row(softmax_back, x, x * 3.0))
        if len(shape) > 1:
            for operand in (x, x.transpose(-1, -2)):
                for axis in (-1, -2):
                    assert self.same(exact.quantise(self.xp, operand, axis), exact.quantise(self.plain, operand, axis))
        assert self.xp.launched >= before + 10, "nothing was fused"

    def test_train_to_the_same_bits(self) -> None:
        graph = parse(SMALL)
        before = self.xp.launched
        assert trained(graph, self.xp, 1) == trained(graph, arrays("numpy"), 1)
        assert self.xp.launched > before + 50

    def test_round_every_step_by_itself(self) -> None:
        """No line of a kernel leaves a compiler anything to contract: sums and products are calls that round."""
        functions.erf(self.xp, torch.ones(3, dtype=torch.float64))
        sources = list(self.xp._kernels)
        assert sources
        value = r"(v\d+(\[e\]|\[\d+\])?|__longlong_as_double\(-?\d+LL\))"
        for source in sources:
            reals = set(re.findall(r"^double (v\d+)", source, re.MULTILINE))
            for line in re.findall(r"^(v\d+)(?:\[e\])? = (.*);$", source, re.MULTILINE):
                if line[0] in reals:
                    assert not re.search(rf"{value} [-+*/] {value}", line[1]), line

    def test_are_done_without_where_they_cannot_be_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # given a machine without a compiler
        def missing(self: EmulatedArrays, kernel: Any) -> Any:
            raise OSError("libnvrtc.so: cannot open shared object file")

        monkeypatch.setattr(EmulatedArrays, "compile", missing)
        without = EmulatedArrays()
        x = torch.linspace(-3.0, 3.0, 40, dtype=torch.float64)

        # when something is computed, then the bits are the same, and it is not tried again
        assert self.same(functions.exp(without, x), functions.exp(self.plain, x))
        assert not without.fuses
