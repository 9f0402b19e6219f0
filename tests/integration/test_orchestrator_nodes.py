"""The door for nodes: who gets in, what strangers can do there (nothing), and whose logs are taken."""

import queue
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import grpc
import msgspec
import pytest
from orchestrators import OrchestratorProcess
from wire_node import Line, WireNode, send_logs

from holdfast.client import Client
from holdfast.identity.keys import NodeKey
from holdfast.identity.proof import prove
from holdfast.identity.tokens import parse
from holdfast.model import AttemptId, Resources, Result
from holdfast.model.messages import HeldPhase, Refusal, Report
from holdfast.orchestrator.nodes.link_service import HANDSHAKES_PER_ADDRESS_MAX
from holdfast.testing.processes import wait_for
from holdfast.wire import convert, limits
from holdfast.wire import node_pb2 as pb
from holdfast.wire.convert import Admitted
from holdfast.wire.http import TokenView

ARGV = ["say", "hello"]
BULK_S = 40.0
"""How long a bulk call that is never answered is waited for."""


@pytest.fixture(scope="module")
def orchestrator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrchestratorProcess]:
    with OrchestratorProcess(tmp_path_factory.mktemp("nodes")) as running:
        yield running.start()
        assert running.stop() == 0


@pytest.fixture(scope="module")
def client(orchestrator: OrchestratorProcess) -> Client:
    return orchestrator.client()


@pytest.fixture
def line(orchestrator: OrchestratorProcess) -> Iterator[Line]:
    line = Line(orchestrator.listen)
    yield line
    line.close()


def answer(orchestrator: OrchestratorProcess, node: WireNode) -> Admitted | Refusal:
    line = Line(orchestrator.listen)
    try:
        return node.introduce(line)
    finally:
        line.close()


def heard_to_the_end(line: Line) -> None:
    """Read until the orchestrator ends the stream."""
    try:
        while True:
            line.hear()
    except (grpc.RpcError, StopIteration):
        return


# --- joining ---


@pytest.mark.spec("N1", "N6")
def test_a_token_lets_a_node_in_and_is_not_needed_again(orchestrator: OrchestratorProcess, client: Client) -> None:
    # Given a token for one use
    token = client.tokens.create(uses=1).token
    node = WireNode(orchestrator.listen, token)
    # When a node joins with it, then it is welcome
    assert isinstance(answer(orchestrator, node), Admitted)
    # And when it comes back without a token, then it still is: its key is known
    node.ticket = None
    assert isinstance(answer(orchestrator, node), Admitted)
    # But another node cannot use the token again
    refusal = answer(orchestrator, WireNode(orchestrator.listen, token))
    assert isinstance(refusal, Refusal) and (refusal.code, refusal.final) == ("token_used", True)


@pytest.mark.spec("N6")
def test_wrong_expired_revoked_and_missing_tokens_are_refused_by_name(
    orchestrator: OrchestratorProcess, client: Client
) -> None:
    # Given tokens that should not work
    revoked = client.tokens.create()
    client.tokens.revoke(revoked.id)
    brief = client.tokens.create(ttl_ms=1_000).token
    forged = WireNode(orchestrator.listen, client.tokens.create().token)
    assert forged.ticket is not None
    forged.ticket = type(forged.ticket)(forged.ticket.id, b"x" * 24, "")

    def code(node: WireNode) -> str:
        said = answer(orchestrator, node)
        return said.code if isinstance(said, Refusal) else "welcome"

    # When nodes come with them, then each is told what is wrong with its own
    assert code(WireNode(orchestrator.listen)) == "token_needed"
    assert code(forged) == "token_wrong"
    assert code(WireNode(orchestrator.listen, revoked.token)) in ("token_revoked", "token_wrong")
    wait_for(lambda: code(WireNode(orchestrator.listen, brief)) == "token_expired", "the token to expire")
    # And the secret of none of them stands in the log
    for text in (revoked.token, brief):
        assert text not in orchestrator.tail(10_000)
        assert parse(text).secret.hex() not in orchestrator.tail(10_000)


