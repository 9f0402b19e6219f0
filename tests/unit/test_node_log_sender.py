"""The courier: logs arrive in order and whole, whatever the streams do."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.model import AttemptId
from holdfast.node import log_sender
from holdfast.node.log_sender import Courier, SilentOrchestrator
from holdfast.wire.convert import LogDurable, LogPiece
from holdfast.wire.limits import LOG_DATA_BYTES_MAX

ATT = AttemptId("att_aaaaaaaaaaaaaa.1")


class Shelf:
    """The orchestrator's side: keeps what comes in its place; a test may make it forgetful or mute."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self.pieces: list[LogPiece] = []
        self.refuse = ""
        self.mute = False
        self._acks: asyncio.Queue[LogDurable | None] = asyncio.Queue()
        self.lose: Callable[[LogPiece], bool] = lambda piece: False

    async def send(self, piece: LogPiece) -> None:
        self.pieces.append(piece)
        kept = self.kept[piece.stream]
        if piece.offset <= len(kept) and not self.lose(piece):
            self.kept[piece.stream] = kept[: piece.offset] + piece.data if piece.data else kept
        if not self.mute:
            self._acks.put_nowait(LogDurable(piece.attempt, piece.stream, len(self.kept[piece.stream]), self.refuse))

    async def acks(self) -> AsyncIterator[LogDurable]:
        while (ack := await self._acks.get()) is not None:
            yield ack

    def cut(self) -> None:
        self._acks.put_nowait(None)


class Desk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done = asyncio.Event()
        self.courier = Courier(lambda attempt: self.done.set())
        self.courier.follow(ATT, 7, folder, fresh=True)

    def write(self, text: bytes, final: bool = False) -> None:
        path = self.folder / "stdout.log"
        path.write_bytes((path.read_bytes() if path.exists() else b"") + text)
        self.courier.grew(ATT, {"stdout": path.stat().st_size, "stderr": 0}, final)

    async def deliver(self, shelf: Shelf) -> None:
        carrying = asyncio.ensure_future(self.courier.carry(shelf.send, shelf.acks()))
        async with asyncio.timeout(10):
            await self.done.wait()
        carrying.cancel()


@pytest.mark.spec("J4")
def test_a_log_of_many_pieces_arrives_whole_and_in_pieces_of_bounded_size(tmp_path: Path) -> None:
    async def story() -> None:
        desk, shelf = Desk(tmp_path), Shelf()
        text = bytes(range(256)) * 4_000
        desk.write(text, final=True)
        await desk.deliver(shelf)
        assert shelf.kept["stdout"] == text
        assert max(len(piece.data) for piece in shelf.pieces) == LOG_DATA_BYTES_MAX

    asyncio.run(story())


@pytest.mark.spec("J4")
def test_an_empty_log_needs_no_word_at_all(tmp_path: Path) -> None:
    async def story() -> None:
        desk = Desk(tmp_path)
        desk.write(b"", final=True)
        assert desk.done.is_set()

    asyncio.run(story())


@pytest.mark.spec("J4")
def test_a_new_session_goes_on_where_the_log_is_durable(tmp_path: Path) -> None:
    async def story() -> None:
        desk, first = Desk(tmp_path), Shelf()
        desk.write(b"one ")
        carrying = asyncio.ensure_future(desk.courier.carry(first.send, first.acks()))
        async with asyncio.timeout(10):
            await desk.courier.until_delivered(ATT)
        first.cut()
        await carrying
        desk.write(b"two", final=True)
        second = Shelf()
        second.kept["stdout"] = b"one "
        await desk.deliver(second)
        assert second.kept["stdout"] == b"one two"
        assert [(piece.offset, piece.data) for piece in second.pieces] == [(0, b""), (4, b"two")]

    asyncio.run(story())


@pytest.mark.spec("J4")
def test_a_piece_that_did_not_become_durable_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(log_sender, "AGAIN_S", 0.01)
        desk, shelf = Desk(tmp_path), Shelf()
        losses = iter([True])
        shelf.lose = lambda piece: bool(piece.data) and next(losses, False)
        desk.write(b"word", final=True)
        await desk.deliver(shelf)
        assert shelf.kept["stdout"] == b"word"

    asyncio.run(story())


@pytest.mark.spec("J4")
def test_logs_that_are_not_wanted_are_not_sent(tmp_path: Path) -> None:
    async def story() -> None:
        desk, shelf = Desk(tmp_path), Shelf()
        shelf.refuse = "the attempt was revoked"
        desk.write(b"word", final=True)
        await desk.deliver(shelf)
        assert all(piece.data == b"" for piece in shelf.pieces)

    asyncio.run(story())


