"""A node's line and its door, its folders and its logs, between the core and the machine: driven by hand."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import httpx
import pytest
from agent_bench import FakeOrchestrator, welcome
from glue_steps import ATTEMPT, WAIT_S, an_order, soon, told, until

from holdfast.errors import Misconfigured
from holdfast.identity.certificates import Certificate
from holdfast.identity.keys import NodeKey
from holdfast.identity.tokens import invitation
from holdfast.model import Hardware, NodeId, Resources
from holdfast.model.messages import Hello, Pong, Refusal, Report
from holdfast.node import link as link_module
from holdfast.node import log_sender as logs_module
from holdfast.node.agent import Agent
from holdfast.node.attempt import attempt_folders
from holdfast.node.core import redial
from holdfast.node.core.events import AttemptInputs
from holdfast.node.launcher import Launcher, LauncherError
from holdfast.node.link import Link, RefusedForGood
from holdfast.node.log_sender import Courier, SilentOrchestrator
from holdfast.node.node_files_client import AttemptAccess, NodeFilesClient, NodeFilesEndpoint, NodeFilesRefused
from holdfast.wire.convert import LogDurable, LogPiece

# --- the line ---


class Ears:
    """Whoever the link works for; notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.connections = 0
        self.lost = 0
        self.key = NodeKey.make()

    def hello(self) -> Hello:
        room = Resources(1000, 100, 100)
        return Hello(
            node=NodeId("node_" + "0" * 32), instance="one", public_key=self.key.public_hex, version="test",
            hardware=Hardware(total=room, hostname="ears"), offered=room, isolation="none", epoch_seen=1,
        )  # fmt: skip

    def connected(self, welcome: Any, door: Any) -> None:
        self.connections += 1

    def told(self, command: Any) -> None:
        self.heard.append(command)

    def disconnected(self, why: str) -> None:
        self.lost += 1


@asynccontextmanager
async def a_line(
    monkeypatch: pytest.MonkeyPatch, certificate: Certificate | None = None, ticket: Any = None
) -> AsyncIterator[tuple[FakeOrchestrator, Link, Ears]]:
    monkeypatch.setattr(redial, "REDIAL_MS", 1)
    monkeypatch.setattr(link_module, "GOODBYE_S", 0.01)
    orchestrator, ears = FakeOrchestrator(certificate), Ears()
    await orchestrator.open()
    line = Link(f"127.0.0.1:{orchestrator.port}", ticket, ears.key, ears, Courier(lambda attempt: None))
    running = asyncio.create_task(line.run())
    try:
        yield orchestrator, line, ears
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await orchestrator.close()


