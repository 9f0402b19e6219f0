"""A blob store in a folder of this machine. The orchestrator itself serves the URLs that it signs.

A blob is written under a temporary name and renamed: under its key it is complete or absent. Owned content is synced
before it is acknowledged, and survives a power cut. Incoming content is not synced, because it does not count yet: if
it is lost or torn, verification detects that, and it is sent again. Blocking calls run in threads.

Owned content is verified whenever it is read. What is damaged is moved to `damaged/`: its key is free, so that the next
upload replaces it, and a person can still look at the bytes for a while.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import ParamSpec, TypeVar

from holdfast.blobs.errors import (
    BlobExists,
    BlobMissing,
    BlobStoreError,
    Damaged,
    LinkRefused,
    Mismatch,
    OverQuota,
    StoreFull,
    StoreGone,
    StoreRefused,
    StoreSlow,
)
from holdfast.blobs.incoming import IncomingBytes
from holdfast.blobs.keys import INCOMING, Incoming, Owned, Stored, incoming_key, parse_key, sha_of
from holdfast.blobs.signing import Grant, LinkSigner
from holdfast.blobs.store import Abilities, Condition, same_sha
from holdfast.durable import sync_folder

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT_S = 60.0
DAMAGED_S = 30 * 24 * 3600.0
"""How long damaged content is kept aside."""
STALE_S = 24 * 3600.0
"""A temporary file that was made this long ago is abandoned: no upload takes a day."""
FREE_BYTES_MIN = 768 << 20
"""Uploads are refused if less than this is free, or less than 15 % of a small disk. More than logs leave free
(orchestrator/logs/log_files.py), which leave more than the state needs: whoever fills the disk with files stops files
first, and the state last."""
THREADS = 16
"""For the blocking calls of one store. They have threads of their own, so that slow files do not hold up other work."""
LOCK = "deleting.lock"
"""Held by the process that deletes unreferenced content."""
_GATHERED_BYTES = 1024 * 1024
"""How much is buffered before a thread writes it."""
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BATCH = 1_000
_Batch = list[Stored]
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class FolderStore:
    def __init__(self, root: Path, signer: LinkSigner | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        """`signer`: needed to hand out URLs."""
        self._root = root
        self._temporary = root / "tmp"
        self._aside = root / "damaged"
        self.on_damage: Callable[[str], None] = lambda key: None
        self._signer = signer
        self._now_s = signer.now_s if signer is not None else time.time
        """Dates what is stored, and counts its age: an orchestrator's served time, which nobody can set. Only for the
        event loop's thread."""
        self._began_s = 0.0
        """The time when the last blocking call began, for its thread."""
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(THREADS, "holdfast-blobs")
        self._incoming = IncomingBytes(self._measure)

    # --- the interface of a store ---

    def now_ms(self) -> int:
        return int(self._now_s() * 1000)

    async def probe(self) -> Abilities:
        return await self._in_thread(self._probe)

    async def put(self, key: str, data: bytes, *, create_only: bool = False) -> None:
        await self._in_thread(self._put, key, data, create_only)

    async def get(self, key: str, *, bytes_max: int) -> bytes:
        return await self._in_thread(self._get, key, bytes_max)

    async def scrub(self, key: str) -> Condition:
        return await self._in_thread(self._scrub, key)

    async def head(self, key: str) -> Stored | None:
        return await self._in_thread(self._head, key)

    async def list(self, prefix: str) -> AsyncIterator[Sequence[Stored]]:
        batches = self._walk(prefix)
        while batch := await self._in_thread(partial(next, batches, [])):
            yield batch

    async def delete(self, keys: Sequence[str]) -> None:
        await self._in_thread(self._delete, keys)

    async def delete_while(self, keys: Sequence[str], may: Callable[[], bool], lasts_s: int) -> None:
        """A file system knows no expiring requests. So the deleting process holds a lock, which is released when it
        dies."""
        await self._in_thread(self._delete_while, keys, may)

    async def deleting(self) -> bool:
        return await self._in_thread(self._held_elsewhere)

    async def promote(self, incoming: str, owned: str, size: int) -> None:
        await self._in_thread(self._promote, incoming, owned, size)

    async def sign(self, method: str, key: str, *, size: int, expires_s: int, incoming_max: int = 0) -> str:
        if self._signer is None:
            raise StoreRefused(f"the store in {self._root} has no signer")
        if parse_key(key) is None:
            raise LinkRefused(f"{key[:160]!r} is not a key")
        return self._signer.make(method, key, size, int(self._signer.now_s()) + expires_s, incoming_max)

    # --- serving a signed URL ---

    async def receive(self, grant: Grant, body: AsyncIterable[bytes]) -> None:
        """Store the body of a PUT as it arrives. If its size or hash is not the granted one, nothing is kept: raises
        Mismatch. Raises OverQuota before anything is stored, StoreFull while little space is left."""
        key = parse_key(grant.key)
        if grant.method != "PUT" or not isinstance(key, Incoming):
            raise LinkRefused("this URL is not for writing")
        await self._begin(key.uploader, grant)
        arriving = _Arriving(self._draft(self._now_s()), grant, key.sha)
        stored = False
        try:
            async for part in body:
                if arriving.take(part):
                    await self._in_thread(self._write, arriving)
            await self._in_thread(self._arrived, arriving)
            stored = True
        finally:
            self._incoming.end(key.uploader, grant.size, stored=stored)
            arriving.forget()

    async def _begin(self, uploader: str, grant: Grant) -> None:
        most = grant.incoming_max or sys.maxsize
        if self._incoming.known(uploader) and self._incoming.begin(uploader, grant.size, most):
            return
        self._incoming.measured(uploader, await self._in_thread(self._measure, uploader))
        if not self._incoming.begin(uploader, grant.size, most):
            raise OverQuota(f"{uploader} would have more than {most} bytes waiting to be accepted")

    def _measure(self, uploader: str) -> int:
        with contextlib.suppress(FileNotFoundError), os.scandir(self._root / INCOMING / uploader) as found:
            return sum(_size(one) for one in found)
        return 0

    def _write(self, arriving: "_Arriving") -> None:
        if short_of_space(self._root):
            raise OSError(errno.ENOSPC, "little space is left")
        arriving.write()

    def _arrived(self, arriving: "_Arriving") -> None:
        self._write(arriving)
        self._settle(arriving.end(), arriving.path, arriving.grant.key)

    # --- blocking ---

    async def _in_thread(self, do: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._began_s = self._now_s()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, partial(do, *args, **kwargs))
        except TimeoutError:
            raise StoreSlow(f"the disk of {self._root} did not answer within {self._timeout_s:g} s") from None
        except OSError as error:
            raise self._trouble(error) from None

    def _trouble(self, error: OSError) -> BlobStoreError:
        what = error.strerror or str(error)
        if error.errno in _NO_ROOM:
            return StoreFull(f"the store in {self._root} is full", hint="Give it more room, or delete old results.")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return StoreRefused(f"the store in {self._root} may not be written to: {what}")
        return StoreGone(f"the store in {self._root} does not work: {what}")

    def _path(self, key: str) -> Path:
        """Only valid keys have a path: nothing else ever becomes a path."""
        if parse_key(key) is None:
            raise LinkRefused(f"{key[:160]!r} is not a key")
        return self._root / key

    def _probe(self) -> Abilities:
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._temporary.mkdir(exist_ok=True, mode=0o700)
        self._aside.mkdir(exist_ok=True, mode=0o700)
        for left in self._temporary.iterdir():
            if self._began_s - _made_s(left) > STALE_S:
                with contextlib.suppress(OSError):
                    left.unlink()
        for left in self._aside.iterdir():
            with contextlib.suppress(OSError):
                if self._began_s - left.stat().st_mtime > DAMAGED_S:
                    left.unlink()
        data = secrets.token_bytes(32)
        key = incoming_key("probe", sha_of(data))
        self._put(key, data, True)
        if self._get(key, 32) != data:
            raise StoreGone(f"the store in {self._root} does not return what was stored")
        try:
            self._put(key, data, True)
            create_only = False
        except BlobExists:
            create_only = True
        self._delete([key])
        return Abilities(create_only)

    def _draft(self, made_s: float) -> Path:
        """A new temporary name. It begins with the second in which it was made."""
        return self._temporary / f"{int(made_s)}-{secrets.token_hex(16)}"

    def _put(self, key: str, data: bytes, create_only: bool) -> None:
        self._path(key)
        temporary = self._draft(self._began_s)
        file = os.open(temporary, _NEW, 0o600)
        try:
            _write(file, data)
            self._settle(file, temporary, key, create_only)
        finally:
            os.close(file)
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _settle(self, file: int, temporary: Path, key: str, create_only: bool = False) -> None:
        """From written to acknowledged. For owned content: sync the bytes, rename the file, sync the folder."""
        target = self._path(key)
        lasting = isinstance(parse_key(key), Owned)
        os.utime(file, (self._began_s, self._began_s))
        if lasting:
            os.fsync(file)
        self._make_parents(target)
        if create_only:
            try:
                os.link(temporary, target)
            except FileExistsError:
                raise BlobExists(f"{key} already exists") from None
        else:
            os.replace(temporary, target)
        if lasting:
            sync_folder(target.parent)
            with contextlib.suppress(OSError):
                self._aside_path(key).unlink()

    def _make_parents(self, target: Path) -> None:
        missing = [p for p in target.parents if p.is_relative_to(self._root) and not p.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True, mode=0o700)
            sync_folder(folder.parent)

    def _get(self, key: str, bytes_max: int) -> bytes:
        parsed = parse_key(key)
        try:
            data = self._read(key, bytes_max)
            if not isinstance(parsed, Owned) or sha_of(data) == parsed.sha:
                return data
        except FileNotFoundError:
            if self._aside_path(key).exists():
                raise Damaged(f"the store's copy of {key} was damaged and has not been sent again") from None
            raise BlobMissing(f"the store holds nothing under {key}") from None
        except OSError as error:
            if error.errno != errno.EIO or not isinstance(parsed, Owned):
                raise
        if self._scrub(key) is Condition.SOUND:
            return self._read(key, bytes_max)  # the first read failed in passing, or it was replaced meanwhile
        raise Damaged(f"the store's copy of {key} is damaged")

    def _read(self, key: str, bytes_max: int) -> bytes:
        with self._path(key).open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size > bytes_max:
                raise Mismatch(f"{key} holds more than {bytes_max} bytes")
            return file.read()

    def _aside_path(self, key: str) -> Path:
        return self._aside / key.replace("/", "-")

    def _scrub(self, key: str) -> Condition:
        """Two reads must agree that content is damaged: the second one from the disk, not from memory."""
        parsed, path = parse_key(key), self._path(key)
        if not isinstance(parsed, Owned):
            raise LinkRefused(f"{key[:160]!r} is not the key of owned content")
        try:
            with path.open("rb", buffering=0) as file:
                for _ in range(2):
                    if _hash_or_none(file.fileno()) == parsed.sha:
                        return Condition.SOUND
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                if os.fstat(file.fileno()).st_ino == path.stat().st_ino:  # it was not replaced meanwhile
                    self._aside.mkdir(exist_ok=True, mode=0o700)
                    os.utime(file.fileno(), (self._began_s, self._began_s))  # it is kept for a while from now on
                    os.replace(path, self._aside_path(key))
        except FileNotFoundError:
            return Condition.DAMAGED if self._aside_path(key).exists() else Condition.ABSENT
        self.on_damage(key)
        return Condition.DAMAGED

    def _head(self, key: str) -> Stored | None:
        try:
            status = self._path(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Stored(key, status.st_size, status.st_mtime_ns // 1_000_000)

    def _walk(self, prefix: str) -> Iterator[_Batch]:
        batch: _Batch = []
        top = self._root / prefix.rpartition("/")[0]
        for folder, _, names in os.walk(top):
            for name in names:
                key = (Path(folder) / name).relative_to(self._root).as_posix()
                if key.startswith(prefix) and parse_key(key) is not None and (stored := self._head(key)) is not None:
                    batch.append(stored)
                    if len(batch) == _BATCH:
                        yield batch
                        batch = []
        if batch:
            yield batch

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                self._path(key).unlink()

    @contextlib.contextmanager
    def _deletion_lock(self) -> Iterator[bool]:
        """Yields whether this process got the lock."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(self._root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(file)

    def _delete_while(self, keys: Sequence[str], may: Callable[[], bool]) -> None:
        with self._deletion_lock() as alone:
            if not alone:
                raise StoreSlow(f"another process is deleting from the store in {self._root}, and has not ended")
            for key in keys:
                if not may():
                    return
                self._delete([key])

    def _held_elsewhere(self) -> bool:
        with self._deletion_lock() as alone:
            return not alone

    def _promote(self, incoming: str, owned: str, size: int) -> None:
        """Writers replace files and never change one in place. So a second hard link keeps exactly the bytes that are
        verified, whatever is uploaded under the first name meanwhile."""
        sha = same_sha(incoming, owned)
        held = self._draft(self._began_s)
        try:
            os.link(self._path(incoming), held)
        except FileNotFoundError:
            raise BlobMissing(f"the store holds nothing under {incoming}") from None
        try:
            with held.open("rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != size or _hash(file.fileno()) != sha:
                    raise Mismatch(f"what was sent for blob {sha} has another size or hash")
                self._settle(file.fileno(), held, owned)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(held)
        self._delete([incoming])


def short_of_space(root: Path, times: int = 1) -> bool:
    """Whether uploads to a folder are refused, so that its disk has space for others. `times`: whether that is near."""
    disk = os.statvfs(root)
    return disk.f_bavail * disk.f_frsize < times * min(FREE_BYTES_MIN, disk.f_blocks * disk.f_frsize * 15 // 100)


def _made_s(draft: Path) -> int:
    """When a temporary file was made; long ago if its name does not say, as those of earlier releases."""
    made = draft.name.partition("-")[0]
    return int(made) if "-" in draft.name and made.isdecimal() else 0


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


class _Arriving:
    """An upload in progress. Bytes are buffered, so that not every packet costs a thread switch."""

    def __init__(self, path: Path, grant: Grant, sha: str) -> None:
        self.path = path
        self.grant = grant
        self._sha = sha
        self._digest = sha256()
        self._file = -1
        self._size = self._written = 0
        self._waiting: list[bytes] = []

    def take(self, part: bytes) -> bool:
        """Buffer a part; returns True if it is time to `write`. Raises Mismatch if there are too many bytes."""
        self._size += len(part)
        if self._size > self.grant.size:
            raise Mismatch(f"more than the granted {self.grant.size} bytes were sent for blob {self._sha}")
        self._waiting.append(part)
        return self._size - self._written >= _GATHERED_BYTES

    def write(self) -> None:
        if self._file < 0:
            self._file = os.open(self.path, _NEW, 0o600)
        data = b"".join(self._waiting)
        self._waiting, self._written = [], self._size
        _write(self._file, data)
        self._digest.update(data)

    def end(self) -> int:
        """Called after the last part is written: returns the open file if it matches its name. Raises Mismatch
        otherwise."""
        if self._size != self.grant.size or self._digest.hexdigest() != self._sha:
            raise Mismatch(
                f"what was sent for blob {self._sha} has {self._size} bytes of {self.grant.size}, or another hash"
            )
        return self._file

    def forget(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def _hash_or_none(file: int) -> str | None:
    """The hash of a whole file; None if the disk cannot read it."""
    try:
        os.lseek(file, 0, os.SEEK_SET)
        return _hash(file)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0  # promoted or deleted meanwhile


def _hash(file: int) -> str:
    digest = sha256()
    while part := os.read(file, 1024 * 1024):
        digest.update(part)
    return digest.hexdigest()
