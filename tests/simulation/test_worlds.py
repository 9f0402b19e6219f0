"""A few dozen simulated worlds with their invariants: what most mutants of the kernel must not survive.

The seeds are fixed, so that a mutant dies in the same world every time. test_seeds.py goes on where these end.
"""

import pytest

from holdfast.sim.plan import plan
from holdfast.sim.scene import Scene

SEEDS = range(1, 61)


@pytest.mark.spec("J5", "J8", "J14", "H2", "H3", "H6", "A6")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_world_keeps_its_rules(seed: int) -> None:
    verdict = Scene(plan(seed)).run()
    assert verdict.ok, f"{verdict.says}\nreplay: {verdict.replay}"
