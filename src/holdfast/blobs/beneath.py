"""Opens only what is beneath a folder: no symlink is ever followed, even if one is swapped in at any moment.

Every step goes from an open folder to a name in it, so a path is never resolved twice. An error that passes is waited
for: it does not mean that a file is missing. Knows no manifests.
"""

import errno
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from holdfast.passing import patiently

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: opening a pipe in the place of a file must not block."""


class NotAFile(OSError):
    """Not a regular file: a folder, a link, a pipe, a device."""


class FileStat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The kernel's metadata of a file. If two are equal, nobody wrote to it in between."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int
    executable: bool

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        executable = bool(status.st_mode & stat.S_IXUSR)
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev, executable)


class Beneath:
    """A position in a tree, used by one thread. Keeps the folders on the path to that position open."""

    def __init__(self, root: Path | int, *, mode: int = 0o755, owner: tuple[int, int] | None = None) -> None:
        """`mode`, `owner`: of folders that are created."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._way: list[tuple[str, int]] = [
            ("", patiently(os.dup, root) if isinstance(root, int) else patiently(os.open, root, flags))
        ]
        self._mode = mode
        self._owner = owner

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        while self._way:
            os.close(self._way.pop()[1])

    @property
    def root(self) -> int:
        return self._way[0][1]

    def folder(self, path: str, *, make: bool = False) -> int:
        """The descriptor of a folder, valid until the next call. Raises OSError if any part of the path is not a
        folder."""
        parts = path.split("/") if path else []
        same = 0
        while same < len(parts) and same + 1 < len(self._way) and self._way[same + 1][0] == parts[same]:
            same += 1
        while len(self._way) > same + 1:
            os.close(self._way.pop()[1])
        for part in parts[same:]:
            self._way.append((part, self._step(self._way[-1][1], part, make)))
        return self._way[-1][1]

    def _step(self, parent: int, name: str, make: bool) -> int:
        try:
            return patiently(os.open, name, FOLDER, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
        os.mkdir(name, self._mode, dir_fd=parent)
        made = patiently(os.open, name, FOLDER, dir_fd=parent)
        if self._owner is not None:
            os.fchown(made, *self._owner)
        return made

    def parent(self, path: str, *, make: bool = False) -> tuple[int, str]:
        """The parent folder of a path, and the last name of the path."""
        above, _, name = path.rpartition("/")
        return self.folder(above, make=make), name

    def open_file(self, path: str) -> int:
        """A regular file, for reading. Raises NotAFile if it is anything else."""
        folder, name = self.parent(path)
        try:
            fd = patiently(os.open, name, READ, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise NotAFile(error.errno, "is a link, a socket or a device") from None
            raise
        try:
            if not stat.S_ISREG(patiently(os.fstat, fd).st_mode):
                raise NotAFile(errno.EINVAL, "is not a regular file")
        except OSError:
            os.close(fd)
            raise
        return fd


def read_exactly(fd: int, offset: int, into: memoryview) -> int:
    """Fill `into` starting at `offset`; returns less only at the end of the file."""
    done = 0
    while done < len(into):
        got = patiently(os.preadv, fd, [into[done:]], offset + done)
        if got == 0:
            break
        done += got
    return done


def write_exactly(fd: int, offset: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
