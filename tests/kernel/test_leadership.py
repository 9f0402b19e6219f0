"""A new leader: epochs and fences go up."""

import pytest
from kernel_driver import with_two_nodes

from holdfast.model.messages import (
    Start,
    Welcome,
)


@pytest.mark.spec("J14")
def test_commands_carry_the_epoch_of_the_new_leader() -> None:
    network = with_two_nodes()
    network.restart(epoch=2)
    network.join("node_a")
    assert [w.epoch for w in network.said(Welcome)] == [2]
    network.submit()
    assert [s.epoch for s in network.said(Start)] == [2]


@pytest.mark.spec("J5", "J14")
def test_a_fence_is_not_used_again_after_a_restart() -> None:
    network = with_two_nodes()
    network.submit("one")
    network.restart(epoch=2)
    network.join("node_b")
    network.submit("two")
    fences = [a.fence for key in ("one", "two") for a in network.attempts(key)]
    assert len(fences) == len(set(fences)) == 2