@pytest.mark.spec("J5")
def test_words_of_one_session_are_never_said_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report speaks of the session that it was made in: said later, it would tell of a past that is over."""

    async def story() -> None:
        async with a_line(monkeypatch) as (orchestrator, line, ears):
            line.say(Pong(1))  # before there is a session: said to nobody
            await until(lambda: ears.connections == 1, "a session")
            await until(lambda: orchestrator.sessions == 1, "its other side")
            monkeypatch.setattr(link_module, "_write", held := Gate(link_module._write))
            for nonce in range(2, 5):
                line.say(Pong(nonce))
            await until(lambda: held.waiting, "the first of them to be on its way")
            line.hang_up("the test says so")
            await until(lambda: ears.lost == 1, "word of its end")
            held.open()
            await until(lambda: ears.connections == 2, "the next session")
            line.say(Report(9, True, ()))
            await until(lambda: orchestrator.heard, "something")
            assert [type(message).__name__ for message in orchestrator.heard] == ["Report"]

    told(story)


class Gate:
    """A write that waits until it is opened, and is lost if its session ended meanwhile."""

    def __init__(self, write: Any) -> None:
        self._write = write
        self._opened = asyncio.Event()
        self.waiting = 0

    def open(self) -> None:
        self._opened.set()

    async def __call__(self, call: Any, frame: Any) -> None:
        if not self._opened.is_set():
            self.waiting += 1
            await self._opened.wait()
        await self._write(call, frame)


@pytest.mark.spec("H2")
def test_an_orchestrator_that_takes_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SAYINGS_MAX", 3)

    async def story() -> None:
        async with a_line(monkeypatch) as (_, line, ears):
            await until(lambda: ears.connections == 1, "a session")
            held = Gate(link_module._write)
            monkeypatch.setattr(link_module, "_write", held)
            for nonce in range(6):
                line.say(Pong(nonce))
            await until(lambda: ears.lost == 1, "the end of the session")
            held.open()
            await until(lambda: ears.connections == 2, "the next one")

    told(story)


@pytest.mark.spec("N6")
def test_a_refusal_in_the_middle_of_a_session_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with a_line(monkeypatch) as (orchestrator, line, ears):
            running = next(task for task in asyncio.all_tasks() if "Link.run" in str(task.get_coro()))
            await until(lambda: ears.connections == 1, "a session")
            orchestrator.say(Refusal("gone", "this node is not wanted", final=False))
            await until(lambda: ears.connections == 2, "another session")
            assert ears.lost == 1
            orchestrator.say(Refusal("token_revoked", "this node is not wanted", final=True))
            done, _ = await asyncio.wait({running}, timeout=WAIT_S)
            assert isinstance(done.pop().exception(), RefusedForGood)
            assert line.address.startswith("127.0.0.1") and ears.heard == []

    told(story)


@pytest.mark.spec("N7")
def test_after_a_goodbye_nobody_dials_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with a_line(monkeypatch) as (orchestrator, line, ears):
            running = next(task for task in asyncio.all_tasks() if "Link.run" in str(task.get_coro()))
            await until(lambda: ears.connections == 1, "a session")
            line.say_goodbye()
            await asyncio.wait_for(asyncio.shield(running), WAIT_S)
            assert orchestrator.sessions == 1 and ears.lost == 1

    told(story)


@pytest.mark.spec("N6")
def test_beyond_this_machine_nobody_is_dialled_without_a_pin_and_with_one_only_over_tls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ears, courier = Ears(), Courier(lambda attempt: None)
    for address in ("192.0.2.1:1", "orchestrator.example:1", "[2001:db8::1]:1"):
        with pytest.raises(Misconfigured) as wrong:
            Link(address, None, ears.key, ears, courier)
        assert wrong.value.code == "no_pin"
    certificate = Certificate.load_or_make(tmp_path)

    async def story() -> None:
        async with a_line(monkeypatch, certificate, invitation(certificate.pin)) as (_, line, heard):
            await until(lambda: heard.connections == 1, "a session over TLS")
            assert line.up
        plain = await Link("127.0.0.1:1", None, ears.key, ears, courier)._channel()
        assert isinstance(plain, grpc.aio.Channel)
        await plain.close()

    told(story)


# --- the files door, from the node's side ---


class Orchestrated(httpx.AsyncBaseTransport):
    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        status, body = self.answers.pop(0)
        return httpx.Response(status, content=json.dumps(body).encode())


async def opened(transport: Orchestrated, monkeypatch: pytest.MonkeyPatch) -> NodeFilesClient:
    from holdfast.node import node_files_client as door_module

    monkeypatch.setattr(door_module, "AGAIN_MS", 1)
    door = NodeFilesClient()
    door.open(NodeFilesEndpoint("http://127.0.0.1:1", "the-key", None))
    assert door._http is not None
    door._http._transport = transport
    return door


@pytest.mark.spec("J5", "J10")
def test_the_door_is_asked_under_the_fence_and_again_while_that_can_help(monkeypatch: pytest.MonkeyPatch) -> None:
    error = {"code": "not_allowed", "says": "no session has this key"}

    async def story() -> None:
        transport = Orchestrated((401, error), (503, {}), (200, {"missing": ["x"]}))
        door = await opened(transport, monkeypatch)
        assert await door.missing(AttemptAccess(ATTEMPT, 7), []) == ["x"]
        assert {request.url.params["fence"] for request in transport.asked} == {"7"}
        assert {request.headers["Authorization"] for request in transport.asked} == {"Bearer the-key"}
        # a refusal is one
        door = await opened(Orchestrated((409, {"code": "revoked", "says": "it was revoked"})), monkeypatch)
        with pytest.raises(NodeFilesRefused) as refused:
            await asyncio.wait_for(door.missing(AttemptAccess(ATTEMPT, 7), []), WAIT_S)
        assert refused.value.code == "revoked"
        # and once the session is over, nobody is asked with its key
        transport = Orchestrated((200, {"missing": []}))
        door = await opened(transport, monkeypatch)
        door.shut()
        asking = asyncio.create_task(door.missing(AttemptAccess(ATTEMPT, 7), []))
        await asyncio.wait({asking}, timeout=0.05)
        assert not asking.done() and transport.asked == []
        asking.cancel()

    told(story)


@pytest.mark.spec("J5", "J10")
def test_the_door_is_open_for_as_long_as_the_session_stands() -> None:
    """Open before the core hears of a session, and shut before it hears of its end: whatever the core does then asks
    the door that belongs to it."""
    order: list[Any] = []
    door = SimpleNamespace(open=lambda door: order.append(("open", door)), shut=lambda: order.append("shut"))
    agent: Any = SimpleNamespace(door=door, feed=lambda event: order.append(type(event).__name__))
    Agent.connected(agent, welcome(NodeId("node_1"), 3), NodeFilesEndpoint("http://127.0.0.1:1", "the-key", None))
    Agent.disconnected(agent, "it broke")
    assert order == [
        ("open", NodeFilesEndpoint("http://127.0.0.1:1", "the-key", None)),
        "Connected",
        "shut",
        "Disconnected",
    ]


# --- folders of attempts ---


@pytest.mark.spec("N9")
def test_only_a_folder_that_is_what_its_order_says_is_an_attempt(tmp_path: Path) -> None:
    order = an_order()
    home, elsewhere = tmp_path / "attempts", tmp_path / "elsewhere"
    for folder in (home, elsewhere, home / ATTEMPT, home / "att_00000000000000.2", elsewhere / "att_00000000000000.3"):
        folder.mkdir()
    attempt_folders.write_order(home / ATTEMPT, order, AttemptInputs())
    attempt_folders.write_order(home / "att_00000000000000.2", order, AttemptInputs())
    attempt_folders.write_order(elsewhere / "att_00000000000000.3", an_order("att_00000000000000.3"), AttemptInputs())
    (home / "att_00000000000000.3").symlink_to(elsewhere / "att_00000000000000.3")
    found, litter = attempt_folders.scan(home)
    assert [left.folder.name for left in found] == [ATTEMPT]
    assert [path.name for path in litter] == ["att_00000000000000.2", "att_00000000000000.3"]
    # the place of its shim is taken once
    assert attempt_folders.claim(home / ATTEMPT) and not attempt_folders.claim(home / ATTEMPT)


@pytest.mark.spec("J5")
def test_a_launcher_that_died_after_it_had_started_the_shim_counts_as_one_that_answered(tmp_path: Path) -> None:
    launcher = Launcher()
    answers: list[Any] = [None, {"error": "there", "errno": "EEXIST"}]
    launcher._ask = lambda request: answers.pop(0)
    launcher._start = launcher._stop = lambda: None
    (tmp_path / "shim.json").write_text(json.dumps({"pid": 4711}))
    assert launcher.spawn_now(str(tmp_path)) == 4711
    # but where the first answer says so, somebody else has it
    answers = [{"error": "there", "errno": "EEXIST"}]
    with pytest.raises(LauncherError):
        launcher.spawn_now(str(tmp_path))


# --- logs ---


class Wire:
    def __init__(self) -> None:
        self.sent: list[LogPiece] = []
        self.acks: asyncio.Queue[LogDurable] = asyncio.Queue()

    async def send(self, piece: LogPiece) -> None:
        self.sent.append(piece)

    async def heard(self) -> AsyncIterator[LogDurable]:
        while True:
            yield await self.acks.get()


@pytest.mark.spec("J4")
def test_one_piece_of_a_log_is_on_its_way_at_a_time_and_each_session_asks_how_far_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        delivered: list[str] = []
        courier = Courier(delivered.append)
        (tmp_path / "stdout.log").write_bytes(b"hello world")
        courier.follow(ATTEMPT, 7, tmp_path, fresh=True)
        courier.grew(ATTEMPT, {"stdout": 5}, final=False)
        wire = Wire()
        carrying = asyncio.create_task(courier.carry(wire.send, wire.heard()))
        await until(lambda: wire.sent, "a question")
        courier.grew(ATTEMPT, {"stdout": 8}, final=False)
        await soon()
        assert [(piece.offset, piece.data) for piece in wire.sent] == [(0, b"")], "it is asked first, and once"
        wire.acks.put_nowait(LogDurable(ATTEMPT, "stdout", 2))
        await until(lambda: len(wire.sent) == 2, "a piece")
        courier.grew(ATTEMPT, {"stdout": 11}, final=False)
        await soon()
        assert len(wire.sent) == 2 and (wire.sent[1].offset, wire.sent[1].data) == (2, b"llo wo")
        wire.acks.put_nowait(LogDurable(ATTEMPT, "stdout", 8))
        await until(lambda: len(wire.sent) == 3, "the rest")
        wire.acks.put_nowait(LogDurable(ATTEMPT, "stdout", 11))
        await until(lambda: courier.is_delivered(ATTEMPT), "all of it")
        assert delivered == [], "it may still grow"
        courier.grew(ATTEMPT, {}, final=True)
        courier.grew(ATTEMPT, {}, final=True)
        assert delivered == [ATTEMPT]
        # in the next session the orchestrator is asked again: what it had may be lost
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)
        wire = Wire()
        carrying = asyncio.create_task(courier.carry(wire.send, wire.heard()))
        await until(lambda: wire.sent, "a question")
        assert (wire.sent[0].offset, wire.sent[0].data) == (0, b"")
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)

    told(story)


@pytest.mark.spec("J4")
def test_an_orchestrator_that_acknowledges_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "SILENT_S_MAX", 0.05)

    async def story() -> None:
        courier = Courier(lambda attempt: None)
        (tmp_path / "stdout.log").write_bytes(b"hello")
        courier.follow(ATTEMPT, 7, tmp_path, fresh=True)
        courier.grew(ATTEMPT, {"stdout": 5}, final=False)
        wire = Wire()
        with pytest.raises(SilentOrchestrator):
            await asyncio.wait_for(courier.carry(wire.send, wire.heard()), 5)

    told(story)
