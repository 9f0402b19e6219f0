"""Whoever should not be here, or talks nonsense, gets a clear refusal, and nobody else notices.

All of it happens beside a node with a running job, which must come to no harm.
"""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import grpc
import httpx
import pytest
from fault_network import PRINTED, FaultNetwork, Fleet, lives, program_of

from holdfast.identity import tokens
from holdfast.model import Instant
from holdfast.testing.processes import READY_S, wait_for
from holdfast.wire import limits
from holdfast.wire import node_pb2 as pb

pytestmark = pytest.mark.xdist_group("faults-strangers")

REFUSED = 3
MISCONFIGURED = 78
CONTROL = "/holdfast.v1.NodeLink/Control"


@pytest.fixture(scope="module")
def machines(fleet: Fleet) -> FaultNetwork:
    return fleet("ant")


@pytest.fixture
def network(machines: FaultNetwork) -> Iterator[FaultNetwork]:
    """The node runs a job all the while; at the end of the test it has not been disturbed and the job ends."""
    machines.settle()
    node = machines.nodes["ant"]
    job = machines.hold()
    assert machines.node_running(job) is node
    body = program_of(node)
    since = machines.now()
    try:
        yield machines
    finally:
        for name in sorted(set(machines.nodes) - {"ant"}):
            machines.nodes.pop(name).kill_tree()
    assert lives(body) and machines.connected(node)
    assert machines.journal("node.suspect", "node.quarantined", node=node.id, after=since) == []
    view = machines.finish(job)
    assert (view.verdict, view.attempts_made) == ("succeeded", 1)
    assert machines.output(job) == PRINTED


def turned_away(network: FaultNetwork, tmp_path: Path, token: str, *flags: str) -> tuple[int, str]:
    """Exit code and last words of a `holdfast node` that wants to join with this token."""
    unsafe = ["--unsafe-process-runtime"] if network.unsafe else []
    words = ["node", "--orchestrator", network.up.listen, "--home", str(tmp_path / "stranger"), *unsafe]
    done = network.cli(*words, "--token", token, *flags)
    assert "Traceback" not in done.stderr
    assert not token or token not in done.stderr
    return done.returncode, done.stderr


# --- identities ---


@pytest.mark.spec("N1", "N6")
def test_another_key_under_a_known_uuid_is_refused_for_good(network: FaultNetwork, tmp_path: Path) -> None:
    # given the id of a node that lives; when another machine comes under it, with a key of its own
    uuid = (network.nodes["ant"].home / "uuid").read_text().strip()
    code, says = turned_away(network, tmp_path, network.client().tokens.create().token, "--uuid", uuid)
    # then it is told that the id is taken, and how to get one of its own
    assert code == REFUSED
    assert "[uuid_taken]" in says and "PNODE_UUID" in says


@pytest.mark.spec("N1", "N6")
def test_a_copied_machine_waits_until_the_first_one_is_gone(network: FaultNetwork) -> None:
    # given a node, and a copy of it with the same id and the same key
    first = network.start_node("bee")
    copy_home = network.folder / "node-copy"
    copy_home.mkdir(mode=0o700)
    for name in ("uuid", "key"):
        shutil.copy2(first.home / name, copy_home / name)
    copy = network.start_node("copy", wait=False)

    # then the copy is kept out as long as the first one lives, and goes on asking
    wait_for(lambda: "is connected from another machine" in copy.output(), "the copy to be kept out")
    assert copy.running() and network.connected(first)
    assert "session with" not in copy.output().replace("no session with", "")
    assert "no session with" not in first.output()

    # and when the first one is gone for good, it takes its place
    first.kill_tree()
    wait_for(lambda: "session with" in copy.output().replace("no session with", ""), "the copy to be let in")
    wait_for(lambda: network.connected(copy), "the copy to be seen")
    assert copy.id == first.id
    assert copy.terminate() == 0


# --- join tokens ---


@pytest.mark.spec("N6")
def test_a_token_of_another_network_is_refused(network: FaultNetwork, tmp_path: Path) -> None:
    ticket, _ = tokens.make("", Instant(0), Instant(2**60))
    code, says = turned_away(network, tmp_path, ticket.text)
    assert code == REFUSED
    assert "[token_wrong]" in says and "holdfast token" in says


@pytest.mark.spec("N6")
def test_the_right_token_with_the_wrong_secret_is_refused(network: FaultNetwork, tmp_path: Path) -> None:
    known = tokens.parse(network.client().tokens.create().token)
    forged = tokens.Ticket(known.id, b"guessed".ljust(len(known.secret)), known.pin)
    code, says = turned_away(network, tmp_path, forged.text)
    assert code == REFUSED and "[token_wrong]" in says


@pytest.mark.spec("N6")
def test_a_mistyped_token_is_noticed_before_anything_is_sent(network: FaultNetwork, tmp_path: Path) -> None:
    token = network.client().tokens.create().token
    changed = token[:-3] + ("A" if token[-3] != "A" else "B") + token[-2:]
    code, says = turned_away(network, tmp_path, changed)
    assert code == MISCONFIGURED
    assert "[token_mistyped]" in says and "nothing was sent" in says


@pytest.mark.spec("N6")
def test_no_token_is_refused_with_the_way_to_get_one(network: FaultNetwork, tmp_path: Path) -> None:
    code, says = turned_away(network, tmp_path, "")
    assert code == REFUSED
    assert "[token_needed]" in says and "holdfast token" in says


