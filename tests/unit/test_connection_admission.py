"""Who stays when there are too many connections, and which addresses count as one party."""

import pytest

from holdfast.errors import Misconfigured
from holdfast.orchestrator.connection_limits import ConnectionLimits, read_limits
from holdfast.orchestrator.connections.admission import Admission, ConnectionBounds, Standing
from holdfast.orchestrator.connections.early_answers import EarlyAnswer, EarlyAnswers
from holdfast.orchestrator.connections.first_bytes import whole_head, whole_tls
from holdfast.orchestrator.connections.networks import network_of, peer_address


def admitting(**bounds: int) -> Admission[str]:
    return Admission(ConnectionBounds(**bounds))


@pytest.mark.spec("A12")
def test_up_to_the_limit_nobody_is_closed_and_the_next_one_takes_the_place_of_the_oldest() -> None:
    door = admitting(strangers_per_network=2)
    assert [door.opened(name, "a") for name in ("one", "two", "three", "four")] == [None, None, "one", "two"]
    assert (len(door), door.strangers) == (2, 2)


@pytest.mark.spec("A12")
@pytest.mark.parametrize("common", [Standing.HALF_SENT, Standing.SILENT, Standing.IDLE])
def test_whoever_does_what_most_do_goes_first(common: Standing) -> None:
    # given three that do the same, and one each that does something else, older than they
    door = admitting(strangers_per_network=5)
    others = [standing for standing in (Standing.HALF_SENT, Standing.SILENT, Standing.IDLE) if standing is not common]
    alike = [(name, common) for name in ("one", "two", "three")]
    for name, standing in [("rare", others[0]), ("odd", others[1]), *alike]:
        door.opened(name, "a")
        door.stands(name, standing)
    # when others come that do as the three
    closed = [door.opened("four", "a")]
    door.stands("four", common)
    closed.append(door.opened("five", "a"))
    # then the oldest of the three go for them
    assert closed == ["one", "two"]


@pytest.mark.spec("A12")
@pytest.mark.parametrize(("silent", "goes"), [(1, "half 0"), (2, "half 0"), (3, "silent 0")])
def test_a_silent_one_goes_if_more_than_two_are_silent_for_each_that_does_something_else(
    silent: int, goes: str
) -> None:
    """An honest caller is silent for a moment after it connected."""
    door = admitting(strangers_per_network=silent + 1)
    for number in range(silent):
        door.opened(f"silent {number}", "a")
    door.opened("half 0", "a")
    door.stands("half 0", Standing.HALF_SENT)
    assert door.opened("new", "a") == goes


@pytest.mark.spec("A12")
def test_a_new_connection_does_not_go_while_another_can() -> None:
    door = admitting(strangers_per_network=1)
    door.opened("answered", "a")
    door.stands("answered", Standing.IDLE)
    assert door.opened("new", "a") == "answered"


@pytest.mark.spec("A12")
def test_whoever_did_meanwhile_what_it_was_waited_for_is_spared() -> None:
    door = admitting(strangers_per_network=3)
    for name in ("asked", "left", "silent"):
        door.opened(name, "a")
    looked: list[str] = []

    def spared(name: str) -> bool:
        looked.append(name)
        if name == "asked":
            door.stands(name, Standing.BUSY)
        if name == "left":
            door.closed(name)
        return name in ("asked", "left")

    # when one has sent its request and one is gone, then there is room without the third
    assert door.opened("new", "a", spared) is None and looked == ["asked", "left"]
    # and the next one takes the place of one that does nothing
    assert door.opened("newer", "a", spared) == "silent"
    # and a new one that cannot be let in is not asked about
    full = admitting(strangers_per_network=1)
    full.opened("busy", "a")
    full.stands("busy", Standing.BUSY)
    assert full.opened("new", "a", spared) == "new" and looked[-1] == "silent"


@pytest.mark.spec("A12")
def test_whoever_has_shown_who_it_is_stays_and_is_no_stranger() -> None:
    door = admitting(strangers_per_network=1)
    door.opened("known", "a")
    assert door.known("known") and door.known("known")
    assert door.strangers == 0
    assert door.opened("first", "a") is None
    assert door.opened("second", "a") == "first"
    # and it stays known, whatever it sends
    door.stands("known", Standing.HALF_SENT)
    assert door.opened("third", "a") == "second"
    # and however many of them there are
    assert door.known("third")
    assert door.opened("fourth", "a") is None
    assert door.opened("fifth", "a") == "fourth"


