"""A whole orchestrator inside the test's process: the product's own wiring, with real rows, files and HTTP apps.

Sessions of nodes are opened by hand, so a test says and hears exactly what it wants; HTTP is asked without sockets.
What a test holds up or breaks is an attribute of the parts.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import msgspec

from holdfast.blobs import Blob, scan, sha_of
from holdfast.identity.keys import NodeKey, node_id
from holdfast.kernel.events import NodeJoined, NodeSaid
from holdfast.model import Attempt, Hardware, Job, JobId, NodeId, Resources, Result, Settings
from holdfast.model.messages import Held, HeldPhase, Hello, Report, Start
from holdfast.orchestrator.api.call import OWNER_HEADER
from holdfast.orchestrator.config import OrchestratorConfig
from holdfast.orchestrator.nodes.sessions import Session
from holdfast.orchestrator.serve import Orchestrator
from holdfast.state import Store
from holdfast.wire import convert
from holdfast.wire.convert import LogPiece

OFFER = Resources(cpu_milli=8_000, memory_mib=16_000, disk_mib=100_000)
STEADY = msgspec.structs.replace(
    Settings.test(),
    late_tolerance_ms=600_000,
    silence_floor_ms=60_000,
    silence_ceiling_ms=80_000,
    idle_silence_ms=90_000,
    lease_ms=100_000,
    suspect_ms_max=200_000,
    orphan_ms_max=150_000,
    newcomer_attempts=256,
)
"""Nobody is late, nobody falls silent, and a new node gets all that fits: what happens is what a test does."""
EMPTY = Result(sha256(b"").hexdigest(), 0)
WAIT_S = 30.0


class House:
    def __init__(self, data: Path, settings: Settings) -> None:
        data.mkdir(parents=True, exist_ok=True)
        config = OrchestratorConfig(
            data=data, http="127.0.0.1:0", nodes="127.0.0.1:0", files="127.0.0.1:0", open_join=True, settings=settings
        )
        self.store = Store.open(config.store_url())
        self.built = Orchestrator(config, self.store)
        self._numbers = 0

    async def open(self, wire: bool) -> None:
        built = self.built
        built._assemble()
        self._server = built._node_server() if wire else None
        self.listen = f"127.0.0.1:{built._nodes_port}"
        self._people, self._files = built._api_server(), built._files_server()
        self.leader, self.sessions, self.content = built._leader, built._sessions, built._content
        self.logs, self.verifier, self.reading, self.fleet = built._logs, built._verifier, built._queries, built._fleet
        self.wakeups, self.shelf, self.intake = built._wakeups, built._log_retention, built._intake
        await self.content.store.probe()
        self._running = [asyncio.create_task(self.leader.run()), asyncio.create_task(self.intake.run())]
        await asyncio.wait_for(self.leader.led.wait(), WAIT_S)
        if self._server is not None:
            await self._server.start()
        self.people = self.http(self._people, built._token.text)

    def http(self, doors: Any, token: str, **headers: str) -> httpx.AsyncClient:
        given = {"Authorization": f"Bearer {token}", **headers}
        transport = httpx.ASGITransport(app=doors.config.app)
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=given, timeout=WAIT_S)

    def acting_for(self, owner: str) -> httpx.AsyncClient:
        return self.http(self._people, self.built._token.text, **{OWNER_HEADER: owner})

    def front(self) -> Any:
        """The things behind the routes for people."""
        app = self._people.config.app
        while not hasattr(app, "state"):
            app = app._app
        return app.state.context

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.leader.stop()
        if self._server is not None:
            await self._server.stop(None)
        await self.sessions.probes.close()
        await self.verifier.close()
        self.reading.close()
        self.logs.close()
        self.store.close()
        for listening in (self.built._socket, self.built._files_socket):
            listening.close()

    # --- waiting ---

    async def until(self, holds: Callable[[], Any], what: str) -> Any:
        end = asyncio.get_running_loop().time() + WAIT_S
        while not (found := holds()):
            assert asyncio.get_running_loop().time() < end, f"{what} did not happen"
            await asyncio.sleep(0.005)
        return found

    def job(self, id: str) -> Job:
        found = self.store.job(id)
        assert found is not None
        return found

    async def ended(self, id: str) -> Job:
        await self.until(lambda: not self.job(id).live, f"the end of {id}")
        return self.job(id)

    async def lose_the_lead(self) -> None:
        """A commit fails: everything in memory is dropped, and it leads again under a higher epoch."""
        epoch, commit = self.leader.epoch, self.store.commit

        def failing(*_: Any) -> None:
            self.store.commit = commit
            raise OSError("no disk in this moment")

        self.store.commit = failing
        with contextlib.suppress(Exception):
            await self.people.post("/v1/tokens", json={"ttl_ms": 60_000})
        await self.until(lambda: self.leader.epoch > epoch and not self.leader.trouble, "a new lead")

    # --- people ---

    async def submit(self, *argv: str, owner: str = "ann", key: str | None = None, **asked: Any) -> JobId:
        body = {"argv": list(argv) or ["true"], "cpu_milli": 100, "memory_mib": 16, "disk_mib": 16, **asked}
        headers = {OWNER_HEADER: owner} | ({"Idempotency-Key": key} if key else {})
        answer = await self.people.post("/v1/jobs", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        return JobId(answer.json()["id"])


class HandNode:
    """A node whose every word is said by the test."""

    def __init__(self, house: House, name: str = "ant") -> None:
        self.house = house
        self.key = NodeKey.make()
        self.id: NodeId = node_id(sha256(name.encode()).hexdigest()[:32])
        self.name = name
        self.held: dict[str, Held] = {}
        self.seq = 0
        self.heard: list[Any] = []

    async def join(self) -> "HandNode":
        hello = Hello(
            node=self.id,
            instance=f"instance-{self.house.leader.epoch}",
            public_key=self.key.public_hex,
            version="test",
            hardware=Hardware(total=OFFER, hostname=self.name),
            offered=OFFER,
            isolation="none",
            name=self.name,
            held=tuple(self.held.values()),
            epoch_seen=0,
        )
        self.session: Session = self.house.sessions.open(self.id)
        self.seq = 0
        self.house.leader.tell(NodeJoined(self.session.number, hello))
        await asyncio.wait_for(self.session.answered.wait(), WAIT_S)
        assert self.session.welcome, self.session.why
        self.report()
        return self

    def files(self) -> httpx.AsyncClient:
        return self.house.http(self.house._files, self.session.bulk_key)

    def report(self) -> None:
        self.seq += 1
        self.house.leader.tell(
            NodeSaid(self.session.number, self.id, Report(self.seq, True, tuple(self.held.values())))
        )

    def listen(self) -> list[Any]:
        while not self.session.outgoing.empty():
            frame = self.session.outgoing.get_nowait()
            if frame is not None and not frame.HasField("welcome"):
                self.heard.append(convert.orchestrator_from_frame(frame))
        return self.heard

    async def started(self, job: str) -> Start:
        """Told to start an attempt of the job, and running it."""

        def told() -> Start | None:
            return next((m for m in self.listen() if isinstance(m, Start) and m.job == job), None)

        start = await self.house.until(told, f"a start of {job}")
        self.declare(start, HeldPhase.RUNNING)
        await self.house.until(lambda: self.row(start).started_ms is not None, "its body to be seen")
        return start

    def row(self, start: Start) -> Attempt:
        return next(a for a in self.house.store.attempts(start.job) if a.id == start.attempt)

    def declare(self, start: Start, phase: HeldPhase, result: Result | None = None) -> None:
        self.held[start.attempt] = Held(start.attempt, start.fence, phase, result)
        self.report()

    async def prints(self, start: Start, data: bytes, offset: int = 0) -> Any:
        piece = LogPiece(start.attempt, start.fence, "stdout", offset, data)
        return await (await self.house.intake.put(piece))

    async def sends(self, start: Start, folder: Path) -> str:
        """All blobs of a folder, and its manifest: sent, not yet taken over. Its name."""
        manifest = scan(folder).manifest
        data = manifest.to_bytes()
        name = sha_of(data)
        contents = {sha_of(file.read_bytes()): file.read_bytes() for file in folder.iterdir()} | {name: data}
        blobs = [*manifest.blobs, Blob(name, len(data))]
        asked = {"blobs": [[blob.sha, blob.size] for blob in blobs]}
        async with self.files() as http:
            answer = await http.post(self.at(start, "links"), json=asked)
            assert answer.status_code == 200, answer.text
            urls = answer.json()["urls"]
            for sha, url in urls.items():
                assert (await http.put(url, content=contents[sha])).status_code == 201
        return name

    def at(self, start: Start, path: str) -> str:
        return f"/node/v1/attempts/{start.attempt}/{path}?fence={start.fence}"


def story(folder: Path, tells: Callable[[House], Awaitable[None]], wire: bool = False) -> None:
    """Run a story in a house of its own. `wire`: nodes can dial in."""

    async def run() -> None:
        house = House(folder / "data", STEADY)
        await house.open(wire)
        try:
            await asyncio.wait_for(tells(house), 60)
        finally:
            await house.close()

    asyncio.run(run())


def folder_of(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / name).write_text(text)
    return path