@pytest.mark.spec("N6")
def test_an_expired_token_is_refused(network: FaultNetwork, tmp_path: Path) -> None:
    token = network.client().tokens.create(ttl_ms=1_000)
    wait_for(lambda: time.time() * 1000 > token.expires_ms, "the token to expire")
    code, says = turned_away(network, tmp_path, token.token)
    assert code == REFUSED and "[token_expired]" in says


@pytest.mark.spec("N6")
def test_a_revoked_token_is_refused(network: FaultNetwork, tmp_path: Path) -> None:
    token = network.client().tokens.create()
    network.client().tokens.revoke(token.id)
    code, says = turned_away(network, tmp_path, token.token)
    assert code == REFUSED and "[token_revoked]" in says


@pytest.mark.spec("N6", "N7")
def test_a_token_for_one_machine_cannot_be_replayed_by_another(network: FaultNetwork, tmp_path: Path) -> None:
    # given a token for one machine, and the machine that used it
    token = network.client().tokens.create(uses=1).token
    first = network.start_node("cow", token=token)

    # when somebody else brings the same token
    code, says = turned_away(network, tmp_path, token)

    # then it is used up for them, and not for the machine that is in: that one may come back
    assert code == REFUSED and "[token_used]" in says
    assert first.terminate() == 0
    back = network.start_again(first)
    network.wait_node("cow")
    assert back.terminate() == 0


# --- nonsense ---


def pour(address: str, noise: bytes) -> None:
    """Send bytes to a port and take whatever comes, until the other side has had enough."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=READY_S) as line:
        line.settimeout(1.0)
        try:
            line.sendall(noise)
            line.shutdown(socket.SHUT_WR)
            while line.recv(65536):
                pass
        except OSError:
            # It hung up, at whatever moment: that is its right.
            return


_dice = Random(7)
NOISE = [
    b"\x00" * 4096,
    _dice.randbytes(200_000),
    b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _dice.randbytes(4096),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\xff\xff\xff" + _dice.randbytes(512),
    b"\x16\x03\x01" + _dice.randbytes(512),
    b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999\r\n\r\n{",
    b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
]


@pytest.mark.spec("H2", "N5")
def test_garbage_on_either_port_disturbs_nobody(network: FaultNetwork) -> None:
    orchestrator = network.up
    for noise in NOISE:
        pour(orchestrator.listen, noise)
        pour(orchestrator.url.removeprefix("http://"), noise)
    # and connections that say nothing at all take nothing from anyone
    host, _, port = orchestrator.listen.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(50)]
    assert network.client().doctor().ok
    for line in silent:
        line.close()
    assert "Traceback" not in orchestrator.output()


def kind_of(raw: bytes) -> str:
    """What an orchestrator's frame is."""
    return str(pb.OrchestratorFrame.FromString(raw).WhichOneof("said"))


@pytest.mark.spec("H2", "N5")
@pytest.mark.parametrize(
    "frame",
    [
        _dice.randbytes(limits.CONTROL_BYTES_MAX - 1),
        b"\x0a" + b"\x00" * limits.CONTROL_BYTES_MAX,
        _dice.randbytes(2 << 20),
    ],
    ids=["nonsense", "over the limit of a frame", "over the limit of the transport"],
)
def test_a_stranger_on_the_node_port_with_an_impossible_message_is_hung_up_on(
    frame: bytes, network: FaultNetwork
) -> None:
    challenged = threading.Event()

    def said() -> Iterator[bytes]:
        # Not sooner: a stream that was ended for a fault drops what of it was not read yet.
        challenged.wait(READY_S)
        yield frame

    with grpc.insecure_channel(network.up.listen) as channel:
        call = channel.stream_stream(CONTROL)(said(), timeout=READY_S)
        heard: list[bytes] = []
        try:
            for raw in call:
                heard.append(raw)
                challenged.set()
        except grpc.RpcError:
            ended = call.code()
        else:
            ended = grpc.StatusCode.OK
    # then the stream was ended by the other side, not by our own patience
    assert ended is not grpc.StatusCode.DEADLINE_EXCEEDED
    # and it heard the challenge, and perhaps why it is refused: never a welcome
    assert [kind_of(raw) for raw in heard] in (["challenge"], ["challenge", "refusal"])
    assert "Traceback" not in network.up.output()


@pytest.mark.spec("J13")
def test_requests_that_are_too_large_or_make_no_sense_are_refused_by_name(network: FaultNetwork) -> None:
    token = (network.home / "orchestrator" / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with httpx.Client(base_url=network.up.url, headers=headers, trust_env=False, verify=False, timeout=READY_S) as http:
        large = http.post("/v1/jobs", content=b'{"argv":["' + b"x" * (64 << 20) + b'"]}')
        assert (large.status_code, large.json()["code"]) == (413, "too_large")
        wordy = http.post("/v1/jobs", json={"argv": ["x" * 40_000]})
        assert (wordy.status_code, wordy.json()["code"]) == (400, "bad_request")
        for nonsense in (b"", b"{", b"[]", b'{"argv":[]}', b'{"argv":["a\\u0000b"]}', b"\xff\xfe", b'{"argv":5}'):
            answer = http.post("/v1/jobs", content=nonsense)
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), nonsense
    assert "Traceback" not in network.up.output()
