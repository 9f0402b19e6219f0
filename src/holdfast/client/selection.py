"""Decides which files of a folder are sent with a job.

    --include                    sent, whatever the rules below say
    secret files                 held back, by name or by content (client/secret_files.py)
    .holdfastignore              the last line that matches decides; `!` sends what the rules below leave out
    .gitignore, also nested      the deepest file that has an opinion decides, and in it the last line that matches
    built-in rules               history, caches, environments that were built for this machine, earlier results

As in Git, a bare name does not reach into an ignored folder. A path does: `!data/model.bin` and `--include
data/model.bin` send this file of an ignored `data/`. Folders with keys of Holdfast stay here whatever anybody says.
"""

import os
import stat
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
from pathspec import GitIgnoreSpec

from holdfast.blobs.beneath import READ
from holdfast.blobs.errors import FolderRefused
from holdfast.blobs.ignore import Ignore
from holdfast.cleaning import clean
from holdfast.client.folder_keys import own_home, own_keys_in, refuse_keys
from holdfast.client.secret_files import SEARCHED_BYTES, SECRET_NAMES, secret_in
from holdfast.errors import Misuse
from holdfast.quantities import spoken_bytes

IGNORE_FILE = ".holdfastignore"
GIT_IGNORE_FILE = ".gitignore"
IGNORE_BYTES_MAX = 256 * 1024
COUNTED_MAX = 20_000
"""Most files in folders that stay here whose sizes are added up."""


class NotSentWhy(StrEnum):
    OWN_KEYS = "own_keys"
    SECRET = "secret"
    BUILT_HERE = "built_here"
    IGNORE_FILE = "ignore_file"
    GIT_IGNORE = "git_ignore"
    NOT_NEEDED = "not_needed"


NOT_NEEDED = (
    ".git/", ".hg/", ".svn/",  # history: large, and not needed to run
    "__pycache__/", "*.py[cod]", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", ".ipynb_checkpoints/",
    ".DS_Store", "Thumbs.db", "*.swp", "*~",
    "/results/", "/.holdfast/",  # results of earlier jobs; our own files
)  # fmt: skip
"""Nobody is told of these."""
BUILT_HERE = (".venv/", "venv/", "node_modules/", ".tox/", ".nox/")
"""Built for this machine, wrong on another. Any folder with a `pyvenv.cfg` in it is one, too."""
_SECRET = GitIgnoreSpec.from_lines(SECRET_NAMES)
_BUILT_IN = (
    (NotSentWhy.BUILT_HERE, GitIgnoreSpec.from_lines(BUILT_HERE)),
    (NotSentWhy.NOT_NEEDED, GitIgnoreSpec.from_lines(NOT_NEEDED)),
)


class NotSent(msgspec.Struct, frozen=True):
    """A file or folder that stays here."""

    path: str
    reason: NotSentWhy
    why: str
    """For people, after the path."""
    folder: bool = False
    bytes: int = 0
    """How large it is; of a folder with very many files, at least."""


class FolderRules(msgspec.Struct, frozen=True):
    """What the caller says about the files of a folder."""

    include: Sequence[str] = ()
    """Patterns with the syntax of `.gitignore`: these are sent, secret or not."""
    gitignore: bool = True
    """Whether `.gitignore` files in the folder count."""

    def __post_init__(self) -> None:
        if isinstance(self.include, str):
            raise Misuse(f"include is {self.include!r:.60}", hint='It takes a list of paths or patterns: [".env"].')


USUAL = FolderRules()


class Selection(Ignore):
    """Leaves out what the rules say, or else `ignore`; and always folders with keys of Holdfast. Raises FolderRefused
    for a folder that is one of these or lies inside one."""

    def __init__(self, folder: Path, rules: FolderRules = USUAL, ignore: Ignore | None = None) -> None:
        super().__init__(())
        refuse_keys(folder)
        self._folder = folder.resolve()
        self._own = own_home()
        self._named = ignore or _Rules(self._folder, rules)
        self.left: dict[str, NotSent] = {}
        """What is not sent, by path."""

    def leaves_out(self, path: str, folder: bool) -> bool:
        """Whether the rules about names leave it out, or keys of Holdfast do."""
        why = own_keys_in(self._folder / path, self._own) if folder else ""
        if why:
            found = NotSent(path, NotSentWhy.OWN_KEYS, why, folder)
        elif isinstance(self._named, _Rules):
            found = self._named.judged(path, folder)
        elif self._named.leaves_out(path, folder):
            return True
        else:
            found = None
        if found is None:
            return False
        if found.reason is not NotSentWhy.NOT_NEEDED:
            self.left[path] = found
        return True

    def enters(self, path: str) -> bool:
        kept = self.left.get(path)
        return self._named.enters(path) and (kept is None or kept.reason is not NotSentWhy.OWN_KEYS)

    def told(self) -> tuple[NotSent, ...]:
        """What is not sent, secrets first, then the largest. Raises Misuse if something to include is not there."""
        if isinstance(self._named, _Rules):
            self._named.refuse_unmatched()
        order = list(NotSentWhy)
        sized = _sized(self._folder, [one for one in self.left.values() if not self.enters(one.path)])
        return tuple(sorted(sized, key=lambda one: (order.index(one.reason), -one.bytes, one.path)))


