"""What of a folder goes along with a job, and which folder nobody can mean: a whole home, a whole disk.

Said before anything is read or sent. Whoever does mean it sends the folder by itself (`client.content.send`), which
refuses nothing for its size, and gives the job what that returns.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from holdfast.blobs.errors import FolderRefused
from holdfast.blobs.ignore import IGNORE_FILE, Ignore
from holdfast.client.endpoint import home
from holdfast.quantities import counted, spoken_bytes

if TYPE_CHECKING:
    from holdfast.blobs.beneath import Seen

FILES_MAX = 10_000
BYTES_MAX = 1 << 30
"""What is sent without being asked for by itself: more than any folder of code, less than what somebody regrets."""
LEAVE_OUT = f"Leave things out with a {IGNORE_FILE} file in it, which is written like .gitignore"


class Going(Ignore):
    """Leaves out what the folder's ignore file says, and this machine's own keys, wherever they lie."""

    home = ""
    """HOLDFAST_HOME, if it is inside the folder: its path there."""

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        going = super().of_folder(folder)
        own, here = home().resolve(), folder.resolve()
        if own != here and own.is_relative_to(here):
            going.home = own.relative_to(here).as_posix()
        return going

    def leaves_out(self, path: str, folder: bool) -> bool:
        return path == self.home or super().leaves_out(path, folder)


def there(folder: Path) -> Path:
    if not folder.is_dir():
        raise FolderRefused(
            f"{folder} is a file, not a folder" if folder.exists() else f"there is no folder {folder}",
            hint="Give the folder that it lies in." if folder.exists() else f"It was looked for in {Path.cwd()}.",
        )
    return folder


def check(folder: Path, instead: str) -> None:
    """FolderRefused where a folder was surely taken by accident. `instead`: what to do for one that was not."""
    place = there(folder).resolve()
    own = Path.home().resolve()
    if own.is_relative_to(place):
        what = "your home folder" if place == own else f"{place}, which has your home folder in it"
        raise FolderRefused(
            f"all of {what} would be sent: surely not all of that is meant",
            hint=f"Put what the job needs into a folder of its own. {instead}",
            code="folder_is_home",
        )
    from holdfast.blobs.walk import walk

    files = walk(place, Going.of_folder(place)).files
    size = sum(seen.size for seen in files.values())
    if len(files) > FILES_MAX or size > BYTES_MAX:
        raise FolderRefused(
            f"{counted(len(files), 'file')}, {spoken_bytes(size)}, would be sent from {place}{_most(files, size)}; "
            f"no more than {FILES_MAX:,} files, {spoken_bytes(BYTES_MAX)}, go along unasked",
            hint=f"{LEAVE_OUT}. {instead}",
            code="folder_too_large",
        )


def _most(files: "Mapping[str, Seen]", size: int) -> str:
    """Where most of it lies: by size where that is what is too much, else by number."""
    weights: Counter[str] = Counter()
    for path, seen in files.items():
        top, below, _ = path.partition("/")
        weights[top + ("/" if below else "")] += seen.size if size > BYTES_MAX else 1
    name, weight = weights.most_common(1)[0]
    much = spoken_bytes(weight) if size > BYTES_MAX else f"{weight:,}"
    return f" ({much} in {name})" if len(weights) > 1 else ""
