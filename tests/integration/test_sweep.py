"""Orchestrators that share rows and files collect what nothing needs, and never what something names: whoever dies,
freezes or is replaced in the middle."""

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from blob_stores import rclone
from offices import ANN, OVER_MS, WHOSE, Clock, Crash, crash_at, folder_with, keys_of, offices

from holdfast.blobs import Blob, BlobStore, FolderStore, incoming_key, owned_key, sha_of
from holdfast.blobs.errors import StoreGone, StoreSlow
from holdfast.blobs.garbage import GRACE_MS
from holdfast.blobs.keys import client_uploader
from holdfast.blobs.s3 import S3Place, S3Store
from holdfast.kernel.events import CancelAsked, Submitted
from holdfast.model import JobSpec, Settings, job_id
from holdfast.orchestrator.api.request_files import need_named
from holdfast.orchestrator.content import service as content_module
from holdfast.orchestrator.content import sweep as sweep_module
from holdfast.orchestrator.content.sweep import NOTE
from holdfast.orchestrator.content.uploaders import owner_uploader
from holdfast.orchestrator.leader import loop as loop_module
from holdfast.orchestrator.leader.loop import Unavailable
from holdfast.state import LeadershipLost, Store
from holdfast.testing.processes import wait_for

pytestmark = pytest.mark.spec("J1", "J10", "J14")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (content_module, sweep_module):
        monkeypatch.setattr(module, "boottime_ms", clock.boot)
    monkeypatch.setattr(loop_module, "wall_ms", clock.wall)
    return clock


@pytest.fixture(scope="module")
def rclone_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Place]:
    with rclone(tmp_path_factory.mktemp("rclone")) as place:
        yield place


