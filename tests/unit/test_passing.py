"""Errors that pass are waited for, wherever files of a job or its output are read. The sites are found in the source;
each fails once, for a while, and for good."""

import ast
import asyncio
import errno
import hashlib
import json
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

import holdfast
from holdfast import passing
from holdfast.blobs import scan
from holdfast.blobs.beneath import Beneath
from holdfast.model import AttemptId
from holdfast.node import linux
from holdfast.node.attempt import attempt_folders, shim_client
from holdfast.node.attempt.preparation import PACKAGE_FILE, recall_package
from holdfast.node.capture import StreamCapture
from holdfast.node.core.order import Order
from holdfast.orchestrator.logs.log_files import LogStore
from holdfast.passing import (
    BRIEFLY_S,
    PASSING,
    PATIENCE_S,
    briefly,
    exists,
    is_passing,
    patiently,
    raise_if_passing,
    unless_passing,
)
from holdfast.tasks import TaskScope, until_passed
from holdfast.wire.convert import LogPiece

pytestmark = pytest.mark.spec("N5", "J10", "J4")

PACKAGE = Path(holdfast.__file__).parent
READERS = ("blobs/beneath.py", "blobs/walk.py", "blobs/scanning.py")
CALLS = {"open", "dup", "listdir", "stat", "fstat", "readlink", "preadv"}
"""Functions of `os` that open or read."""
WHILE_S = 2.0


def sites() -> set[str]:
    """Every place where one of the readers names one of these functions, as `file:line:function`."""
    found: set[str] = set()
    for file in READERS:
        for node in ast.walk(ast.parse((PACKAGE / file).read_bytes())):
            match node:
                case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in CALLS:
                    found.add(f"{file}:{node.lineno}:{name}")
                case _:
                    pass
    return found


