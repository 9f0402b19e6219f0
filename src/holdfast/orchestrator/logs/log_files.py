"""Stores the output of jobs: one append-only file per attempt and stream, `<data>/logs/<job>/<attempt>.<stream>`.
Once the job has ended, the file `ended` beside them holds when that was first seen.

A piece names its offset. A piece that starts beyond the end is not stored (bytes would be missing), overlapping bytes
are ignored (a node repeats what was not acknowledged), and nothing is acknowledged before it is on the disk.
Everything here blocks, so it runs in threads: appends in one thread, which syncs many pieces together; reads and
digests in any. It does not check who may write what: the session layer does.
"""

import contextlib
import errno
import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import msgspec

from holdfast.durable import sync_folder
from holdfast.model import AttemptId, job_of
from holdfast.orchestrator.failpoints import failpoint
from holdfast.orchestrator.logs.output_check import NOTHING, PrintedOutput
from holdfast.passing import patiently
from holdfast.wire.convert import LogPiece

STREAMS = ("stdout", "stderr")
OPEN_FILES_MAX = 256
"""Log files that are kept open."""
DISK_RESERVE_BYTES = 512 << 20
"""Logs are not accepted if less than this is free (a tenth of a small disk); nodes keep them and deliver later."""
SEALS_MAX = 100_000
"""Seals that are remembered. A seal matters only while pieces of its attempt may be in flight; later pieces are refused
before they get here, because the attempt has ended."""
_ATTEMPT = re.compile(r"att_[0-9a-z]{4,40}\.[0-9]{1,9}")
_JOB = re.compile(r"job_[0-9a-z]{4,40}")
_ENDED = "ended"


class _OpenLog(msgspec.Struct):
    descriptor: int
    size: int
    durable: int
    """What a sync of this process has confirmed."""


class _Received:
    """A hash of what arrived, computed before it is written to the disk."""

    def __init__(self) -> None:
        self.size = 0
        self.summed = hashlib.sha256()

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self.summed.update(data)


class LogRefused(Exception):
    """Logs of this attempt are not accepted; the text says why."""


def need_log_name(attempt: str, stream: str) -> None:
    if not _ATTEMPT.fullmatch(attempt) or stream not in STREAMS:
        raise LogRefused(f"no such log: {attempt!r} {stream!r}")