@pytest.mark.spec("N1", "N5")
def test_a_recorded_answer_to_a_challenge_is_worth_nothing(orchestrator: OrchestratorProcess, client: Client) -> None:
    # Given the signature of a node over one challenge
    node = WireNode(orchestrator.listen, client.tokens.create().token)
    first = Line(orchestrator.listen)
    challenge = convert.challenge_from_frame(first.hear())
    assert isinstance(challenge, convert.Challenge)
    signature = prove(node.key, challenge.nonce, node.id, node.instance, "")
    first.close()
    # When it is played back on another stream
    second = Line(orchestrator.listen)
    second.hear()
    second.say(convert.hello_to_frame(node.hello(), challenge.protocol, signature, b"x" * 24))
    said = convert.answer_from_frame(second.hear())
    second.close()
    # Then it proves nothing
    assert isinstance(said, Refusal) and said.code == "bad_signature"


@pytest.mark.spec("N1")
def test_an_identity_belongs_to_its_first_key(orchestrator: OrchestratorProcess, client: Client) -> None:
    token = client.tokens.create().token
    with WireNode(orchestrator.listen, token, name="rightful") as rightful:
        rightful.wait_welcome()
        # When another machine claims the same id with another key
        thief = answer(orchestrator, WireNode(orchestrator.listen, token, node=rightful.id, key=NodeKey.make()))
        assert isinstance(thief, Refusal) and (thief.code, thief.final) == ("uuid_taken", True)
        # And when a copy of the machine, key and all, comes while the first is there
        copy = WireNode(orchestrator.listen, token, node=rightful.id, key=rightful.key)
        copy.instance = "another-start"
        refused = answer(orchestrator, copy)
        # Then the first one stays
        assert isinstance(refused, Refusal) and (refused.code, refused.final) == ("uuid_in_use", False)
        assert client.nodes.get("rightful").connected and rightful.sessions == 1


@pytest.mark.spec("N1")
def test_a_node_from_another_age_is_told_who_must_upgrade(line: Line) -> None:
    line.hear()
    line.say(pb.NodeFrame(hello=pb.SignedHello(protocol=0, protocol_min=900, protocol_max=901, version="9.0")))
    said = convert.answer_from_frame(line.hear())
    assert isinstance(said, Refusal) and said.code == "version" and "upgrade the orchestrator" in said.says


# --- strangers ---


@pytest.mark.spec("N5")
@pytest.mark.parametrize("door", ["nodes", "http"])
def test_garbage_on_a_port_hurts_nobody(orchestrator: OrchestratorProcess, client: Client, door: str) -> None:
    # Given strangers who send what is neither gRPC nor HTTP, and some who say nothing
    host, _, port = getattr(orchestrator.config, door).rpartition(":")
    strangers = [socket.create_connection((host, int(port))) for _ in range(40)]
    for number, stranger in enumerate(strangers):
        if number % 4:
            stranger.sendall(bytes((number * 37 + i * 11) % 256 for i in range(5_000)))
    # When a node joins and a job is sent meanwhile, then both work
    with WireNode(orchestrator.listen, client.tokens.create().token) as node:
        node.wait_welcome()
        assert client.jobs.run(ARGV, timeout_s=60).verdict == "succeeded"
    for stranger in strangers:
        stranger.close()


@pytest.mark.spec("N5")
@pytest.mark.parametrize(
    "frame",
    [
        pb.NodeFrame(),
        pb.NodeFrame(report=pb.Report(seq=1, full=True)),
        pb.NodeFrame(hello=pb.SignedHello(protocol=1, protocol_min=1, protocol_max=1, node="../../etc")),
        pb.NodeFrame(hello=pb.SignedHello(protocol=1, protocol_min=1, protocol_max=1, version="v" * 70_000)),
    ],
    ids=["empty", "not a hello", "hostile id", "oversize"],
)
def test_a_first_frame_that_cannot_be_meant_is_refused(line: Line, frame: pb.NodeFrame) -> None:
    line.hear()
    line.say(frame)
    said = convert.answer_from_frame(line.hear())
    assert isinstance(said, Refusal) and said.final
    with pytest.raises(StopIteration):
        line.hear()


