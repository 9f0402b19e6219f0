"""One attempt on a node and its captures, between the core and the machine: driven by hand."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from glue_steps import ATTEMPT, WAIT_S, an_order, soon, told, until

from holdfast.blobs import Scan
from holdfast.model import Failure, FailureCode
from holdfast.node.attempt import attempt_folders, attempt_runner, result_uploader
from holdfast.node.attempt.attempt_runner import AttemptRunner, Services
from holdfast.node.attempt.result_uploader import ResultUploader, Undelivered
from holdfast.node.attempt.transfer import TransferredFolder
from holdfast.node.core.attempt_lifecycle import BodyOutcome, EndKind, Phase
from holdfast.node.core.events import AttemptInputs, Delivered, ShimDied, ShimStatus, SpawnFailed, Undeliverable
from holdfast.node.core.order import Order
from holdfast.node.launcher import LauncherError
from holdfast.node.log_sender import Courier
from holdfast.node.node_files_client import AttemptAccess, NodeFilesRefused

# --- one attempt ---


class Shim:
    """Stands in for the watch over a shim: the test says what it says."""

    def __init__(self, attempt: str, folder: Path, said: Any, died: Any) -> None:
        self.said, self.died = said, died
        self.told: list[dict[str, Any]] = []

    async def run(self, fresh: bool) -> None:
        pass

    def tell(self, message: dict[str, Any]) -> None:
        self.told.append(message)


class FakeKeeper:
    """Keeps what it is asked to keep, one by one, and can be held up."""

    def __init__(self, *_: Any) -> None:
        self.calls: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.wrong: Undelivered | None = None

    async def deliver(self, told: Any) -> Any:
        self.calls.append("deliver")
        await self.gate.wait()
        if self.wrong is not None:
            raise self.wrong
        return attempt_runner.DeliveredFiles()

    async def capture(self) -> bool:
        self.calls.append("capture")
        await self.gate.wait()
        return True

    async def capture_every(self, period_ms: int) -> None:
        while True:
            self.calls.append("every")
            await asyncio.sleep(period_ms / 1000)


class Room:
    """A tenant whose surroundings are the test's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_ms: int = 0) -> None:
        monkeypatch.setattr(attempt_runner, "ShimClient", Shim)
        monkeypatch.setattr(attempt_runner, "ResultUploader", FakeKeeper)
        self.fed: list[Any] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.ready = asyncio.Event()
        self.ready.set()
        self.spawned: list[str] = []
        self.spawn_fails: LauncherError | None = None
        self.courier = Courier(lambda attempt: self.runner.logs_delivered())
        services = Services(
            launcher=SimpleNamespace(spawn=self._spawn),  # type: ignore[arg-type]
            courier=self.courier,
            carrier=None,  # type: ignore[arg-type]
            door=None,  # type: ignore[arg-type]
            preparer=SimpleNamespace(prepare=self._prepare),  # type: ignore[arg-type]
            feed=self.fed.append,
            begin=self._begin,
        )
        self.folder = folder / ATTEMPT
        self.runner = AttemptRunner(an_order(), AttemptInputs(checkpoint_ms=checkpoint_ms), self.folder, services)
        self.keeper: FakeKeeper = self.runner._uploader  # type: ignore[assignment]

    @property
    def shim(self) -> Shim:
        assert self.runner._watch is not None
        return self.runner._watch  # type: ignore[return-value]

    def _begin(self, name: str, chore: Any) -> "asyncio.Task[None]":
        task = asyncio.create_task(chore, name=name)
        self.tasks.append(task)
        return task

    async def _prepare(self, folder: Path, order: Order, attempt_inputs: AttemptInputs, progressed: Any) -> Order:
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            if not self.stubborn:
                raise
        return order

    stubborn = False

    async def _spawn(self, home: str) -> int:
        self.spawned.append(home)
        if self.spawn_fails is not None:
            raise self.spawn_fails
        return 1

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.fed if isinstance(event, kind)]


def ended(printed: int = 0, code: int = 0) -> ShimStatus:
    return ShimStatus(Phase.ENDED, BodyOutcome(EndKind.EXIT, code), printed, 0, "", True)


RUNNING = ShimStatus(Phase.RUNNING, None, 0, 0, "", True)


@pytest.mark.spec("J4", "J5")
@pytest.mark.parametrize("wrong", [None, Failure(FailureCode.DATA, "not taken")], ids=["delivered", "undeliverable"])
def test_an_attempt_is_told_as_finished_only_once_its_logs_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Failure | None
) -> None:
    async def story() -> None:
        room = Room(tmp_path, monkeypatch)
        room.keeper.wrong = Undelivered(wrong) if wrong else None
        await room.runner.begin()
        (room.folder / "stdout.log").write_bytes(b"hello")
        room.shim.said(ended(printed=5))
        await until(lambda: "deliver" in room.keeper.calls, "its files")
        await soon()
        assert not room.of(Delivered) and not room.of(Undeliverable)
        room.runner.logs_delivered()
        await until(lambda: room.of(Undeliverable if wrong else Delivered), "its end")

    told(story)


