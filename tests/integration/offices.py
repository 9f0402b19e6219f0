"""Orchestrators without doors that share rows and files, with clocks that can be moved and deaths at chosen points."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.blobs import Blob, BlobStore, incoming_key, owned_key, owner_hash, scan, sha_of
from holdfast.blobs.garbage import GRACE_MS, LATE_MS, ROUND_MS
from holdfast.boottime import boottime_ms
from holdfast.kernel.commit import CommitBatch
from holdfast.kernel.decision import Send
from holdfast.kernel.events import Submitted
from holdfast.model import JobId, JobSpec, Owner, Settings, job_id
from holdfast.orchestrator.api.request_files import need_named
from holdfast.orchestrator.content.service import ContentService
from holdfast.orchestrator.content.sweep import Sweeper, left_behind
from holdfast.orchestrator.content.uploaders import owner_uploader
from holdfast.orchestrator.leader.clock import wall_ms
from holdfast.orchestrator.leader.loop import Leader, Unavailable
from holdfast.orchestrator.metrics import Metrics
from holdfast.orchestrator.wakeups import Wakeups
from holdfast.state import Snapshot, Store

ANN = Owner("ann")
WHOSE = owner_hash(ANN)
HOURS_7 = GRACE_MS + 3_600_000
OVER_MS = 2 * ROUND_MS + LATE_MS


class Clock:
    """The machine's clocks, which can be moved ahead; and a wall clock that can be set."""

    def __init__(self) -> None:
        self.ahead_ms = self.set_ahead_ms = 0

    def boot(self) -> int:
        return boottime_ms() + self.ahead_ms

    def wall(self) -> int:
        return wall_ms() + self.ahead_ms + self.set_ahead_ms


class OfficeLeader(Leader):
    """A leader that has served for as long as the clock was moved ahead."""

    clock: Clock

    def served_ms(self) -> int:
        return super().served_ms() + self.clock.ahead_ms


class Crash(BaseException):
    """The process is gone in this moment: nothing of it runs any more."""


class Shaky:
    """A blob store that can be made to stop its caller before, between or after deletions."""

    def __init__(self, store: BlobStore, clock: Clock) -> None:
        self._store = store
        self.now_ms = clock.wall
        self.before: Callable[[], Awaitable[None]] | None = None
        self.between: Callable[[], None] | None = None
        self.after: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def delete_while(self, keys: Sequence[str], may: Callable[[], bool], lasts_s: int) -> None:
        if self.before is not None:
            await self.before()
        asked = 0

        def may_after_all() -> bool:
            nonlocal asked
            asked += 1
            if asked > 1 and self.between is not None:
                self.between()
            return may()

        await self._store.delete_while(keys, may_after_all, lasts_s)
        if self.after is not None:
            await self.after()


class Office:
    """An orchestrator without doors: rows, files, a leader and a sweeper."""

    def __init__(self, url: str, blobs: BlobStore, clock: Clock) -> None:
        self.store = Store.open(url)
        self.blobs = Shaky(blobs, clock)
        self.content = ContentService(self.blobs)  # pyright: ignore[reportArgumentType]
        self.leader = OfficeLeader(Settings.test(), self.store, self, Wakeups(), Metrics())
        self.leader.clock = clock
        self.clock = clock
        self.leading: asyncio.Task[None] | None = None

    def rebuilt(self, snapshot: Snapshot) -> None:
        self.content.led(self.leader.epoch, left_behind(snapshot))

    def carry_out(self, send: Send) -> None: ...

    def committed(self, batch: CommitBatch) -> None: ...

    def leadership_ended(self, why: str) -> None: ...

    async def lead(self) -> "Office":
        self.leading = asyncio.create_task(self.leader.run())
        await asyncio.wait_for(self.leader.led.wait(), 60)
        self.sweeper = Sweeper(self.content, self.store, self.leader)
        return self

    async def die(self) -> None:
        """Leadership ends with nothing said; the rows stay."""
        assert self.leading is not None
        self.leading.cancel()
        await asyncio.gather(self.leading, return_exceptions=True)
        await self.leader.stop()
        self.store.close()

    def hours_pass(self, ms: int = HOURS_7) -> None:
        """It is awake meanwhile, as its beat shows."""
        for _ in range(0, ms, 60_000):
            self.clock.ahead_ms += 60_000
            self.content.collector.awake(self.clock.boot())

    async def send(self, folder: Path) -> str:
        """A folder goes up; its name. Empty where something of it may not be taken over now."""
        manifest = scan(folder).manifest
        data = manifest.to_bytes()
        name = sha_of(data)
        uploader = owner_uploader(ANN, Settings.test())
        wanted = [*manifest.blobs, Blob(name, len(data))]
        missing = set(await self.content.missing(ANN, uploader, wanted))
        contents = {sha_of(file.read_bytes()): file.read_bytes() for file in folder.iterdir()} | {name: data}
        for sha in missing & contents.keys():
            await self.blobs.put(incoming_key(uploader.id, sha), contents[sha])
        try:
            accepted = await self.content.take(ANN, uploader, name)
        except Unavailable:
            return ""
        assert not accepted.missing
        return name

    async def submit(self, name: str, key: str = "k") -> JobId:
        assert await self.content.ready(ANN, name), "the files are gone"
        event = Submitted(job_id(ANN, key), ANN, JobSpec(argv=("true",), package=name), key)
        need_named(self.content, [event])
        await self.leader.ask(event)
        return event.job

    async def keys(self) -> set[str]:
        found: set[str] = set()
        for prefix in ("incoming/", "owned/"):
            async for batch in self.blobs.list(prefix):
                found |= {stored.key for stored in batch}
        return found

    def note(self) -> list[str]:
        return left_behind(self.store.load_live())


@contextlib.asynccontextmanager
async def offices(url: str, blobs: BlobStore, clock: Clock) -> AsyncIterator[Callable[[], Awaitable[Office]]]:
    """Makes leaders, each deposing the one before; ends them all."""
    all_of_them: list[Office] = []

    async def another() -> Office:
        office = Office(url, blobs, clock)
        all_of_them.append(office)
        return await office.lead()

    try:
        await blobs.probe()
        yield another
    finally:
        for office in all_of_them:
            await office.die()


def folder_with(path: Path, text: str) -> Path:
    """One small file: one blob, which is the file itself."""
    path.mkdir()
    (path / "file.txt").write_text(text * 100)
    return path


def keys_of(folder: Path, name: str) -> set[str]:
    return {owned_key(WHOSE, sha) for sha in (name, *(blob.sha for blob in scan(folder).manifest.blobs))}


def crash_at(office: Office, where: str) -> None:
    async def crash(subject: str = "", text: str = "", epoch: int = 0) -> None:
        raise Crash

    def crash_now() -> None:
        raise Crash

    note = office.leader.leave_note

    async def note_lost(subject: str, text: str, epoch: int) -> None:
        await note(subject, text, epoch)
        raise Crash

    match where:
        case "before the note":
            office.leader.leave_note = crash
        case "answer lost":
            office.leader.leave_note = note_lost
        case "after the note":
            office.blobs.before = crash
        case "between deletions":
            office.blobs.between = crash_now
        case _:
            office.blobs.after = crash