@pytest.mark.spec("N5")
@pytest.mark.parametrize("size", [limits.CONTROL_BYTES_MAX, limits.TRANSPORT_BYTES_MAX, 8_000_000])
def test_a_message_over_the_limit_ends_only_its_own_session(
    orchestrator: OrchestratorProcess, client: Client, size: int
) -> None:
    token = client.tokens.create(uses=2).token
    with WireNode(orchestrator.listen, token, name="calm") as calm:
        calm.wait_welcome()
        # Given a node that was welcomed and reported
        loud = WireNode(orchestrator.listen, token, name="loud")
        line = Line(orchestrator.listen, polite=False)
        assert isinstance(loud.introduce(line), Admitted)
        line.say(pb.NodeFrame(report=pb.Report(seq=1, full=True)))
        # When it sends a frame beyond the limit, or beyond even what the transport takes
        line.say(pb.NodeFrame(report=pb.Report(seq=2, full=True, load=pb.Load(sick="x" * size))))
        heard_to_the_end(line)
        line.close()
        # Then it is suspect, and the other did not notice
        wait_for(lambda: client.nodes.get(loud.id).state == "suspect", "the loud node to be suspected")
        assert client.nodes.get(calm.id).state == "ready" and calm.sessions == 1


@pytest.mark.spec("J4")
def test_a_new_bulk_stream_takes_the_place_of_the_one_before(
    running: tuple[WireNode, str], orchestrator: OrchestratorProcess
) -> None:
    node, _ = running
    line = Line(orchestrator.listen)
    metadata = ((limits.BULK_KEY_METADATA, node.bulk_key),)
    # Given a bulk stream on which something was said and answered, and that stays open
    pieces: queue.Queue[pb.LogChunk] = queue.Queue()
    first = line.stub.Bulk(iter(pieces.get, None), timeout=BULK_S, metadata=metadata)
    pieces.put(piece_of(node, 0, b"abc"))
    assert convert.ack_from_wire(next(first)).durable_offset == 3
    # When the node opens another, then that one works and the first is ended
    assert bulk(node, line, 3, b"def").durable_offset == 6
    with pytest.raises(grpc.RpcError) as ended:
        next(first)
    assert ended.value.code() is grpc.StatusCode.ABORTED  # pyright: ignore[reportAttributeAccessIssue]
    line.close()


@pytest.mark.spec("J4")
def test_a_bulk_stream_is_ended_in_whatever_moment_another_takes_its_place(
    running: tuple[WireNode, str], orchestrator: OrchestratorProcess
) -> None:
    node, _ = running
    # Given several who open bulk streams in one session, each breaking off whoever is at it
    ends: list[grpc.StatusCode] = []

    def insist() -> None:
        line = Line(orchestrator.listen)
        for _ in range(40):
            try:
                bulk(node, line, 0, b"abc")
            except grpc.RpcError as ended:
                ends.append(ended.code())  # pyright: ignore[reportAttributeAccessIssue]
            else:
                ends.append(grpc.StatusCode.OK)
        line.close()

    with ThreadPoolExecutor(6) as pool:
        for insisting in [pool.submit(insist) for _ in range(6)]:
            insisting.result()
    # Then every one of them was told of its end, also those in the middle of an acknowledgement: none waited in vain
    assert set(ends) == {grpc.StatusCode.OK, grpc.StatusCode.ABORTED}


@pytest.mark.spec("N6", "J14")
def test_making_a_token_again_under_one_key_gives_the_same_token_and_nothing_else(
    orchestrator: OrchestratorProcess, client: Client
) -> None:
    # Given a token made under a key, whose answer got lost
    first = client.tokens.create(uses=2, note="for the lab", key="one try")
    # When the call is repeated by several at once, then it is the same token, text and all
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(lambda _: client.tokens.create(uses=2, note="for the lab", key="one try"), range(4)))
    assert [_without_time(one) for one in again] == [_without_time(first)] * 4
    # And under that key nothing else can be made, and without one every call makes another
    with orchestrator.http() as http:
        other = http.post("/v1/tokens", json={"uses": 3}, headers={"Idempotency-Key": "one try"})
        assert (other.status_code, other.json()["code"]) == (409, "key_reused") and "hf1_" not in other.text
        assert http.post("/v1/tokens", json={}).json()["id"] != http.post("/v1/tokens", json={}).json()["id"]
    # And a repeated call brings no revoked token back to life
    client.tokens.revoke(first.id)
    assert _without_time(client.tokens.create(uses=2, note="for the lab", key="one try")) == _without_time(first)
    refusal = answer(orchestrator, WireNode(orchestrator.listen, first.token))
    assert isinstance(refusal, Refusal) and refusal.code == "token_revoked"