@pytest.mark.spec("A12")
def test_a_stranger_whose_request_is_being_answered_stays_and_the_new_one_goes() -> None:
    door = admitting(strangers_per_network=1)
    door.opened("asking", "a")
    door.stands("asking", Standing.BUSY)
    assert door.busy == 1
    assert door.opened("new", "a") == "new"
    door.stands("asking", Standing.IDLE)
    assert door.busy == 0
    assert door.opened("newer", "a") == "asking"


@pytest.mark.spec("A12")
def test_beyond_the_limit_of_all_strangers_the_largest_group_loses_one() -> None:
    door = admitting(strangers=3)
    for name, network in (("honest", "b"), ("x", "a"), ("y", "a")):
        assert door.opened(name, network) is None
    assert door.opened("z", "a") == "x"
    assert door.opened("other", "c") == "y"
    # and if nobody has more than one, the first of them
    assert door.opened("last", "d") in {"honest", "z", "other"}


@pytest.mark.spec("A12")
def test_known_connections_take_places_of_strangers_and_are_limited_themselves() -> None:
    door = admitting(all=2, known_per_network=1)
    door.opened("known", "a")
    assert door.known("known")
    door.opened("second", "a")
    # then a second known one of this address is not recognized, and another address's is
    assert not door.known("second")
    assert door.opened("elsewhere", "b") == "second"
    assert door.known("elsewhere")
    # and when all are known, a new one is turned away
    assert door.opened("late", "c") == "late"
    assert len(door) == 2


@pytest.mark.spec("A12")
def test_whoever_leaves_makes_room() -> None:
    door = admitting(all=2, strangers=2, strangers_per_network=2, known_per_network=1)
    door.opened("one", "a")
    door.known("one")
    door.opened("two", "a")
    door.stands("two", Standing.BUSY)
    door.closed("one")
    door.closed("two")
    door.closed("two")
    assert (len(door), door.strangers, door.busy) == (0, 0, 0)
    assert door.opened("three", "a") is None
    assert door.known("three")


@pytest.mark.spec("A12")
def test_a_session_that_ended_leaves_a_stranger() -> None:
    door = admitting(strangers_per_network=1)
    door.opened("node", "a")
    door.known("node")
    door.unknown("node")
    door.unknown("never heard of")
    assert door.strangers == 1
    assert door.opened("new", "a") == "node"


@pytest.mark.spec("A12")
def test_without_bounds_all_stay() -> None:
    door = admitting()
    assert [door.opened(str(number), "a") for number in range(100)] == [None] * 100
    assert all(door.known(str(number)) for number in range(100))


@pytest.mark.spec("A12")
def test_an_unknown_connection_changes_nothing() -> None:
    door = admitting(all=1)
    door.stands("nobody", Standing.BUSY)
    assert door.known("nobody")
    door.closed("nobody")
    assert (len(door), door.busy, door.strangers) == (0, 0, 0)


# --- addresses ---


