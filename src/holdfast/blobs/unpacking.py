"""Writes the content of a manifest into a folder, and touches nothing outside of it.

Blobs arrive in any order, from any thread; their bytes count only after their hash is checked. A file is written under
a temporary name and renamed when it is complete, so that an unfinished one is never mistaken for a finished one.
Content that an earlier try left is kept if its hash is right: complete files, and complete chunks of large ones.
Declared sizes limit what is written. Modes are 644 and 755; no owner, time or special bit comes from a manifest.
Symlinks are created last, when no more files are written. Knows no store and no network.
"""

import ctypes
import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock

import msgspec

from holdfast.blobs.beneath import Beneath, FileStat, NotAFile, read_exactly, write_exactly
from holdfast.blobs.errors import BlobError, BlobMissing, DiskFull, DiskRefused, InTheWay, Mismatch
from holdfast.blobs.index import SETTLED_HERE_NS, BlobIndex, Known, pack_key
from holdfast.blobs.keys import sha_of
from holdfast.blobs.manifest import CHUNK_BYTES, PACKED_BELOW_BYTES, Blob, EmptyFolder, File, Manifest, Piece, Symlink
from holdfast.blobs.paths import shown
from holdfast.blobs.source import Source
from holdfast.blobs.verified import VerifiedBytes, verify
from holdfast.passing import patiently
from holdfast.quantities import spoken_bytes

_PART = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MANY = 8
"""A blob of more files than this is written by one thread at a time: threads that make many small system calls lose
more to contention for the interpreter than they gain (four of them took 2.7 times the processor time of one)."""
_WRONG_KIND = {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY, errno.ENXIO}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class _Growing(msgspec.Struct):
    """A large file in progress."""

    left: set[int]
    """Numbers of the missing pieces."""
    hollow: bool = True
    """Created just now by us: unwritten parts are zero."""
    turn: Lock = msgspec.field(default_factory=Lock)
    """One writer at a time: the kernel admits only one as well, but makes the others spin."""


