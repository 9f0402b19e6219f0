"""A backup is of one moment, whoever writes, sweeps or dies meanwhile; and an orchestrator that starts from one gives
out nothing that was given out before."""

import asyncio
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from offices import Clock, Office, folder_with, keys_of, offices

from holdfast.blobs import FolderStore
from holdfast.blobs.errors import DiskFull, InTheWay, Mismatch, StoreSlow
from holdfast.blobs.folder import LOCK
from holdfast.errors import Misconfigured, Misuse
from holdfast.kernel.contenders import MADE_MAX
from holdfast.kernel.events import CancelAsked
from holdfast.model import Meta
from holdfast.orchestrator import backup as module
from holdfast.orchestrator.backup import NOTE, UNFINISHED, Backup, back_up, begin_from, unfinished
from holdfast.orchestrator.config import OrchestratorConfig
from holdfast.orchestrator.content import service as content_module
from holdfast.orchestrator.content import sweep as sweep_module
from holdfast.orchestrator.leader.clock import wall_ms
from holdfast.policy.restored import SKIPPED, number_skip
from holdfast.state import Store, StoreFailed

pytestmark = pytest.mark.spec("J14")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for one in (content_module, sweep_module):
        monkeypatch.setattr(one, "boottime_ms", clock.boot)
    return clock


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with keys and a log, and none of the state yet."""
    data = tmp_path / "data"
    (data / "logs" / "job_1abcd").mkdir(parents=True)
    (data / "logs" / "job_1abcd" / "att_1abcd.1.stdout").write_text("printed\n")
    for name in ("admin.token", "blobs.key", "endpoint.json", ".admin.token.1234", "state.db.lock"):
        (data / name).write_text(f"what is in {name}")
    (data / "admin.token").chmod(0o600)
    return data


def config_of(data: Path, url: str = "") -> OrchestratorConfig:
    return OrchestratorConfig(data=data, store=url)


async def with_a_job(office: Office, folder: Path, text: str = "live") -> str:
    """The name of what a job was given that lives."""
    name = await office.send(folder_with(folder, text))
    await office.submit(name, text)
    return name


def in_store(url: str, data: Path, clock: Clock, tmp_path: Path) -> set[str]:
    """Fill a store with one live job; the keys of its files."""

    async def story() -> set[str]:
        async with offices(url, FolderStore(data / "blobs"), clock) as another:
            name = await with_a_job(await another(), tmp_path / "live")
            return keys_of(tmp_path / "live", name)

    return asyncio.run(story())


def at_sqlite(data: Path) -> str:
    return f"sqlite:///{data / 'state.db'}"


def test_a_backup_holds_all_but_what_belongs_to_the_process(data: Path, clock: Clock, tmp_path: Path) -> None:
    # given a data folder, with content that nothing names
    keys = in_store(at_sqlite(data), data, clock, tmp_path)
    asyncio.run(FolderStore(data / "blobs").put(f"owned/{'0' * 32}/00/{'0' * 64}", b"of nobody"))
    # when it is backed up
    told: list[tuple[str, int, int]] = []
    made = back_up(config_of(data), tmp_path / "backup", lambda *words: told.append(words))
    # then the state, what it names, the logs and the keys are there, for their owner only, and nothing else
    copy = tmp_path / "backup"
    files = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    named = {f"blobs/{key}" for key in keys}
    log = "logs/job_1abcd/att_1abcd.1.stdout"
    assert files == {"state.db", "admin.token", "blobs.key", NOTE, log} | named
    assert all(stat.S_IMODE((copy / name).stat().st_mode) == 0o600 for name in files)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    assert (copy / log).read_text() == "printed\n"
    assert (made.blobs, made.logs, made.keys, made.left_out, made.damaged) == (len(keys), 1, 2, (), ())
    assert made.bytes == sum((copy / name).stat().st_size for name in files - {NOTE})
    moved = made.bytes - made.state_bytes
    assert [words for words in told if words[0] == "copying"][-1] == ("copying", moved, moved)
    assert told[-1] == ("checking", made.bytes, made.bytes)
    assert msgspec.json.decode((copy / NOTE).read_bytes(), type=Backup) == made


def test_nothing_is_swept_away_under_a_backup(
    data: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with offices(at_sqlite(data), FolderStore(data / "blobs"), clock) as another:
            # given a job, whose state is in a backup already when it ends and what it was given has had its time
            office = await another()
            name = await with_a_job(office, tmp_path / "live")
            (job,) = office.store.jobs()
            real, swept = module._roots, list[int]()
            running = asyncio.get_running_loop()

            async def end_and_sweep() -> None:
                await office.leader.ask(CancelAsked(job.id, by="ann"))
                office.hours_pass(40 * 24 * 3600 * 1000)
                swept.append(await office.sweeper.sweep())

            def roots(url: str) -> object:
                found = real(url)
                asyncio.run_coroutine_threadsafe(end_and_sweep(), running).result(60)
                return found

            monkeypatch.setattr(module, "_roots", roots)
            # when it is swept before the backup has its files
            made = await asyncio.to_thread(back_up, config_of(data), tmp_path / "backup")
            # then they are in it, nothing is condemned meanwhile that would have to wait, and they go afterwards
            assert swept == [0] and not office.content.collector.condemned
            assert not made.damaged and made.blobs == 2
            assert all((tmp_path / "backup" / "blobs" / key).exists() for key in keys_of(tmp_path / "live", name))
            assert await office.sweeper.sweep() == 2

    asyncio.run(story())


def test_files_that_are_just_being_deleted_are_waited_for(
    data: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_store(at_sqlite(data), data, clock, tmp_path)
    # given somebody who is deleting
    with (data / "blobs" / LOCK).open("w") as deleting:
        fcntl.flock(deleting, fcntl.LOCK_EX)
        # when that does not end, then no backup is made of it
        monkeypatch.setattr(module, "LOCK_S", 0)
        with pytest.raises(StoreSlow, match="deleting files"):
            back_up(config_of(data), tmp_path / "backup")
        assert not list(tmp_path.glob("backup*"))
        # and when it ends, then one is
        monkeypatch.setattr(module, "LOCK_S", 60)
        monkeypatch.setattr(module.time, "sleep", lambda seconds: deleting.close())
        assert back_up(config_of(data), tmp_path / "backup").blobs == 2


def test_what_an_orchestrator_gives_out_after_a_backup_is_new(
    store_url: str, data: Path, clock: Clock, tmp_path: Path
) -> None:
    # given a store, and in its data folder the note of a backup
    in_store(store_url, data, clock, tmp_path)
    store = Store.open(store_url)
    try:
        before, epoch = store.meta() or Meta(), store.take_lead("the lost one")
        (data / NOTE).write_bytes(msgspec.json.encode(Backup("there", "0.1.0", 1)))
        # when an orchestrator starts there, then it is above all that the lost one can have given out
        begin_from(data, store)
        after = store.meta() or Meta()
        skip = number_skip(wall_ms() // 1000)
        assert skip.least > 2**40 > epoch + SKIPPED
        led = store.take_lead("the new one")
        for number in (after.fence, after.entry_seq, led):
            assert skip.least - 60 * SKIPPED <= number <= skip.least + SKIPPED
        assert after.restored_fence == before.fence
        assert (after.now_ms, after.seed, after.draws) == (before.now_ms, before.seed, before.draws)
        assert after.numbers_skipped >= before.numbers_skipped + MADE_MAX
        # and no attempt of any job has the name of one that was made since
        jobs = store.load_live().jobs
        assert jobs and all(job.numbers_skipped == ((job.attempts_made, after.numbers_skipped),) for job in jobs)
        # and only the first time
        begin_from(data, store)
        assert store.take_lead("the same again") == led + 1
        # and not at all from one that was never finished
        (data / NOTE).write_bytes(UNFINISHED)
        with pytest.raises(Misconfigured, match="never finished"):
            begin_from(data, store)
    finally:
        store.close()


def test_with_postgresql_everything_is_taken_but_the_database(
    postgres_url: str, data: Path, clock: Clock, tmp_path: Path
) -> None:
    # given a store in PostgreSQL, and content that only an older dump of it may name
    keys = in_store(postgres_url, data, clock, tmp_path)
    older = f"owned/{'0' * 32}/{module.hashlib.sha256(b'older').hexdigest()[:2]}/"
    older += module.hashlib.sha256(b"older").hexdigest()
    asyncio.run(FolderStore(data / "blobs").put(older, b"older"))
    # when it is backed up, then all content is in it, and it says what is not
    made = back_up(config_of(data, postgres_url), tmp_path / "backup")
    assert made.left_out == ("database",) and made.state_bytes == 0 and not made.damaged
    assert not (tmp_path / "backup" / "state.db").exists()
    assert all((tmp_path / "backup" / "blobs" / key).exists() for key in {*keys, older})


def test_a_store_of_another_release_is_not_touched(data: Path, clock: Clock, tmp_path: Path) -> None:
    in_store(at_sqlite(data), data, clock, tmp_path)
    with module.sqlite3.connect(data / "state.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '0000'")
    with pytest.raises(StoreFailed, match="has schema 0000"):
        back_up(config_of(data), tmp_path / "backup")
    with module.sqlite3.connect(data / "state.db") as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchone() == ("0000",)
    assert not list(tmp_path.glob("backup*"))


def test_what_the_original_has_lost_is_named_and_the_rest_is_kept(data: Path, clock: Clock, tmp_path: Path) -> None:
    async def story() -> list[set[str]]:
        async with offices(at_sqlite(data), FolderStore(data / "blobs"), clock) as another:
            office = await another()
            return [keys_of(tmp_path / w, await with_a_job(office, tmp_path / w, w)) for w in ("whole", "gone", "bad")]

    whole, gone, bad = asyncio.run(story())
    for key in gone:
        (data / "blobs" / key).unlink()
    spoilt = max(bad, key=lambda key: (data / "blobs" / key).read_text() == "bad" * 100)
    (data / "blobs" / spoilt).write_text("bat" * 100)
    made = back_up(config_of(data), tmp_path / "backup")
    # a manifest that is gone names nothing any more: of what only it named, nobody knows
    lost = {key for key in gone if key in made.damaged}
    assert set(made.damaged) == lost | {spoilt} and len(lost) == 1
    assert all((tmp_path / "backup" / "blobs" / key).exists() for key in whole | bad - {spoilt})
    assert not (tmp_path / "backup" / "blobs" / spoilt).exists()


def test_what_cannot_be_read_is_named_and_stops_nothing(
    data: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> list[tuple[str, set[str]]]:
        async with offices(at_sqlite(data), FolderStore(data / "blobs"), clock) as another:
            office = await another()
            names = [(word, await with_a_job(office, tmp_path / word, word)) for word in ("one", "two", "whole")]
            return [(name, keys_of(tmp_path / word, name)) for word, name in names]

    (one, keys), (two, others), (_, whole) = asyncio.run(story())
    # given a manifest and a key whose disk gives nothing, a file that cannot be opened, and logs at which not even a
    # look is possible
    nothing = Path("/proc/self/mem")
    (manifest,) = (key for key in keys if key.endswith(one))
    (file,) = (key for key in others if not key.endswith(two))
    for path in (data / "blobs" / manifest, data / "blobs.key"):
        path.unlink()
        path.symlink_to(nothing)
    (data / "blobs" / file).unlink()
    (data / "blobs" / file).mkdir()
    for path in (data / "lost.pem", data / "logs" / "job_1abcd" / "lost.stdout"):
        path.symlink_to(path)
    (data / "logs" / "job_2lost").mkdir()
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("job_2lost"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    # when a backup is made, then it names them and has all the rest
    made = back_up(config_of(data), tmp_path / "backup")
    lost = {manifest, file, "blobs.key", "lost.pem", "logs/job_1abcd/lost.stdout", "logs/job_2lost"}
    assert set(made.damaged) == lost
    copy = tmp_path / "backup"
    assert not [name for name in lost if os.path.lexists(copy / name) or os.path.lexists(copy / "blobs" / name)]
    assert all((copy / "blobs" / key).exists() for key in whole | others - {file})
    assert (made.logs, made.keys) == (1, 1) and (copy / "admin.token").exists()


def test_a_state_is_found_and_known_by_any_address_that_a_store_has(data: Path, clock: Clock, tmp_path: Path) -> None:
    # given a state elsewhere, and files in the data folder: keys whose names begin as its own does, and what belongs to
    # a state that was used before
    (tmp_path / "a").mkdir()
    in_store(f"sqlite:///{tmp_path / 'a' / 'a'}", data, clock, tmp_path)
    for name in ("a", "state.db", "state.db-wal", "state.db.pem"):
        (data / name).write_text(f"what is in {name}")
    for driver, more in (("sqlite", ""), ("sqlite+pysqlite", ""), ("sqlite", "?timeout=5")):
        # when it is backed up, then it is the state, and it takes no key with it
        copy = tmp_path / f"mon%20day {driver}{more}"
        made = back_up(config_of(data, f"{driver}:///{tmp_path / 'a' / 'a'}{more}"), copy)
        assert made.left_out == () == made.damaged and made.blobs == 2
        assert (copy / "state.db").stat().st_size == made.state_bytes > 0
        kept = {path.name for path in copy.iterdir() if path.is_file()}
        assert kept == {"state.db", NOTE, "a", "state.db.pem", "admin.token", "blobs.key"}
    # and one in the data folder itself is no key, under whatever name, nor is what belongs to it
    os.rename(tmp_path / "a" / "a", data / "admin")
    for end in ("-wal", "-shm", "-journal", ".lock"):
        (data / f"admin{end}").write_bytes(b"")
    made = back_up(config_of(data, f"sqlite+pysqlite:///{data / 'admin'}"), tmp_path / "last")
    assert {path.name for path in (tmp_path / "last").iterdir() if path.is_file()} == kept
    # and an address that none has is refused
    for wrong in ("nothing", "sqlite://", "sqlite:///not/absolute.db"):
        with pytest.raises(StoreFailed):
            back_up(config_of(data, wrong), tmp_path / "wrong")


@pytest.mark.parametrize("spoilt", ["state.db", "admin.token", "att_1abcd.1.stdout"])
def test_a_disk_that_lies_makes_no_backup(
    spoilt: str, data: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a disk that does not keep what is written to it, as is seen once nothing remembers it in its place
    in_store(at_sqlite(data), data, clock, tmp_path)
    forgotten: list[str] = []

    def forget(file: int, *rest: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        if path.name == spoilt:
            written = bytearray(path.read_bytes())
            written[min(60, len(written) - 1)] ^= 1  # in a state, what nobody reads
            path.write_bytes(written)
            forgotten.append(path.name)

    monkeypatch.setattr(os, "posix_fadvise", forget)
    # when a backup is made there, then that is noticed, and nothing is left
    with pytest.raises(Mismatch, match=f"{spoilt} does not hold what was written"):
        back_up(config_of(data), tmp_path / "backup")
    assert forgotten == [spoilt] and not list(tmp_path.glob("backup*"))


def test_a_disk_without_room_is_named_and_left_clean(
    data: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given more files than a small disk takes
    async def story() -> None:
        async with offices(at_sqlite(data), FolderStore(data / "blobs"), clock) as another:
            await with_a_job(await another(), tmp_path / "live", "large " * 5_000)

    asyncio.run(story())
    (disk := tmp_path / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], check=True)
    try:
        # when it is backed up there, then it says how much is missing before it copies them, and nothing is left
        with pytest.raises(DiskFull, match=r"needs 2\.9 MiB more, and \S+ has 1\.\d MiB"):
            back_up(config_of(data), disk / "backup")
        assert os.listdir(disk) == []
        # and also where there is none for the state, or where the room goes while files are copied
        monkeypatch.setattr(module, "_need_room", lambda draft, total: None)
        for left in (40_000, 300_000):
            (disk / "filler").write_bytes(bytes(2 * 1024 * 1024 - left))
            with pytest.raises(DiskFull, match="no room"):
                back_up(config_of(data), disk / "backup")
            assert os.listdir(disk) == ["filler"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_backup_replaces_nothing(data: Path, clock: Clock, tmp_path: Path) -> None:
    in_store(at_sqlite(data), data, clock, tmp_path)
    config = config_of(data)
    # neither what is there, nor what somebody calls as a draft would be called
    (tmp_path / "mine").mkdir()
    with pytest.raises(InTheWay, match="already exists"):
        back_up(config, tmp_path / "mine")
    (tmp_path / "other.part").mkdir()
    (tmp_path / "other.part" / "thesis.txt").write_text("years of work")
    with pytest.raises(InTheWay, match="not an unfinished backup"):
        back_up(config, tmp_path / "other")
    assert (tmp_path / "other.part" / "thesis.txt").exists()
    # nor the draft of another that is at work
    with module._draft(tmp_path / "busy") as draft, pytest.raises(InTheWay, match="is being written"):
        back_up(config, tmp_path / "busy")
    assert draft.exists()
    # nor does it go where it would be a part of itself, or from where nothing is
    with pytest.raises(Misuse, match="inside"):
        back_up(config, data / "backup")
    with pytest.raises(Misconfigured, match="there is no data"):
        back_up(config_of(tmp_path / "nowhere"), tmp_path / "backup")
    with pytest.raises(Misconfigured, match="there is no state"):
        back_up(config_of(tmp_path / "mine"), tmp_path / "backup")
    with pytest.raises(Misconfigured, match="there is no folder"):
        back_up(config, tmp_path / "nowhere" / "backup")


def test_drafts_that_no_later_run_clears_away_are_known(data: Path, clock: Clock, tmp_path: Path) -> None:
    in_store(at_sqlite(data), data, clock, tmp_path)
    # given what two backups left that died, one of them at once; and folders and files of other people
    for name in ("sunday.part", "monday.part", "mine.part"):
        (tmp_path / name).mkdir()
    (tmp_path / "sunday.part" / NOTE).write_bytes(UNFINISHED)
    (tmp_path / "monday.part" / f"{NOTE}.new").write_bytes(b"")
    (tmp_path / "a file.part").write_text("mine")
    # then each is known to whoever makes another one, and the one of the same name goes with that
    assert unfinished(tmp_path / "tuesday") == [tmp_path / "monday.part", tmp_path / "sunday.part"]
    assert unfinished(tmp_path / "monday") == [tmp_path / "sunday.part"]
    back_up(config_of(data), tmp_path / "monday")
    assert unfinished(tmp_path / "tuesday") == [tmp_path / "sunday.part"]
    assert unfinished(tmp_path / "nowhere" / "tuesday") == []


def test_a_backup_that_dies_anywhere_leaves_nothing_that_looks_whole(data: Path, clock: Clock, tmp_path: Path) -> None:
    # given data to back up
    in_store(at_sqlite(data), data, clock, tmp_path)
    # when backups are killed at many lines, each in a process of its own, and then one is not
    script = Path(__file__).with_name("killed_backups.py")
    words = [sys.executable, str(script), str(data), str(tmp_path / "backup")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=170, env=dict(os.environ))
    # then what had its name was whole each time, nothing could be started from the rest, and the last one worked
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["killed"] >= 15 and told["named"] >= 1 and told["completed"] >= 1
