"""Access tokens: their dates, their bounds, their end, and which nodes belong to whom."""

from typing import Any

import pytest
from kernel_driver import SETTINGS, Network
from msgspec.structs import replace

from holdfast.kernel.decision import Done, Rejected
from holdfast.kernel.events import AccessMade, AccessRevoked, AnyEvent, TokenMade
from holdfast.kernel.kernel import Kernel
from holdfast.model import AccessId, AccessToken, Entry, Instant, JoinToken, Node, Role, TokenId
from holdfast.model.rows import BY_TYPE, Newest

pytestmark = pytest.mark.spec("A12")


def a_token(number: int = 1, **fields: Any) -> AccessToken:
    return AccessToken(AccessId(f"acc_{number:03}"), "s" * 64, Role.USER, "ann", **fields)


def ask(network: Network, event: AnyEvent) -> Any:
    return network.tell(event).answer


def rows_of(network: Network, kind: type[Any]) -> list[Any]:
    return [row for row in network.kernel.rows() if isinstance(row, kind)]


def rows(network: Network) -> dict[str, AccessToken]:
    return {row.id: row for row in rows_of(network, AccessToken)}


def test_the_kernels_clock_dates_a_token() -> None:
    network = Network()
    assert isinstance(ask(network, AccessMade(a_token(), 5_000)), Done)
    made = rows(network)["acc_001"]
    assert (made.made_ms, made.expires_ms) == (network.now, network.now + 5_000)
    assert made.valid(network.now + 4_999) and not made.valid(network.now + 5_000)
    assert not replace(made, revoked=True).valid(network.now)


def test_a_token_that_is_made_again_stays_as_it_is() -> None:
    network = Network()
    ask(network, AccessMade(a_token(), 5_000))
    ask(network, AccessRevoked(AccessId("acc_001")))
    before = rows(network)
    assert isinstance(ask(network, AccessMade(a_token(), 9_000)), Done)
    assert rows(network) == before and before["acc_001"].revoked


def test_a_revoked_token_takes_the_join_tokens_that_were_made_with_it() -> None:
    network = Network()
    ask(network, AccessMade(a_token(), 5_000))
    ask(network, AccessMade(a_token(2), 5_000))
    for name, access in (("tok_1", "acc_001"), ("tok_2", "acc_002"), ("tok_3", "")):
        network.tell(TokenMade(JoinToken(TokenId(name), "s" * 64, Instant(0), Instant(9_999_999), 1, access=access)))
    assert isinstance(ask(network, AccessRevoked(AccessId("acc_001"))), Done)
    revoked = {row.id for row in rows_of(network, JoinToken) if row.revoked}
    assert revoked == {"tok_1"}
    # and again changes nothing
    before = network.kernel.digest()
    assert isinstance(ask(network, AccessRevoked(AccessId("acc_001"))), Done)
    assert network.kernel.digest() == before
    unknown = ask(network, AccessRevoked(AccessId("acc_009")))
    assert isinstance(unknown, Rejected) and unknown.code == "no_such_access"


def entries_of(network: Network, event: AnyEvent) -> list[tuple[str, str]]:
    return [(row.kind, row.text) for row in network.tell(event).changes if isinstance(row, Entry)]


def test_the_journal_says_who_made_and_revoked_a_token() -> None:
    network = Network()
    made = a_token(made_by="eve", note="not shown")
    assert entries_of(network, AccessMade(made, 5_000)) == [
        ("access.made", "access token acc_001 of ann (user) was made by eve, for 5 s")
    ]
    assert entries_of(network, AccessMade(made, 5_000)) == []
    revoked = AccessRevoked(made.id, "root's deputy")
    assert entries_of(network, revoked) == [
        ("access.revoked", "access token acc_001 of ann (user) was revoked by root's deputy")
    ]
    assert entries_of(network, revoked) == []
    nameless = AccessToken(AccessId("acc_002"), "s" * 64, Role.NETWORK_OPERATOR, made_by="admin")
    assert entries_of(network, AccessMade(nameless, 5_000)) == [
        ("access.made", "access token acc_002 (network-operator) was made by admin, for 5 s")
    ]


def join_token(number: int, access: str = "", made_by: str = "", expires_ms: int = 10**15) -> JoinToken:
    id = TokenId(f"tok_{number}")
    return JoinToken(id, "s" * 64, Instant(0), Instant(expires_ms), 1, made_by=made_by, access=access)


@pytest.mark.parametrize("asked_ms", [-1, 0, 1])
def test_a_join_token_ends_with_the_access_token_that_made_it(asked_ms: int) -> None:
    network = Network()
    ask(network, AccessMade(a_token(), 5_000))
    ends_ms = network.now + 5_000
    assert isinstance(ask(network, TokenMade(join_token(1, "acc_001", "ann", ends_ms + asked_ms))), Done)
    assert isinstance(ask(network, TokenMade(join_token(2, expires_ms=ends_ms + asked_ms))), Done)
    expires = {row.id: row.expires_ms for row in rows_of(network, JoinToken)}
    assert expires == {"tok_1": ends_ms + min(asked_ms, 0), "tok_2": ends_ms + asked_ms}


