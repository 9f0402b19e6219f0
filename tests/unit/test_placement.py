"""Placement: the index never says "no fit" when there is one, and never offers what does not fit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.kernel.placement import Index, kind_serves, level
from holdfast.model import Need, NodeId, Resources
from holdfast.policy import cost

pytestmark = pytest.mark.spec("J13", "S1")

amounts = st.integers(0, 70_000)
kinds = st.sampled_from(
    [("x86_64", "", 0), ("arm64", "", 0), ("x86_64", "A100", 81_920), ("x86_64", "RTX 3060", 12_288)]
)
frees = st.tuples(amounts, amounts, amounts, st.integers(0, 4))
needs = st.builds(
    Need,
    st.builds(Resources, amounts, amounts, amounts, st.integers(0, 3)),
    arch=st.sampled_from(["", "", "x86_64", "arm64"]),
    gpu_model=st.sampled_from(["", "", "a100"]),
    gpu_memory_mib=st.sampled_from([0, 0, 24_000]),
)
steps = st.lists(st.tuples(st.integers(0, 30), st.none() | st.tuples(kinds, frees)), max_size=120)


def fits(need: Need, kind, free) -> bool:
    return kind_serves(kind, need) and need.resources.fits_in(Resources(*free))


@given(steps, needs, st.integers(0, 2**64 - 1), st.sets(st.integers(0, 30), max_size=5))
@settings(max_examples=400, deadline=None)
def test_a_fit_is_found_exactly_when_there_is_one(steps, need, draw, ruled_out):
    # given an index that went through any sequence of changes
    index, truth = Index(candidates=2), {}
    for number, state in steps:
        node = NodeId(f"node_{number}")
        if state is None:
            index.remove(node)
            truth.pop(node, None)
        else:
            index.set(node, *state)
            truth[node] = state
    # when candidates are asked for
    without = {NodeId(f"node_{n}") for n in ruled_out}
    found = index.candidates(need, draw, without)
    # then they all fit, and there are none only if nothing fits
    possible = {n for n, (kind, free) in truth.items() if n not in without and fits(need, kind, free)}
    assert set(found) <= possible
    assert bool(found) == bool(possible)


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_levels_never_go_down(a, b):
    assert (level(a) <= level(b)) or a > b


@given(st.tuples(*[st.integers(0, 10**6)] * 5, st.integers(0, 8), st.integers(0, 8), st.booleans(), st.booleans()))
def test_the_breakdown_of_a_cost_sums_to_its_total(terms):
    assert sum(cost.breakdown(*terms).values()) == cost.total_ms(*terms)