class LogStore:
    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._open: OrderedDict[tuple[str, str], _OpenLog] = OrderedDict()
        """By attempt and stream, the one used last at the end; touched only by the writer thread."""
        self._received: OrderedDict[str, _Received] = OrderedDict()
        """By attempt: its stdout as it arrived, if all of it arrived in this process. Guarded by `_sealing`."""
        self._uncertain: dict[tuple[str, str], int] = {}
        """Files that could not be truncated after a failed sync, and how much of each is certain."""
        self._sealed: OrderedDict[str, None] = OrderedDict()
        self._sealing = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="logs")
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def writer(self) -> ThreadPoolExecutor:
        """The only thread in which `append` and `delete` may be called."""
        return self._writer

    def close(self) -> None:
        self._writer.shutdown(wait=True)
        for log in self._open.values():
            os.close(log.descriptor)
        self._open.clear()

    # --- writing: in the writer thread ---

    def append(self, pieces: list[LogPiece]) -> list[int | LogRefused]:
        """Store pieces in order and sync each changed file once. Returns the durable size for each piece, or why it was
        refused."""
        failpoint("logs.before_write")
        self._spare_the_disk()
        outcomes: list[int | LogRefused] = []
        touched: set[tuple[str, str]] = set()
        for piece in pieces:
            try:
                key = (piece.attempt, piece.stream)
                self._opened(key)
                touched.add(key)
                outcomes.append(self._append(piece))
            except LogRefused as refused:
                outcomes.append(refused)
        failpoint("logs.before_sync")
        for key in sorted(touched):
            self._opened(key)
            self._sync(key)
        failpoint("logs.before_ack")
        return outcomes

    def _spare_the_disk(self) -> None:
        """Leaves space for the store, which may be on the same disk and must still be able to write."""
        disk = os.statvfs(self._folder)
        free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        if free < min(DISK_RESERVE_BYTES, total // 10):
            raise OSError(errno.ENOSPC, f"{free >> 20} MiB are left on the disk; logs wait until there is more")

    def _append(self, piece: LogPiece) -> int:
        """Returns the new size. A piece that would leave a gap is not stored: the size tells its sender where to
        continue."""
        key = (piece.attempt, piece.stream)
        with self._sealing:
            log = self._opened(key)
            size = log.size
            fresh = piece.data[size - piece.offset :] if piece.offset <= size else b""
            if not fresh:
                return size
            if piece.attempt in self._sealed:
                raise LogRefused(f"the log of {piece.attempt} is closed: its result is being verified")
            if size + len(fresh) > self._bytes_max:
                raise LogRefused(f"over the limit of {self._bytes_max} bytes per attempt and stream")
            arrived = self._arriving(piece, size)
            while fresh:
                written = os.pwrite(log.descriptor, fresh, size)
                log.size = size = size + written
                if arrived is not None:
                    arrived.add(fresh[:written])
                fresh = fresh[written:]
            return size

    def _arriving(self, piece: LogPiece, size: int) -> _Received | None:
        """What arrived of this log before; None if this process does not know all of it."""
        if piece.stream != "stdout":
            return None
        if size == 0:
            self._received[piece.attempt] = _Received()
            if len(self._received) > SEALS_MAX:
                self._received.popitem(last=False)
        known = self._received.get(piece.attempt)
        return known if known is not None and known.size == size else None

    def _sync(self, key: tuple[str, str]) -> None:
        log = self._open[key]
        try:
            os.fdatasync(log.descriptor)
        except OSError:
            # After a failed sync the kernel may mark lost pages as clean: only what was synced before is certain.
            self._open.pop(key)
            with self._sealing:
                self._received.pop(key[0], None)
            self._uncertain[key] = log.durable
            with contextlib.suppress(OSError):  # if that fails, it is done before the file is used again
                self._take_back(key, log.descriptor)
            os.close(log.descriptor)
            raise
        log.durable = log.size

    def _take_back(self, key: tuple[str, str], descriptor: int) -> None:
        """Truncate a file to what is certain of it."""
        if key in self._uncertain:
            os.ftruncate(descriptor, self._uncertain[key])
            del self._uncertain[key]

    def _opened(self, key: tuple[str, str]) -> _OpenLog:
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        path = self._path(*key)
        fresh_folder = not path.parent.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take_back(key, descriptor)
            size = os.fstat(descriptor).st_size
            if size == 0:
                # The name of a new file is durable only once its folder is synced.
                sync_folder(path.parent)
                if fresh_folder:
                    sync_folder(self._folder)
            else:
                # A process that was killed may have written it and not synced it.
                os.fdatasync(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        log = self._open[key] = _OpenLog(descriptor, size, size)
        while len(self._open) > OPEN_FILES_MAX:
            # What is written and not synced would pass for durable once the file is opened again.
            oldest = next(iter(self._open))
            self._sync(oldest)
            os.close(self._open.pop(oldest).descriptor)
        return log

    def delete(self, job: str) -> None:
        """Delete the output of a job. Runs in the writer thread, which may have its files open."""
        with self._sealing:
            for attempt in [attempt for attempt in self._received if job_of(AttemptId(attempt)) == job]:
                del self._received[attempt]
        for key in [key for key in self._open if job_of(AttemptId(key[0])) == job]:
            os.close(self._open.pop(key).descriptor)
        for key in [key for key in self._uncertain if job_of(AttemptId(key[0])) == job]:
            del self._uncertain[key]
        folder = self._folder_of(job)
        # Delete the mark last: what a crash leaves behind is deleted in the next round.
        for path in sorted(folder.iterdir(), key=lambda path: path.name == _ENDED):
            path.unlink()
        folder.rmdir()

    # --- retention: in any thread ---

    def jobs(self) -> Iterator[str]:
        """Every job with stored output."""
        with os.scandir(self._folder) as found:
            yield from (one.name for one in found if _JOB.fullmatch(one.name))

    def has(self, job: str) -> bool:
        return self._folder_of(job).exists()

    def mark(self, job: str, now_ms: int) -> None:
        """Record that the job has ended, as seen at `now_ms`."""
        (self._folder_of(job) / _ENDED).write_text(str(now_ms))

    def marked(self, job: str) -> int | None:
        """When the job's end was first seen; None: not marked, or a crash truncated the mark."""
        try:
            return int((self._folder_of(job) / _ENDED).read_text())
        except (FileNotFoundError, ValueError):
            return None

    # --- reading: in any thread ---

    def size(self, attempt: str, stream: str) -> int:
        try:
            return self._path(attempt, stream).stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, attempt: str, stream: str, offset: int, limit: int) -> bytes:
        """Up to `limit` bytes from `offset`; empty if there is nothing (yet)."""
        with contextlib.suppress(FileNotFoundError), self._reading(attempt, stream) as file:
            file.seek(offset)
            return patiently(file.read, limit)
        return b""

    def _reading(self, attempt: str, stream: str) -> IO[bytes]:
        """Without a buffer: a read that fails has then consumed nothing, and can be repeated."""
        return patiently(self._path(attempt, stream).open, "rb", buffering=0)

    def seal(self, attempt: str) -> None:
        """From now on nothing is added to this attempt's logs, so that they stay as they were verified."""
        with self._sealing:
            self._sealed[attempt] = None
            if len(self._sealed) > SEALS_MAX:
                self._sealed.popitem(last=False)

    def received(self, attempt: str) -> PrintedOutput | None:
        """The stdout of an attempt as it arrived; None if this process did not receive all of it."""
        with self._sealing:
            known = self._received.get(attempt)
            if known is not None:
                return PrintedOutput(known.size, known.summed.hexdigest())
        return None if self.size(attempt, "stdout") else NOTHING

    def digest(self, attempt: str, stream: str = "stdout") -> tuple[int, str]:
        """(bytes, sha256) of what is stored."""
        summed = hashlib.sha256()
        size = 0
        with contextlib.suppress(FileNotFoundError), self._reading(attempt, stream) as file:
            while block := patiently(file.read, 1 << 20):
                summed.update(block)
                size += len(block)
        return size, summed.hexdigest()

    def _path(self, attempt: str, stream: str) -> Path:
        # The names come from a node: only an attempt's id and a known stream may reach the file system.
        need_log_name(attempt, stream)
        return self._folder_of(job_of(AttemptId(attempt))) / f"{attempt}.{stream}"

    def _folder_of(self, job: str) -> Path:
        return self._folder / job