def _without_time(token: TokenView) -> TokenView:
    """Its lifetime goes on from call to call."""
    return msgspec.structs.replace(token, left_ms=0)


@pytest.mark.spec("H2")
def test_a_silent_handshake_is_ended(line: Line) -> None:
    # Given a stream on which nothing follows the challenge
    line.hear()
    # Then it is refused for good within seconds, without being asked
    said = convert.answer_from_frame(line.hear())
    assert isinstance(said, Refusal) and said.code == "too_slow"


@pytest.mark.spec("A11", "N6")
def test_strangers_who_say_nothing_keep_their_own_address_waiting_and_nobody_is_turned_away(
    orchestrator: OrchestratorProcess, client: Client
) -> None:
    # Given so many silent streams from one address that all of its places are taken
    silent = [Line(orchestrator.listen) for _ in range(HANDSHAKES_PER_ADDRESS_MAX)]
    try:
        for line in silent:
            line.hear()
        # When a node dials from there, then it waits in line, and is let in when the silent ones have had their time
        with WireNode(orchestrator.listen, client.tokens.create().token, name="patient") as node:
            node.wait_welcome()
            assert client.nodes.get("patient").connected
    finally:
        for line in silent:
            line.close()


@pytest.mark.spec("H2", "H4")
def test_a_broken_stream_makes_its_node_suspect_at_once(orchestrator: OrchestratorProcess, client: Client) -> None:
    with WireNode(orchestrator.listen, client.tokens.create().token, name="fragile") as node:
        node.wait_welcome()
    wait_for(lambda: client.nodes.get("fragile").state == "suspect", "the node to be suspected")
    view = client.nodes.get("fragile")
    assert not view.connected and "connection" in view.cause
    assert [e.kind for e in view.events][-1] == "node.suspect"


@pytest.mark.spec("N7")
def test_a_node_that_says_goodbye_is_gone_and_blamed_for_nothing(
    orchestrator: OrchestratorProcess, client: Client
) -> None:
    # Given a node that joined
    node = WireNode(orchestrator.listen, client.tokens.create().token, name="leaver")
    line = Line(orchestrator.listen)
    assert isinstance(node.introduce(line), Admitted)
    # When it says that it leaves, and that it is done
    line.say(pb.NodeFrame(leaving=pb.Leaving(grace_ms=1_000)))
    line.say(pb.NodeFrame(leaving=pb.Leaving(done=True)))
    heard_to_the_end(line)
    line.close()
    # Then it is gone, was never suspect, and the store still equals the memory
    wait_for(lambda: client.nodes.get("leaver").state == "gone", "the node to be gone")
    assert "node.suspect" not in [e.kind for e in client.nodes.get("leaver").events]
    assert [f.says for f in client.doctor().findings if not f.ok] == []


@pytest.mark.spec("H2")
def test_a_flood_of_reports_slows_only_its_sender(orchestrator: OrchestratorProcess, client: Client) -> None:
    token = client.tokens.create(uses=2).token
    flood = WireNode(orchestrator.listen, token, name="flood")
    flood.offered = Resources(cpu_milli=1, memory_mib=1, disk_mib=1)  # else it is the job that waits for its sender
    line = Line(orchestrator.listen)
    assert isinstance(flood.introduce(line), Admitted)
    # Given a node that says in one go what would take it an hour
    for number in range(1, 20_000):
        line.say(convert.node_to_frame(Report(number, False, ())))
    # When another node and a job come, then they are served at once
    with WireNode(orchestrator.listen, token, name="modest") as modest:
        modest.wait_welcome()
        assert client.jobs.run(ARGV, timeout_s=60).verdict == "succeeded"
    line.close()


# --- logs ---


@pytest.fixture
def running(orchestrator: OrchestratorProcess, client: Client) -> Iterator[tuple[WireNode, str]]:
    """A node that runs a job and holds it back, and the job's id. Nothing of its output was sent."""
    with WireNode(orchestrator.listen, client.tokens.create().token, output=lambda _: b"", hold_back=True) as node:
        node.wait_welcome()
        job = client.jobs.submit(ARGV).id
        wait_for(lambda: node.starts, "the job to start")
        yield node, job
        client.jobs.stop(job)