@pytest.mark.spec("J5")
def test_a_shim_that_was_started_although_no_answer_came_is_stood_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the attempt would be told as failed, and run here and elsewhere."""

    async def story() -> None:
        room = Room(tmp_path, monkeypatch)
        room.spawn_fails = LauncherError("no answer")
        claim = attempt_folders.claim
        monkeypatch.setattr(
            attempt_folders, "claim", lambda folder: (claim(folder), claim(folder))[1]
        )  # somebody was first
        await room.runner.begin()
        assert room.runner._watch is not None and not room.of(SpawnFailed)

    told(story)


@pytest.mark.spec("J5")
def test_a_shim_that_was_not_started_cannot_start_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        room = Room(tmp_path, monkeypatch)
        room.spawn_fails = LauncherError("no answer", "EAGAIN")
        await room.runner.begin()
        assert room.of(SpawnFailed) and room.runner._watch is None
        assert attempt_folders.is_claimed(room.folder)

    told(story)


@pytest.mark.spec("J5", "J10")
def test_the_end_of_an_attempt_is_settled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shim says its last word as often as somebody listens."""

    async def story() -> None:
        room = Room(tmp_path, monkeypatch)
        await room.runner.begin()
        room.shim.said(ended())
        await until(lambda: room.keeper.calls, "its files")
        room.shim.said(ended())
        await soon()
        room.runner.logs_delivered()
        await until(lambda: room.of(Delivered), "its end")
        await soon()
        assert room.keeper.calls == ["deliver"] and len(room.of(Delivered)) == 1

    told(story)


@pytest.mark.spec("J6")
def test_nothing_is_captured_once_the_body_has_ended_or_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is captured while files are delivered would be sent beside them; and a dead body's folder says nothing."""

    async def story() -> None:
        for last in ("ended", "died"):
            room = Room(tmp_path / last, monkeypatch, checkpoint_ms=1)
            (tmp_path / last).mkdir()
            await room.runner.begin()
            room.shim.said(RUNNING)
            await until(lambda room=room: room.keeper.calls.count("every") > 1, "captures")
            room.keeper.gate.clear()
            room.runner.capture()
            await until(lambda room=room: "capture" in room.keeper.calls, "one that was asked for")
            if last == "ended":
                room.shim.said(ended())
            else:
                room.shim.died("it is gone")
                assert room.of(ShimDied)
            await soon()
            before = list(room.keeper.calls)
            if last == "ended":
                room.runner.capture()
            working = [task for task in room.tasks if not task.done()]
            assert len(working) == (1 if last == "ended" else 0), "only the delivery goes on"
            assert room.keeper.calls == before
            await room.runner.end(patient=False)
            await soon()
            assert all(task.done() for task in room.tasks)

    told(story)


@pytest.mark.spec("J5", "J7")
@pytest.mark.parametrize("stubborn", [False, True], ids=["cancelled", "just ready"])
def test_what_is_stopped_while_it_is_prepared_never_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    async def story() -> None:
        room = Room(tmp_path, monkeypatch)
        room.ready.clear()
        room.stubborn = stubborn
        beginning = asyncio.create_task(room.runner.begin())
        await until(lambda: room.runner._preparing is not None, "its preparation")
        await soon()
        room.runner.tell("lease", 5, "")
        room.runner.tell("stop", 0, "drained")
        await asyncio.wait({beginning}, timeout=WAIT_S)
        assert beginning.done(), "it is prepared on"
        (failed,) = room.of(SpawnFailed)
        assert (failed.failure.code, failed.failure.detail) == (FailureCode.DRAINED, "drained")
        assert room.spawned == [] and not (room.folder / "order.json").exists()

    told(story)


@pytest.mark.spec("J4")
def test_the_logs_of_a_dead_shim_are_delivered_but_are_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        room = Room(tmp_path, monkeypatch)
        await room.runner.begin()
        (room.folder / "stdout.log").write_bytes(b"hello")
        room.shim.died("it is gone")
        assert not room.courier.is_delivered(ATTEMPT) and ATTEMPT not in room.courier._final
        # and of what is removed nothing is carried any more
        await room.runner.end(patient=False)
        assert room.courier.is_delivered(ATTEMPT) and not room.courier._tails

    told(story)


# --- captures ---


