"""Copies the data of a serving orchestrator into a folder that another orchestrator can be started from.

    state.db      the state at one moment; absent if the state is in PostgreSQL
    blobs/        the files that this state names, under their keys in the store; absent if files are in S3
    logs/         the output of jobs
    admin.token, certificate.pem, blobs.key …
    backup.json   what was copied and when; `begin_from` removes it when an orchestrator starts here

The order of the steps makes the copy consistent. First, the backup takes the lock that the sweeper needs, so that files
which the state names are not deleted. Then it copies the state, the files and the logs: files and logs may be newer
than the state, which does no harm, but never older. Everything is written into TARGET.part, synced, read back and
compared; the last step renames it. So a folder called TARGET is complete, even if this process dies at any moment.

What happened after that moment is not in the copy. An orchestrator that starts from it would give out numbers that the
lost one has already given out, and nodes refuse an epoch below the highest that they obeyed. So `begin_from` skips
ahead (`policy.restored`): epochs, fences, entries, and for every job the numbers of as many attempts as a job can have.
An attempt that is not in the state may have output in `logs/` or on a node, and another attempt with its name would
append to it.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from urllib.parse import quote

import msgspec
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

import holdfast
from holdfast.blobs.errors import BlobError, DiskFull, InTheWay, Mismatch, StoreSlow
from holdfast.blobs.folder import LOCK
from holdfast.blobs.garbage import ROUND_MS, Root
from holdfast.blobs.keys import OWNED, owned_key, parse_key
from holdfast.blobs.manifest import Manifest, ManifestLimits
from holdfast.durable import durable_write, sync_folder
from holdfast.errors import HoldfastError, Misconfigured, Misuse
from holdfast.orchestrator.config import OrchestratorConfig
from holdfast.orchestrator.content.sweep import roots_of
from holdfast.orchestrator.leader.clock import wall_ms
from holdfast.policy.restored import number_skip
from holdfast.quantities import spoken_bytes
from holdfast.state import Store, StoreFailed

log = logging.getLogger("holdfast.backup")

NOTE = "backup.json"
"""The first file that is written into a draft. It marks the folder as a draft of ours that nothing may be started
from."""
UNFINISHED = b"{}"
STATE = "state.db"
LOCK_S = 2 * ROUND_MS / 1000
AT_ONCE = 8
_BATCH = 1_000
_BLOCK = 1024 * 1024
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_OF_A_PROCESS = {"endpoint.json", "endpoint.json.new", "endpoint.draft", NOTE}
"""Files of a running process that are not part of its data."""
_BESIDE_STATE = ("", "-wal", "-shm", "-journal", ".lock", ".reserve")
"""Suffixes of the state's file name: the state itself, and the files that SQLite and the orchestrator keep beside
it."""
_UNREAD = ""
"""Takes the place of a hash: the original exists but cannot be read."""

Told = Callable[[str, int, int], None]
"""Reports progress: the step (`copying`, `checking`), the bytes done, the bytes in all."""


class Backup(msgspec.Struct, frozen=True):
    """The content of a backup."""

    target: str
    version: str
    """The version of Holdfast."""
    made_ms: int
    state_bytes: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    logs: int = 0
    log_bytes: int = 0
    keys: int = 0
    bytes: int = 0
    left_out: tuple[str, ...] = ()
    """`database` and `files`, if they are not in the data folder."""
    damaged: tuple[str, ...] = ()
    """Files that the state names and that are missing or damaged in the original, and any that could not be read."""


class BackupDamaged(HoldfastError):
    """The backup was made, but the original is damaged."""

    code = "backup_damaged"
    exit_code = 1


class _Part(msgspec.Struct, frozen=True):
    """A file to copy."""

    source: Path
    name: str
    """The path below the target."""
    size: int
    sha: str = ""
    """The expected hash, if the file's name states it."""
    grows: bool = False
    """The file may be appended to meanwhile; only its first `size` bytes are copied."""


def back_up(config: OrchestratorConfig, target: Path, told: Told = lambda doing, done, total: None) -> Backup:
    """Copy everything that an orchestrator with this configuration keeps in its data folder."""
    _check(config, target)
    try:
        with _draft(target) as draft:
            made = _fill(config, draft, target, told)
            durable_write(draft / NOTE, msgspec.json.format(msgspec.json.encode(made), indent=2), mode=0o600)
            _sync_folders(draft)
            _give_name(draft, target)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise DiskFull(f"there is no room for the backup in {target.parent}: {error.strerror}") from None
        raise
    sync_folder(target.parent)
    return made


