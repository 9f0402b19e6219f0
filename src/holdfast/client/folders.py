"""What of a folder goes along with a job, and which folder nobody can mean: a whole home, a whole disk, keys.

Said before anything is read or sent. Whoever does mean a large one sends it by itself (`client.content.send`), which
refuses nothing for its size, and gives the job what that returns. Holdfast's own keys never go, however they are named.
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
"""What is sent without being asked for by itself: more than any folder of code, less than what somebody regrets."""
LEAVE_OUT = f"Leave things out with a {IGNORE_FILE} file in it, which is written like .gitignore"
KEYS = ("admin.token", "blobs.key")
"""What lies in the folder of an orchestrator, and in each copy of it: whoever has one of these acts for the network."""
BESIDE_KEYS = ("certificate.key", "state.db", "endpoint.json")
"""What lies there as well, under names that others use too."""
NODE_KEY = "key"
"""What lies in the folder of a node. Others call a file so too: it counts only if a private key is in it."""
_PRIVATE = b"-----BEGIN PRIVATE KEY"


class Going(Ignore):
    """Leaves out what `ignore` says, or else the folder's ignore file; and folders with keys of Holdfast, wherever they
    lie and whoever says otherwise. Refuses a folder that is one of these, or lies in one."""

    def __init__(self, folder: Path, ignore: Ignore | None = None) -> None:
        super().__init__(())
        self._folder = folder.resolve()
        self._own = _own_home()
        refuse_keys(folder)
        self._ignore = ignore or Ignore.of_folder(folder)
        self.kept: dict[str, LeftOut] = {}
        """By path, the folders that stay here for their keys."""

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
            return "holds what Holdfast keeps for you"
        name = _key_in(folder)
        return f"holds a key of Holdfast ({name})" if name else ""


def refuse_keys(folder: Path) -> None:
    """FolderRefused for a folder that holds keys of Holdfast, or lies where Holdfast or an orchestrator keeps its own.
    In a node's folder lie those of its jobs, which may send what is theirs."""
    place, own = folder.resolve(), _own_home()
    if own is not None and place.is_relative_to(own):
        says = f"{place} belongs to {own}, where Holdfast keeps what is yours alone"
    elif name := _key_in(place):
        says = f"{place} holds a key of Holdfast ({name})"
    elif above := next((one for one in place.parents if _is_orchestrators(one)), None):
        says = f"{place} lies in {above}, where an orchestrator keeps its own"
    else:
        return
    raise FolderRefused(f"{says}: that is never sent", hint="Put what the job needs into a folder apart from it.")


def _key_in(folder: Path) -> str:
    return next((name for name in KEYS if os.path.isfile(folder / name)), "") or _nodes_key(folder)


def _is_orchestrators(folder: Path) -> bool:
    """One file by itself may be a copy that somebody made to use it."""
    return sum(os.path.isfile(folder / name) for name in (*KEYS, *BESIDE_KEYS)) > 1


def _nodes_key(folder: Path) -> str:
    try:
        if not os.path.isfile(folder / NODE_KEY):  # a pipe would be waited for
            return ""
        with (folder / NODE_KEY).open("rb") as file:
            return NODE_KEY if file.read(len(_PRIVATE)) == _PRIVATE else ""
    except OSError:
        return ""  # what is not to be read cannot be sent either


def _users_home() -> Path | None:
    """None: this user has none, so there is nothing to compare with."""
    try:
        return Path.home().resolve()
    except RuntimeError:
        return None


def _own_home() -> Path | None:
    """What Holdfast keeps for this user; None: there is nowhere that it could."""
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
    """Stops at the first file that is one too many: who is in the wrong folder need not wait until all is counted."""

    def __init__(self, folder: Path, ignore: Ignore | None = None) -> None:
        super().__init__(folder, ignore)
        self.tops: Counter[str] = Counter()
        """How many files lie under each name at the top."""

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
    """FolderRefused where a folder was surely taken by accident. `instead`: what to do for one that was not."""
    place = there(folder).resolve()
    own = _users_home()
    if own is not None and own.is_relative_to(place):
        what = "your home folder" if place == own else f"{place}, which has your home folder in it"
        raise FolderRefused(
            f"all of {what} would be sent: surely not all of that is meant",
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
        f"{much} would be sent from {place}{most}; no more than {FILES_MAX:,} files, {spoken_bytes(BYTES_MAX)}, "
        "go along unasked",
        hint=f"{LEAVE_OUT}. {instead}",
        code="folder_too_large",
    )


def _top(path: str) -> str:
    top, below, _ = path.partition("/")
    return top + ("/" if below else "")


def _most(weights: Counter[str], spoken: Callable[[int], str]) -> str:
    """Where most of it lies."""
    name, weight = weights.most_common(1)[0]
    return f" ({spoken(weight)} in {name})" if len(weights) > 1 else ""