@pytest.mark.spec("H2")
def test_an_orchestrator_that_acknowledges_nothing_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr(log_sender, "SILENT_S_MAX", 0.1)
        desk, shelf = Desk(tmp_path), Shelf()
        shelf.mute = True
        desk.write(b"word")
        with pytest.raises(SilentOrchestrator):
            async with asyncio.timeout(10):
                await desk.courier.carry(shelf.send, shelf.acks())

    asyncio.run(story())


# --- reads that fail ---

PASSING = [errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EIO, errno.ENOMEM, errno.EAGAIN]


@pytest.mark.spec("J4")
@pytest.mark.parametrize("at", ["open", "seek", "read"])
@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("number", PASSING, ids=errno.errorcode.get)
def test_a_read_that_fails_is_not_the_end_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, times: int, at: str
) -> None:
    """Given a log that is final, when it cannot be read once or for a while, then it arrives whole, and the error was
    named once."""
    opened, failures = Path.open, 0

    def fail(*_: object) -> None:
        nonlocal failures
        failures += 1
        if failures <= times:
            raise OSError(number, os.strerror(number))

    def failing(path: Path, *how: str) -> object:
        if at == "open":
            fail()
        file = opened(path, *how)
        return file if at == "open" else Reading(file, at)

    class Reading:
        def __init__(self, file: Any, at: str) -> None:
            self.file, self.at = file, at

        def __enter__(self) -> "Reading":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            if name == self.at:
                fail()
            return getattr(self.file, name)

    async def story() -> None:
        desk, shelf = Desk(tmp_path), Shelf()
        desk.write(b"hello world", final=True)
        with monkeypatch.context() as broken:
            broken.setattr(log_sender, "AGAIN_S", 0.001)
            broken.setattr(Path, "open", failing)
            await desk.deliver(shelf)
        assert shelf.kept["stdout"] == b"hello world" and failures > times

    asyncio.run(story())
    assert [os.strerror(number) in line for line in caplog.messages] == [True]


@pytest.mark.spec("J4")
def test_a_read_is_tried_again_at_growing_and_bounded_intervals(tmp_path: Path) -> None:
    waits: list[float] = []

    async def story() -> None:
        courier = Desk(tmp_path).courier
        tail = courier._tails[ATT, "stdout"]
        loop = asyncio.get_running_loop()
        loop.call_later = lambda wait_s, *_: waits.append(wait_s)  # pyright: ignore
        for _ in range(2_000):
            courier._read_later((ATT, "stdout"), tail, OSError(errno.EMFILE, "too many"))
        assert tail.read_failures == 2_000

    asyncio.run(story())
    assert waits[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0] and set(waits[6:]) == {8.0}


@pytest.mark.spec("J4")
def test_after_a_read_that_went_well_the_count_of_failures_starts_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        desk = Desk(tmp_path)
        desk.write(b"hello")
        tail = desk.courier._tails[ATT, "stdout"]
        desk.courier._read_later((ATT, "stdout"), tail, OSError(errno.EMFILE, "too many"))
        assert desk.courier._next_piece((ATT, "stdout")) == LogPiece(ATT, 7, "stdout", 0, b"hello")
        assert tail.read_failures == 0

    asyncio.run(story())


@pytest.mark.spec("J4")
def test_a_log_that_is_gone_or_ends_early_is_delivered_as_far_as_it_goes(tmp_path: Path) -> None:
    async def story(shorter: bool) -> None:
        folder = tmp_path / str(shorter)
        folder.mkdir()
        desk, shelf = Desk(folder), Shelf()
        desk.write(b"hello world", final=True)
        if shorter:
            (folder / "stdout.log").write_bytes(b"hello")
        else:
            (folder / "stdout.log").unlink()
        await desk.deliver(shelf)
        assert shelf.kept["stdout"] == (b"hello" if shorter else b"")

    for shorter in (True, False):
        asyncio.run(story(shorter))


@pytest.mark.spec("J4")
def test_nothing_is_sent_of_an_attempt_that_was_forgotten_meanwhile(tmp_path: Path) -> None:
    async def story() -> None:
        desk = Desk(tmp_path)
        desk.write(b"hello")
        desk.courier.forget(ATT)
        assert desk.courier._next_piece((ATT, "stdout")) is None

    asyncio.run(story())
