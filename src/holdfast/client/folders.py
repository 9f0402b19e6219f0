"""Rejects folders that are surely a mistake: a whole home folder, a whole disk.

The check runs before anything is read or sent. To send a large folder on purpose, use `client.content.send`, which has
no size limit, and give the job what it returns.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from holdfast.blobs.errors import FolderRefused
from holdfast.blobs.walk import walk
from holdfast.client.selection import IGNORE_FILE, USUAL, FolderRules, Selection
from holdfast.quantities import counted, spoken_bytes

FILES_MAX = 10_000
BYTES_MAX = 1 << 30
"""Limits for a folder sent with a job: more than any folder of code, less than a costly mistake."""
LEAVE_OUT = f"Leave things out with a {IGNORE_FILE} file in it, which is written like .gitignore"


def _users_home() -> Path | None:
    """None: this user has no home folder to compare with."""
    try:
        return Path.home().resolve()
    except RuntimeError:
        return None


def there(folder: Path) -> Path:
    if not folder.is_dir():
        raise FolderRefused(
            f"{folder} is a file, not a folder" if folder.exists() else f"there is no folder {folder}",
            hint="Give the folder that it lies in." if folder.exists() else f"It was looked for in {Path.cwd()}.",
        )
    return folder


class _Counting(Selection):
    """Stops at the first file over the limit: a caller in the wrong folder need not wait for a full count."""

    def __init__(self, folder: Path, rules: FolderRules) -> None:
        super().__init__(folder, rules)
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


def check(folder: Path, instead: str, rules: FolderRules = USUAL) -> None:
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
    going = _Counting(place, rules)
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