class Unpacking:
    """Unpacks one manifest into one folder: `prepare`, `put` each blob that it asks for, `finish`."""

    def __init__(
        self, folder: Path, manifest: Manifest, *, bytes_max: int | None = None, owner: tuple[int, int] | None = None
    ) -> None:
        """`bytes_max`: the maximum size of the content. `owner`: uid and gid of what is created, if not our own."""
        self._root = folder
        self._manifest = manifest
        self._bytes_max = bytes_max
        self._owner = owner
        self._files = [e for e in manifest.entries if isinstance(e, File)]
        self._uses: dict[str, list[tuple[File, int, int]]] = {b.sha: [] for b in manifest.blobs}
        """Hash -> the files that need it, with the piece's number and its offset in the file."""
        for file in self._files:
            offset = 0
            for number, piece in enumerate(file.pieces):
                self._uses[manifest.blobs[piece.blob].sha].append((file, number, offset))
                offset += piece.length
        self._sizes = {b.sha: b.size for b in manifest.blobs}
        self._growing: dict[str, _Growing] = {}
        self._done: dict[str, FileStat] = {}
        self._under_way: set[str] = set()
        self._many_turn = Lock()
        self._turn = Lock()

    # --- preparation ---

    def prepare(self) -> tuple[Blob, ...]:
        """Create the folders, find what exists already, and check that the rest fits. Returns the blobs that are
        needed."""
        total = self._manifest.total_bytes
        if self._bytes_max is not None and total > self._bytes_max:
            raise DiskFull(
                f"the content has {total} bytes; {self._root} may hold {self._bytes_max}",
                hint="Ask for more disk, or send less.",
            )
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with Beneath(self._root, owner=self._owner) as tree:
                fresh = not patiently(os.listdir, tree.root)
                for entry in self._manifest.entries:
                    self._prepare(tree, entry, fresh)
                self._check_room(tree)
        except OSError as error:
            raise trouble(self._root, error) from None
        return self.wanted()

    def _prepare(self, tree: Beneath, entry: File | EmptyFolder | Symlink, fresh: bool) -> None:
        if isinstance(entry, EmptyFolder):
            tree.folder(entry.path, make=True)
            return
        folder, name = tree.parent(entry.path, make=True)
        if not isinstance(entry, File):
            return
        if not fresh and self._whole(tree, entry):
            return
        if not entry.pieces:
            os.close(self._new_part(folder, entry))
            self._put_in_place(folder, name, entry)
        elif len(entry.pieces) > 1:
            self._growing[entry.path] = self._resumed(folder, entry, fresh)

    def _whole(self, tree: Beneath, file: File) -> bool:
        """Whether the file exists with exactly this content. If so, its mode is set and nothing else is done."""
        try:
            fd = tree.open_file(file.path)
        except (FileNotFoundError, NotAFile):
            return False
        try:
            status = patiently(os.fstat, fd)
            if status.st_size != file.size or status.st_nlink != 1 or not self._same(fd, file):
                return False
            self._dress(fd, file)
            self._done[file.path] = FileStat.of(patiently(os.fstat, fd))
            return True
        finally:
            os.close(fd)

    def _same(self, fd: int, file: File) -> bool:
        return all(self._holds(fd, file, number) for number in range(len(file.pieces)))

    def _holds(self, fd: int, file: File, number: int) -> bool:
        """Whether a piece is in its place. In a file of several pieces, all pieces before this one are whole chunks."""
        piece = file.pieces[number]
        buffer = memoryview(bytearray(piece.length))
        whole = read_exactly(fd, number * CHUNK_BYTES, buffer) == piece.length
        return whole and sha_of(buffer) == (file.sha or self._manifest.blobs[piece.blob].sha)

    def _resumed(self, folder: int, file: File, fresh: bool) -> _Growing:
        everything = set(range(len(file.pieces)))
        if fresh:
            return _Growing(everything)
        try:
            fd = self._open_part(folder, file)
        except FileNotFoundError:
            return _Growing(everything)
        try:
            if patiently(os.fstat, fd).st_size != file.size:
                return _Growing(everything, hollow=False)
            return _Growing({n for n in everything if not self._holds(fd, file, n)}, hollow=False)
        finally:
            os.close(fd)

    def _check_room(self, tree: Beneath) -> None:
        room = patiently(os.fstatvfs, tree.root)
        free = room.f_bavail * room.f_frsize
        blobs, holes = self._manifest.blobs, _sha_of_zeros()
        need = sum(p.length for p in self._wanted_pieces() if blobs[p.blob].sha != holes)
        if need > free:
            raise DiskFull(
                f"{self._root} has {spoken_bytes(free)} free, and the content needs {spoken_bytes(need)}",
                hint="Free some space there and try again; what arrived is kept.",
            )

    def wanted(self) -> tuple[Blob, ...]:
        """The blobs that are still needed, in the order of the manifest."""
        return tuple(self._manifest.blobs[number] for number in sorted({p.blob for p in self._wanted_pieces()}))

    def _wanted_pieces(self) -> Iterator[Piece]:
        for file in self._files:
            if file.path not in self._done:
                growing = self._growing.get(file.path)
                yield from (p for n, p in enumerate(file.pieces) if growing is None or n in growing.left)

    # --- content ---

    def put(self, sha: str, data: bytes | bytearray | VerifiedBytes) -> None:
        """Write one blob into all the files that need it. Raises Mismatch if the bytes do not hash to `sha`."""
        uses = self._uses.get(sha)
        if uses is None:
            raise Mismatch(f"blob {sha[:80]} does not belong to this content")
        found = data if isinstance(data, VerifiedBytes) else verify(sha, self._sizes[sha], data)
        if found.sha != sha:
            raise Mismatch(f"the bytes of blob {found.sha} were given for blob {sha}")
        with self._turn:
            if sha in self._under_way:
                return  # another thread writes the same bytes; `finish` detects if it failed
            self._under_way.add(sha)
        try:
            with self._many_turn if len(uses) > _MANY else nullcontext():
                self._write(uses, memoryview(found.data))
        except OSError as error:
            raise trouble(self._root, error) from None
        finally:
            with self._turn:
                self._under_way.discard(sha)

    def _write(self, uses: list[tuple[File, int, int]], data: memoryview) -> None:
        with Beneath(self._root, owner=self._owner) as tree:
            for file, number, offset in uses:
                if file.path in self._done:
                    continue
                piece = file.pieces[number]
                part = data[piece.offset : piece.offset + piece.length]
                folder, name = tree.parent(file.path)
                if len(file.pieces) == 1:
                    self._write_whole(folder, name, file, part)
                else:
                    self._write_piece(folder, name, file, number, offset, part)

    def _write_whole(self, folder: int, name: str, file: File, data: memoryview) -> None:
        if file.sha and sha_of(data) != file.sha:
            raise Mismatch(f"{shown(file.path)} does not have the hash in its manifest")
        fd = self._new_part(folder, file)
        try:
            write_exactly(fd, 0, data)
        finally:
            os.close(fd)
        self._put_in_place(folder, name, file)

    def _write_piece(self, folder: int, name: str, file: File, number: int, offset: int, data: memoryview) -> None:
        growing = self._growing[file.path]
        with self._turn:
            if number not in growing.left:
                return
            try:
                fd = self._open_part(folder, file)
            except FileNotFoundError:
                fd = self._new_part(folder, file)
        try:
            blob = self._manifest.blobs[file.pieces[number].blob]
            if not (growing.hollow and blob.sha == _sha_of_zeros()):
                with growing.turn:
                    write_exactly(fd, offset, data)
            with self._turn:
                growing.left.discard(number)
                last = not growing.left and file.path not in self._done
            if last:
                os.ftruncate(fd, file.size)
                self._dress(fd, file)
        finally:
            os.close(fd)
        if last:
            self._put_in_place(folder, name, file)

    def _new_part(self, folder: int, file: File) -> int:
        """Create a new file under the temporary name. A file that had this name is replaced: it is not an unfinished
        file of ours."""
        name = part_name(file.path)
        try:
            fd = patiently(os.open, name, _PART | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        except FileExistsError:
            os.unlink(name, dir_fd=folder)
            fd = patiently(os.open, name, _PART | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        try:
            if len(file.pieces) > 1:
                os.ftruncate(fd, file.size)
            else:
                self._dress(fd, file)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _open_part(self, folder: int, file: File) -> int:
        """Open the unfinished file that we left. One that somebody else created, or linked elsewhere, is deleted."""
        name = part_name(file.path)
        try:
            fd = patiently(os.open, name, _PART, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EACCES):
                raise
        else:
            status = patiently(os.fstat, fd)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid():
                return fd
            os.close(fd)
        os.unlink(name, dir_fd=folder)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def _dress(self, fd: int, file: File) -> None:
        os.fchmod(fd, 0o755 if file.executable else 0o644)
        if self._owner is not None:
            os.fchown(fd, *self._owner)

    def _put_in_place(self, folder: int, name: str, file: File) -> None:
        os.rename(part_name(file.path), name, src_dir_fd=folder, dst_dir_fd=folder)
        self._done[file.path] = FileStat.of(patiently(os.stat, name, dir_fd=folder, follow_symlinks=False))

    # --- completion ---

    def finish(self, *, durable: bool = False) -> BlobIndex:
        """Check that everything is there and create the symlinks. `durable`: it also survives a power cut.

        The returned index describes what was written: a scan with it reads only what changed afterwards.
        """
        if missing := [f.path for f in self._files if f.path not in self._done]:
            raise BlobMissing(f"{len(missing)} files are incomplete, such as {shown(missing[0])}")
        try:
            with Beneath(self._root, owner=self._owner) as tree:
                for entry in self._manifest.entries:
                    if isinstance(entry, Symlink):
                        self._link(*tree.parent(entry.path), entry)
                if durable:
                    _sync(tree.root)
        except OSError as error:
            raise trouble(self._root, error) from None
        return self._index()

    def _link(self, folder: int, name: str, link: Symlink) -> None:
        try:
            if os.readlink(name, dir_fd=folder) == link.target:
                return
        except OSError:
            pass  # nothing there, or not a link
        part = part_name(link.path)
        try:
            os.symlink(link.target, part, dir_fd=folder)
        except FileExistsError:
            os.unlink(part, dir_fd=folder)
            os.symlink(link.target, part, dir_fd=folder)
        if self._owner is not None:
            os.chown(part, *self._owner, dir_fd=folder, follow_symlinks=False)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _index(self) -> BlobIndex:
        blobs = self._manifest.blobs
        known: dict[str, Known] = {}
        members: dict[int, list[tuple[int, str]]] = {}
        for file in self._files:
            shas = (file.sha,) if file.sha else tuple(blobs[p.blob].sha for p in file.pieces)
            known[file.path] = Known(self._done[file.path], shas)
            if 0 < file.size < PACKED_BELOW_BYTES:
                members.setdefault(file.pieces[0].blob, []).append((file.pieces[0].offset, shas[0]))
        packs = {pack_key([sha for _, sha in sorted(files)]): blobs[number] for number, files in members.items()}
        return BlobIndex(time.time_ns(), known, packs, SETTLED_HERE_NS)


def trouble(folder: Path | str, error: OSError) -> BlobError:
    """The error for an OSError while content was written to a folder."""
    what = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return DiskFull(f"{folder} is full: {what}", hint="Free some space there and try again; what arrived is kept.")
    if error.errno in _WRONG_KIND:
        name = f" ({shown(str(error.filename2 or error.filename))})" if error.filename else ""
        return InTheWay(
            f"something in {folder} is in the way{name}: {what}",
            hint="Move it away, or choose another folder; links are never followed and folders never replaced.",
        )
    return DiskRefused(f"{folder} cannot be written to: {what}")


def unpack(
    manifest: Manifest,
    folder: Path,
    source: Source,
    *,
    bytes_max: int | None = None,
    owner: tuple[int, int] | None = None,
    durable: bool = False,
) -> BlobIndex:
    """Unpack at once, from blobs that are available."""
    unpacking = Unpacking(folder, manifest, bytes_max=bytes_max, owner=owner)
    for blob in unpacking.prepare():
        unpacking.put(blob.sha, source.read(blob.sha))
    return unpacking.finish(durable=durable)


def part_name(path: str) -> str:
    """The temporary name of an unfinished file, in the same folder."""
    return f".{sha256(path.encode()).hexdigest()[:24]}.holdfast-part"


@cache
def _sha_of_zeros() -> str:
    """Of a whole chunk of zeros: the holes of large files consist of them."""
    return sha_of(bytes(CHUNK_BYTES))


def _sync(fd: int) -> None:
    """Sync the whole file system of the folder: one call, while a call for each file would take minutes."""
    if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
        raise OSError(ctypes.get_errno(), "cannot be made durable")
