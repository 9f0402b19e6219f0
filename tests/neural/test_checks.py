"""Checking without recomputing: commitments, Freivalds over the integers, the audit of a stage, and cheats."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.neural.networks import SMALL

from holdfast.neural import NeuralError, golden
from holdfast.neural.arithmetic import arithmetic
from holdfast.neural.arrays import Array, arrays
from holdfast.neural.cheats import CHEATS, honest
from holdfast.neural.checks import (
    Transcript,
    audit,
    cheaper_to_check,
    freivalds,
    merkle_path,
    merkle_root,
    opens,
)
from holdfast.neural.stage import Stage, StageKey
from holdfast.neural.state import fresh
from holdfast.neural.topology import parse

pytestmark = pytest.mark.spec("V7")


@given(st.integers(1, 33), st.data())
@settings(max_examples=60, deadline=None)
def test_a_leaf_is_proved_by_its_path_and_nothing_else(count: int, data: st.DataObject) -> None:
    leaves = [bytes([i]) * 32 for i in range(count)]
    root = merkle_root(leaves)
    index = data.draw(st.integers(0, count - 1))
    path = merkle_path(leaves, index)

    assert opens(root, count, index, leaves[index], path)
    assert not opens(root, count, index, b"x" * 32, path)
    assert not opens(root, count + 1, index, leaves[index], path)
    assert not opens(root, count, count, leaves[index], path)
    assert not opens(root, count, index, leaves[index], [*path, b"y" * 32])
    if count > 1:
        assert not opens(root, count, (index + 1) % count, leaves[index], path)
        assert not opens(root, count, index, leaves[index], path[:-1])


def test_roots_tell_leaves_from_nodes_and_counts_apart() -> None:
    a, b = b"a" * 32, b"b" * 32
    assert len({merkle_root(x) for x in ([], [a], [b], [a, b], [b, a], [a, b, b], [a, a])}) == 7


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 8, 100, 200]))
def test_a_true_product_always_passes(seed: int, spread: int) -> None:
    random = np.random.default_rng(seed)
    m, k, n = random.integers(1, 40, 3)
    a = random.normal(size=(2, m, k)) * 2.0 ** random.integers(-spread, spread + 1, (2, m, k))
    b = random.normal(size=(2, k, n)) * 2.0 ** random.integers(-spread, spread + 1, (2, k, n))
    qa, qb, c = honest(a, b)
    assert freivalds(qa, qb, c, f"challenge {seed}")


def test_the_largest_true_product_passes_and_its_neighbour_does_not() -> None:
    # given integers of full size and the longest sum, where limbs carry most
    a, b = np.full((3, 8192), -1.0), np.full((8192, 5), 1.0)
    b[:, 1] = 1 - 2.0**-19
    qa, qb, c = honest(a, b)
    assert freivalds(qa, qb, c, "c")
    for unit in (2.0**-38, 2.0**-19, 1.0):
        wrong = c.copy()
        wrong[2, 4] += unit
        assert not freivalds(qa, qb, wrong, "c")


@pytest.mark.parametrize("name", sorted(CHEATS))
def test_every_kind_of_cheat_is_caught(name: str) -> None:
    """300 tries each. One round misses once in 2^19, so a single miss here would be the luck of 1 in 1700."""
    random = np.random.default_rng(7)
    for trial in range(300):
        a, b = random.normal(size=(12, 40)), random.normal(size=(40, 9))
        qa, qb, c = honest(a, b)
        wrong = CHEATS[name](qa, qb, c, random)
        assert wrong.tobytes() != c.tobytes()
        assert not freivalds(qa, qb, wrong, f"{name}/{trial}"), trial


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300, 5e-324])
def test_what_cannot_be_a_sum_of_integers_is_no_product(bad: float) -> None:
    qa, qb, c = honest(np.ones((2, 3)), np.ones((3, 2)))
    c[0, 1] = bad
    assert not freivalds(qa, qb, c, "c")
    assert not freivalds(qa, qb, c[:1], "c")


def test_operands_that_are_not_rounded_cannot_be_tested() -> None:
    with pytest.raises(NeuralError, match="quantised"):
        freivalds(np.random.default_rng(1).normal(size=(5, 7)), np.ones((7, 3)), np.ones((5, 3)), "c")
    with pytest.raises(NeuralError, match="finite"):
        freivalds(np.full((2, 2), np.inf), np.ones((2, 2)), np.ones((2, 2)), "c")
    with pytest.raises(NeuralError, match="8192"):
        freivalds(np.ones((1, 8193)), np.ones((8193, 1)), np.ones((1, 1)), "c")


# --- a whole stage ---

GRAPH = parse(SMALL + "stages: [[embed, block0], [block1], [norm, scores, loss]]\n")
STAGE = Stage(GRAPH, GRAPH.stages[1])
STATE = fresh(GRAPH, arithmetic("exact", arrays())).part(STAGE.owned)
INPUTS = {
    "block0.out": np.random.default_rng(1).normal(size=(2, 10, 16)),
    "grad:block1.out@norm": np.random.default_rng(2).normal(size=(2, 10, 16)),
}
KEY = StageKey("job", 1, 0, "backward")


def worked(backend: str = "numpy") -> tuple[Transcript, dict[str, Array]]:
    """A worker's transcript and outputs, on any backend."""
    ar = arithmetic("exact", arrays(backend))
    transcript = Transcript(xp=ar.xp)
    ar.witness = transcript
    state = replace(STATE, tensors={k: ar.real(v) for k, v in STATE.tensors.items()})
    outputs = STAGE.run(ar, state, {k: ar.real(v) for k, v in INPUTS.items()}, KEY).outputs
    return transcript, {k: np.ascontiguousarray(ar.xp.host(v)) for k, v in outputs.items()}


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_honest_work_stands(backend: str) -> None:
    transcript, outputs = worked(backend)
    verdict = audit(STAGE, STATE, INPUTS, KEY, transcript, transcript.root(), outputs)
    assert verdict.holds, verdict
    assert verdict.checked == len(transcript.claims) == 3 * 6