class Network:
    """Takes what is sent and what is saved, in the order in which it comes."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.saved: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusal = ""
        self.during: Callable[[], None] = lambda: None

    async def send(
        self, at: AttemptAccess, folder: Path, scanned: Scan, stash: Any = None, told: Any = None
    ) -> TransferredFolder:
        self.sent.append(scanned.manifest.name)
        self.during()
        await self.gate.wait()
        return TransferredFolder(scanned.manifest.name, 1, scanned.manifest.total_bytes, 0)

    async def save(self, at: AttemptAccess, manifest: str) -> None:
        if self.refusal:
            raise NodeFilesRefused("no", code=self.refusal)
        self.saved.append(manifest)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "checkpoint").mkdir()
    path = tmp_path / "checkpoint" / "state"
    path.write_text("1")
    return path


def keeper_of(tmp_path: Path, network: Network, disk_mib: int = 64) -> ResultUploader:
    return ResultUploader(AttemptAccess(ATTEMPT, 7), tmp_path, disk_mib, network, network)  # type: ignore[arg-type]


@pytest.mark.spec("J6", "J5")
def test_captures_of_one_attempt_are_saved_in_the_order_of_their_moments(tmp_path: Path, state: Path) -> None:
    """Given a capture that takes its time, when another one is asked for, then it waits: else the older state could be
    saved last, and the job would go back to it."""

    async def story() -> None:
        network = Network()
        keeper = keeper_of(tmp_path, network)
        network.gate.clear()
        first = asyncio.create_task(keeper.capture())
        await until(lambda: network.sent, "the first to be sent")
        state.write_text("2")
        second = asyncio.create_task(keeper.capture())
        await asyncio.wait({second}, timeout=1.0)
        assert len(network.sent) == 1, "two captures at once"
        network.gate.set()
        assert await first and await second
        assert network.saved == network.sent and len(set(network.saved)) == 2
        # as it was: nothing is sent; empty: nothing either
        assert await keeper.capture() and len(network.sent) == 2
        state.unlink()
        assert await keeper.capture() and len(network.sent) == 2

    told(story)


@pytest.mark.spec("J6", "J5")
@pytest.mark.parametrize(
    ("code", "goes_on"), [("revoked", False), ("not_found", False), ("not_live", False), ("incomplete", True)]
)
def test_captures_end_when_nothing_that_is_saved_can_count(
    tmp_path: Path, state: Path, code: str, goes_on: bool
) -> None:
    async def story() -> None:
        network = Network()
        network.refusal = code
        assert await keeper_of(tmp_path, network).capture() is goes_on
        if not goes_on:
            every = asyncio.create_task(keeper_of(tmp_path, network).capture_every(1))
            await asyncio.wait_for(every, WAIT_S)

    told(story)


@pytest.mark.spec("J6")
def test_a_file_that_is_open_for_writing_is_not_captured(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_uploader, "UNSTEADY_S", 0.01)

    async def story() -> None:
        network = Network()
        keeper = keeper_of(tmp_path, network)
        with state.open("r+") as writing:
            assert await keeper.capture() and network.sent == []
            writing.write("half")
        assert await keeper.capture() and len(network.saved) == 1
        # also if somebody writes only after it was read, or only before, for longer than is waited
        look, scan, read = result_uploader._open_for_writing, result_uploader.scan, [False]

        def reading(*words: Any, **options: Any) -> Scan:
            read[0] = True
            return scan(*words, **options)

        monkeypatch.setattr(result_uploader, "scan", reading)
        state.write_text("three")
        for written_after in (True, False):
            read[0] = False
            busy = {written_after: "state"}
            monkeypatch.setattr(result_uploader, "_open_for_writing", lambda folder, busy=busy: busy.get(read[0], ""))
            assert await keeper.capture() and len(network.saved) == 1
        monkeypatch.setattr(result_uploader, "_open_for_writing", look)
        # names that say of themselves that they are not whole are left out
        (state.parent / "next.tmp").write_text("half")
        assert await keeper.capture()
        before = network.saved[-1]
        (state.parent / "next.tmp").unlink()
        assert await keeper.capture() and network.saved[-1] == before

    told(story)


@pytest.mark.spec("J6", "J10")
def test_what_is_kept_is_bounded_by_the_disk_that_the_job_asked_for(tmp_path: Path, state: Path) -> None:
    async def story() -> None:
        network = Network()
        keeper = keeper_of(tmp_path, network, disk_mib=1)
        state.write_bytes(os.urandom((1 << 20) + 1))
        assert await keeper.capture() and network.sent == []
        (tmp_path / "work" / "inputs").mkdir(parents=True)
        (tmp_path / "work" / "made").write_bytes(os.urandom((1 << 20) + 1))
        with pytest.raises(Undelivered):
            await keeper.deliver(lambda progress: None)
        # inputs came from elsewhere: they neither count nor come back
        (tmp_path / "work" / "made").unlink()
        (tmp_path / "work" / "inputs" / "in").write_bytes(os.urandom((1 << 20) + 1))
        files = await keeper.deliver(lambda progress: None)
        assert files == attempt_runner.DeliveredFiles() and network.sent == []

    told(story)


@pytest.mark.spec("J6")
def test_a_folder_that_changes_while_it_is_read_is_no_moment(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        seen: list[dict[str, Any]] = []
        scan = result_uploader.scan

        def noting(*words: Any, **options: Any) -> Scan:
            seen.append(options)
            return scan(*words, **options)

        monkeypatch.setattr(result_uploader, "scan", noting)
        await keeper_of(tmp_path, Network()).capture()
        assert [options["steady"] for options in seen] == [True]

    told(story)
