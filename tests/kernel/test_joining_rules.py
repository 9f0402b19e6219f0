"""Who may join and in which state a node comes back, at the edges of each rule."""

from typing import Any

import pytest
from kernel_driver import ROOM, SETTINGS, Network, seen, with_two_nodes
from msgspec.structs import replace

from holdfast.kernel import health
from holdfast.kernel.events import DrainAsked, NodeSaid, Tick, TokenMade, TokenRevoked
from holdfast.model import Instant, JoinToken, NodeId, NodeState, Resources, TokenId
from holdfast.model.messages import (
    Drained,
    HeldPhase,
    Leaving,
    Load,
    Offers,
    Ping,
    Pong,
    Refusal,
    Report,
    Welcome,
)

NODE = NodeId("node_a")


# --- tokens ---


def closed(uses: int = 1, lives_ms: int = 1_000) -> Network:
    """A network that lets in who has a token, and the token `token_t` with the secret `aa…`."""
    network = Network(replace(SETTINGS, open_join=False))
    until = Instant(network.now + lives_ms)
    network.tell(TokenMade(JoinToken(TokenId("token_t"), "aa" * 32, Instant(network.now), until, uses)))
    return network


def dial(network: Network, node: str = "node_a", token: str = "token_t", secret: str = "aa", **more: Any) -> str:
    """The code of the refusal; empty: it was welcome."""
    network.join(node, token_id=token, token_sha256=secret * 32, **more)
    refusals = network.said(Refusal)
    assert bool(refusals) is not bool(network.said(Welcome))
    assert all(refusal.final for refusal in refusals)
    return refusals[0].code if refusals else ""


@pytest.mark.spec("N1", "N6")
@pytest.mark.parametrize(
    ("token", "secret", "code"),
    [
        ("", "", "token_needed"),
        ("token_x", "aa", "token_wrong"),
        ("token_t", "bb", "token_wrong"),
        ("token_t", "aa", ""),
    ],
)
def test_a_closed_network_lets_in_who_has_its_token(token: str, secret: str, code: str) -> None:
    assert dial(closed(), token=token, secret=secret) == code


@pytest.mark.spec("N6")
@pytest.mark.parametrize(("after_ms", "code"), [(999, ""), (1_000, "token_expired")])
def test_a_token_ends_in_its_moment(after_ms: int, code: str) -> None:
    network = closed()
    network.now += after_ms
    assert dial(network) == code


@pytest.mark.spec("N6")
def test_a_token_that_was_revoked_lets_nobody_in_and_need_not_be_tried_again() -> None:
    network = closed()
    network.tell(TokenRevoked(TokenId("token_t")))
    assert dial(network) == "token_revoked"


@pytest.mark.spec("N6")
def test_a_token_lets_in_as_many_machines_as_it_says_and_each_of_them_again_for_nothing() -> None:
    network = closed(uses=2)
    codes = [dial(network, node) for node in ("node_a", "node_b", "node_a", "node_c")]
    assert codes == ["", "", "", "token_used"]
    assert network.rows["token_t"].uses_left == 0


@pytest.mark.spec("N6")
def test_a_token_without_a_limit_is_not_used_up() -> None:
    network = closed(uses=-1)
    assert [dial(network, f"node_{n}") for n in range(4)] == [""] * 4
    assert network.rows["token_t"].uses_left == -1


@pytest.mark.spec("N1", "N6")
def test_who_is_known_needs_no_token_any_more() -> None:
    network = closed()
    assert dial(network) == ""
    assert dial(network, token="", secret="") == ""


# --- one identity, one session ---


@pytest.mark.spec("N1", "N6")
def test_another_start_of_an_agent_waits_until_the_first_was_silent_for_long_enough() -> None:
    network = with_two_nodes()
    first = network.sessions["node_a"]

    network.join("node_a", instance="second")
    (refusal,) = network.said(Refusal)
    assert (refusal.code, refusal.final) == ("uuid_in_use", False)
    assert [send.session for send in network.sends if getattr(send, "message", None).__class__ is Ping] == [first]
    network.now += network.settings.silence_floor_ms - 1
    network.join("node_a", instance="second")
    assert network.said(Refusal) and not network.said(Ping)
    network.now += 1
    network.join("node_a", instance="second")
    assert network.said(Welcome)


@pytest.mark.spec("N1", "N6")
def test_a_sign_of_life_keeps_an_identity_where_it_is() -> None:
    network = with_two_nodes()
    first = network.sessions["node_a"]
    network.join("node_a", instance="second")
    network.now += network.settings.silence_floor_ms
    network.tell(NodeSaid(first, NODE, Pong(1)))

    network.join("node_a", instance="second")

    assert network.said(Refusal)


# --- in which state a node comes back ---


def put(network: Network, **changes: Any) -> None:
    w = network.kernel._w
    w.begin(Instant(network.now))
    w.put(replace(w.nodes[NODE], **changes))
    network.rows["node_a"] = w.nodes[NODE]


