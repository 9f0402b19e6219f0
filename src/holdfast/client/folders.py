"""Decides which files of a folder are sent with a job, and rejects folders that are surely a mistake: a whole home
folder, a whole disk, keys.

The check runs before anything is read or sent. To send a large folder on purpose, use `client.content.send`, which has
no size limit, and give the job what it returns. Holdfast's own keys are never sent, whatever their names are.
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Self

from holdfast.blobs.errors import FolderRefused
from holdfast.blobs.ignore import IGNORE_FILE, Ignore
from holdfast.blobs.walk import LeftOut, walk
from holdfast.client.endpoint import home
from holdfast.quantities import counted, spoken_bytes

FILES_MAX = 10_000
BYTES_MAX = 1 << 30
"""Limits for a folder sent with a job: more than any folder of code, less than a costly mistake."""
LEAVE_OUT = f"Leave things out with a {IGNORE_FILE} file in it, which is written like .gitignore"
KEYS = ("admin.token", "blobs.key")
"""Files in the folder of an orchestrator and in each copy of it. Each of them gives authority over the network."""
BESIDE_KEYS = ("certificate.key", "state.db", "endpoint.json")
"""Further files there, with names that other programs use too."""
NODE_KEY = "key"
"""A file in the folder of a node. Other programs use this name too: it counts only if it contains a private key."""
_PRIVATE = b"-----BEGIN PRIVATE KEY"


class Going(Ignore):
    """Leaves out what `ignore` says, or else the folder's ignore file; and always folders with keys of Holdfast,
    wherever they are. Rejects a folder that is one of these or lies inside one."""

    def __init__(self, folder: Path, ignore: Ignore | None = None) -> None:
        super().__init__(())
        self._folder = folder.resolve()
        self._own = _own_home()
        refuse_keys(folder)
        self._ignore = ignore or Ignore.of_folder(folder)
        self.kept: dict[str, LeftOut] = {}
        """Folders that are not sent because of their keys, by path."""

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        return cls(folder)

    def leaves_out(self, path: str, folder: bool) -> bool:
        if self._ignore.leaves_out(path, folder):
            return True
        why = self._keys_in(self._folder / path) if folder else ""
        if why:
            self.kept[path] = LeftOut(path, why)
        return bool(why)

    def _keys_in(self, folder: Path) -> str:
        if folder == self._own:
            return "holds Holdfast's own data"
        name = _key_in(folder)
        return f"holds a key of Holdfast ({name})" if name else ""


def refuse_keys(folder: Path) -> None:
    """Raises FolderRefused for a folder that holds keys of Holdfast, or is inside the data folder of Holdfast or of an
    orchestrator. A node's data folder is allowed: it contains the folders of jobs, which may send their own files."""
    place, own = folder.resolve(), _own_home()
    if own is not None and place.is_relative_to(own):
        says = f"{place} belongs to {own}, where Holdfast keeps your private data"
    elif name := _key_in(place):
        says = f"{place} holds a key of Holdfast ({name})"
    elif above := next((one for one in place.parents if _is_orchestrators(one)), None):
        says = f"{place} is inside {above}, the data folder of an orchestrator"
    else:
        return
    raise FolderRefused(f"{says}: that is never sent", hint="Put what the job needs into another folder.")


def _key_in(folder: Path) -> str:
    return next((name for name in KEYS if os.path.isfile(folder / name)), "") or _nodes_key(folder)


def _is_orchestrators(folder: Path) -> bool:
    """A single file may be a copy that somebody made to use it."""
    return sum(os.path.isfile(folder / name) for name in (*KEYS, *BESIDE_KEYS)) > 1


def _nodes_key(folder: Path) -> str:
    try:
        if not os.path.isfile(folder / NODE_KEY):  # opening a pipe would block
            return ""
        with (folder / NODE_KEY).open("rb") as file:
            return NODE_KEY if file.read(len(_PRIVATE)) == _PRIVATE else ""
    except OSError:
        return ""  # an unreadable file cannot be sent either


def _users_home() -> Path | None:
    """None: this user has no home folder to compare with."""
    try:
        return Path.home().resolve()
    except RuntimeError:
        return None


def _own_home() -> Path | None:
    """Holdfast's data folder of this user; None: there is no place for one."""
    try:
        return home().resolve()
    except RuntimeError:
        return None


def there(folder: Path) -> Path:
    if not folder.is_dir():
        raise FolderRefused(
            f"{folder} is a file, not a folder" if folder.exists() else f"there is no folder {folder}",
            hint="Give the folder that it lies in." if folder.exists() else f"It was looked for in {Path.cwd()}.",
        )
    return folder


class _Counting(Going):
    """Stops at the first file over the limit: a caller in the wrong folder need not wait for a full count."""

    def __init__(self, folder: Path, ignore: Ignore | None = None) -> None:
        super().__init__(folder, ignore)
        self.tops: Counter[str] = Counter()
        """The number of files under each top-level name."""

    def leaves_out(self, path: str, folder: bool) -> bool:
        if super().leaves_out(path, folder):
            return True
        if not folder:
            self.tops[_top(path)] += 1
            if self.tops.total() > FILES_MAX:
                raise _TooMany
        return False


class _TooMany(Exception):
    pass


def check(folder: Path, instead: str) -> None:
    """Raises FolderRefused if a folder was surely given by accident. `instead`: what to do if it was not."""
    place = there(folder).resolve()
    own = _users_home()
    if own is not None and own.is_relative_to(place):
        what = "your home folder" if place == own else f"{place}, which has your home folder in it"
        raise FolderRefused(
            f"all of {what} would be sent, which is surely a mistake",
            hint=f"Put what the job needs into a folder of its own. {instead}",
            code="folder_is_home",
        )
    going = _Counting(place)
    try:
        files = walk(place, going).files
    except _TooMany:
        raise _too_large(f"more than {FILES_MAX:,} files", place, _most(going.tops, str), instead) from None
    size = sum(seen.size for seen in files.values())
    if size > BYTES_MAX:
        weights: Counter[str] = Counter()
        for path, seen in files.items():
            weights[_top(path)] += seen.size
        much = f"{counted(len(files), 'file')}, {spoken_bytes(size)},"
        raise _too_large(much, place, _most(weights, spoken_bytes), instead)


def _too_large(much: str, place: Path, most: str, instead: str) -> FolderRefused:
    return FolderRefused(
        f"{much} would be sent from {place}{most}; the limit for a job's folder is {FILES_MAX:,} files, "
        f"{spoken_bytes(BYTES_MAX)}",
        hint=f"{LEAVE_OUT}. {instead}",
        code="folder_too_large",
    )


def _top(path: str) -> str:
    top, below, _ = path.partition("/")
    return top + ("/" if below else "")


def _most(weights: Counter[str], spoken: Callable[[int], str]) -> str:
    """The top-level name with the most."""
    name, weight = weights.most_common(1)[0]
    return f" ({spoken(weight)} in {name})" if len(weights) > 1 else ""
