"""Nodes: probation, quarantine, identity, join tokens, sessions, and the one node that fits."""

from typing import Any

import pytest
from kernel_driver import SETTINGS, Network, seen, with_two_nodes
from msgspec.structs import replace

from holdfast.kernel.events import NodeBroke, NodeSaid, TokenMade
from holdfast.kernel.placement import NodeIndex, Seat
from holdfast.model import (
    Failure,
    FailureCode,
    Instant,
    JoinToken,
    Need,
    NodeId,
    NodeState,
    Resources,
    TokenId,
)
from holdfast.model.messages import (
    HeldPhase,
    Load,
    Pong,
    Refusal,
    Report,
    Welcome,
)


@pytest.mark.spec("H3")
def test_who_comes_back_is_probed_before_it_is_given_anything() -> None:
    network = Network()
    network.join("node_a")
    network.leave("node_a")
    network.join("node_a")
    network.submit()
    assert network.attempts() == []
    assert network.node("node_a").state is NodeState.PROBATION


@pytest.mark.spec("H3")
def test_quarantine_leaves_part_of_the_fleet_in_service() -> None:
    # given two nodes that both break whatever they get
    network = with_two_nodes(replace(SETTINGS, attempts_max=50))
    for round_ in range(12):
        network.submit(f"job {round_}")
        for attempt in [a for a in network.attempts(f"job {round_}") if a.live and a.revoked is None]:
            broke = seen(attempt, HeldPhase.FINISHED, failure=Failure(FailureCode.RUNTIME_FAULT))
            network.report(attempt.node, broke, full=False)
    # then one of them is still given work
    states = [network.node(n).state for n in ("node_a", "node_b")]
    assert states.count(NodeState.QUARANTINED) == 1


@pytest.mark.spec("H3")
def test_a_quarantined_node_is_given_nothing() -> None:
    network = Network()
    for name in ("node_a", "node_b", "node_c"):
        network.join(name)
    bad = "node_a"
    sick = Report(2, True, (), load=Load(sick="the disk fails"))
    network.tell(NodeSaid(network.sessions[bad], NodeId(bad), sick))
    assert network.node(bad).state is NodeState.QUARANTINED
    for number in range(8):
        network.submit(f"job {number}")
    assert bad not in {a.node for number in range(8) for a in network.attempts(f"job {number}")}


@pytest.mark.spec("N1", "N6")
def test_an_id_belongs_to_the_first_key_that_joined_under_it() -> None:
    network = Network()
    network.join("node_a")
    network.leave("node_a")
    network.join("node_a", public_key="x" * 64)
    assert [r.code for r in network.said(Refusal)] == ["uuid_taken"]
    assert network.node("node_a").public_key == "k" * 64


@pytest.mark.spec("N6")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"expires_ms": 999_999}, "token_expired"),
        ({"uses_left": 0}, "token_used"),
        ({"revoked": True}, "token_revoked"),
    ],
)
def test_a_token_that_is_over_lets_nobody_in(change: dict[str, Any], code: str) -> None:
    network = Network(replace(SETTINGS, open_join=False))
    token = JoinToken(TokenId("tok_1"), "s" * 64, Instant(0), Instant(9_999_999), 1)
    network.tell(TokenMade(replace(token, **change)))
    network.join("node_a", token_id="tok_1", token_sha256="s" * 64)
    assert [r.code for r in network.said(Refusal)] == [code]
    assert "node_a" not in network.rows


@pytest.mark.spec("N6")
def test_a_token_for_one_machine_lets_in_one() -> None:
    network = Network(replace(SETTINGS, open_join=False))
    network.tell(TokenMade(JoinToken(TokenId("tok_1"), "s" * 64, Instant(0), Instant(9_999_999), 1)))
    network.join("node_a", token_id="tok_1", token_sha256="s" * 64)
    assert len(network.said(Welcome)) == 1
    network.join("node_b", token_id="tok_1", token_sha256="s" * 64, public_key="m" * 64)
    assert len(network.said(Refusal)) == 1


@pytest.mark.spec("J5")
def test_an_older_report_does_not_undo_a_newer_one() -> None:
    # given a node whose report that it holds the attempt has arrived
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, full=True)
    network.report(first.node, seen(first, HeldPhase.PREPARING))
    # when the one before it, in which it did not hold it yet, arrives again
    old = Report(1, True, ())
    network.tell(NodeSaid(network.sessions[first.node], first.node, old))
    # then nothing is thought to have vanished
    assert [a.live for a in network.attempts()] == [True]


@pytest.mark.spec("J5", "H2")
def test_a_session_that_was_replaced_is_not_listened_to() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    old = network.sessions[first.node]
    network.join(first.node, held=(seen(first, HeldPhase.RUNNING),))
    network.tell(NodeSaid(old, first.node, Report(9, True, ())))
    network.tell(NodeBroke(old, first.node, "cut"))
    assert network.attempts()[0].live
    assert network.node(first.node).state is NodeState.READY


@pytest.mark.spec("H3")
def test_an_answer_to_another_probe_proves_nothing() -> None:
    network = Network()
    network.join("node_a")
    network.leave("node_a")
    network.join("node_a")
    network.submit()
    for _ in range(5):
        network.tell(NodeSaid(network.sessions["node_a"], NodeId("node_a"), Pong(-1)))
    assert network.attempts() == []


@pytest.mark.spec("J13")
def test_the_one_machine_that_fits_is_found_among_thousands() -> None:
    # given a fleet of small machines, and one that is larger
    index = NodeIndex[Seat](SETTINGS.candidates)
    for number in range(5_000):
        index.open(Seat(NodeId(f"node_{number}")), (1_000, 512, 10_000, 0))
    index.open(Seat(NodeId("node_large")), (32_000, 32_768, 10_000, 0))
    # when somebody needs all of the larger one, then no draw misses it
    need = Need(Resources(cpu_milli=32_000, memory_mib=32_768, disk_mib=1_000))
    assert all([seat.node for seat in index.candidates(need, draw, ())] == ["node_large"] for draw in range(20))
