"""Which files of a folder are not sent: the defaults below, and the folder's own `.holdfastignore`.

The file has the syntax of `.gitignore`. Its lines come after the defaults, so `!results/` includes a default again. As
in Git, nothing below an ignored folder can be included again by itself. Knows names only.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pathspec import GitIgnoreSpec

from holdfast.blobs.errors import FolderRefused

IGNORE_FILE = ".holdfastignore"
IGNORE_BYTES_MAX = 256 * 1024

DEFAULTS = (
    ".git/", ".hg/", ".svn/",                                       # history: large, and not needed to run
    "__pycache__/", "*.py[cod]", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", ".ipynb_checkpoints/",
    ".venv/", "venv/", "node_modules/", ".tox/", ".nox/",           # built for this machine, wrong on another
    ".DS_Store", "Thumbs.db", "*.swp", "*~",
    "/results/", "/.holdfast/",                                     # results of earlier jobs; our own files
    ".env", ".netrc", ".ssh/", ".aws/",                             # secrets are not sent unless included explicitly
)  # fmt: skip


class Ignore:
    """Decides whether a name is ignored."""

    def __init__(self, lines: Iterable[str]) -> None:
        try:
            self._spec = GitIgnoreSpec.from_lines(lines)
        except ValueError as error:
            raise FolderRefused(
                f"{IGNORE_FILE} cannot be read: {error}", hint="Its lines have the syntax of .gitignore."
            ) from None

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """The defaults and the folder's own rules."""
        file = folder / IGNORE_FILE
        try:
            with file.open("rb") as opened:
                data = opened.read(IGNORE_BYTES_MAX + 1)
            if len(data) > IGNORE_BYTES_MAX:
                raise FolderRefused(f"{file} is longer than {IGNORE_BYTES_MAX} bytes")
            own = data.decode()
        except FileNotFoundError:
            own = ""
        except (OSError, UnicodeDecodeError) as error:
            raise FolderRefused(f"{file} cannot be read: {error}") from None
        return cls([*DEFAULTS, *own.splitlines()])

    def leaves_out(self, path: str, folder: bool) -> bool:
        return self._spec.match_file(path + "/" if folder else path)