def unfinished(target: Path) -> list[Path]:
    """Drafts of other backups in the same folder: of a run that died, or one that is still at work. Only the next run
    with the same target removes a draft."""
    own = _draft_of(target)
    found: list[Path] = []
    with contextlib.suppress(OSError):  # a missing permission is reported when the backup is made
        for path in sorted(target.parent.glob("*.part")):
            with contextlib.suppress(OSError):
                if path != own and any(name.startswith(NOTE) for name in os.listdir(path)):
                    found.append(path)
    return found


def begin_from(data: Path, store: Store) -> None:
    """Turn a data folder that is a backup into a normal one. Call this before anything is read from the store."""
    note = data / NOTE
    try:
        written = note.read_bytes()
    except FileNotFoundError:
        return
    if written == UNFINISHED:
        raise Misconfigured(f"{data} is a backup that was never finished", hint="Take an earlier one.")
    try:
        made = msgspec.json.decode(written, type=Backup)
    except msgspec.DecodeError as wrong:
        raise Misconfigured(f"{note} cannot be read: {wrong}", hint="Restore it from the backup.") from None
    store.skip_ahead(*number_skip(wall_ms() // 1000))
    # A crash in between only skips once more.
    note.unlink()
    sync_folder(data)
    age_s = max(0, wall_ms() - made.made_ms) // 1000
    log.warning("started from a backup made %d s ago: what happened after it was made is not known here", age_s)


# --- the steps ---


def _fill(config: OrchestratorConfig, draft: Path, target: Path, told: Told) -> Backup:
    blobs = None if config.blobs else config.data / "blobs"
    url = config.store_url()
    source = _sqlite_file(config)
    with _nothing_deleted(blobs):
        made_ms = wall_ms()
        state_bytes = 0
        state: dict[str, str] = {}
        if source is not None:
            url = URL.create("sqlite", database=str((draft / STATE).absolute())).render_as_string()
            state_bytes, state[STATE] = _copy_state(source, draft / STATE)
        roots = _roots(url)
        content, damaged = _named(blobs, roots) if blobs else ([], set[str]())
        if blobs and source is None:
            # The database dump is older than the state read here, and may name files that nothing names any more.
            known = {part.name for part in content}
            content += [part for part in _owned(blobs, damaged) if part.name not in known]
        logs, keys = list(_logs(config.data, damaged)), list(_keys(config, damaged))
        parts = [*keys, *content, *logs]
        total = sum(part.size for part in parts)
        _need_room(draft, total)
        for name in ("logs", *(("blobs",) if blobs else ())):
            (draft / name).mkdir(mode=0o700)
        copied, lost = _copy_all(draft, parts, lambda done: told("copying", done, total))
    _sync_folders(draft)
    _read_back(draft, state | copied, lambda done: told("checking", done, state_bytes + total))
    sizes = {part.name: part.size for part in parts if part.name in copied}
    counted = [[sizes[part.name] for part in some if part.name in sizes] for some in (content, logs, keys)]
    left_out = (("database",) if source is None else ()) + (("files",) if blobs is None else ())
    return Backup(
        str(target),
        holdfast.__version__,
        made_ms,
        state_bytes,
        blobs=len(counted[0]),
        blob_bytes=sum(counted[0]),
        logs=len(counted[1]),
        log_bytes=sum(counted[1]),
        keys=len(counted[2]),
        bytes=state_bytes + sum(sizes.values()),
        left_out=left_out,
        damaged=tuple(sorted(damaged | {name.removeprefix("blobs/") for name in lost})),
    )


def _check(config: OrchestratorConfig, target: Path) -> None:
    data = config.data
    if not data.is_dir():
        raise Misconfigured(
            f"there is no data of an orchestrator in {data}",
            hint="Give the --data-dir that `holdfast up` uses.",
        )
    state = _sqlite_file(config)
    if state is not None and not state.is_file():
        raise Misconfigured(
            f"there is no state in {state}",
            hint="Give the --data-dir and --store that `holdfast up` uses.",
        )
    if not config.blobs and not (data / "blobs").is_dir():
        raise Misconfigured(f"there are no files in {data / 'blobs'}", hint="Give the --blobs that `holdfast up` uses.")
    if target.resolve().is_relative_to(data.resolve()):
        raise Misuse("the backup would be inside the folder that it copies", hint="Choose a folder on another disk.")
    if os.path.lexists(target):
        raise InTheWay(f"{target} already exists", hint="A backup replaces nothing. Choose another name.")
    if not target.parent.is_dir():
        raise Misconfigured(f"there is no folder {target.parent}", hint="Make it first, or choose another place.")


def _sqlite_file(config: OrchestratorConfig) -> Path | None:
    """The SQLite file of the state, or None if it is not in one. `Store.open` reports an invalid address."""
    try:
        url = make_url(config.store_url())
    except ArgumentError:
        return None
    if url.get_backend_name() != "sqlite" or not os.path.isabs(url.database or ""):
        return None
    return Path(url.database or "")


def _draft_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """TARGET.part, empty and locked. It is removed if the backup fails, unless this process dies."""
    draft = _draft_of(target)
    with contextlib.suppress(FileExistsError):
        draft.mkdir(mode=0o700)
    folder = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InTheWay(f"another backup is being written to {draft}", hint="Wait for it to end.") from None
        left = os.listdir(draft)
        if left and not any(name.startswith(NOTE) for name in left):
            raise InTheWay(f"{draft} is not an unfinished backup", hint="Move it away, or choose another name.")
        try:
            _empty(draft)
            durable_write(draft / NOTE, UNFINISHED, mode=0o600)
            yield draft
        except BaseException:
            with contextlib.suppress(OSError):
                _empty(draft)
                draft.rmdir()
            raise
    finally:
        os.close(folder)


@contextlib.contextmanager
def _nothing_deleted(blobs: Path | None) -> Iterator[None]:
    """Hold the lock that a sweeper needs for deleting. Waits for a sweep in progress."""
    if blobs is None:
        yield
        return
    file = os.open(blobs / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.geteuid() == 0:  # an orchestrator that does not run as root must be able to open it
            owner = blobs.stat()
            os.fchown(file, owner.st_uid, owner.st_gid)
        until = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise StoreSlow(f"another process has been deleting files in {blobs} for {LOCK_S:g} s") from None
                time.sleep(0.1)
        yield
    finally:
        os.close(file)


def _copy_state(source: Path, target: Path) -> tuple[int, str]:
    """Copy the whole database in one read: its writer does not wait, and later commits are not in the copy. Returns the
    size and the hash of the copy, which does not change any more."""
    os.close(os.open(target, _NEW, 0o600))
    try:
        with (
            contextlib.closing(sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True, timeout=30)) as original,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            original.backup(copy)
            # One file, without a journal beside it. An orchestrator that opens it sets its own journal mode.
            copy.execute("PRAGMA journal_mode=DELETE")
            found = [row[0] for row in copy.execute("PRAGMA integrity_check")]
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            raise DiskFull(f"there is no room for the state in {target.parent}") from None
        raise StoreFailed(f"the state in {source} could not be copied: {error}") from None
    if found != ["ok"]:
        raise StoreFailed(
            f"the state in {source} is damaged: {found[0]}", hint="Restore an earlier backup; this one was not made."
        )
    with target.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # as in `_copy`
        return os.fstat(file.fileno()).st_size, digest.hexdigest()


def _roots(url: str) -> list[Root]:
    """Every manifest that the state refers to."""
    store = Store.open_as_it_is(url)
    try:
        live = store.load_live()
        meta = store.meta()
        kept = [(str(keep.owner), keep.manifests) for keep in store.keeps(meta.now_ms if meta else 0)]
    finally:
        store.close()
    return sorted(roots_of(live, kept))


def _named(blobs: Path, roots: Iterable[Root]) -> tuple[list[_Part], set[str]]:
    """The manifests and the blobs that they name; and the keys of manifests that cannot be read."""
    parts: dict[str, _Part] = {}
    damaged: set[str] = set()
    for root in roots:
        key = owned_key(root.owner, root.manifest)
        try:
            with (blobs / key).open("rb") as file:
                data = file.read(ManifestLimits().manifest_bytes + 1)
            manifest = Manifest.from_bytes(data, name=root.manifest)
        except (OSError, BlobError):
            damaged.add(key)
            continue
        parts[key] = _Part(blobs / key, f"blobs/{key}", len(data), root.manifest)
        for blob in manifest.blobs:
            key = owned_key(root.owner, blob.sha)
            parts[key] = _Part(blobs / key, f"blobs/{key}", blob.size, blob.sha)
    return list(parts.values()), damaged


def _files(top: Path, base: Path, lost: set[str]) -> Iterator[tuple[Path, str, int]]:
    """Every file under a folder, with its path below the base and its size. A file that is gone has just been removed
    and is skipped; one that cannot be read is added to `lost`."""

    def failed(path: Path, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            lost.add(path.relative_to(base).as_posix())

    for folder, _, names in os.walk(top, onerror=lambda error: failed(Path(error.filename), error)):
        for name in names:
            path = Path(folder) / name
            try:
                size = path.stat().st_size
            except OSError as error:
                failed(path, error)
                continue
            yield path, path.relative_to(base).as_posix(), size


def _owned(blobs: Path, lost: set[str]) -> Iterator[_Part]:
    """All verified content that was not collected."""
    for path, key, size in _files(blobs / OWNED, blobs, lost):
        if parse_key(key) is not None:
            yield _Part(path, f"blobs/{key}", size, path.name)


def _logs(data: Path, lost: set[str]) -> Iterator[_Part]:
    for path, name, size in _files(data / "logs", data, lost):
        yield _Part(path, name, size, grows=True)


def _keys(config: OrchestratorConfig, lost: set[str]) -> Iterator[_Part]:
    """Files beside the state: tokens, keys, certificates. Without files of a running process, and without drafts."""
    # Never a file that would replace the copied state or its journal: it may belong to another store.
    left = _OF_A_PROCESS | {STATE + end for end in _BESIDE_STATE}
    state = _sqlite_file(config)
    if state is not None and state.parent.resolve() == config.data.resolve():
        left |= {state.name + end for end in _BESIDE_STATE}
    for path in sorted(config.data.iterdir()):
        if path.name in left or path.name.startswith("."):
            continue
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        except OSError:
            lost.add(path.name)
            continue
        if stat.S_ISREG(found.st_mode):
            yield _Part(path, path.name, found.st_size)


def _need_room(draft: Path, total: int) -> None:
    disk = os.statvfs(draft)
    free = disk.f_bavail * disk.f_frsize
    if total > free:
        raise DiskFull(
            f"the backup needs {spoken_bytes(total)} more, and {draft.parent} has {spoken_bytes(free)}",
            hint="Choose a folder on a larger disk.",
        )


def _copy_all(draft: Path, parts: list[_Part], told: Callable[[int], None]) -> tuple[dict[str, str], set[str]]:
    """The hash of each copied file, by name; and the names of files that are missing or damaged in the original."""
    for folder in sorted({(draft / part.name).parent for part in parts}):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    copied: dict[str, str] = {}
    lost: set[str] = set()
    done = 0
    counting = Lock()

    def moved(count: int) -> None:
        nonlocal done
        with counting:
            done += count
            told(done)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for first in range(0, len(parts), _BATCH):
            some = parts[first : first + _BATCH]
            for part, sha in zip(some, pool.map(lambda part: _copy(draft, part, moved), some), strict=True):
                if sha:
                    copied[part.name] = sha
                elif part.sha or sha == _UNREAD:  # otherwise it has just been removed
                    lost.add(part.name)
    return copied, lost


def _copy(draft: Path, part: _Part, moved: Callable[[int], None]) -> str | None:
    """The hash of what was written. None: the original is gone or does not match its name; `_UNREAD`: it cannot be
    read. Raises only errors of the copy itself."""
    target = draft / part.name
    digest = hashlib.sha256()
    left = part.size if part.grows else part.size + 1
    try:
        source = part.source.open("rb", buffering=0)
    except FileNotFoundError:
        return None
    except OSError:
        return _UNREAD
    with source, open(os.open(target, _NEW, 0o600), "wb", buffering=0) as copy:
        while left:
            try:
                block = source.read(min(left, _BLOCK))
            except OSError:
                target.unlink()
                return _UNREAD
            if not block:
                break
            digest.update(block)
            _write_all(copy.fileno(), block)
            left -= len(block)
            moved(len(block))
        os.fsync(copy.fileno())
        # Reading back must come from the disk.
        os.posix_fadvise(copy.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if part.sha and digest.hexdigest() != part.sha:
        target.unlink()
        return None
    return digest.hexdigest()


def _read_back(draft: Path, copied: Mapping[str, str], told: Callable[[int], None]) -> None:
    done = 0
    for name, sha in copied.items():
        digest = hashlib.sha256()
        with (draft / name).open("rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                done += len(block)
                told(done)
        if digest.hexdigest() != sha:
            raise Mismatch(f"{draft / name} does not hold what was written to it", hint="Use another disk.")


# --- files ---


def _give_name(draft: Path, target: Path) -> None:
    try:
        os.rename(draft, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise InTheWay(f"{target} was created by another process meanwhile", hint="Choose another name.") from None
        raise


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _empty(draft: Path) -> None:
    """Removes the note last, so that a folder left by a crash is still recognised as ours."""
    for name in sorted(os.listdir(draft), key=lambda name: name.startswith(NOTE)):
        path = draft / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sync_folders(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        sync_folder(Path(folder))