@pytest.fixture(params=["folder", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "blobs")
    place: S3Place = request.getfixturevalue("rclone_place")
    return S3Store(S3Place(**{**{f: getattr(place, f) for f in place.__struct_fields__}, "prefix": tmp_path.name}))


def test_what_is_named_stays_and_the_rest_goes(store_url: str, blobs: BlobStore, clock: Clock, tmp_path: Path) -> None:
    async def story() -> None:
        async with offices(store_url, blobs, clock) as another:
            # Given the files of a job that lives, of one that has ended, of none, and an upload that was cut
            office = await another()
            folders = {what: folder_with(tmp_path / what, what) for what in ("live", "ended", "junk")}
            names = {what: await office.send(folder) for what, folder in folders.items()}
            assert all(names.values())
            await office.submit(names["live"], "1")
            ended = await office.submit(names["ended"], "2")
            await office.leader.ask(CancelAsked(ended, by="ann"))
            cut = incoming_key(client_uploader(ANN), sha_of(b"cut"))
            await office.blobs.put(cut, b"cut")
            before = await office.keys()

            # When it is swept at once, then nothing goes
            assert await office.sweeper.sweep() == 0

            # When hours have passed
            office.hours_pass()
            await office.sweeper.sweep()

            # Then exactly what nothing names is gone, from the memory as well, and the round is struck out
            stays = keys_of(folders["live"], names["live"]) | keys_of(folders["ended"], names["ended"])
            assert before - await office.keys() == keys_of(folders["junk"], names["junk"]) | {cut}
            assert await office.keys() == stays
            assert office.note() == []
            assert not await office.content.ready(ANN, names["junk"])
            # And it can be sent again
            assert await office.send(folders["junk"]) == names["junk"]
            await office.submit(names["junk"], "3")

    asyncio.run(story())


def test_a_wall_clock_that_is_set_ahead_lets_nothing_go(sqlite_url: str, clock: Clock, tmp_path: Path) -> None:
    async def story() -> None:
        async with offices(sqlite_url, FolderStore(tmp_path / "blobs"), clock) as another:
            office = await another()
            name = await office.send(folder_with(tmp_path / "f", "x"))
            job = await office.submit(name)
            await office.leader.ask(CancelAsked(job, by="ann"))
            pledged = await office.send(folder_with(tmp_path / "g", "y"))
            office.hours_pass(GRACE_MS // 2)
            assert await office.content.whole(ANN, pledged)
            office.hours_pass(GRACE_MS * 3 // 4)

            # When the clock is set ahead by two years, then what is kept for a month and what is pledged stays
            clock.set_ahead_ms = 2 * 365 * 86_400_000
            assert await office.sweeper.sweep() == 0
            assert await office.content.whole(ANN, name) and await office.content.whole(ANN, pledged)

    asyncio.run(story())


@pytest.mark.parametrize("ahead_days", [31, 3650, -3650])
def test_a_month_without_an_orchestrator_or_a_wrong_clock_at_its_start_lets_nothing_go(
    sqlite_url: str, clock: Clock, tmp_path: Path, ahead_days: int
) -> None:
    async def story() -> None:
        async with offices(sqlite_url, FolderStore(tmp_path / "blobs"), clock) as another:
            # Given what a job left, which is kept for a month
            office = await another()
            name = await office.send(folder_with(tmp_path / "f", "x"))
            job = await office.submit(name)
            await office.leader.ask(CancelAsked(job, by="ann"))
            await office.die()
            # When nobody leads for a month, or the next one starts with such a clock
            clock.set_ahead_ms = ahead_days * 86_400_000
            after = await another()
            after.hours_pass(GRACE_MS + 1)
            # Then it stays until it was kept for a month in which somebody led
            assert await after.sweeper.sweep() == 0
            assert await after.content.whole(ANN, name)
            after.hours_pass(30 * 86_400_000 - 2 * GRACE_MS)
            assert await after.sweeper.sweep() == 0
            after.hours_pass(2 * GRACE_MS)
            clock.set_ahead_ms = 0
            assert await after.sweeper.sweep() == 2

    asyncio.run(story())


CRASHES = ["before the note", "after the note", "between deletions", "after the deletions", "answer lost"]


@pytest.mark.parametrize("where", CRASHES)
def test_a_death_at_any_point_of_a_round_loses_nothing_and_leaves_nothing(
    where: str, store_url: str, blobs: BlobStore, clock: Clock, tmp_path: Path
) -> None:
    async def story() -> None:
        async with offices(store_url, blobs, clock) as another:
            # Given junk, and a leader that dies in the middle of collecting it
            first = await another()
            folders = [folder_with(tmp_path / f"junk{i}", f"junk{i}") for i in range(3)]
            names = [await first.send(folder) for folder in folders]
            kept = folder_with(tmp_path / "kept", "kept")
            await first.submit(await first.send(kept))
            first.hours_pass()
            crash_at(first, where)
            with pytest.raises(Crash):
                await first.sweeper.sweep()

            # When another leads and the same content is sent to it
            second = await another()
            doomed = set(second.note())
            assert bool(doomed) == (where != "before the note")
            assert set(second.content.collector.condemned) == doomed
            for folder, name in zip(folders, names, strict=True):
                # Then nobody may rely on what may be being deleted, and everything else can be had at once
                sent = await second.send(folder)
                assert bool(sent) == doomed.isdisjoint(keys_of(folder, name))
            await second.sweeper.sweep()
            assert second.note() == sorted(doomed), "the note stands as long as the dead may act"

            # And when no request of the dead has any force, it is as if nothing had happened
            second.hours_pass(OVER_MS + 60_000)
            await second.sweeper.sweep()
            assert second.note() == [] and not second.content.collector.condemned
            for i, (folder, name) in enumerate(zip(folders, names, strict=True)):
                assert await second.send(folder) == name
                await second.submit(name, f"again {i}")
            second.hours_pass()
            await second.sweeper.sweep()
            wanted = set().union(*(keys_of(f, n) for f, n in zip(folders, names, strict=True)))
            assert await second.keys() == wanted | keys_of(kept, await second.send(kept))

    asyncio.run(story())


def test_a_leader_that_was_frozen_before_it_deletes_does_not_delete_when_it_wakes(
    store_url: str, blobs: BlobStore, clock: Clock, tmp_path: Path
) -> None:
    async def story() -> None:
        async with offices(store_url, blobs, clock) as another:
            # Given a leader that has decided, and is frozen before its first request
            first = await another()
            junk = folder_with(tmp_path / "junk", "junk")
            name = await first.send(junk)
            first.hours_pass()
            reached, wake = asyncio.Event(), asyncio.Event()

            async def freeze() -> None:
                reached.set()
                await wake.wait()

            first.blobs.before = freeze
            frozen = asyncio.create_task(first.sweeper.sweep())
            await asyncio.wait_for(reached.wait(), 60)

            # When another takes over, waits as it must, and a job names just that content
            second = await another()
            assert await second.send(junk) == ""
            second.hours_pass(OVER_MS + 60_000)
            await second.sweeper.sweep()
            assert await second.send(junk) == name
            await second.submit(name)

            # Then the first one wakes, is told that it no longer leads, and nothing is gone
            wake.set()
            with pytest.raises(LeadershipLost):
                await frozen
            assert keys_of(junk, name) <= await second.keys()
            assert await second.content.whole(ANN, name)

    asyncio.run(story())


def test_whoever_no_longer_leads_deletes_nothing(store_url: str, clock: Clock, tmp_path: Path) -> None:
    async def story() -> None:
        async with offices(store_url, FolderStore(tmp_path / "blobs"), clock) as another:
            first = await another()
            name = await first.send(junk := folder_with(tmp_path / "junk", "junk"))
            first.hours_pass()
            await another()
            # Given one that was replaced and does not know, when it sweeps, then its note is refused
            with pytest.raises(LeadershipLost):
                await first.sweeper.sweep()
            assert keys_of(junk, name) <= await first.keys()

    asyncio.run(story())


@pytest.mark.parametrize("error", [StoreGone("away"), StoreSlow("no answer"), asyncio.CancelledError()])
def test_what_was_asked_without_an_answer_is_relied_on_by_nobody_for_a_while(
    error: BaseException, sqlite_url: str, clock: Clock, tmp_path: Path
) -> None:
    async def story() -> None:
        async with offices(sqlite_url, FolderStore(tmp_path / "blobs"), clock) as another:
            office = await another()
            junk = folder_with(tmp_path / "junk", "junk")
            name = await office.send(junk)
            office.hours_pass()

            async def fail() -> None:
                raise error

            office.blobs.after = fail
            with pytest.raises(type(error)):
                await office.sweeper.sweep()
            assert await office.send(junk) == "" and office.note()
            await office.sweeper.sweep()
            assert office.note(), "not over yet"
            office.blobs.after = None
            office.hours_pass(OVER_MS + 60_000)
            await office.sweeper.sweep()
            assert office.note() == [] and await office.send(junk) == name

    asyncio.run(story())


def test_only_who_led_without_a_gap_knows_of_all_pledges(sqlite_url: str, clock: Clock, tmp_path: Path) -> None:
    async def story() -> None:
        async with offices(sqlite_url, FolderStore(tmp_path / "blobs"), clock) as another:
            office = await another()
            content, epoch = office.content, office.leader.epoch
            name = await office.send(folder_with(tmp_path / "f", "x"))
            # Given files that were found, when the same process leads again at once, then it still knows
            content.led(epoch + 1, [])
            assert content.may_name(ANN, [name])
            # When somebody led in between, then what was found before counts for nothing
            content.led(epoch + 3, [])
            assert not content.may_name(ANN, [name])
            event = Submitted(job_id(ANN, "k"), ANN, JobSpec(argv=("true",), package=name), "k")
            with pytest.raises(Unavailable, match="begun to lead"):
                need_named(content, [event])
            # And looking again is enough
            assert await content.ready(ANN, name) and content.may_name(ANN, [name])

    asyncio.run(story())


def test_uploads_that_go_on_are_kept_and_those_that_do_not_are_not(
    sqlite_url: str, clock: Clock, tmp_path: Path
) -> None:
    async def story() -> None:
        async with offices(sqlite_url, FolderStore(tmp_path / "blobs"), clock) as another:
            # Given two uploads that began long ago, one of which asks for addresses now and then
            office = await another()
            slow, dead = (incoming_key(who, sha_of(b"x")) for who in (client_uploader(ANN), client_uploader("bob")))
            for key in (slow, dead):
                await office.blobs.put(key, b"x")
            for _ in range(20):
                office.hours_pass(GRACE_MS // 2)
                with contextlib.suppress(StoreGone):
                    await office.content.missing(ANN, owner_uploader(ANN, Settings.test()), [Blob(sha_of(b"y"), 1)])
            await office.sweeper.sweep()
            assert await office.keys() == {slow}
            # When it does not end for a week, then it goes as well
            for _ in range(60):
                office.hours_pass(GRACE_MS // 2)
                await office.content.missing(ANN, owner_uploader(ANN, Settings.test()), [Blob(sha_of(b"y"), 1)])
            await office.sweeper.sweep()
            assert await office.keys() == set()

    asyncio.run(story())


def test_it_sweeps_by_itself_and_goes_on_after_trouble(
    sqlite_url: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with offices(sqlite_url, FolderStore(tmp_path / "blobs"), clock) as another:
            office = await another()
            assert await office.send(folder_with(tmp_path / "junk", "junk"))
            office.hours_pass()
            failed, deleted = asyncio.Event(), asyncio.Event()

            async def fail() -> None:
                failed.set()
                raise StoreGone("away")

            async def done() -> None:
                deleted.set()

            # Given a store that is away for the first round, when it sweeps in short turns
            office.blobs.before = fail
            monkeypatch.setattr(sweep_module, "BEAT_S", 0.01)
            monkeypatch.setattr(sweep_module, "SWEEP_S", 0.02)
            sweeping = asyncio.create_task(office.sweeper.run())
            await asyncio.wait_for(failed.wait(), 60)
            office.blobs.before, office.blobs.after = None, done
            office.hours_pass(OVER_MS + 60_000)

            # Then the round is ended when that is safe, and the next one collects
            await asyncio.wait_for(deleted.wait(), 60)
            assert await office.keys() == set()
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
            assert sweeping.cancelled()

    asyncio.run(story())


# --- the stores' part ---


def _stand_still_between_question_and_deletion(root: str, key: str, reached: Event, go_on: Event) -> None:
    def may() -> bool:
        # Not by a signal to stop: that reaches some thread of the process, and this one goes on meanwhile.
        reached.set()
        return go_on.wait(60)

    asyncio.run(FolderStore(Path(root)).delete_while([key], may, 1))


def test_a_process_frozen_in_the_very_act_of_deleting_in_a_folder_is_waited_for(
    sqlite_url: str, clock: Clock, tmp_path: Path
) -> None:
    async def story() -> None:
        blobs = FolderStore(tmp_path / "blobs")
        async with offices(sqlite_url, blobs, clock) as another:
            # Given a dead leader's note, and its process standing still between the last question and the deletion
            first = await another()
            junk = folder_with(tmp_path / "junk", "junk")
            name = await first.send(junk)
            first.hours_pass()
            crash_at(first, "after the note")
            with pytest.raises(Crash):
                await first.sweeper.sweep()
            key = first.note()[0]
            fork = multiprocessing.get_context("forkserver")
            reached, go_on = fork.Event(), fork.Event()
            child = fork.Process(
                target=_stand_still_between_question_and_deletion,
                args=(str(tmp_path / "blobs"), key, reached, go_on),
            )
            child.start()
            try:
                assert await asyncio.to_thread(reached.wait, 60)

                # When another leads, then however long it waits, it relies on nothing that the frozen one may delete
                second = await another()
                second.hours_pass(10 * OVER_MS)
                await second.sweeper.sweep()
                assert second.note() and await second.send(junk) == ""

                # And when that one has done its worst, all can be had again
                go_on.set()
                await asyncio.to_thread(child.join, 60)
                assert child.exitcode == 0 and key not in await second.keys()
            finally:
                child.kill()
                child.join()
            await second.sweeper.sweep()
            assert second.note() == [] and await second.send(junk) == name

    asyncio.run(story())


def test_a_request_to_delete_that_is_held_up_is_refused_by_the_bucket(rclone_place: S3Place) -> None:
    """Given a process frozen between the last question and the request: the store itself looks at the date."""
    store = S3Store(rclone_place)
    prompt, late = (owned_key(WHOSE, sha_of(word)) for word in (b"prompt", b"late"))

    def frozen() -> bool:
        until = time.time() + 2.5
        wait_for(lambda: time.time() > until, "the address to lose its force")
        return True

    async def story() -> None:
        for key in (prompt, late):
            await store.put(key, b"x")
        await store.delete_while([prompt, owned_key(WHOSE, sha_of(b"never there"))], lambda: True, 30)
        with pytest.raises(StoreGone, match="did not delete"):
            await store.delete_while([late], frozen, 1)
        assert await store.head(prompt) is None and await store.head(late) is not None
        await store.delete_while([late], lambda: False, 30)
        assert await store.head(late) is not None and not await store.deleting()
        await store.delete([late])

    asyncio.run(story())


def test_a_note_is_fenced_and_found_by_the_next_leader(store_url: str) -> None:
    store = Store.open(store_url)
    try:
        old = store.take_lead("one")
        store.write_note(NOTE, '["a"]', old)
        new = store.take_lead("two")
        with pytest.raises(LeadershipLost):
            store.write_note(NOTE, "[]", old)
        assert store.load_live().notes == {NOTE: '["a"]'}
        store.write_note(NOTE, "[]", new)
        assert store.load_live().notes == {NOTE: "[]"}
    finally:
        store.close()