class Faults:
    """Makes one site fail, and counts the seconds that were waited for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: set[str] = set()
        self.failing = ""
        self.number = 0
        self.lasts: Callable[[], bool] = lambda: False
        self.waited_s = 0.0
        self.failures = 0
        monkeypatch.setattr(time, "sleep", self._wait)
        for name in CALLS:
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _wait(self, seconds: float) -> None:
        self.waited_s += seconds

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            for site in self._called_from(name):
                self.seen.add(site)
                if site == self.failing and self.lasts():
                    self.failures += 1
                    raise OSError(self.number, os.strerror(self.number))
            return real(*words, **named)

        call.__name__ = name
        return call

    @staticmethod
    def _called_from(name: str) -> Iterator[str]:
        frame = cast("FrameType | None", sys._getframe(2))
        while frame is not None and frame.f_code.co_filename == passing.__file__:
            frame = frame.f_back
        if frame is not None:
            file = frame.f_code.co_filename.removeprefix(f"{PACKAGE}/")
            if file in READERS:
                yield f"{file}:{frame.f_lineno}:{name}"

    def fail(self, site: str, number: int, *, times: int = 0, seconds: float = 0.0) -> None:
        self.failing, self.number, self.waited_s, self.failures = site, number, 0.0, 0
        self.lasts = lambda: self.failures < times or self.waited_s < seconds


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b/c", "b/d/e"):
        (tmp_path / "job" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "job" / name).write_text(name * 3)
    (tmp_path / "job" / "large").write_bytes(os.urandom(9 << 20))
    (tmp_path / "job" / "empty").mkdir()
    (tmp_path / "job" / "link").symlink_to("a")
    return tmp_path / "job"


def whole(folder: Path) -> object:
    """All that the readers find."""
    found = scan(folder)
    with Beneath(folder) as tree, Beneath(tree.root, mode=0o700) as again:
        again.folder("made/below", make=True)
        os.rmdir("below", dir_fd=again.folder("made"))
        os.rmdir("made", dir_fd=again.root)
        os.close(again.open_file("a"))
    return found.manifest.name, found.left_out


def test_every_site_is_visited(folder: Path, faults: Faults) -> None:
    whole(folder)
    assert faults.seen == sites()


@pytest.mark.parametrize("site", sorted(sites()))
def test_a_site_that_fails_for_a_while_changes_nothing(folder: Path, faults: Faults, site: str) -> None:
    expected = whole(folder)
    for number in (errno.EMFILE, errno.ENOMEM):
        faults.fail(site, number, seconds=WHILE_S)
        assert whole(folder) == expected, errno.errorcode[number]
        assert faults.failures > 1
    for number in (errno.EIO, errno.ENFILE, errno.EINTR):
        faults.fail(site, number, times=1)
        assert whole(folder) == expected, errno.errorcode[number]
        assert faults.failures == 1


@pytest.mark.parametrize("site", sorted(sites()))
def test_a_site_that_fails_for_good_is_named_and_no_file_is_left_out_for_it(
    folder: Path, faults: Faults, site: str
) -> None:
    faults.fail(site, errno.EMFILE, seconds=PATIENCE_S + 60)
    with pytest.raises(OSError, match="Too many open files") as caught:
        whole(folder)
    assert caught.value.errno == errno.EMFILE
    assert PATIENCE_S <= faults.waited_s <= PATIENCE_S + 1


def test_what_does_not_pass_is_raised_at_once(faults: Faults) -> None:
    for number in (errno.ENOENT, errno.EACCES, errno.ELOOP, errno.ENOSPC, errno.EROFS):
        assert not is_passing(OSError(number, ""))
        calls: list[int] = []
        with pytest.raises(OSError) as caught:
            patiently(failing, calls, number, 9)
        assert (caught.value.errno, len(calls), faults.waited_s) == (number, 1, 0.0)


def test_a_disk_may_fail_once(faults: Faults) -> None:
    calls: list[int] = []
    assert patiently(failing, calls, errno.EIO, 1) == "done"
    assert len(calls) == 2
    with pytest.raises(OSError, match="Input/output"):
        patiently(failing, calls, errno.EIO, 4)
    assert len(calls) == 4


@pytest.mark.parametrize("number", sorted(PASSING))
def test_the_pause_doubles_up_to_a_second(faults: Faults, number: int) -> None:
    assert is_passing(OSError(number, ""))
    assert patiently(failing, [], number, 3) == "done"
    assert faults.waited_s == pytest.approx(0.02 + 0.04 + 0.08)
    calls: list[int] = []
    with pytest.raises(OSError) as caught:
        patiently(failing, calls, number, 1_000)
    assert caught.value.errno == number
    assert len(calls) < 45


@pytest.mark.parametrize(("call", "patience_s"), [(patiently, PATIENCE_S), (briefly, BRIEFLY_S)])
def test_a_call_is_given_up_after_its_patience(faults: Faults, call: Callable[..., str], patience_s: float) -> None:
    assert BRIEFLY_S < PATIENCE_S
    with pytest.raises(OSError, match="Too many open files"):
        call(failing, [], errno.EMFILE, 1_000)
    assert patience_s <= faults.waited_s <= patience_s + 1
    with pytest.raises(OSError, match="Input/output"):
        call(failing, [], errno.EIO, 2)
    assert call(failing, [], errno.EIO, 1) == "done"


def test_only_what_does_not_pass_may_be_concluded_from() -> None:
    raise_if_passing(FileNotFoundError(errno.ENOENT, ""))
    raise_if_passing(ValueError("no number"))
    for number in sorted(PASSING):
        with pytest.raises(OSError):
            raise_if_passing(OSError(number, ""))
        with pytest.raises(OSError), unless_passing():
            raise OSError(number, "")
    with unless_passing():
        raise PermissionError(errno.EACCES, "")
    with pytest.raises(ValueError), unless_passing():
        raise ValueError("not of the operating system")


def test_a_file_that_cannot_be_looked_at_is_not_missing(tmp_path: Path, faults: Faults) -> None:
    (tmp_path / "file").touch()
    assert exists(tmp_path / "file") and exists(str(tmp_path))
    assert not exists(tmp_path / "none") and not exists(tmp_path / "file" / "below")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        exists(tmp_path / "loop")


def test_the_error_is_named_once(faults: Faults, caplog: pytest.LogCaptureFixture) -> None:
    patiently(failing, [], errno.EMFILE, 5)
    assert [record.getMessage() for record in caplog.records] == ["failing fails with EMFILE, trying again"]


def failing(calls: list[int], number: int, times: int) -> str:
    calls.append(number)
    if len(calls) <= times:
        raise OSError(number, os.strerror(number))
    return "done"


def test_the_output_of_a_job_is_read_though_too_many_files_are_open(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given output that is stored
    store = LogStore(tmp_path, 1 << 20)
    attempt = AttemptId("att_0a0a0a0a.1")
    data = os.urandom(5_000)
    store.append([LogPiece(attempt, 1, "stdout", 0, data)])
    # when no file can be opened for two seconds
    plain = Path.open
    monkeypatch.setattr(Path, "open", lambda *words, **named: slow(faults, plain, *words, **named))
    # then it is read all the same, and nothing is skipped
    faults.waited_s = 0.0
    assert store.read(attempt, "stdout", 1_000, 9_999) == data[1_000:]
    assert faults.waited_s >= WHILE_S
    faults.waited_s = 0.0
    assert store.digest(attempt) == (5_000, hashlib.sha256(data).hexdigest())
    assert faults.waited_s >= WHILE_S
    # and output that does not exist is none, at once
    faults.waited_s = WHILE_S
    assert store.read("att_0b0b0b0b.1", "stdout", 0, 9) == b""
    assert faults.waited_s == WHILE_S
    store.close()


def slow(faults: Faults, real: Callable[..., Any], *words: Any, **named: Any) -> Any:
    if faults.waited_s < WHILE_S:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return real(*words, **named)


def test_a_folder_is_read_whole_by_a_process_that_had_no_descriptor_left(
    folder: Path,
) -> None:
    # given a process that may open no more files
    expected = scan(folder).manifest.name
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        noticed = threading.Event()
        watch = Noticing(noticed)
        passing.log.addHandler(watch)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free(), hard))
        try:
            # when it reads a folder, and descriptors are free again a while later
            found = pool.submit(scan, folder)
            assert noticed.wait(60)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            passing.log.removeHandler(watch)
        # then no file is missing
        assert found.result(60).manifest.name == expected


def lowest_free() -> int:
    """The number that the next open file would get."""
    descriptor = os.dup(0)
    os.close(descriptor)
    return descriptor


class Noticing(logging.Handler):
    def __init__(self, noticed: threading.Event) -> None:
        super().__init__()
        self._noticed = noticed

    def emit(self, record: logging.LogRecord) -> None:
        self._noticed.set()


# --- attempts of a node ---

ORDER = Order("att_aaaaaaaaaaaaaa.1", 7, "job_aaaaaaaaaaaaaa", ("true",), 1_000, 1_000, 100, 1_000)


def unreadable(monkeypatch: pytest.MonkeyPatch, name: str, number: int, lasts: Callable[[], bool]) -> None:
    """The file of this name cannot be opened while it lasts."""
    plain = Path.open

    def open_(path: Path, *words: Any, **named: Any) -> Any:
        if path.name == name and lasts():
            raise OSError(number, os.strerror(number))
        return plain(path, *words, **named)

    monkeypatch.setattr(Path, "open", open_)


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """The folder of an attempt that has ended, and whose shim is alive."""
    home = tmp_path / "attempts" / ORDER.attempt
    home.mkdir(parents=True)
    ended = {"phase": "ended", "outcome": {"kind": "exit", "exit_code": 0}, "stdout_bytes": 3}
    me = os.getpid()
    for name, content in {
        "order": ORDER.to_dict(),
        "status": ended,
        "shim": {"pid": me, "start_ticks": linux.start_ticks(me), "boot": linux.boot_id()},
    }.items():
        (home / f"{name}.json").write_text(json.dumps(content))
    return home


@pytest.mark.spec("N9")
@pytest.mark.parametrize("name", ["order.json", "status.json"])
def test_no_attempt_is_lost_at_a_start_because_a_file_could_not_be_opened(
    attempt: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    unreadable(monkeypatch, name, errno.EMFILE, lambda: faults.waited_s < WHILE_S)
    (found,), litter = attempt_folders.scan(attempt.parent)
    assert found.status is not None and found.status.stdout_bytes == 3 and not litter
    # for good: the agent does not start, and nothing is removed
    unreadable(monkeypatch, name, errno.EMFILE, lambda: True)
    with pytest.raises(OSError, match="Too many open files"):
        attempt_folders.scan(attempt.parent)


@pytest.mark.spec("N9")
@pytest.mark.parametrize("name", ["order.json", "status.json", "shim.json"])
def test_a_disk_that_fails_once_loses_no_attempt(attempt: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    failures = iter([True])
    unreadable(monkeypatch, name, errno.EIO, lambda: next(failures, False))
    (found,), litter = attempt_folders.scan(attempt.parent)
    assert found.status is not None and not litter
    assert attempt_folders.read_identity(attempt) is not None


@pytest.mark.spec("N9")
def test_a_disk_that_fails_twice_is_broken(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable(monkeypatch, "shim.json", errno.EIO, lambda: True)
    assert attempt_folders.read_identity(attempt) is None


@pytest.mark.spec("N9")
def test_a_living_shim_is_not_buried_because_its_file_could_not_be_opened(
    attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an attempt that an earlier agent left running, and a process that cannot open files for a while
    (attempt / "status.json").unlink()
    failures = iter([True] * 3)
    opened = asyncio.Event()

    def lasts() -> bool:
        if next(failures, False):
            return True
        opened.set()
        return False

    unreadable(monkeypatch, "shim.json", errno.EMFILE, lasts)
    monkeypatch.setattr(shim_client, "UNREADABLE_S", 0.01)
    died: list[str] = []

    async def watch() -> None:
        client = shim_client.ShimClient(AttemptId(ORDER.attempt), attempt, lambda _: None, died.append)
        async with TaskScope() as tasks:
            running = tasks.start("watch the shim", client.run(fresh=False))
            # when it can be read again, then the shim is still watched
            await opened.wait()
            await asyncio.sleep(0)
            assert not running.done()

    asyncio.run(watch())
    assert died == []


@pytest.mark.spec("J10")
def test_files_of_the_package_do_not_pass_for_results(
    attempt: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable(monkeypatch, PACKAGE_FILE, errno.EMFILE, lambda: True)
    with pytest.raises(OSError, match="Too many open files"):
        recall_package(attempt)


def test_without_a_package_there_is_none(attempt: Path) -> None:
    assert recall_package(attempt)[0] is None


# --- processes of an attempt ---


def of_every_process(monkeypatch: pytest.MonkeyPatch, method: str, name: str, number: int) -> None:
    """Files of this name in /proc cannot be read."""
    plain = getattr(Path, method)

    def read(path: Path, *words: Any, **named: Any) -> Any:
        if path.name == name and str(path).startswith("/proc/"):
            raise OSError(number, os.strerror(number))
        return plain(path, *words, **named)

    monkeypatch.setattr(Path, method, read)


@pytest.mark.spec("J5", "J9")
@pytest.mark.parametrize(("method", "name"), [("read_bytes", "environ"), ("stat", "cwd")])
def test_no_process_of_an_attempt_is_overlooked_because_of_an_error_that_passes(
    attempt: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch, method: str, name: str
) -> None:
    (attempt / "work").mkdir()
    of_every_process(monkeypatch, method, name, errno.ENOMEM)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        attempt_folders.processes_of(attempt)
    # a process that is not ours to see is none of the attempt's
    of_every_process(monkeypatch, method, name, errno.EACCES)
    assert isinstance(attempt_folders.processes_of(attempt), list)


@pytest.mark.spec("J5", "J9")
def test_a_process_that_cannot_be_looked_at_is_not_taken_for_dead(
    attempt: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not attempt_folders._is_dead(os.getpid())
    of_every_process(monkeypatch, "read_bytes", "stat", errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        attempt_folders._is_dead(os.getpid())
    of_every_process(monkeypatch, "read_bytes", "stat", errno.ESRCH)
    assert attempt_folders._is_dead(os.getpid())


@pytest.mark.spec("J4")
def test_the_size_of_a_log_is_not_lost(attempt: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    (attempt / "stdout.log").write_text("four")
    plain, failures = Path.stat, iter([True, True])

    def stat(path: Path, **named: Any) -> Any:
        if path.name == "stdout.log" and next(failures, False):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return plain(path, **named)

    monkeypatch.setattr(Path, "stat", stat)
    assert attempt_folders.log_sizes(attempt) == {"stdout": 4}


# --- what a body prints ---


@pytest.mark.spec("J4")
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM])
def test_nothing_that_was_printed_is_lost_with_a_read_of_the_pipe(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    capture = StreamCapture(str(tmp_path / "stdout.log"), 1 << 20)
    os.write(capture.body_end, b"printed")
    capture.release_body_end()
    plain, failures = os.read, iter([True])

    def read(fd: int, size: int) -> bytes:
        if fd == capture.pipe and next(failures, False):
            raise OSError(number, os.strerror(number))
        return plain(fd, size)

    monkeypatch.setattr(os, "read", read)
    capture.drain()
    assert (capture.kept, (tmp_path / "stdout.log").read_bytes()) == (7, b"printed")
    assert not capture.read()


# --- in an event loop ---


@pytest.mark.spec("J10")
def test_a_step_is_repeated_until_the_error_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def step(calls: list[int], number: int, times: int) -> str:
        return failing(calls, number, times)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(until_passed(lambda calls=[]: step(calls, errno.EMFILE, 3))) == "done"
    assert len(waited) == 3
    with pytest.raises(OSError, match="No space"):
        asyncio.run(until_passed(lambda: step([], errno.ENOSPC, 9)))
    assert len(waited) == 3
    with pytest.raises(OSError, match="Too many open files"):
        asyncio.run(until_passed(lambda: step([], errno.EMFILE, 10_000)))
    assert PATIENCE_S <= sum(waited) <= PATIENCE_S + 2