def test_every_product_is_watched() -> None:
    """A lie in any one of them, however small, is found and named."""
    honest_transcript, outputs = worked()
    for number, (operator, _label, c) in enumerate(honest_transcript.claims):
        transcript = Transcript(list(honest_transcript.claims))
        lie = c.copy()
        lie.flat[0] = np.nextafter(lie.flat[0], np.inf)
        transcript.claims[number] = (operator, _label, lie)
        verdict = audit(STAGE, STATE, INPUTS, KEY, transcript, transcript.root(), outputs)
        assert (verdict.holds, verdict.operator) == (False, operator), number


def test_other_lies_are_found_too() -> None:
    transcript, outputs = worked()
    root = transcript.root()

    def verdict(**changed: object) -> str:
        given = {"transcript": transcript, "root": root, "outputs": outputs, **changed}
        found = audit(STAGE, STATE, INPUTS, KEY, **given)  # type: ignore[arg-type]
        assert not found.holds
        return found.why

    def but(claims: list[tuple[str, str, Array]]) -> dict[str, object]:
        other = Transcript(claims)
        return {"transcript": other, "root": other.root()}

    claims = transcript.claims
    name = next(iter(outputs))
    assert "not those committed to" in verdict(root=merkle_root([b"z" * 32]))
    assert "is wrong" in verdict(outputs={**outputs, name: outputs[name] + 1e-9})
    assert "is wrong" in verdict(outputs={})
    assert "too few" in verdict(**but(claims[:-1]))
    assert "nobody needs" in verdict(**but([*claims, claims[-1]]))
    assert "instead of" in verdict(**but([claims[1], claims[0], *claims[2:]]))
    assert "another shape" in verdict(**but([(*claims[0][:2], claims[0][2][:1]), *claims[1:]]))


def test_a_sample_finds_its_share_of_lies() -> None:
    """Half of the products tested: a lie in one of them is found about half of the time."""
    transcript, outputs = worked()
    operator, label, c = transcript.claims[0]
    lie = c.copy()
    lie.flat[0] += 1.0
    transcript.claims[0] = (operator, label, lie)
    root = transcript.root()
    verdicts = [
        audit(STAGE, STATE, INPUTS, KEY, transcript, root, outputs, share=0.5, challenge=str(i)) for i in range(60)
    ]
    by_algebra = sum(v.why == f"product {label} is wrong" for v in verdicts)
    assert 18 <= by_algebra <= 42
    # What was computed from the truth does not fit the lie, so products after it give it away as well.
    assert by_algebra < sum(not v.holds for v in verdicts)


def test_long_sums_are_watched_block_by_block() -> None:
    graph = parse(golden.LONG)
    stage = Stage(graph, graph.stages[0])
    ar = arithmetic("exact", arrays())
    state = fresh(graph, ar)
    batch = golden.data_for(graph).take([0, 1, 2, 3])
    plain = stage.run(ar, state, batch, StageKey("job")).outputs
    transcript = Transcript()
    ar.witness = transcript
    watched = stage.run(ar, state, batch, StageKey("job")).outputs

    assert [label for _, label, _ in transcript.claims] == ["xw[0]", "xw[1]", "xw"]
    assert watched["loss"].tobytes() == plain["loss"].tobytes()
    assert audit(stage, state, batch, StageKey("job"), transcript, transcript.root(), plain).holds


def test_the_cheaper_way_is_taken() -> None:
    fast = {"flops_s": 5e10, "bytes_s": 1e10}
    assert cheaper_to_check(2048, 2048, 2048, **fast, link_bytes_s=1e9)
    assert not cheaper_to_check(2048, 8, 2048, **fast, link_bytes_s=1e9)
    assert not cheaper_to_check(2048, 2048, 2048, **fast, link_bytes_s=1e6), (
        "the result costs more to carry than to make"
    )
