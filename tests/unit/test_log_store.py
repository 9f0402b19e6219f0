"""What is stored of a log: no gap, no byte twice, nothing after the seal, nothing outside of its folder."""

import errno
import hashlib
import io
import json
import logging
import os
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.orchestrator import process_log
from holdfast.orchestrator.logs import log_files as logs_module
from holdfast.orchestrator.logs.log_files import LogRefused, LogStore
from holdfast.orchestrator.logs.output_check import NOTHING, PrintedOutput
from holdfast.wire.convert import LogPiece

ATTEMPT = "att_abcd.1"
JOB = "job_abcd"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    store = LogStore(tmp_path / "logs", bytes_max=10)
    yield store
    store.close()


def piece(offset: int, data: bytes, attempt: str = ATTEMPT, stream: str = "stdout") -> LogPiece:
    return LogPiece(attempt, 1, stream, offset, data)  # type: ignore[arg-type]


def stored(store: LogStore, *pieces: LogPiece) -> list[Any]:
    return [str(one) if isinstance(one, LogRefused) else one for one in store.append(list(pieces))]


@pytest.mark.spec("J4")
def test_a_piece_is_stored_where_it_says_and_what_overlaps_is_ignored(store: LogStore) -> None:
    assert stored(store, piece(0, b"abc"), piece(3, b"de")) == [3, 5]
    assert stored(store, piece(1, b"XXXXf"), piece(0, b"ab"), piece(6, b"g!"), piece(5, b"")) == [6, 6, 8, 8]
    assert store.read(ATTEMPT, "stdout", 0, 100) == b"abcdefg!"


@pytest.mark.spec("J4")
def test_a_piece_beyond_the_end_is_not_stored_and_its_sender_is_told_where_to_go_on(store: LogStore) -> None:
    assert stored(store, piece(1, b"b")) == [0]
    assert stored(store, piece(0, b"a"), piece(2, b"c")) == [1, 1]
    assert store.size(ATTEMPT, "stdout") == 1


@pytest.mark.spec("J4", "N4")
def test_a_log_may_be_as_long_as_its_limit_and_not_a_byte_longer(store: LogStore) -> None:
    assert stored(store, piece(0, b"0123456789")) == [10]
    (said,) = stored(store, piece(10, b"!"))
    assert "over the limit of 10 bytes" in said
    assert stored(store, piece(0, b"0123456789!", stream="stderr")) == [said]
    assert store.digest(ATTEMPT) == (10, hashlib.sha256(b"0123456789").hexdigest())
    assert store.digest(ATTEMPT, "stderr") == (0, hashlib.sha256().hexdigest())


@pytest.mark.spec("J5", "J4")
def test_after_the_seal_nothing_is_added_and_what_is_there_may_be_repeated(store: LogStore) -> None:
    stored(store, piece(0, b"abc"))
    store.seal(ATTEMPT)

    (said,) = stored(store, piece(3, b"d"))

    assert "is closed" in said
    assert stored(store, piece(0, b"abc"), piece(3, b"")) == [3, 3]
    assert store.read(ATTEMPT, "stdout", 0, 9) == b"abc"
    assert stored(store, piece(0, b"x", "att_abcd.2")) == [1]


@pytest.mark.spec("J5")
def test_so_many_seals_are_remembered(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "SEALS_MAX", 2)
    for number in (1, 2, 3):
        store.seal(f"att_abcd.{number}")

    outcomes = stored(store, *(piece(0, b"x", f"att_abcd.{number}") for number in (1, 2, 3)))

    assert outcomes[0] == 1 and all("is closed" in str(said) for said in outcomes[1:])


@pytest.mark.spec("N5")
@pytest.mark.parametrize(
    ("attempt", "stream"),
    [
        ("../../etc.1", "stdout"),
        ("att_ab/c.1", "stdout"),
        (ATTEMPT, "ended"),
        (ATTEMPT, "../x"),
        (f"{ATTEMPT}\n", "stdout"),
    ],
)
def test_no_name_leads_anywhere_else(store: LogStore, attempt: str, stream: str) -> None:
    (said,) = stored(store, piece(0, b"x", attempt, stream))
    assert said.startswith("no such log")
    with pytest.raises(LogRefused):
        store.read(attempt, stream, 0, 1)


