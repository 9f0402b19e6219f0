"""Lists what is in a folder: files, empty folders and symlinks, each with its metadata. Reads no content.

The folder is untrusted and may change meanwhile. No symlink is followed; pipes, sockets and devices are never opened; a
name that could not be unpacked elsewhere is left out with a reason.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.blobs.beneath import Beneath, FileStat
from holdfast.blobs.errors import FolderRefused
from holdfast.blobs.ignore import Ignore
from holdfast.blobs.manifest import EmptyFolder, ManifestLimits, Symlink
from holdfast.blobs.paths import Names, shown, why_not_a_path, why_not_a_target
from holdfast.passing import is_passing, patiently


class LeftOut(msgspec.Struct, frozen=True):
    """Something in the folder that is not sent, and why. Does not include ignored files."""

    path: str
    why: str


class WalkedFile(msgspec.Struct):
    files: dict[str, FileStat]
    """Sorted by path."""
    others: list[EmptyFolder | Symlink]
    left_out: list[LeftOut]


def walk(root: Path, ignore: Ignore | None = None, limits: ManifestLimits | None = None) -> WalkedFile:
    """Everything in a folder. Raises FolderRefused if it cannot be read or holds too much, and OSError if the machine
    lacks something for long: that is no property of the folder."""
    limits = limits or ManifestLimits()
    found = WalkedFile({}, [], [])
    names = Names()
    total = 0
    try:
        with Beneath(root) as tree:
            for path, status, target in _everything(tree, ignore, found.left_out):
                _sort_in(found, names, path, status, target)
                if len(found.files) + len(found.others) + names.folders > limits.entries:
                    raise FolderRefused(
                        f"{root} holds more than {limits.entries} files and folders",
                        hint="Leave some out with a .holdfastignore file, or pack them.",
                    )
                # Checked before anything is read: a sparse file may claim to be larger than any disk.
                total += status.st_size if status is not None else 0
                if total > limits.total_bytes:
                    raise FolderRefused(
                        f"{root} holds more than {limits.total_bytes} bytes",
                        hint="Leave some out with a .holdfastignore file, or ask for more disk.",
                    )
    except OSError as error:
        if is_passing(error):
            raise
        raise FolderRefused(f"{root} cannot be read: {error.strerror or error}") from None
    found.files = dict(sorted(found.files.items()))
    return found


def _sort_in(found: WalkedFile, names: Names, path: str, status: os.stat_result | None, target: str) -> None:
    why = why_not_a_path(path)
    if not why and target:
        why = why_not_a_target(path, target)
    if not why:
        why = names.add(path, folder=status is None)
    if why:
        found.left_out.append(LeftOut(path, why))
    elif status is None:
        found.others.append(EmptyFolder(path))
    elif target:
        found.others.append(Symlink(path, target))
    else:
        found.files[path] = FileStat.of(status)


def _everything(
    tree: Beneath, ignore: Ignore | None, left_out: list[LeftOut]
) -> Iterator[tuple[str, os.stat_result | None, str]]:
    """(path, status, symlink target) of each entry; an empty folder has no status."""
    to_do = [""]
    ignored: set[str] = set()
    """Ignored folders that are entered all the same."""
    while to_do:
        folder = to_do.pop()
        try:
            fd = tree.folder(folder)
            children = sorted(patiently(os.listdir, fd))
        except (FileNotFoundError, NotADirectoryError):
            if not folder:
                raise
            continue  # gone since it was listed
        except OSError as error:
            if not folder or is_passing(error):
                raise
            left_out.append(LeftOut(folder, f"cannot be entered: {error.strerror}"))
            continue
        empty = True
        below: list[str] = []
        for name in children:
            path = f"{folder}/{name}" if folder else name
            try:
                status = patiently(os.stat, name, dir_fd=fd, follow_symlinks=False)
                target = patiently(os.readlink, name, dir_fd=fd) if stat.S_ISLNK(status.st_mode) else ""
            except OSError as error:
                if is_passing(error):
                    raise
                continue  # gone since it was listed
            is_folder = stat.S_ISDIR(status.st_mode)
            if ignore is not None and ignore.leaves_out(path, is_folder):
                if is_folder and ignore.enters(path):
                    below.append(path)
                    ignored.add(path)
                continue
            if is_folder and not why_not_a_path(path):
                below.append(path)
            elif why := _why_no_content(status, path, is_folder):
                left_out.append(LeftOut(path, why))
            else:
                yield path, status, target
            empty = False
        if empty and folder and folder not in ignored:
            yield folder, None, ""
        to_do.extend(reversed(below))


_KINDS = {
    stat.S_IFIFO: "is a pipe",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
}


def _why_no_content(status: os.stat_result, path: str, is_folder: bool) -> str:
    if is_folder:
        return why_not_a_path(path)
    return _KINDS.get(stat.S_IFMT(status.st_mode), "")


def refuse(root: Path, left_out: list[LeftOut]) -> None:
    """Raise an error that explains what in the folder cannot be sent."""
    if not left_out:
        return
    first = left_out[0]
    more = f" (and {len(left_out) - 1} more like it)" if len(left_out) > 1 else ""
    raise FolderRefused(
        f"{shown(first.path)} in {root} cannot be sent: it {first.why}{more}",
        hint="Rename or remove it, or name it in .holdfastignore.",
    )