@pytest.mark.spec("A12")
@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.8", "192.0.2.8"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
    ],
)
def test_an_ipv6_network_is_one_party(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.spec("A12")
@pytest.mark.parametrize(
    ("peer", "found"),
    [
        ("ipv4:10.0.0.7:51234", ("10.0.0.7", 51234)),
        ("ipv6:[2001:db8::1]:51234", ("2001:db8::1", 51234)),
        ("ipv6:%5B2001:db8::1%5D:51234", ("2001:db8::1", 51234)),
        ("unix:", ("unix:", 0)),
        ("unix:5", ("unix:5", 0)),
        ("ipv4:10.0.0.7", ("ipv4:10.0.0.7", 0)),
    ],
)
def test_the_address_of_a_peer_is_read(peer: str, found: tuple[str, int]) -> None:
    assert peer_address(peer) == found


# --- limits ---


@pytest.mark.spec("A12")
def test_limits_leave_descriptors_for_files() -> None:
    fitted = ConnectionLimits().fitted(2_048)
    assert (fitted.connections_max, fitted.strangers_max, fitted.strangers_per_address_max) == (512, 256, 128)
    assert fitted.connections_per_address_max == 256
    nodes = (fitted.node_connections_max, fitted.node_strangers_max, fitted.node_strangers_per_address_max)
    assert nodes == (768, 384, 192)
    assert 2 * fitted.connections_max + fitted.node_connections_max <= 2_048 * 7 // 8


@pytest.mark.spec("A12")
def test_with_descriptors_enough_the_limits_are_as_chosen_and_none_stays_none() -> None:
    assert ConnectionLimits().fitted(1_000_000) == ConnectionLimits()
    assert ConnectionLimits(connections_max=0, strangers_max=0).fitted(2_048).connections_max == 0


@pytest.mark.spec("A12")
def test_limits_are_chosen_by_name() -> None:
    chosen = read_limits(("strangers_max=7", "joins_max=0", "head_ms_max=0"), ("joins_max", "other_max"))
    assert chosen == (ConnectionLimits(strangers_max=7, head_ms_max=0), {"joins_max": 0})
    for wrong in (
        "strangers=7",
        "strangers_max",
        "strangers_max=-1",
        "strangers_max=x",
        "strangers_max=" + "1" * 13,
        "joins_max=1",
    ):
        with pytest.raises(Misconfigured):
            read_limits((wrong,))


# --- early answers ---


def early(head: bytes) -> EarlyAnswer | None:
    return EarlyAnswers(lambda: (200, b"{}"), (401, {"WWW-Authenticate": "Bearer"}, b"[]"))(head)


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.spec("A12")
def test_a_plain_question_for_health_is_answered_at_once() -> None:
    answer = early(HEALTH + b"\r\n")
    assert answer is not None and not answer.closes
    assert answer.data == b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.spec("A12")
@pytest.mark.parametrize("head", [b"GET /v1/jobs HTTP/1.1\r\n\r\n", b"post /v1/x HTTP/1.1\r\nHost: a\r\n\r\n{}"])
def test_a_call_without_a_token_is_refused_at_once_and_the_connection_ends(head: bytes) -> None:
    answer = early(head)
    assert answer is not None and answer.closes
    assert answer.data.startswith(b"HTTP/1.1 401 Unauthorized\r\n") and answer.data.endswith(b"\r\n\r\n[]")
    assert b"\r\nwww-authenticate: Bearer\r\n" in answer.data and b"\r\nconnection: close\r\n" in answer.data


@pytest.mark.spec("A12")
@pytest.mark.parametrize(
    "head",
    [
        HEALTH + b"Connection: close\r\n\r\n",
        HEALTH + b"Content-Length: 1\r\n\r\nx",
        HEALTH + b"Expect: 100-continue\r\n\r\n",
        (HEALTH + b"\r\n") * 2,
        HEALTH + b"\r\nG",
        b"\r\n" + HEALTH + b"\r\n",
        b"GET /healthz HTTP/1.0\r\n\r\n",
        b"GET /healthz?a HTTP/1.1\r\n\r\n",
        b"GET /v1/jobs HTTP/1.0\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nAUTHORIZATION: Bearer x\r\n\r\n",
        b"GET /schema HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_everything_else_is_left_to_the_application(head: bytes) -> None:
    assert early(head) is None


# --- first bytes ---


@pytest.mark.spec("A12")
@pytest.mark.parametrize(
    ("found", "whole"),
    [
        (b"", False),
        (b"GET / HTTP/1.1\r\nHost: a\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", True),
        (b"GET / HTTP/1.1\nHost: a\n\n", True),
        (b"\r\n\r\n\r\n", False),
        (b"\r\nGET / HTTP/1.1\r\n\r\n", True),
    ],
)
def test_a_head_is_whole_at_its_empty_line(found: bytes, whole: bool) -> None:
    assert whole_head(found) is whole


@pytest.mark.spec("A12")
@pytest.mark.parametrize(
    ("found", "whole"),
    [
        (b"", False),
        (b"\x16\x03\x01\x00", False),
        (b"\x16\x03\x01\x00\x02\x01", False),
        (b"\x16\x03\x01\x00\x02\x01\x02", True),
        (b"GET / HTTP/1.1", True),
    ],
)
def test_a_handshake_begins_with_a_whole_record(found: bytes, whole: bool) -> None:
    assert whole_tls(found) is whole