@pytest.mark.spec("J4")
def test_one_refused_piece_does_not_hold_up_the_others(store: LogStore) -> None:
    outcomes = stored(store, piece(0, b"a", "nonsense"), piece(0, b"ab"))
    assert outcomes[1] == 2


@pytest.mark.spec("J4")
def test_reading_goes_from_anywhere_and_ends_where_nothing_is(store: LogStore) -> None:
    stored(store, piece(0, b"abcdef"))
    assert store.read(ATTEMPT, "stdout", 2, 3) == b"cde"
    assert store.read(ATTEMPT, "stdout", 6, 3) == b""
    assert store.read("att_none.1", "stdout", 0, 3) == b""
    assert (store.size("att_none.1", "stdout"), store.size(ATTEMPT, "stdout")) == (0, 6)


@pytest.mark.spec("J4")
def test_files_are_closed_when_too_many_are_open_and_go_on_where_they_were(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "OPEN_FILES_MAX", 2)
    before = len(os.listdir("/proc/self/fd"))
    names = [f"att_abcd.{number}" for number in range(1, 6)]
    stored(store, *(piece(0, b"a", name) for name in names))
    assert len(os.listdir("/proc/self/fd")) == before + 2

    assert stored(store, *(piece(1, b"b", name) for name in names)) == [2] * 5
    assert {store.read(name, "stdout", 0, 9) for name in names} == {b"ab"}


@pytest.mark.spec("J4")
def test_the_file_that_was_used_last_stays_open(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "OPEN_FILES_MAX", 2)
    stored(store, piece(0, b"a", "att_abcd.1"))
    stored(store, piece(0, b"a", "att_abcd.2"))
    stored(store, piece(1, b"b", "att_abcd.1"))
    stored(store, piece(0, b"a", "att_abcd.3"))
    assert {key[0] for key in store._open} == {"att_abcd.1", "att_abcd.3"}


