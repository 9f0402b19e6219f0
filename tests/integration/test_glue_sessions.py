"""Sessions on a real wire with small limits: full queues, too much talk, logs of attempts that are not the node's."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from glue_house import HandNode, House, story
from wire_node import Line, WireNode, send_logs

from holdfast.kernel.decision import ToSession
from holdfast.kernel.events import NodeBroke, NodeSaid
from holdfast.model import AttemptId
from holdfast.model.messages import Discard, Leaving, Ping, Pong, Refusal, Report
from holdfast.orchestrator.nodes import link_service, log_receiver, sessions
from holdfast.orchestrator.nodes.probing import FIRST_NONCE
from holdfast.wire import convert, limits
from holdfast.wire.convert import Admitted, LogPiece

WAIT_S = 20.0


class Told:
    """Every event that the leader is told, in order."""

    def __init__(self, house: House) -> None:
        self.events: list[Any] = []
        tell = house.leader.tell

        def noting(event: Any) -> None:
            self.events.append(event)
            tell(event)

        house.leader.tell = noting

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def dialled(house: House, node: WireNode | None = None) -> AsyncIterator[tuple[Line, Admitted]]:
    """A session on a real connection, of which nothing is read or said but by the test."""
    line = Line(house.listen)
    try:
        answer = await asyncio.to_thread((node or WireNode(house.listen)).introduce, line)
        assert isinstance(answer, Admitted), answer
        yield line, answer
    finally:
        line.close()


def the_session(house: House) -> sessions.Session:
    (session,) = house.sessions._sessions.values()
    return session


# --- what a node is told ---


@pytest.mark.spec("A12", "H2")
def test_a_node_that_takes_nothing_is_hung_up_on_and_that_is_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a node that stopped reading, when more is to be said to it than may wait, then its session ends, and the
    kernel is told: it must not wait for an answer to what was thrown away."""
    monkeypatch.setattr(sessions, "OUTGOING_MAX", 4)

    async def tells(house: House) -> None:
        async with dialled(house):
            told, session = Told(house), the_session(house)
            gate = asyncio.Event()

            async def stuck(*_: Any) -> None:
                await gate.wait()

            monkeypatch.setattr(link_service, "_written", stuck)
            for nonce in range(6):
                house.sessions.tell(ToSession(session.number, session.node, Ping(1, nonce)))
            await house.until(session.closed.is_set, "the end of the session")
            assert not session.by_us
            await house.until(lambda: told.of(NodeBroke), "word of its end")
            assert "does not take" in told.of(NodeBroke)[0].why
            gate.set()

    story(tmp_path, tells, wire=True)


