"""Turns a folder into a manifest and blobs: reads each file once, hashes in threads, splits into chunks and packs.

Files that the `BlobIndex` of an earlier scan shows as unchanged are not read again. A write to a file while it is read
is detected. Memory is bounded by the number of threads, not by the folder. Knows no store and no network.

Small files are packed in the order of their paths. Where a pack ends depends only on the path and size of its last
file, so adding or removing a file changes one pack and leaves its neighbours unchanged.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Protocol

import msgspec

from holdfast.blobs.beneath import Beneath, FileStat, NotAFile, read_exactly
from holdfast.blobs.errors import FolderChanged
from holdfast.blobs.ignore import Ignore
from holdfast.blobs.index import BlobIndex, Known, pack_key
from holdfast.blobs.keys import sha_of
from holdfast.blobs.manifest import (
    CHUNK_BYTES,
    PACKED_BELOW_BYTES,
    Blob,
    Entry,
    File,
    Manifest,
    ManifestLimits,
    Piece,
    content_name,
)
from holdfast.blobs.paths import shown
from holdfast.blobs.walk import LeftOut, WalkedFile, refuse, walk
from holdfast.passing import is_passing, patiently

PACK_AIM_BYTES = 2 * 1024 * 1024
TRIES = 3
"""How often a folder is read again because files changed meanwhile."""
_UNIT_CHUNKS = 8
_THREADS = max(2, min(4, os.cpu_count() or 2))
_THREADS_SMALL = 2
"""For small files. More threads spend their time on contention for the interpreter: four take twice as long."""


class Stash(Protocol):
    def put(self, sha: str, data: bytes | bytearray | memoryview) -> None: ...


class Scan(msgspec.Struct, frozen=True):
    """What a folder held."""

    manifest: Manifest
    index: BlobIndex
    """To be passed to the next scan."""
    left_out: tuple[LeftOut, ...]
    bytes_read: int


def scan(
    root: Path,
    *,
    ignore: Ignore | None = None,
    index: BlobIndex | None = None,
    base: Manifest | None = None,
    strict: bool = False,
    steady: bool = False,
    stash: Stash | None = None,
    limits: ManifestLimits | None = None,
    progress: Callable[[int], None] | None = None,
) -> Scan:
    """Read a folder.

    `index`: of an earlier scan, or of unpacking. `base`: entries that equal one of this manifest are omitted, so only
    what is new or different remains. `strict`: refuse the folder if something in it cannot be sent, instead of omitting
    that. `steady`: the whole folder must be unchanged from the beginning to the end of the scan, so that all files are
    from the same moment. `stash` gets every blob that had to be read. `progress` is called with bytes as they are read,
    from several threads. Raises FolderRefused and FolderChanged.
    """
    given_up: dict[str, str] = {}
    index = index or BlobIndex()
    read = 0
    tries = 0
    while True:
        began_ns = time.time_ns()
        found = _found(root, ignore, limits, given_up)
        if strict:
            refuse(root, found.left_out)
        reading = _Reading(root, found, index, stash, progress)
        manifest = reading.manifest(base)
        read += reading.bytes_read
        if steady and not reading.troubled:
            reading.changed |= _differences(found, _found(root, ignore, limits, given_up))
        index = reading.index(began_ns)
        if not reading.troubled:
            return Scan(manifest, index, tuple(found.left_out), read)
        given_up |= reading.unreadable
        tries += bool(reading.changed)
        if tries == TRIES and not strict and not steady:
            given_up |= dict.fromkeys(reading.changed, "was being written to")
        elif tries >= TRIES:
            raise _unsteady(root, reading.changed)


def _unsteady(root: Path, changed: set[str]) -> FolderChanged:
    some = ", ".join(shown(p) for p in sorted(changed)[:3])
    return FolderChanged(
        f"{root} changed while it was read: {some}",
        hint="Wait until nothing writes there any more, or leave these files out with .holdfastignore.",
    )


def _found(root: Path, ignore: Ignore | None, limits: ManifestLimits | None, given_up: Mapping[str, str]) -> WalkedFile:
    found = walk(root, ignore, limits)
    for path, why in given_up.items():
        if found.files.pop(path, None) is not None:
            found.left_out.append(LeftOut(path, why))
    return found


def _differences(before: WalkedFile, after: WalkedFile) -> set[str]:
    paths = {p for p in before.files.keys() | after.files.keys() if before.files.get(p) != after.files.get(p)}
    return paths | {e.path for e in set(before.others) ^ set(after.others)}


def packs_of(files: Iterable[tuple[str, int]]) -> list[list[str]]:
    """Which small files, given with their sizes in the order of their paths, share a blob."""
    packs: list[list[str]] = []
    room = -1
    for path, size in files:
        if size > room:
            packs.append([])
            room = CHUNK_BYTES
        packs[-1].append(path)
        room -= size
        draw = int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "big")
        if draw % PACK_AIM_BYTES < size:
            room = -1
    return packs


class _Reading:
    """One pass over the files that a walk found."""

    def __init__(
        self, root: Path, found: WalkedFile, old: BlobIndex, stash: Stash | None, progress: Callable[[int], None] | None
    ) -> None:
        self._root = root
        self._found = found
        self._old = old
        self._stash = stash
        self._progress = progress
        self._packs: dict[str, Blob] = {}
        self.known: dict[str, tuple[str, ...]] = {}
        """Path -> its hashes: of the whole file if it is small, otherwise of each chunk."""
        for path, seen in found.files.items():
            if (shas := old.shas(path, seen)) is not None:
                self.known[path] = shas
        self.changed: set[str] = set()
        self.unreadable: dict[str, str] = {}
        self.bytes_read = 0
        self._counting = Lock()

    @property
    def troubled(self) -> bool:
        return bool(self.changed or self.unreadable)

    def index(self, taken_ns: int) -> BlobIndex:
        files = {p: Known(self._found.files[p], shas) for p, shas in self.known.items() if p not in self.changed}
        return BlobIndex(taken_ns, files, self._packs)

    def manifest(self, base: Manifest | None) -> Manifest:
        """Read what must be read, and build the manifest."""
        files = self._found.files
        others = list(self._found.others)
        entries: list[Entry] = []
        blobs: list[Blob] = []
        with ThreadPoolExecutor(_THREADS, "holdfast-scan") as pool, ThreadPoolExecutor(_THREADS_SMALL) as few:
            try:
                wanted = self._new_or_different(pool, few, base)
                if base is not None:
                    there = {e for e in base.entries if not isinstance(e, File)}
                    others = [e for e in others if e not in there]
                large = [p for p in wanted if files[p].size >= PACKED_BELOW_BYTES]
                self._hash_large(pool, [p for p in large if p not in self.known])
                small = [p for p in wanted if 0 < files[p].size < PACKED_BELOW_BYTES]
                packs = packs_of((p, files[p].size) for p in small)
                made = list(few.map(self._pack, packs))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                few.shutdown(cancel_futures=True)
                raise
        for path in wanted:
            if not files[path].size:
                entries.append(File(path, 0, files[path].executable, ()))
        for path in large:
            if path in self.known:
                entries.append(self._large_entry(path, blobs))
        for members, blob in zip(packs, made, strict=True):
            if blob is not None:
                entries += self._packed_entries(members, blob, len(blobs))
                blobs.append(blob)
        return Manifest.of([*entries, *others], blobs)

    def _large_entry(self, path: str, blobs: list[Blob]) -> File:
        seen = self._found.files[path]
        pieces: list[Piece] = []
        for number, sha in enumerate(self.known[path]):
            length = min(CHUNK_BYTES, seen.size - number * CHUNK_BYTES)
            pieces.append(Piece(len(blobs), 0, length))
            blobs.append(Blob(sha, length))
        return File(path, seen.size, seen.executable, tuple(pieces))

    def _packed_entries(self, members: list[str], blob: Blob, number: int) -> Iterable[File]:
        offset = 0
        for path in members:
            seen = self._found.files[path]
            sha = self.known[path][0] if len(members) > 1 else ""
            yield File(path, seen.size, seen.executable, (Piece(number, offset, seen.size),), sha)
            offset += seen.size

    # --- differences from a base ---

    def _new_or_different(self, pool: ThreadPoolExecutor, few: ThreadPoolExecutor, base: Manifest | None) -> list[str]:
        files = self._found.files
        if base is None:
            return list(files)
        old = {e.path: e for e in base.entries if isinstance(e, File)}
        alike = [
            p for p, seen in files.items()
            if p in old and (old[p].size, old[p].executable) == (seen.size, seen.executable)
        ]  # fmt: skip
        unread = [p for p in alike if p not in self.known and files[p].size]
        self._hash_large(pool, [p for p in unread if files[p].size >= PACKED_BELOW_BYTES])
        list(few.map(self._hash_small, [p for p in unread if files[p].size < PACKED_BELOW_BYTES]))
        equal = {
            p for p in alike
            if not files[p].size or (p in self.known and content_name(list(self.known[p])) == base.content_of(old[p]))
        }  # fmt: skip
        return [p for p in files if p not in equal]

    # --- reading, in threads ---

    def _hash_large(self, pool: ThreadPoolExecutor, paths: list[str]) -> None:
        step = _UNIT_CHUNKS * CHUNK_BYTES
        units = [(path, start) for path in paths for start in range(0, self._found.files[path].size, step)]
        shas: dict[str, list[str]] = {path: [] for path in paths}
        for (path, _), part in zip(units, pool.map(lambda u: self._hash_unit(*u), units), strict=True):
            shas[path] += part
        self.known.update(
            {
                path: tuple(all_)
                for path, all_ in shas.items()
                if path not in self.changed and path not in self.unreadable
            }
        )

    def _hash_unit(self, path: str, start: int) -> list[str]:
        seen = self._found.files[path]
        shas: list[str] = []
        buffer = memoryview(bytearray(min(CHUNK_BYTES, seen.size - start)))
        with Beneath(self._root) as tree:
            fd = self._open(tree, path)
            if fd is None:
                return shas
            try:
                for offset in range(start, min(seen.size, start + _UNIT_CHUNKS * CHUNK_BYTES), CHUNK_BYTES):
                    part = buffer[: min(CHUNK_BYTES, seen.size - offset)]
                    if read_exactly(fd, offset, part) != len(part):
                        break
                    shas.append(sha_of(part))
                    self._read(len(part))
                    if self._stash is not None:
                        self._stash.put(shas[-1], part)
                self._still(fd, path)
            finally:
                os.close(fd)
        return shas

    def _hash_small(self, path: str) -> None:
        with Beneath(self._root) as tree:
            buffer = memoryview(bytearray(self._found.files[path].size))
            if self._fill(tree, path, buffer):
                self.known[path] = (sha_of(buffer),)

    def _pack(self, members: list[str]) -> Blob | None:
        """Read small files into one blob; None if one of them changed."""
        files = self._found.files
        shas = [self.known[p][0] for p in members if p in self.known]
        if len(shas) == len(members) and (old := self._old.packs.get(pack_key(shas))) is not None:
            self._packs[pack_key(shas)] = old
            return old
        buffer = memoryview(bytearray(sum(files[p].size for p in members)))
        offset = 0
        with Beneath(self._root) as tree:
            for path in members:
                part = buffer[offset : offset + files[path].size]
                if not self._fill(tree, path, part):
                    return None
                self.known[path] = (sha_of(part),)
                offset += len(part)
        blob = Blob(sha_of(buffer), len(buffer))
        self._packs[pack_key([self.known[p][0] for p in members])] = blob
        if self._stash is not None:
            self._stash.put(blob.sha, buffer)
        return blob

    def _fill(self, tree: Beneath, path: str, into: memoryview) -> bool:
        fd = self._open(tree, path)
        if fd is None:
            return False
        try:
            whole = read_exactly(fd, 0, into) == len(into)
            self._read(len(into))
            return self._still(fd, path) and whole
        finally:
            os.close(fd)

    def _open(self, tree: Beneath, path: str) -> int | None:
        try:
            fd = tree.open_file(path)
        except (FileNotFoundError, NotADirectoryError, NotAFile):
            self.changed.add(path)
            return None
        except OSError as error:
            if is_passing(error):
                raise
            self.unreadable[path] = f"cannot be read: {error.strerror}"
            return None
        if self._still(fd, path):
            return fd
        os.close(fd)
        return None

    def _still(self, fd: int, path: str) -> bool:
        """Whether the file is unchanged since the walk. If not, what was read of it does not count."""
        if FileStat.of(patiently(os.fstat, fd)) == self._found.files[path]:
            return True
        self.changed.add(path)
        return False

    def _read(self, count: int) -> None:
        with self._counting:
            self.bytes_read += count
        if self._progress is not None:
            self._progress(count)
