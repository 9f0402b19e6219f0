"""Packs a folder into a build context for an engine, so that equal folders give equal bytes. The folder is untrusted:
no link is followed out of it. Knows no engine."""

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from holdfast.node.images import dockerignore

FILES_MAX = 200_000
DOCKERFILE_BYTES_MAX = 1 << 20


class BadContext(ValueError):
    """The folder cannot be built from. The text explains why, for the job's owner."""


class BuildContext(msgspec.Struct, frozen=True):
    sha256: str
    size: int


class _Digesting:
    """A file object that keeps the hash and size of what was written, and limits the size."""

    def __init__(self, file: IO[bytes], bytes_max: int) -> None:
        self._file = file
        self._max = bytes_max
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, content: bytes) -> int:
        self.size += len(content)
        if self.size > self._max:
            raise BadContext(f"the folder to build from is larger than {self._max} bytes")
        self.digest.update(content)
        return self._file.write(content)


def pack(folder: Path, dockerfile: str, into: IO[bytes], bytes_max: int) -> BuildContext:
    """Write the folder to `into` as a tar archive, without what its `.dockerignore` excludes; the Dockerfile itself is
    always included. `dockerfile`: its path in the folder, which must be a plain file. Raises BadContext if it is not,
    or if the whole is too large; OSError if something cannot be read. Blocking."""
    _check(folder, dockerfile)
    ignored = _ignored(folder)
    out = _Digesting(into, bytes_max)
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # pyright: ignore[reportArgumentType, reportCallIssue]
        for number, (name, at) in enumerate(_walk(folder)):
            if number >= FILES_MAX:
                raise BadContext(f"the folder to build from holds more than {FILES_MAX} files")
            if name == str(Path(dockerfile)) or not dockerignore.leaves_out(ignored, name):
                _add(tar, name, at)
    return BuildContext(out.digest.hexdigest(), out.size)


def read_dockerfile(folder: Path, dockerfile: str) -> str:
    """The text of the Dockerfile, as it will be packed. Raises BadContext if there is none, or it is too large."""
    _check(folder, dockerfile)
    with open(os.open(folder / dockerfile, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        text = file.read(DOCKERFILE_BYTES_MAX + 1)
    if len(text) > DOCKERFILE_BYTES_MAX:
        raise BadContext(f"{dockerfile!r} is larger than {DOCKERFILE_BYTES_MAX} bytes")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadContext(f"{dockerfile!r} is not UTF-8 text") from None


def _check(folder: Path, dockerfile: str) -> None:
    path = Path(dockerfile)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise BadContext(f"{dockerfile!r} is not a path inside the folder")
    place = folder
    for part in path.parts:
        place = place / part
        if place.is_symlink():
            raise BadContext(f"{dockerfile!r} is a symbolic link, or lies behind one")
    if not place.is_file():
        raise BadContext(f"the folder has no file {dockerfile!r}")


def _ignored(folder: Path) -> tuple[dockerignore.IgnoreRule, ...]:
    place = folder / dockerignore.IGNORE_FILE
    if place.is_symlink():
        raise BadContext(f"{dockerignore.IGNORE_FILE} is a symbolic link")
    try:
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return dockerignore.rules(file.read(dockerignore.BYTES_MAX + 1).decode())
    except FileNotFoundError:
        return ()
    except ValueError as wrong:  # UnicodeDecodeError is one
        raise BadContext(f"{dockerignore.IGNORE_FILE} cannot be used: {wrong}") from None


def _walk(folder: Path) -> Iterator[tuple[str, int]]:
    """Every entry in the order of its path, with a descriptor of its parent folder."""
    for top, folders, files, at in os.fwalk(folder, follow_symlinks=False):
        folders.sort()
        inside = os.path.relpath(top, folder)
        for name in sorted((*folders, *files)):
            yield (name if inside == "." else f"{inside}/{name}"), at


def _add(tar: tarfile.TarFile, name: str, at: int) -> None:
    """Without owner and time: they differ even if the content does not."""
    last = os.path.basename(name)
    found = os.stat(last, dir_fd=at, follow_symlinks=False)
    entry = tarfile.TarInfo(name)
    entry.mode = 0o755 if stat.S_ISDIR(found.st_mode) or found.st_mode & 0o111 else 0o644
    if stat.S_ISDIR(found.st_mode):
        entry.type = tarfile.DIRTYPE
        tar.addfile(entry)
    elif stat.S_ISLNK(found.st_mode):
        entry.type, entry.mode = tarfile.SYMTYPE, 0o777
        entry.linkname = os.readlink(last, dir_fd=at)
        tar.addfile(entry)
    elif stat.S_ISREG(found.st_mode):
        with open(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at), "rb") as file:
            entry.size = os.fstat(file.fileno()).st_size
            tar.addfile(entry, file)
    else:
        raise BadContext(f"{name!r} is neither file, folder nor link")
