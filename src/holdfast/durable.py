"""Atomic replacement of files. Every file that must never be seen half written is written here.

    durable_write       old or new content, complete, even after a power cut
    durable_write_all   the same for several files of one folder, which are renamed in the given order
    durable_create      like durable_write, but never replaces a file: one of several processes wins
    atomic_write        old or new content for readers; a power cut may lose either

Steps of a durable write, and what a crash after each leaves:

    1. write the draft, a file beside the target      the old content, and a draft
    2. fsync the draft                                the old content, and a draft
    3. rename (or link) the draft to its name         the old content or the new: the name may not be on the disk yet
    4. fsync the folder                               the new content

A draft that a crash left is replaced by the next write; the draft of a failed write is removed at once, because the
disk may be full. Two writers of one file need a lock, or a draft name each. Standard library only: shims import this,
and little else. Knows nothing about the content of files.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Mapping

from holdfast.passing import briefly

Place = str | os.PathLike[str]

_DRAFT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def durable_write(
    path: Place,
    content: bytes,
    *,
    mode: int = 0o666,
    keep_mode: bool = False,
    draft: Place | None = None,
    folder: bool = True,
) -> None:
    """Replace a file. When this returns, the new content survives a power cut.

    `mode`: permission bits of the new file, less the umask. `keep_mode`: use those of the existing file, which must
    exist. `draft`: the name to write under; `PATH.new` by default. `folder=False` omits step 4: after a power cut the
    old content may be back, complete.
    """
    draft = beside(path) if draft is None else draft
    _write(draft, content, mode, path if keep_mode else None, sync=True)
    _name(draft, path, os.replace)
    if folder:
        sync_folder(_parent(path))


def durable_write_all(contents: Mapping[Place, bytes]) -> None:
    """Replace several files, which are renamed in this order; each folder is synced once."""
    drafts = {path: beside(path) for path in contents}
    try:
        for path, content in contents.items():
            _write(drafts[path], content, 0o666, None, sync=True)
        for path, draft in drafts.items():
            os.replace(draft, path)
    except OSError:
        for draft in drafts.values():
            _drop(draft)
        raise
    for parent in dict.fromkeys(_parent(path) for path in contents):
        sync_folder(parent)


def durable_create(
    path: Place, content: bytes, *, mode: int = 0o666, draft: Place | None = None, folder: bool = True
) -> None:
    """Create a file; raises FileExistsError if it exists. Uses a hard link, not a rename: a rename would replace what
    another process created a moment ago."""
    draft = beside(path) if draft is None else draft
    _write(draft, content, mode, None, sync=True)
    _name(draft, path, os.link)
    _drop(draft)
    if folder:
        sync_folder(_parent(path))


def atomic_write(
    path: Place, content: bytes | bytearray | memoryview, *, mode: int = 0o666, draft: Place | None = None
) -> None:
    """Replace a file without waiting for the disk: for content that a power cut makes useless, or that can be
    recreated."""
    draft = beside(path) if draft is None else draft
    _write(draft, content, mode, None, sync=False)
    _name(draft, path, os.replace)


def sync_folder(folder: Place) -> None:
    """The names in a folder survive a power cut once this returns."""
    descriptor = briefly(os.open, folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def beside(path: Place) -> str:
    """The default draft name of a file."""
    return os.fspath(path) + ".new"


def _write(draft: Place, content: bytes | bytearray | memoryview, mode: int, like: Place | None, *, sync: bool) -> None:
    """Never writes into an existing file: someone else may have chosen its permission bits, or linked it elsewhere."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    descriptor = briefly(os.open, draft, _DRAFT, mode if like is None else 0o600)
    try:
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            if like is not None:
                os.fchmod(descriptor, stat.S_IMODE(briefly(os.stat, like).st_mode))
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        _drop(draft)
        raise


def _name(draft: Place, path: Place, give: Callable[[Place, Place], None]) -> None:
    try:
        give(draft, path)
    except OSError:
        _drop(draft)
        raise


def _drop(draft: Place) -> None:
    with contextlib.suppress(OSError):
        os.unlink(draft)


def _parent(path: Place) -> str:
    return os.path.dirname(os.fspath(path)) or "."