class SearchingSelection(Selection):
    """Also searches the content of files for secrets. It is used once, when the folder is sent."""

    def leaves_out(self, path: str, folder: bool) -> bool:
        if super().leaves_out(path, folder):
            return True
        if folder or not isinstance(self._named, _Rules) or self._named.is_meant(path, folder):
            return False
        what = secret_in(_beginning(self._folder / path))
        if what:
            self.left[path] = NotSent(path, NotSentWhy.SECRET, f"seems to hold a secret ({what})")
        return bool(what)


class _Rules(Ignore):
    """The rules about names, from the caller and from the folder."""

    def __init__(self, folder: Path, rules: FolderRules) -> None:
        super().__init__(())
        self._folder = folder
        self._gitignore = rules.gitignore
        self._git: dict[str, GitIgnoreSpec | None] = {}
        self._include_lines = [_relative(folder, line) for line in rules.include]
        self._include = GitIgnoreSpec.from_lines(self._include_lines)
        self._matched: set[int] = set()
        lines = _own_lines(folder / IGNORE_FILE)
        self._own = _compiled(lines, folder / IGNORE_FILE)
        self._inside = [_literal(line) for line in self._include_lines]
        self._inside += [_literal(line[1:]) for line in lines if line.startswith("!")]
        """Paths, as names one below the other, that are sent although a folder above them may be ignored."""

    def judged(self, path: str, folder: bool) -> NotSent | None:
        if self.is_meant(path, folder):
            return None
        if self._is_secret(path, folder):
            return NotSent(path, NotSentWhy.SECRET, "is secret by its name", folder)
        name = path + "/" if folder else path
        if self._include.match_file(name):
            return None
        found = self._opinion(path, name)
        if found is None and folder and os.path.isfile(self._folder / path / "pyvenv.cfg"):
            found = NotSentWhy.BUILT_HERE
        return None if found is None else NotSent(path, found, _WHY[found], folder)

    def _is_secret(self, path: str, folder: bool) -> bool:
        """Whether its name says so, and it is not part of a secret folder that is to be included itself."""
        line = _SECRET.check_file(path + "/" if folder else path)
        if not line.include:
            return False
        above = path.rpartition("/")[0]
        while above:
            if _SECRET.check_file(f"{above}/").index == line.index and self.is_meant(above, True):
                return False
            above = above.rpartition("/")[0]
        return True

    def is_meant(self, path: str, folder: bool) -> bool:
        """Whether it is to be included itself, and not only as a part of a folder: then a secret is sent, too."""
        found = _line_of(self._include, path, folder)
        if found is not None:
            self._matched.add(found)
        return found is not None

    def enters(self, path: str) -> bool:
        parts = path.split("/")
        return any(len(names) > len(parts) and names[: len(parts)] == parts for names in self._inside)

    def refuse_unmatched(self) -> None:
        for number, line in enumerate(self._include_lines):
            if number not in self._matched:
                raise Misuse(
                    f"nothing in {self._folder} matches {line!r}, which was to be included",
                    hint="Give a path below that folder, or a pattern with the syntax of .gitignore.",
                )

    def _opinion(self, path: str, name: str) -> NotSentWhy | None:
        """Why the ignore files or the built-in rules leave it out."""
        own = self._own.check_file(name).include
        if own is not None:
            return NotSentWhy.IGNORE_FILE if own else None
        built_in = next((why for why, spec in _BUILT_IN if spec.match_file(name)), None)
        git = self._git_opinion(path, name)
        if git is None or (git and built_in is not None):
            return built_in
        return NotSentWhy.GIT_IGNORE if git else None

    def _git_opinion(self, path: str, name: str) -> bool | None:
        if not self._gitignore:
            return None
        above = path.rpartition("/")[0]
        while True:
            spec = self._git_spec(above)
            found = spec.check_file(name[len(above) + 1 if above else 0 :]).include if spec is not None else None
            if found is not None or not above:
                return found
            above = above.rpartition("/")[0]

    def _git_spec(self, folder: str) -> GitIgnoreSpec | None:
        if folder not in self._git:
            lines = _git_lines(self._folder / folder / GIT_IGNORE_FILE)
            self._git[folder] = GitIgnoreSpec.from_lines(lines) if lines else None
        return self._git[folder]