@pytest.mark.spec("H2", "N7")
def test_a_session_that_breaks_is_news_and_one_that_says_goodbye_is_not(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        told = Told(house)
        async with dialled(house):
            pass
        await house.until(lambda: told.of(NodeBroke), "word of the break")
        told.events.clear()
        async with dialled(house, WireNode(house.listen)) as (line, _):
            line.say(convert.node_to_frame(Leaving(0, done=True)))
            await house.until(lambda: len(house.sessions) == 0, "the end of the session")
        await house.leader.at_quiet_moment(lambda kernel: None)
        assert not told.of(NodeBroke) and any(isinstance(e.message, Leaving) for e in told.of(NodeSaid))

    story(tmp_path, tells, wire=True)


@pytest.mark.spec("H2")
def test_an_answer_to_a_question_of_ours_is_no_sign_of_life_for_the_kernel(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        async with dialled(house) as (line, _):
            told = Told(house)
            line.say(convert.node_to_frame(Pong(FIRST_NONCE + 1)))
            line.say(convert.node_to_frame(Pong(7)))
            await house.until(lambda: told.of(NodeSaid), "the second answer")
            assert [event.message.nonce for event in told.of(NodeSaid)] == [7]

    story(tmp_path, tells, wire=True)


# --- bounds ---


@pytest.mark.spec("A12")
def test_no_more_sessions_stand_than_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_service, "SESSIONS_MAX", 1)

    async def tells(house: House) -> None:
        async with dialled(house):
            line = Line(house.listen)
            answer = await asyncio.to_thread(WireNode(house.listen).introduce, line)
            line.close()
            assert isinstance(answer, Refusal) and (answer.code, answer.final) == ("busy", False)
            assert len(house.sessions) == 1

    story(tmp_path, tells, wire=True)


@pytest.mark.spec("A12")
def test_handshakes_stand_in_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given as many strangers as may be heard at once, who say nothing, then the next one waits, and the leader knows
    that somebody does: deadlines of nodes that wait at its door must not run out."""
    monkeypatch.setattr(link_service, "HELLO_S_MAX", 60.0)
    monkeypatch.setattr(link_service, "HANDSHAKES_MAX", 1)
    monkeypatch.setattr(link_service, "HANDSHAKES_PER_ADDRESS_MAX", 1)
    monkeypatch.setattr(link_service, "WAITING_PER_ADDRESS_MAX", 1)

    async def tells(house: House) -> None:
        assert not house.leader.crowded()
        first = Line(house.listen)
        await asyncio.to_thread(first.hear)
        second = Line(house.listen)
        await house.until(house.leader.crowded, "the second to wait")
        third = Line(house.listen)
        refused = convert.challenge_from_frame(await asyncio.to_thread(third.hear))
        assert isinstance(refused, Refusal) and refused.code == "busy"
        for line in (first, second, third):
            line.close()
        await house.until(lambda: not house.leader.crowded(), "the line to be empty")

    story(tmp_path, tells, wire=True)


@pytest.mark.spec("A12")
def test_a_node_that_talks_too_much_is_read_more_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_service, "FRAMES_PER_SECOND_MAX", 5)

    async def tells(house: House) -> None:
        async with dialled(house) as (line, _):
            told = Told(house)
            for number in range(30):
                line.say(convert.node_to_frame(Pong(number)))
            loop_time = asyncio.get_running_loop().time
            begun = loop_time()
            await house.until(lambda: len(told.of(NodeSaid)) >= 7, "the second's worth after the first")
            assert loop_time() - begun > 0.5 and len(told.of(NodeSaid)) < 30

    story(tmp_path, tells, wire=True)


@pytest.mark.spec("A12")
def test_a_node_is_not_heard_while_too_much_waits_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tells(house: House) -> None:
        async with dialled(house) as (line, _):
            told = Told(house)
            monkeypatch.setattr(house.leader.core, "events_max", 0)
            house.leader._roomy.clear()
            line.say(convert.node_to_frame(Pong(1)))
            waits = asyncio.create_task(house.leader.room())
            await asyncio.wait({waits}, timeout=0.3)
            assert not waits.done() and not told.of(NodeSaid)
            # When the store has written, then both go on
            monkeypatch.setattr(house.leader.core, "events_max", 1_000)
            await house.people.post("/v1/tokens", json={"ttl_ms": 60_000})
            await asyncio.wait_for(waits, WAIT_S)
            await house.until(lambda: told.of(NodeSaid), "what it said")

    story(tmp_path, tells, wire=True)


# --- logs ---


async def delivered(line: Line, key: str, attempt: str, fence: int, data: bytes = b"x") -> Any:
    return await asyncio.to_thread(send_logs, line, key, attempt, fence, data)


@pytest.mark.spec("J4", "J5")
def test_logs_are_taken_from_the_node_that_holds_the_attempt_under_its_fence(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        ours = WireNode(house.listen, name="ant", hold_back=True)
        async with dialled(house, ours) as (line, admitted):
            session = the_session(house)
            job = await house.submit("say")
            line.say(convert.node_to_frame(Report(1, True, ())))
            frame = convert.orchestrator_from_frame(await asyncio.to_thread(line.hear))
            start: Any = frame
            assert start.job == job
            async with dialled(house) as (other, stranger):
                key = admitted.bulk_key
                assert (await delivered(line, key, start.attempt, start.fence)).durable_offset == 1
                # another fence, also after the right one was seen; another node; no session at all
                assert (await delivered(line, key, start.attempt, start.fence + 1)).refused
                session.holds.clear()
                assert (await delivered(line, key, start.attempt, start.fence + 1)).refused
                assert (await delivered(other, stranger.bulk_key, start.attempt, start.fence)).refused
                with pytest.raises(grpc.RpcError) as nobody:
                    await delivered(line, "guessed", start.attempt, start.fence)
                assert nobody.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert house.logs.size(start.attempt, "stdout") == 1
                # and a session that was never welcome has no logs to deliver
                session.welcome = False
                with pytest.raises(grpc.RpcError):
                    await delivered(line, key, start.attempt, start.fence)

    story(tmp_path, tells, wire=True)


@pytest.mark.spec("J4", "J5")
def test_what_was_discarded_delivers_no_more_logs(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        start = await node.started(await house.submit("say"))
        assert node.session.holds == {start.attempt: start.fence}
        piece = LogPiece(start.attempt, start.fence, "stdout", 0, b"x")
        await house.people.post(f"/v1/jobs/{start.job}/stop")
        await house.until(lambda: any(isinstance(m, Discard) for m in node.listen()), "its discard")
        assert start.attempt not in node.session.holds
        # and once the node has let go of it, the store says that it has ended
        node.held.clear()
        node.report()
        await house.until(lambda: not node.row(start).live, "its end")
        assert "has ended" in log_receiver.why_unwanted(house.store, node.session, piece)

    story(tmp_path, tells, wire=True)


@pytest.mark.spec("A12")
def test_the_key_of_a_session_dies_with_it(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        async with dialled(house) as (_, admitted):
            assert house.sessions.of_bulk_key(admitted.bulk_key) is not None
        await house.until(lambda: len(house.sessions) == 0, "the end of the session")
        assert house.sessions.of_bulk_key(admitted.bulk_key) is None

    story(tmp_path, tells, wire=True)


@pytest.mark.spec("A12")
def test_a_node_that_delivers_what_is_not_its_own_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_service, "UNWANTED_MAX", 3)

    def pieces(count: int) -> Iterator[Any]:
        for _ in range(count):
            yield convert.chunk_to_wire(LogPiece(AttemptId("att_00000000000000.1"), 1, "stdout", 0, b"x"))

    async def tells(house: House) -> None:
        async with dialled(house) as (line, admitted):

            def deliver(count: int) -> list[Any]:
                metadata = ((limits.BULK_KEY_METADATA, admitted.bulk_key),)
                return list(line.stub.Bulk(pieces(count), timeout=WAIT_S, metadata=metadata))

            assert len(await asyncio.to_thread(deliver, 3)) == 3
            with pytest.raises(grpc.RpcError) as cut:
                await asyncio.to_thread(deliver, 4)
            assert cut.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    story(tmp_path, tells, wire=True)


@pytest.mark.spec("A12", "J4")
def test_a_slow_disk_makes_senders_wait_instead_of_filling_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not yet written stays with the node."""
    monkeypatch.setattr(link_service, "PIECES_IN_FLIGHT_MAX", 2)

    async def tells(house: House) -> None:
        put, asked = house.intake.put, 0

        async def counting(piece: LogPiece) -> Any:
            nonlocal asked
            asked += 1
            return await put(piece)

        house.intake.put = counting
        node = WireNode(house.listen, name="ant", hold_back=True)
        async with dialled(house, node) as (line, admitted):
            house._running[1].cancel()  # nothing reaches the disk
            session = the_session(house)
            session.holds["att_00000000000000.1"] = 1

            def deliver() -> None:
                metadata = ((limits.BULK_KEY_METADATA, admitted.bulk_key),)
                pieces = [LogPiece(AttemptId("att_00000000000000.1"), 1, "stdout", n, b"x") for n in range(12)]
                frames = iter([convert.chunk_to_wire(piece) for piece in pieces])
                with pytest.raises(grpc.RpcError):
                    list(line.stub.Bulk(frames, timeout=2.0, metadata=metadata))

            delivering = asyncio.create_task(asyncio.to_thread(deliver))
            await house.until(lambda: asked >= 3, "some pieces")
            await delivering
            # Two are in flight, one is waited for, one waits to be: whatever the node sends on stays in its stream
            assert asked <= 4

    story(tmp_path, tells, wire=True)


@pytest.mark.spec("A12", "J4")
def test_all_streams_together_fill_no_more_than_what_may_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_receiver, "PIECES_WAITING_MAX", 3)

    async def tells(house: House) -> None:
        house._running[1].cancel()  # nothing reaches the disk
        pieces = [LogPiece(AttemptId("att_00000000000000.1"), 1, "stdout", n, b"x") for n in range(5)]
        putting = [asyncio.create_task(house.intake.put(piece)) for piece in pieces]
        await asyncio.wait(putting, timeout=0.2)
        assert [task.done() for task in putting] == [True] * 3 + [False] * 2
        # When the disk goes on, then so do they
        house._running[1] = asyncio.create_task(house.intake.run())
        durable = [await asyncio.wait_for(await asyncio.wait_for(task, WAIT_S), WAIT_S) for task in putting]
        assert [one.durable_offset for one in durable] == [1, 2, 3, 4, 5]

    story(tmp_path, tells)


@pytest.mark.spec("J4", "J14")
def test_a_disk_that_takes_no_logs_ends_the_stream_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        async with dialled(house) as (line, admitted):
            the_session(house).holds["att_00000000000000.1"] = 1
            append = house.logs.append

            def full(pieces: Any) -> Any:
                house.logs.append = append
                raise OSError(28, "No space left on device")

            house.logs.append = full
            with pytest.raises(grpc.RpcError) as away:
                await delivered(line, admitted.bulk_key, "att_00000000000000.1", 1)
            assert away.value.code() is grpc.StatusCode.UNAVAILABLE
            # and it is the stream that ended, not the intake
            ack = await delivered(line, admitted.bulk_key, "att_00000000000000.1", 1)
            assert ack.durable_offset == 1

    story(tmp_path, tells, wire=True)
