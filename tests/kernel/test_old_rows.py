"""A kernel over rows of 0.1, which say in words what rows of today say in codes too, goes on as one over rows of
today."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from kernel_driver import HALF, Network, at, network_of, seen, stand_still, with_two_nodes

from holdfast.kernel.events import CancelAsked, ExplainAsked, MoveAsked
from holdfast.model import Attempt, Job, Node, NodeId, Recovery, RevokeCause, StraggleKind, WaitReason, job_id
from holdfast.model.messages import HeldPhase
from holdfast.model.old_sentences import with_codes

pytestmark = pytest.mark.spec("J14", "H6")

CODES = {"wait_reason", "straggle", "revoke_cause", "cause_code"}


def in_words(row: Any) -> Any:
    """The row as 0.1 stored it, read today."""
    if not isinstance(row, Job | Attempt | Node):
        return row
    stored = {name: value for name, value in msgspec.to_builtins(row).items() if name not in CODES}
    return with_codes(msgspec.convert(stored, type(row), strict=False))


def waits_for_its_lease() -> Network:
    network = with_two_nodes()
    network.submit(recovery=Recovery.NEVER)
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.READY))
    network.leave(first.node)
    assert network.job().wait_reason is WaitReason.LEASE
    return network


def stands_still() -> Network:
    network = network_of("node_a", "node_b")
    network.submit(need=HALF)
    stand_still(network, network.attempts()[0])
    assert network.attempts()[0].straggle is StraggleKind.STALLED
    return network


def waits_for_one_machine() -> Network:
    network = with_two_nodes()
    network.submit(recovery=Recovery.NEVER)
    (first,) = network.attempts()
    other = "node_b" if first.node == "node_a" else "node_a"
    network.tell(MoveAsked(network.job().id, NodeId(other), "key"))
    assert network.attempts()[0].revoke_cause is RevokeCause.MOVED_BEFORE_START
    return network


def goes_on(network: Network) -> list[Any]:
    """Everything that is decided from here on."""
    decided: list[Any] = []
    whole = network.tell
    network.tell = lambda event: decided.append(whole(event)) or decided[-1]  # pyright: ignore
    network.restart(2)
    job = job_id("ann", "k")
    network.tell(ExplainAsked(job))
    for node in ("node_a", "node_b"):
        held = [at(a, cpu_ms=5_000) for a in network.attempts() if a.node == node and a.live and a.revoked is None]
        network.join(node, held=tuple(held))
        network.tell(ExplainAsked(job))
    network.wait(5_000, step=500)
    network.tell(CancelAsked(job, "ann"))
    return decided


@pytest.mark.parametrize("story", [waits_for_its_lease, stands_still, waits_for_one_machine])
def test_rows_in_words_lead_to_the_same_decisions(story: Callable[[], Network]) -> None:
    # given two networks with the same past, one of which was written down by 0.1
    today, past = story(), story()
    past.rows = {key: in_words(row) for key, row in past.rows.items()}
    assert past.rows == today.rows
    # then a new leader decides the same in both, to the last word
    assert goes_on(past) == goes_on(today)