def _line_of(spec: GitIgnoreSpec, path: str, folder: bool) -> int | None:
    """The number of the line that matches the path, unless the same line matches the folder above it."""
    found = spec.check_file(path + "/" if folder else path)
    above = path.rpartition("/")[0]
    if not found.include or (above and spec.check_file(f"{above}/").index == found.index):
        return None
    return found.index


_WHY = {
    NotSentWhy.BUILT_HERE: "was built for this machine",
    NotSentWhy.IGNORE_FILE: f"is ignored by {IGNORE_FILE}",
    NotSentWhy.GIT_IGNORE: f"is ignored by {GIT_IGNORE_FILE}",
    NotSentWhy.NOT_NEEDED: "is not needed to run",
}


# --- reading the rules ---


def _own_lines(file: Path) -> list[str]:
    try:
        with file.open("rb") as opened:
            data = opened.read(IGNORE_BYTES_MAX + 1)
        if len(data) > IGNORE_BYTES_MAX:
            raise FolderRefused(f"{file} is longer than {IGNORE_BYTES_MAX} bytes")
        return data.decode().splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise FolderRefused(f"{file} cannot be read: {error}") from None


def _compiled(lines: Iterable[str], file: Path) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise FolderRefused(
            f"{file} cannot be read: {error}", hint="Its lines have the syntax of .gitignore."
        ) from None


def _git_lines(file: Path) -> list[str]:
    """The lines of a `.gitignore` that Git would understand. As for Git, one that is a link does not count."""
    lines = _beginning(file, IGNORE_BYTES_MAX).decode(errors="surrogateescape").splitlines()
    return [line for line in lines if _is_understood(line)]


def _is_understood(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def _relative(folder: Path, given: str) -> str:
    """A pattern to include, relative to the folder."""
    path = Path(given).resolve()
    inside = os.path.isabs(given) and path.is_relative_to(folder)
    line = f"/{path.relative_to(folder).as_posix()}" if inside else given.removeprefix("./")
    try:
        spec = GitIgnoreSpec.from_lines([line])
    except ValueError as error:
        raise Misuse(f"{given!r} is not a pattern: {error}", hint="Its syntax is that of .gitignore.") from None
    if line.startswith("!") or not any(pattern.include for pattern in spec.patterns):
        raise Misuse(f"{given!r} includes nothing", hint="Give a path below the folder, or a pattern.")
    return line


def _literal(line: str) -> list[str]:
    """The names with which the path of a pattern begins; none if it is a bare name, which matches at any depth."""
    line = line.strip()
    if "/" not in line.rstrip("/"):
        return []
    names = line.strip("/").split("/")
    wild = next((number for number, name in enumerate(names) if set(name) & set("*?[\\")), len(names))
    return names[:wild] if wild == len(names) else [*names[:wild], ""]


# --- looking at what stays here ---


def _beginning(file: Path, size: int = SEARCHED_BYTES) -> bytes:
    """Empty for what is no file or cannot be read: that cannot be sent either."""
    try:
        fd = os.open(file, READ)
    except OSError:
        return b""
    try:
        return os.read(fd, size)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _sized(root: Path, kept: Iterable[NotSent]) -> list[NotSent]:
    left = COUNTED_MAX
    sized: list[NotSent] = []
    for one in kept:
        size, left = _size_of(root / one.path, left)
        sized.append(msgspec.structs.replace(one, bytes=size))
    return sized


def _size_of(place: Path, most: int) -> tuple[int, int]:
    """How many bytes there are, and how much is left of the number of files that may be looked at."""
    size, to_do = 0, [os.fspath(place)]
    while to_do and most > 0:
        path = to_do.pop()
        most -= 1
        try:
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                to_do += [entry.path for entry in os.scandir(path)]
            else:
                size += status.st_size
        except OSError:
            continue
    return size, most


# --- for people ---

NAMED_MAX = 4
"""How many are named in the line that a person sees."""


def left_out_line(kept: Sequence[NotSent], way_out: str) -> str:
    """One line for a person about what stays here; empty if that is nothing. `way_out`: how to send it."""
    if not kept:
        return ""
    named = ", ".join(_named(one) for one in kept[:NAMED_MAX])
    more = f" and {len(kept) - NAMED_MAX} more" if len(kept) > NAMED_MAX else ""
    can = any(one.reason is not NotSentWhy.OWN_KEYS for one in kept)
    return f"not sent: {named}{more}{f'; {way_out}' if can else ''}"


def _named(one: NotSent) -> str:
    size = f"{spoken_bytes(one.bytes)}; " if one.bytes else ""
    return f"{clean(one.path)}{'/' if one.folder else ''} ({size}{one.why})"