@pytest.mark.spec("H3", "N7")
@pytest.mark.parametrize(
    ("state", "strikes", "left_ms", "comes_back"),
    [
        (NodeState.SUSPECT, 0, 0, NodeState.PROBATION),
        (NodeState.LOST, 0, 0, NodeState.PROBATION),
        (NodeState.GONE, 0, 0, NodeState.READY),
        (NodeState.GONE, 1, 0, NodeState.PROBATION),
        (NodeState.SUSPECT, 0, 1, NodeState.QUARANTINED),
        (NodeState.GONE, 0, 1, NodeState.QUARANTINED),
        (NodeState.READY, 2, 5, NodeState.READY),
    ],
)
def test_the_state_of_a_node_that_dials_in_again(
    state: NodeState, strikes: int, left_ms: int, comes_back: NodeState
) -> None:
    network = with_two_nodes(replace(SETTINGS, quarantine_share_max_permille=1_000))
    w = network.kernel._w
    put(network, state=state, strikes=strikes, quarantined_until_ms=Instant(w.patience + left_ms))

    network.join("node_a")

    assert network.node("node_a").state is comes_back


@pytest.mark.spec("H3")
def test_who_comes_back_too_early_is_set_aside_only_where_enough_others_are_left() -> None:
    network = Network(replace(SETTINGS, quarantine_share_max_permille=100))
    network.join("node_a")
    put(network, state=NodeState.SUSPECT, quarantined_until_ms=Instant(network.now + 60_000))

    network.join("node_a")

    assert network.node("node_a").state is NodeState.PROBATION


@pytest.mark.spec("N7")
@pytest.mark.parametrize("goes", ["leaving", "gone"])
def test_what_its_own_operator_wanted_ends_with_the_session_and_what_the_networks_wants_stays(goes: str) -> None:
    network = with_two_nodes()
    network.tell(DrainAsked(NODE, True))
    leaving = Leaving(60_000, done=goes == "gone")
    network.tell(NodeSaid(network.sessions["node_a"], NODE, Leaving(60_000)))
    network.tell(NodeSaid(network.sessions["node_a"], NODE, leaving))

    network.join("node_a")

    node = network.node("node_a")
    assert (node.leaving, node.leaving_why, node.draining, node.drained) == (False, "", True, True)
    assert [said.on for said in network.said(Drained)] == [True]


@pytest.mark.spec("N7")
def test_a_node_that_left_by_its_own_wish_takes_work_when_it_is_back() -> None:
    network = with_two_nodes()
    network.tell(NodeSaid(network.sessions["node_a"], NODE, Leaving(0, done=True)))
    assert network.node("node_a").state is NodeState.GONE

    network.join("node_a")

    assert network.node("node_a").state is NodeState.READY
    assert not network.node("node_a").draining and not network.said(Drained)


@pytest.mark.spec("N10")
def test_a_pause_ends_with_the_next_offer_that_does_not_pause() -> None:
    network = with_two_nodes()

    def offer(paused: bool, offered: Resources = ROOM) -> None:
        message = Offers(offered, paused, 500, "games" if paused else "")
        network.tell(NodeSaid(network.sessions["node_a"], NODE, message))

    offer(True)
    assert (network.node("node_a").draining, network.node("node_a").leaving_why) == (True, "games")
    offer(False, Resources(1, 2, 3, 0))
    node = network.node("node_a")
    assert (node.draining, node.leaving_why, node.offered) == (False, "", Resources(1, 2, 3, 0))


@pytest.mark.spec("H1", "H3")
def test_a_new_session_knows_nothing_of_the_load_of_the_one_before() -> None:
    network = with_two_nodes()
    report = Report(5, True, (), Load(cpu_permille=900))
    network.tell(NodeSaid(network.sessions["node_a"], NODE, report))
    assert network.kernel._w.presence(NODE).load.cpu_permille == 900

    network.join("node_a")

    assert network.kernel._w.presence(NODE).load == Load()


@pytest.mark.spec("H3")
def test_a_probe_counts_once_and_only_if_it_was_sent() -> None:
    network = Network(replace(SETTINGS, probation_pings=2))
    network.join("node_a")
    network.leave("node_a")
    network.join("node_a")
    w = network.kernel._w
    network.tell(Tick())
    nonce = w.presence(NODE).nonce
    session = network.sessions["node_a"]

    for answer, pings in ((nonce + 1, 0), (nonce, 1), (nonce, 1)):
        network.tell(NodeSaid(session, NODE, Pong(answer)))
        assert w.presence(NODE).pings == pings


@pytest.mark.spec("H3")
def test_a_node_that_wins_in_probation_is_back_after_so_many() -> None:
    network = Network(replace(SETTINGS, probation_wins=2))
    network.join("node_a")
    put(network, state=NodeState.PROBATION, strikes=4)
    w = network.kernel._w

    health.won(w, NODE)
    assert (w.nodes[NODE].state, w.nodes[NODE].probation_wins) == (NodeState.PROBATION, 1)
    health.won(w, NODE)
    node = w.nodes[NODE]
    assert (node.state, node.strikes, node.probation_wins) == (NodeState.READY, 0, 0)
    health.won(w, NodeId("node_nowhere"))


@pytest.mark.spec("J5")
def test_a_report_of_a_session_that_is_not_the_nodes_is_not_listened_to() -> None:
    network = with_two_nodes()
    network.submit()
    (attempt,) = network.attempts()
    report = Report(99, True, (seen(attempt, HeldPhase.RUNNING),))
    for session, node in ((network.sessions[attempt.node] + 50, attempt.node), (1, NodeId("node_nowhere"))):
        decision = network.tell(NodeSaid(session, node, report))
        assert not decision.changes and not decision.sends