@pytest.mark.spec("J4", "N4")
def test_logs_are_not_taken_when_little_disk_is_left(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk = namedtuple("Disk", "f_bavail f_frsize f_blocks")

    def with_free(free: int, total: int) -> None:
        monkeypatch.setattr(logs_module.os, "statvfs", lambda _: Disk(free, 1, total))

    reserve = logs_module.DISK_RESERVE_BYTES
    for free, total in ((reserve, 100 * reserve), (100, 1_000)):
        with_free(free, total)
        assert stored(store, piece(0, b"a")) == [1]
        with_free(free - 1, total)
        with pytest.raises(OSError) as caught:
            store.append([piece(1, b"b")])
        assert caught.value.errno == errno.ENOSPC


@pytest.mark.spec("J4")
def test_what_could_not_be_synced_is_taken_back(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a sync that fails, then only what was durable before counts, and the next piece goes on from there."""
    stored(store, piece(0, b"ab"))
    open_before = len(os.listdir("/proc/self/fd"))

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as broken:
        broken.setattr(logs_module.os, "fdatasync", fail)
        with pytest.raises(OSError):
            store.append([piece(2, b"cd")])

    assert store.read(ATTEMPT, "stdout", 0, 9) == b"ab"
    assert len(os.listdir("/proc/self/fd")) == open_before - 1
    assert stored(store, piece(2, b"xy")) == [4]


@pytest.mark.spec("J4")
def test_a_file_that_is_written_in_parts_is_written_whole(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(logs_module.os, "pwrite", lambda d, data, at: write(d, data[:2], at))
    assert stored(store, piece(0, b"abcde")) == [5]
    assert store.read(ATTEMPT, "stdout", 0, 9) == b"abcde"


@pytest.mark.spec("J4")
def test_every_file_is_synced_before_it_is_acknowledged_and_a_new_one_with_its_folder(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Any] = []
    monkeypatch.setattr(logs_module.os, "fdatasync", lambda d: synced.append(os.readlink(f"/proc/self/fd/{d}")))
    monkeypatch.setattr(logs_module, "sync_folder", synced.append)
    logs = tmp_path / "logs"

    stored(store, piece(0, b"a"))
    assert synced == [logs / JOB, logs, str(logs / JOB / f"{ATTEMPT}.stdout")]
    synced.clear()
    stored(store, piece(0, b"a", stream="stderr"))
    assert synced == [logs / JOB, str(logs / JOB / f"{ATTEMPT}.stderr")]
    synced.clear()
    stored(store, piece(1, b"b"), piece(2, b"c"))
    assert synced == [str(logs / JOB / f"{ATTEMPT}.stdout")]


@pytest.mark.spec("J4")
def test_a_jobs_logs_go_whole_and_no_other_jobs(store: LogStore, tmp_path: Path) -> None:
    stored(store, piece(0, b"a"), piece(0, b"b", "att_efgh.1"))
    (tmp_path / "logs" / "stranger").mkdir()
    assert sorted(store.jobs()) == [JOB, "job_efgh"]
    assert store.has(JOB) and not store.has("job_none")
    assert store.marked(JOB) is None
    store.mark(JOB, 123)
    assert store.marked(JOB) == 123
    (tmp_path / "logs" / JOB / "ended").write_text("12x")
    assert store.marked(JOB) is None
    open_before = len(os.listdir("/proc/self/fd"))

    store.delete(JOB)

    assert not store.has(JOB) and store.has("job_efgh")
    assert len(os.listdir("/proc/self/fd")) == open_before - 1
    assert stored(store, piece(1, b"c", "att_efgh.1")) == [2]


@pytest.mark.spec("J4")
def test_the_mark_goes_last(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(store, piece(0, b"a"), piece(0, b"b", "att_abcd.9", "stderr"))
    store.mark(JOB, 5)
    gone: list[str] = []
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path: (gone.append(path.name), unlink(path))[1])

    store.delete(JOB)

    assert gone[-1] == "ended" and len(gone) == 3


@pytest.mark.spec("J4")
def test_a_closed_store_holds_no_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store = LogStore(tmp_path / "deep" / "logs", 10)
    store.writer.submit(store.append, [piece(0, b"a")]).result()
    store.close()
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before


# --- the orchestrator's own log ---


def record(level: int, says: str, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("holdfast.test", level, "", 0, says, (), **{"exc_info": None, **more})
    made.created, made.msecs = 1_700_000_000.0, 7.0
    return made


@pytest.mark.spec("H6")
def test_a_line_for_machines_is_json_and_one_for_people_shows_no_control_characters() -> None:
    machine, person = process_log._JsonLine(), process_log._PlainLine()
    assert json.loads(machine.format(record(logging.INFO, "a b"))) == {
        "at": "2023-11-14T22:13:20.007Z", "level": "info", "where": "holdfast.test", "says": "a b",
    }  # fmt: skip
    assert person.format(record(logging.INFO, "a\x1b[2Jb")).endswith("  a [2Jb")
    assert person.format(record(logging.WARNING, "a")).endswith("  warning: a")
    try:
        raise ValueError("broken")
    except ValueError as broken:
        info = (ValueError, broken, broken.__traceback__)
    assert "ValueError: broken" in json.loads(machine.format(record(logging.ERROR, "a", exc_info=info)))["trace"]
    assert "ValueError: broken" in person.format(record(logging.ERROR, "a", exc_info=info))


@pytest.mark.spec("H6")
@pytest.mark.parametrize("terminal", [True, False])
def test_the_log_goes_to_standard_error_once_and_libraries_only_warn(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    screen = Screen()
    root = logging.getLogger()
    kept, level = root.handlers[:], root.level
    monkeypatch.setattr(process_log.sys, "stderr", screen)
    try:
        process_log.log_to_stderr("info")
        process_log.log_to_stderr("info")
        logging.getLogger("holdfast.test").info("said once")
        logging.getLogger("uvicorn").info("said never")
        lines = screen.getvalue().splitlines()
    finally:
        root.handlers[:] = kept
        root.setLevel(level)
        for name in ("uvicorn", "uvicorn.error", "grpc", "asyncio", "alembic", "litestar", "httpx", "httpcore"):
            logging.getLogger(name).setLevel(logging.NOTSET)
    assert len(lines) == 1 and lines[0].startswith("{") is not terminal


@pytest.mark.spec("J4", "J14")
def test_a_file_that_cannot_be_synced_when_it_is_closed_for_room_is_taken_back_to_what_is_durable(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a log with a durable part, when a later part is written and the file must make room for another before its
    sync, and that sync fails, then nothing is acknowledged, and the lost part does not count when it is sent again."""
    monkeypatch.setattr(logs_module, "OPEN_FILES_MAX", 1)
    stored(store, piece(0, b"ab"))
    open_before = len(os.listdir("/proc/self/fd"))

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as broken:
        broken.setattr(logs_module.os, "fdatasync", fail)
        with pytest.raises(OSError):
            store.append([piece(2, b"cd"), piece(0, b"x", "att_abcd.2")])

    assert store.read(ATTEMPT, "stdout", 0, 9) == b"ab"
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert stored(store, piece(2, b"cd")) == [4]
    assert store.read(ATTEMPT, "stdout", 0, 9) == b"abcd"


@pytest.mark.spec("J4", "J14")
def test_what_could_not_be_synced_nor_taken_back_does_not_count_when_the_file_is_opened_again(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a sync that fails and a truncate that fails too, then the lost bytes are removed before the file is used
    again; until that succeeds, nothing of it is acknowledged."""
    stored(store, piece(0, b"ab"))
    open_before = len(os.listdir("/proc/self/fd"))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as broken:
        broken.setattr(logs_module.os, "ftruncate", fail)
        with monkeypatch.context() as unsynced:
            unsynced.setattr(logs_module.os, "fdatasync", fail)
            with pytest.raises(OSError):
                store.append([piece(2, b"cd")])
        for _ in range(2):
            with pytest.raises(OSError):
                store.append([piece(2, b"cd")])
    assert store.read(ATTEMPT, "stdout", 0, 9) == b"abcd"

    # Then: without the truncate, the file would be four bytes long, and the piece a repetition of what it has
    assert stored(store, piece(4, b"e")) == [2]
    assert store.read(ATTEMPT, "stdout", 0, 9) == b"ab"
    assert stored(store, piece(2, b"xy"), piece(4, b"e")) == [4, 5]
    assert len(os.listdir("/proc/self/fd")) == open_before and not store._uncertain


@pytest.mark.spec("J4", "J14")
def test_a_deleted_log_leaves_nothing_uncertain(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(store, piece(0, b"ab"), piece(0, b"ab", "att_efgh.1"))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as broken:
        for call in ("ftruncate", "fdatasync"):
            broken.setattr(logs_module.os, call, fail)
        for attempt in (ATTEMPT, "att_efgh.1"):
            with pytest.raises(OSError):
                store.append([piece(2, b"cd", attempt)])
    store.delete(JOB)
    assert store._uncertain == {("att_efgh.1", "stdout"): 2}
    assert stored(store, piece(0, b"abcdef")) == [6]


@pytest.mark.spec("J4", "J14")
def test_what_an_earlier_process_wrote_counts_once_it_is_synced(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a log whose writer was killed before it synced, when it cannot be synced now, then it is not acknowledged,
    and nothing of it is removed: its beginning may have been acknowledged."""
    stored(store, piece(0, b"ab"))
    later = LogStore(tmp_path / "logs", bytes_max=10)
    open_before = len(os.listdir("/proc/self/fd"))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as broken:
        broken.setattr(logs_module.os, "fdatasync", fail)
        with pytest.raises(OSError):
            later.append([piece(0, b"ab")])
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert later.read(ATTEMPT, "stdout", 0, 9) == b"ab"
    # Then it is synced before anything is added to it: what is added later must not be all that a failed sync removes
    done: list[str] = []
    sync, write = os.fdatasync, os.pwrite
    monkeypatch.setattr(logs_module.os, "fdatasync", lambda d: (done.append("sync"), sync(d)))
    monkeypatch.setattr(logs_module.os, "pwrite", lambda *words: (done.append("write"), write(*words))[1])
    assert stored(later, piece(0, b"abc")) == [3]
    assert done == ["sync", "write", "sync"]
    later.close()


@pytest.mark.spec("J4", "J14")
def test_what_an_append_wrote_before_it_failed_is_not_durable(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a batch that failed at its second file, when the sync of the first fails in the next batch, then it is
    taken back to what was synced, and not to what the failed batch had written."""
    stored(store, piece(0, b"ab"))

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(logs_module.os, "open", fail)
        with pytest.raises(OSError):
            store.append([piece(2, b"cd"), piece(0, b"x", "att_abcd.2")])
    with monkeypatch.context() as broken:
        broken.setattr(logs_module.os, "fdatasync", fail)
        with pytest.raises(OSError):
            store.append([piece(2, b"cd")])

    assert store.read(ATTEMPT, "stdout", 0, 9) == b"ab"
    assert stored(store, piece(2, b"cd")) == [4]


@pytest.mark.spec("J4", "J14")
def test_a_file_whose_folder_cannot_be_synced_is_not_left_open(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_before = len(os.listdir("/proc/self/fd"))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as broken:
        broken.setattr(logs_module, "sync_folder", fail)
        with pytest.raises(OSError):
            store.append([piece(0, b"ab")])

    assert len(os.listdir("/proc/self/fd")) == open_before
    assert stored(store, piece(0, b"ab")) == [2]


@pytest.mark.spec("J4", "J14")
def test_a_file_that_was_deleted_is_not_written_to_any_more(store: LogStore) -> None:
    stored(store, piece(0, b"ab"), piece(0, b"xy", "att_efgh.1"))
    store.delete(JOB)
    assert {key[0] for key in store._open} == {"att_efgh.1"}
    assert stored(store, piece(0, b"cd")) == [2]
    assert store.read(ATTEMPT, "stdout", 0, 9) == b"cd"


# --- what arrived, and what the disk made of it ---


def printed(data: bytes) -> PrintedOutput:
    return PrintedOutput(len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.spec("H3", "J10")
def test_what_arrived_is_known_whatever_the_disk_does_to_it(store: LogStore, tmp_path: Path) -> None:
    # given a log that came in pieces, one of them twice, and another stream of the same attempt
    assert store.received(ATTEMPT) == NOTHING
    stored(store, piece(0, b"abc"), piece(1, b"bcd"), piece(0, b"errors", stream="stderr"), piece(4, b"e"))
    assert store.received(ATTEMPT) == printed(b"abcde") == PrintedOutput(*store.digest(ATTEMPT))
    # when a bit of it flips
    (path,) = tmp_path.rglob(f"{ATTEMPT}.stdout")
    path.write_bytes(b"abcdd")
    # then the two differ
    assert store.received(ATTEMPT) == printed(b"abcde") != PrintedOutput(*store.digest(ATTEMPT))


@pytest.mark.spec("H3")
def test_what_an_earlier_process_received_is_not_known(store: LogStore, tmp_path: Path) -> None:
    stored(store, piece(0, b"abc"))
    other = LogStore(store._folder, store._bytes_max)
    try:
        assert other.received(ATTEMPT) is None
        assert other.append([piece(3, b"d")]) == [4]
        assert other.received(ATTEMPT) is None
    finally:
        other.close()


@pytest.mark.spec("H3")
def test_what_arrived_of_so_many_attempts_is_known(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "SEALS_MAX", 2)
    names = [f"att_abcd1234.{number}" for number in (1, 2, 3)]
    stored(store, *(piece(0, b"x", attempt=name) for name in names))
    assert [store.received(name) for name in names] == [None, printed(b"x"), printed(b"x")]
    store.writer.submit(store.delete, "job_abcd1234").result()
    assert store._received == {}