def test_an_access_token_that_is_not_valid_makes_no_join_token() -> None:
    """It was valid when the request was read."""
    network = Network()
    for number in (1, 2):
        ask(network, AccessMade(a_token(number), 5_000))
    ask(network, AccessRevoked(AccessId("acc_001")))
    network.wait(5_000)
    for number in (1, 2, 3):
        refused = ask(network, TokenMade(join_token(number, f"acc_00{number}", "ann")))
        assert isinstance(refused, Rejected) and refused.code == "forbidden"
    assert rows_of(network, JoinToken) == []


def test_a_node_operator_has_only_so_many_join_tokens() -> None:
    network = Network(replace(SETTINGS, tokens_per_operator_max=2))
    of_ann, of_bob = (AccessToken(AccessId(f"acc_00{n}"), "s" * 64, Role.NODE_OPERATOR, f"op {n}") for n in (1, 2))
    chief = AccessToken(AccessId("acc_003"), "s" * 64, Role.NETWORK_OPERATOR, "chief")
    for made in (of_ann, of_bob, chief):
        ask(network, AccessMade(made, 60_000))

    def makes(number: int, who: AccessToken) -> Any:
        return ask(network, TokenMade(join_token(number, who.id, who.owner)))

    assert isinstance(makes(1, of_ann), Done) and isinstance(makes(2, of_ann), Done)
    refused = makes(3, of_ann)
    assert isinstance(refused, Rejected) and refused.code == "token_limit" and "op 1 has 2" in refused.says
    # then what was made is not made again, and others have their own; a network operator has no limit
    assert isinstance(makes(2, of_ann), Done) and isinstance(makes(4, of_bob), Done)
    assert all(isinstance(makes(number, chief), Done) for number in (5, 6, 7))


def test_rows_are_bounded_and_no_valid_token_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = replace(BY_TYPE[AccessToken], newest=Newest(6, "-", 0))
    monkeypatch.setitem(BY_TYPE, AccessToken, bounded)
    network = Network()
    # given as many valid tokens as there may be, the oldest of all
    for number in (1, 2, 3):
        assert isinstance(ask(network, AccessMade(a_token(number), 60_000)), Done)
    refused = ask(network, AccessMade(a_token(4), 60_000))
    assert isinstance(refused, Rejected) and refused.code == "access_limit" and "3" in refused.says
    # when one is revoked and many more come and go
    ask(network, AccessRevoked(AccessId("acc_003")))
    for number in range(10, 30):
        assert isinstance(ask(network, AccessMade(a_token(number), 60_000)), Done)
        ask(network, AccessRevoked(AccessId(f"acc_{number:03}")))
        assert len(rows(network)) <= 6
        # then memory and a rebuild agree on which are left
        assert Kernel.load(SETTINGS, network.kernel.rows()).digest() == network.kernel.digest()
    # and those that are valid are among them
    assert {"acc_001", "acc_002"} <= set(rows(network)) and len(rows(network)) == 6
    # and one that expired makes room as well
    network.now += 60_000
    assert isinstance(ask(network, AccessMade(a_token(40), 60_000)), Done)
    for number in (41, 42):
        assert isinstance(ask(network, AccessMade(a_token(number), 60_000)), Done)
    assert isinstance(ask(network, AccessMade(a_token(43), 60_000)), Rejected)


@pytest.mark.parametrize("open_join", [False, True])
def test_a_node_belongs_to_whoever_made_the_token_it_proved(open_join: bool) -> None:
    network = Network(replace(SETTINGS, open_join=open_join))
    token = JoinToken(TokenId("tok_1"), "s" * 64, Instant(0), Instant(9_999_999), 1, made_by="north")
    network.tell(TokenMade(token))
    # a wrong secret is refused, or counts for nothing
    network.join("node_x", token_id="tok_1", token_sha256="x" * 64)
    network.join("node_a", token_id="tok_1", token_sha256="s" * 64)
    assert network.node("node_a").operator == "north"
    # the token is used up, and a stranger that knows it does not appear among the operator's nodes
    network.join("node_b", token_id="tok_1", token_sha256="s" * 64, public_key="m" * 64)
    others = [node for node in rows_of(network, Node) if node.id != "node_a"]
    assert len(others) == (2 if open_join else 0) and not any(node.operator for node in others)
    # and a node that joins again stays whose it was
    network.leave("node_a")
    network.join("node_a")
    assert network.node("node_a").operator == "north"
