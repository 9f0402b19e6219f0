"""A stage is a pure function, and a network split in any way is the same network, to the bit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.neural.networks import SMALL, random_stages

from holdfast.neural import golden
from holdfast.neural.arithmetic import arithmetic
from holdfast.neural.arrays import arrays
from holdfast.neural.graph import Batch, Graph
from holdfast.neural.refusals import NotFinite, StateError
from holdfast.neural.stage import Memo, Stage, StageKey
from holdfast.neural.state import digest, fresh
from holdfast.neural.topology import parse
from holdfast.neural.training import Trainer

pytestmark = pytest.mark.spec("V5")

GRAPHS = {name: parse(text) for name, text in (("small", SMALL), ("shaping", golden.SHAPING))}
NUMPY = arrays()


def trained(graph: Graph, backend: str = "numpy", steps: int = 2, remember: bool = True) -> tuple[str, list[float]]:
    """SHA-256 of everything the state holds, and the losses on the way."""
    trainer = Trainer(graph, arithmetic("exact", arrays(backend)))
    trainer.remember = remember
    losses = [m.loss for m in trainer.train(golden.data_for(graph), steps)]
    return digest(trainer.ar.xp, trainer.state.tensors), losses


WHOLE: dict[tuple[str, int], tuple[str, list[float]]] = {}


def whole(name: str, microbatches: int) -> tuple[str, list[float]]:
    """What the network gives as a single stage; computed once."""
    if (name, microbatches) not in WHOLE:
        graph = GRAPHS[name]
        one = replace(graph, stages=(tuple(n.name for n in graph.nodes),), batch=Batch(12, microbatches))
        WHOLE[(name, microbatches)] = trained(one)
    return WHOLE[(name, microbatches)]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(GRAPHS)), st.sampled_from([1, 2, 3, 6]), st.integers(0, 2**32), st.booleans())
def test_any_split_gives_the_same_bits(name: str, microbatches: int, seed: int, remember: bool) -> None:
    graph = GRAPHS[name]
    split = replace(graph, stages=random_stages(graph, seed), batch=Batch(12, microbatches))
    assert trained(split, remember=remember) == whole(name, microbatches), split.stages


def test_the_number_of_microbatches_belongs_to_the_network() -> None:
    """Gradients are rounded for each microbatch: near, but not equal."""
    one, six = whole("shaping", 1), whole("shaping", 6)
    assert one[0] != six[0]
    assert one[1] == pytest.approx(six[1], rel=1e-5)


def test_a_split_on_torch_gives_the_bits_of_the_whole_on_numpy() -> None:
    graph = GRAPHS["small"]
    split = replace(graph, stages=random_stages(graph, 5), batch=Batch(12, 2))
    assert trained(split, backend="torch") == whole("small", 2)


def test_a_shared_weight_may_live_in_another_stage() -> None:
    graph = parse(SMALL + "stages: [[embed, block0], [block1], [norm, scores, loss]]\n")
    last = Stage(graph, graph.stages[2])
    assert last.borrowed == ("embed.weight",)
    assert last.owned == ("norm.gain",)
    assert trained(graph) == trained(parse(SMALL))


class TestAStage:
    graph = parse(SMALL + "stages: [[embed, block0], [block1], [norm, scores, loss]]\n")
    ar = arithmetic("exact", NUMPY)
    stage = Stage(graph, graph.stages[1])
    state = fresh(graph, ar)
    own = state.part(stage.owned)
    inputs = {"block0.out": np.random.default_rng(1).normal(size=(2, 10, 16))}  # noqa: RUF012
    grads = {f"grad:block1.out@{c}": np.random.default_rng(2).normal(size=(2, 10, 16)) for c in ("norm",)}  # noqa: RUF012

    def test_is_a_pure_function(self) -> None:
        # given its arguments, kept aside
        before = digest(NUMPY, {**self.own.tensors, **self.inputs})
        forward, backward = StageKey("job", 3, 1), StageKey("job", 3, 1, "backward")

        # when it runs twice, with other work between
        once = self.stage.run(self.ar, self.own, self.inputs, forward).outputs
        self.stage.run(self.ar, self.own, self.inputs, StageKey("job", 9, 0))
        again = self.stage.run(arithmetic("exact", NUMPY), self.own, self.inputs, forward).outputs

        # then both gave the same, its arguments are as they were, and another step's dropout differs
        assert digest(NUMPY, once) == digest(NUMPY, again)
        other = self.stage.run(self.ar, self.own, self.inputs, StageKey("job", 4, 1)).outputs
        assert digest(NUMPY, other) != digest(NUMPY, once)
        grads = self.stage.run(self.ar, self.own, {**self.inputs, **self.grads}, backward).outputs
        assert digest(NUMPY, {**self.own.tensors, **self.inputs}) == before

        # and what it remembered from forward changes nothing
        memo = Memo()
        self.stage.run(self.ar, self.own, self.inputs, forward, memo)
        short = self.stage.run(self.ar, self.own, {**self.inputs, **self.grads}, backward, memo).outputs
        assert digest(NUMPY, short) == digest(NUMPY, grads)
        assert not memo.saved

    def test_says_what_it_misses(self) -> None:
        with pytest.raises(StateError, match=r"without its input block0\.out"):
            self.stage.run(self.ar, self.own, {}, StageKey("job"))
        with pytest.raises(StateError, match=r"without its input grad:block1\.out@norm"):
            self.stage.run(self.ar, self.own, self.inputs, StageKey("job", phase="backward"))
        with pytest.raises(StateError, match=r"without its input wgrad:block1\.norm1\.gain@block1\.norm1#0"):
            self.stage.run(self.ar, self.own, {}, StageKey("job", phase="gather"))
        with pytest.raises(StateError, match="no phase sideways"):
            self.stage.run(self.ar, self.own, {}, StageKey("job", phase="sideways"))

    def test_rows_of_a_batch_can_be_computed_apart(self) -> None:
        key = StageKey("job", train=False)
        both = self.stage.run(self.ar, self.own, self.inputs, key).outputs["block1.out"]
        for row in range(2):
            one = {"block0.out": self.inputs["block0.out"][row : row + 1]}
            assert self.stage.run(self.ar, self.own, one, key).outputs["block1.out"][0].tobytes() == both[row].tobytes()

    @pytest.mark.parametrize("backend", ["numpy", "torch"])
    def test_names_the_operator_that_met_what_is_no_number(self, backend: str) -> None:
        ar = arithmetic("exact", arrays(backend))
        tensors = {k: ar.real(v) for k, v in self.own.tensors.items()}
        spoiled = NUMPY.host(self.own.tensors["block1.gates.bias"]).copy()
        spoiled[3] = np.nan
        state = replace(self.own, tensors={**tensors, "block1.gates.bias": ar.real(spoiled)})
        with pytest.raises(NotFinite) as refused:
            self.stage.run(ar, state, {"block0.out": ar.real(self.inputs["block0.out"])}, StageKey("job"))
        assert refused.value.operator == "block1.gates"