def bulk(node: WireNode, line: Line, offset: int, data: bytes, fence: int | None = None) -> convert.LogDurable:
    piece = piece_of(node, offset, data, fence)
    metadata = ((limits.BULK_KEY_METADATA, node.bulk_key),)
    return convert.ack_from_wire(list(line.stub.Bulk(iter([piece]), timeout=BULK_S, metadata=metadata))[-1])


def piece_of(node: WireNode, offset: int, data: bytes, fence: int | None = None) -> pb.LogChunk:
    start = node.starts[0]
    return convert.chunk_to_wire(
        convert.LogPiece(AttemptId(start.attempt), start.fence if fence is None else fence, "stdout", offset, data)
    )


@pytest.mark.spec("J4")
def test_logs_are_taken_in_order_and_repeated_pieces_are_ignored(
    running: tuple[WireNode, str], client: Client, line: Line
) -> None:
    node, job = running
    # Given some output
    assert bulk(node, line, 0, b"abcdef").durable_offset == 6
    # When pieces overlap, leave a gap, or ask how far it is
    assert bulk(node, line, 3, b"def").durable_offset == 6
    assert bulk(node, line, 4, b"efgh").durable_offset == 8
    assert bulk(node, line, 100, b"far away").durable_offset == 8
    assert bulk(node, line, 0, b"").durable_offset == 8
    # Then what is stored is whole
    text = "".join(line.text for line in client.jobs.logs(job) if line.stream == "stdout")
    assert text == "abcdefgh"


@pytest.mark.spec("J4", "N5")
def test_nobody_writes_into_the_log_of_another(
    running: tuple[WireNode, str], orchestrator: OrchestratorProcess, client: Client, line: Line
) -> None:
    node, job = running
    # Given another node with a session of its own
    with WireNode(orchestrator.listen, client.tokens.create().token, name="other") as other:
        other.wait_welcome()
        start = node.starts[0]
        # When it sends output for an attempt that is not its own, then it is refused
        refused = send_logs(line, other.bulk_key, start.attempt, start.fence, b"forged")
        assert "not held by this node" in refused.refused
    # And so is the right node with the wrong fence, and an unknown key
    assert bulk(node, line, 0, b"x", fence=start.fence + 1).refused
    with pytest.raises(grpc.RpcError) as unknown:
        send_logs(line, "no-such-key-anywhere", start.attempt, start.fence, b"forged")
    assert unknown.value.code() is grpc.StatusCode.UNAUTHENTICATED  # pyright: ignore[reportAttributeAccessIssue]
    assert not [line for line in client.jobs.logs(job) if line.stream == "stdout"]


@pytest.mark.spec("J5", "J7")
def test_a_result_that_is_not_what_arrived_is_refused(orchestrator: OrchestratorProcess, client: Client) -> None:
    # Given a node that declares another output than it delivers
    with WireNode(orchestrator.listen, client.tokens.create().token, output=lambda _: b"", hold_back=True) as liar:
        liar.wait_welcome()
        job = client.jobs.submit(ARGV, attempts_max=1).id
        wait_for(lambda: liar.starts, "the job to start")
        liar.deliver(liar.starts[0], b"what arrived")
        liar.declare(liar.starts[0], HeldPhase.FINISHED, Result(sha256(b"declared....").hexdigest(), 12))
        # Then nothing is accepted, and the failure has a name and a blame
        view = client.jobs.wait(job, timeout_s=60, check=False)
        assert view.verdict == "failed" and view.failure is not None
        assert (view.failure.code, view.failure.blame, view.failure.billable) == ("invalid_result", "provider", False)


@pytest.mark.spec("J7")
def test_a_lease_is_renewed_while_its_node_asks(orchestrator: OrchestratorProcess, client: Client) -> None:
    # Given a job that must not run twice
    with WireNode(orchestrator.listen, client.tokens.create().token, hold_back=True) as node:
        node.wait_welcome()
        job = client.jobs.submit(ARGV, recovery="never").id
        # When it runs, then the renewals it asks for are answered
        wait_for(lambda: node.renewed, "a lease to be renewed")
        node.let_go()
        assert client.jobs.wait(job, timeout_s=60).verdict == "succeeded"
