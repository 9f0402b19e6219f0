"""The garbage collector in worlds where orchestrators die, freeze and replace each other: nothing that is named goes,
and everything else does."""

import pytest

from holdfast.sim.garbage_world import GarbageWorld, Lost

pytestmark = pytest.mark.spec("J1", "J10", "J14")

WORLDS = 320
BATCHES = 4


@pytest.mark.parametrize("batch", range(BATCHES))
def test_nothing_named_is_lost_and_nothing_else_stays(batch: int) -> None:
    # Given worlds of both kinds of store, when they have run through their storm and their calm
    named = deleted = 0
    for seed in range(batch, WORLDS, BATCHES):
        world = GarbageWorld(seed)
        try:
            world.run()
        except Lost as lost:
            # Then no promise was broken
            raise AssertionError(f"GarbageWorld({seed}).run(): {lost}") from lost
        named += world.named
        deleted += world.deleted
    # And much was at stake
    assert named > 5 * WORLDS and deleted > 5 * WORLDS


def test_a_seed_is_a_world() -> None:
    def story(seed: int) -> tuple[int, int, int, dict[str, int]]:
        world = GarbageWorld(seed)
        world.run()
        return world.named, world.deleted, world.epoch, world.store

    assert story(7) == story(7)
    assert story(7) != story(8)
