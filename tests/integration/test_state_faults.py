"""What the store does when the database under it fails: full disk, lost connections, frozen and rival writers."""

import sqlite3
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.model import Job
from holdfast.state import LeadershipLost, Snapshot, Store, StoreFailed
from holdfast.state.engines import STALLED_WRITER_MS, open_engines
from holdfast.testing.store import a_job, an_entry

MEGABYTE = 1 << 20


def wait_until(true: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"still waiting for: {what}"
        time.sleep(0.01)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Take all that is left of a disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (MEGABYTE, 4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return ballast


@pytest.mark.spec("J14")
def test_a_full_disk_fails_the_commit_and_not_the_reads(small_disk: Path) -> None:
    # Given a store with something in it, whose disk then fills up
    store = Store.open(f"sqlite:///{small_disk / 'state.db'}")
    try:
        epoch = store.take_lead("me")
        store.commit([a_job(1), an_entry(1)], epoch)
        ballast = fill(small_disk)

        # When more is committed than fits
        batch = [a_job(i) for i in range(2, 2000)]
        with pytest.raises(StoreFailed, match="full") as failure:
            store.commit(batch, epoch)

        # Then the failure says where and what to do, nothing of the batch is there, and what was there can be read
        assert "state.db" in failure.value.says and "disk" in failure.value.hint
        assert failure.value.code == "store_failed"
        assert store.jobs() == [a_job(1)] and store.entries() == [an_entry(1)]
        assert store.load_live() == Snapshot.holding([a_job(1)])

        # And with room again, it goes on, unharmed
        ballast.unlink()
        store.commit(batch, store.take_lead("me again"))
        assert len(store.jobs(limit=5000)) == 1999
    finally:
        store.close()
    with sqlite3.connect(small_disk / "state.db") as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    plain.close()


@pytest.mark.spec("J14")
def test_the_sqlite_file_is_durable_and_private(sqlite_url: str) -> None:
    # Given a store on SQLite
    store = Store.open(sqlite_url)
    try:
        # Then its commits reach the disk before they return, and other users of the machine cannot read it
        with open_engines(sqlite_url).writer.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
            assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() > 0
        for file in Path(sqlite_url.removeprefix("sqlite:///")).parent.glob("state.db*"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    finally:
        store.close()


@pytest.mark.spec("J14")
def test_sqlite_readers_do_not_wait_for_a_writer_and_see_nothing_of_it(sqlite_url: str) -> None:
    # Given a store, and another process in the middle of a write
    store = Store.open(sqlite_url)
    rival = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        store.commit([a_job(1), an_entry(1)], store.take_lead("me"))
        rival.execute("BEGIN IMMEDIATE")
        rival.execute("DELETE FROM jobs")

        # When the store is read
        seen = (store.jobs(), store.load_live().jobs)

        # Then it answers while the other still writes, with what is committed
        assert seen == ([a_job(1)], (a_job(1),)) and rival.in_transaction
        rival.execute("ROLLBACK")
    finally:
        rival.close()
        store.close()


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url.replace("+psycopg", "", 1), autocommit=True) as connection:
        yield connection


def others(admin: psycopg.Connection, condition: str = "true") -> list[int]:
    """Process ids of the server's other connections to this database."""
    asked = f"""SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND {condition}"""
    return [pid for (pid,) in admin.execute(asked.encode())]


def cut(admin: psycopg.Connection, pids: list[int]) -> None:
    for pid in pids:
        admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
    wait_until(lambda: not set(pids) & set(others(admin)), "the connections to be gone")


def take_key(admin: psycopg.Connection, job: Job) -> None:
    """Whoever writes this job next waits until the admin's transaction has ended."""
    admin.execute(
        "INSERT INTO jobs (id, owner, name, phase, submitted_ms, doc) VALUES (%s, '', '', 'ended', 0, '{}')", (job.id,)
    )


@pytest.mark.spec("J14")
def test_a_connection_lost_in_the_middle_of_a_commit_loses_all_of_it(
    postgres_url: str, admin: psycopg.Connection
) -> None:
    # Given a commit that has written some of its rows and waits for a lock on the next
    store = Store.open(postgres_url)
    try:
        epoch = store.take_lead("me")
        store.commit([a_job(1)], epoch)
        failures: list[BaseException] = []

        def write() -> None:
            try:
                store.commit([a_job(2), a_job(3), an_entry(1), an_entry(2)], epoch)
            except StoreFailed as failure:
                failures.append(failure)

        with admin.transaction(force_rollback=True):
            take_key(admin, a_job(3))
            writer = threading.Thread(target=write)
            writer.start()
            wait_until(lambda: bool(others(admin, "wait_event_type = 'Lock'")), "the commit to wait")
            assert store.jobs() == [a_job(1)] and store.entries() == [], "a reader saw what was not committed"

            # When its connection is cut
            stuck = others(admin, "wait_event_type = 'Lock'")
            for pid in stuck:
                admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
            writer.join(60)

        # Then the commit failed, nothing of it is there, and the next use connects anew
        assert [type(f) for f in failures] == [StoreFailed]
        assert store.entries() == [] and store.jobs() == [a_job(1)]
        store.commit([an_entry(1), a_job(2)], store.take_lead("me again"))
        assert store.last_seq() == 1
    finally:
        store.close()


@pytest.mark.spec("J14")
def test_connections_cut_while_idle_cost_one_commit_and_no_read(postgres_url: str, admin: psycopg.Connection) -> None:
    # Given a store with open connections, all of which the server then ends, as a restart would
    store = Store.open(postgres_url)
    try:
        epoch = store.take_lead("me")
        store.commit([a_job(1)], epoch)
        assert store.jobs() == [a_job(1)]
        cut(admin, others(admin))

        # When it is read, then the reader connects anew by itself
        assert store.jobs() == [a_job(1)]
        assert store.load_live().jobs == (a_job(1),)

        # When it is written to, then that commit fails, since nobody knows what else was lost; the next one works
        with pytest.raises(StoreFailed, match="server"):
            store.commit([a_job(2)], epoch)
        store.commit([a_job(2)], epoch)
        assert store.jobs() == [a_job(2), a_job(1)]
    finally:
        store.close()


@pytest.mark.spec("J5")
def test_the_lead_is_not_taken_between_a_leaders_look_at_the_epoch_and_its_commit(
    postgres_url: str, admin: psycopg.Connection
) -> None:
    # Given a commit that has seen that it leads, and waits for a lock
    store, rival = Store.open(postgres_url), Store.open(postgres_url)
    try:
        epoch = store.take_lead("me")
        done: list[str] = []

        def write() -> None:
            store.commit([a_job(1)], epoch)
            done.append("commit")

        def overtake() -> None:
            rival.take_lead("rival")
            done.append("lead")

        writer, usurper = threading.Thread(target=write), threading.Thread(target=overtake)
        with admin.transaction(force_rollback=True):
            take_key(admin, a_job(1))
            writer.start()
            wait_until(lambda: len(others(admin, "wait_event_type = 'Lock'")) == 1, "the commit to wait")

            # When another takes the lead in that moment, then it has to wait as well
            usurper.start()
            wait_until(lambda: len(others(admin, "wait_event_type = 'Lock'")) == 2 or bool(done), "the rival")
            assert done == []
        writer.join(60)
        usurper.join(60)

        # And what was begun under the old epoch was durable before the new one began
        assert sorted(done) == ["commit", "lead"]
        assert rival.jobs() == [a_job(1)]
    finally:
        rival.close()
        store.close()


@pytest.mark.spec("J5")
def test_a_commit_that_met_a_change_of_leader_halfway_writes_nothing(
    postgres_url: str, admin: psycopg.Connection
) -> None:
    # Given another orchestrator that is taking the lead, and has not committed that yet
    store = Store.open(postgres_url)
    try:
        epoch = store.take_lead("me")
        lost: list[LeadershipLost] = []

        def write() -> None:
            try:
                store.commit([a_job(1), an_entry(1)], epoch)
            except LeadershipLost as loss:
                lost.append(loss)

        writer = threading.Thread(target=write)
        with admin.transaction():
            admin.execute("UPDATE leader SET epoch = epoch + 1, holder = 'rival'")

            # When the old leader commits in that moment, and only then the new one's lead stands
            writer.start()
            wait_until(lambda: bool(others(admin, "wait_event_type = 'Lock'")), "the commit to wait")
        writer.join(60)

        # Then the old one hears who leads, and nothing was written
        assert len(lost) == 1 and "rival" in lost[0].says
        assert store.jobs() == [] and store.entries() == []
    finally:
        store.close()


@pytest.mark.spec("J14")
def test_the_operators_own_connection_options_are_kept(postgres_url: str) -> None:
    engines = open_engines(f"{postgres_url}&options=-c%20application_name%3Dours%20-c%20synchronous_commit%3Doff")
    try:
        with engines.writer.connect() as connection:
            assert connection.exec_driver_sql("SHOW application_name").scalar_one() == "ours"
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
    finally:
        engines.dispose()


@pytest.mark.spec("J14")
def test_a_leader_that_froze_in_the_middle_of_a_commit_does_not_keep_the_lead(postgres_url: str) -> None:
    # Given a leader that stands still between its look at the epoch and its commit, holding the leader's row
    store = Store.open(postgres_url)
    frozen = open_engines(postgres_url)
    try:
        with frozen.writer.connect() as connection:
            connection.exec_driver_sql("SELECT epoch FROM leader FOR UPDATE")

            # When another takes the lead, then it gets it within the bound
            started = time.monotonic()
            assert store.take_lead("the next") == 1
            assert time.monotonic() - started < STALLED_WRITER_MS / 1000 + 60, "a busy machine takes no minute"
            connection.invalidate()
    finally:
        frozen.dispose()
        store.close()


@pytest.mark.spec("J14")
def test_a_store_that_cannot_be_reached_is_named_without_its_password() -> None:
    # Given the address of a server that is not there, with a password in it
    address = "postgresql+psycopg://me:hunter2@127.0.0.1:1/nowhere"

    # When it is opened, then the error says what, why and what to do, and keeps the secret
    with pytest.raises(StoreFailed) as failure:
        Store.open(address)
    assert "127.0.0.1" in failure.value.says and failure.value.hint
    assert "hunter2" not in str(failure.value) and "hunter2" not in repr(failure.value.__cause__)


@pytest.mark.spec("J14")
@pytest.mark.parametrize(
    "address",
    ["", "nonsense", "sqlite://", "sqlite:///relative.db", "sqlite:///:memory:", "mysql://localhost/x"],
)
def test_an_address_that_cannot_be_a_store_is_refused(address: str) -> None:
    with pytest.raises(StoreFailed) as failure:
        Store.open(address)
    assert "sqlite:////" in failure.value.hint


@pytest.mark.spec("J14")
def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="nowhere"):
        Store.open(f"sqlite:///{tmp_path}/nowhere/state.db")


@pytest.mark.spec("J14")
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear reader, this is not a database. " * 100)
    before = letter.read_bytes()

    with pytest.raises(StoreFailed, match="not a database"):
        Store.open(f"sqlite:///{letter}")
    assert letter.read_bytes() == before


@pytest.mark.spec("J14")
def test_errors_do_not_quote_what_was_to_be_written(store_url: str) -> None:
    # Given a job with a secret in its environment, in a batch that fails
    store = Store.open(store_url)
    try:
        epoch = store.take_lead("me")
        secret = an_entry(1)
        store.commit([secret], epoch)

        with pytest.raises(StoreFailed) as failure:
            store.commit([secret], epoch)
        assert "happened" not in str(failure.value) and "happened" not in str(failure.value.__cause__)
    finally:
        store.close()


@pytest.mark.spec("J14", "J7")
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_script_is_refused_at_the_start(postgres_server: Any, encoding: str) -> None:
    # Given a PostgreSQL database that is not in UTF8
    name = f"other_{encoding.lower()}"
    postgres_server.do(f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    try:
        # When a store is opened on it, then it says what is wrong and what to do
        with pytest.raises(StoreFailed, match=f"{name} has the encoding {encoding}") as refused:
            Store.open(postgres_server.url(name))
        assert refused.value.code == "store_failed" and "createdb -E UTF8 -T template0" in refused.value.hint
    finally:
        postgres_server.do(f"DROP DATABASE {name} WITH (FORCE)")
