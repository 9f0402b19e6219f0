"""Which names content may have, and which names may exist beside each other. Pure: does not read the disk.

A valid name means the same on every system it may be unpacked on: no `..`, no absolute paths, no characters that hide
or reorder text, and no two names that are the same to a file system without case or with another Unicode normalisation.
"""

import re
import unicodedata

PATH_BYTES_MAX = 4_000
"""Below Linux's 4,096, with room for the folder it is unpacked into."""
PART_BYTES_MAX = 240
"""Below the 255 of most file systems, which leaves room for the suffix of an unfinished file."""
DEPTH_MAX = 64

_DRIVE = re.compile(r"[A-Za-z]:")
_PLAIN = re.compile(r"[A-Za-z0-9_./ +@=,~#%^&()\[\]{}!$'-]+")
"""Matches most names: they need no further check."""
_HIDING = {"Cc", "Cs", "Zl", "Zp"}
_REORDERING = {chr(c) for c in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)}


def why_not_a_path(path: str) -> str:
    """Why this cannot be the name of an entry; empty if it can."""
    if not path:
        return "is empty"
    if why := _odd_letters(path):
        return why
    if len(path.encode()) > PATH_BYTES_MAX:
        return f"is longer than {PATH_BYTES_MAX} bytes"
    if path.startswith("/"):
        return "is absolute"
    if _DRIVE.match(path):
        return "starts with a drive letter"
    parts = path.split("/")
    if len(parts) > DEPTH_MAX:
        return f"is more than {DEPTH_MAX} folders deep"
    for part in parts:
        if part in ("", ".", ".."):
            return f"has {part!r} as a part"
        if len(part) * 4 > PART_BYTES_MAX and len(part.encode()) > PART_BYTES_MAX:
            return f"has a part longer than {PART_BYTES_MAX} bytes"
    return ""


def why_not_a_target(path: str, target: str) -> str:
    """Why the symlink at `path` may not point to `target`; empty if it may.

    `..` is allowed only at the start. There it is exact, because no symlink is ever a parent of an entry; after a name
    it would depend on where that name points, and links could combine to a way out.
    """
    if not target:
        return "leads nowhere"
    if why := _odd_letters(target):
        return f"leads to a name that {why}"
    if len(target.encode()) > PATH_BYTES_MAX:
        return f"leads to a name that is longer than {PATH_BYTES_MAX} bytes"
    if target.startswith("/") or _DRIVE.match(target):
        return f"leads out of the folder, to {shown(target)}"
    parts = target.split("/")
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if ups > path.count("/"):
        return f"leads out of the folder, to {shown(target)}"
    if ".." in parts[ups:] or "" in parts[:-1]:
        return f"leads to {shown(target)}, which turns back on its way"
    return ""


def _odd_letters(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return ""
    if "\\" in text:
        return "has a backslash"
    for letter in text:
        if unicodedata.category(letter) in _HIDING:
            return f"has a control character ({ord(letter):#x})"
        if letter in _REORDERING:
            return f"has a character that reorders text ({ord(letter):#x})"
    return ""


def folded(path: str) -> str:
    """Equal for two names that some file system would treat as one."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def shown(text: str) -> str:
    """A name made safe to print: short, on one line, nothing hidden."""
    safe = "".join(c if c.isprintable() and c not in _REORDERING else f"\\u{ord(c):04x}" for c in text[:120])
    return repr(safe + ("…" if len(text) > 120 else ""))


class _Folder:
    """What a folder holds, by names as `folded`: other folders, and the spelling of everything else."""

    __slots__ = ("content", "spelled")

    def __init__(self, spelled: str) -> None:
        self.spelled = spelled
        self.content: dict[str, _Folder | str] = {}


class Names:
    """The names of one tree. Decides whether another one may be added, in any order.

    It takes time and memory by the length of the names, also if they are deep: folders are kept by their parts, not by
    their whole paths."""

    def __init__(self) -> None:
        self.folders = 0
        """Folders that are there because something lies in them."""
        self._root = _Folder("")
        self._last, self._last_path = self._root, ""
        """The folder of the name that was added last: most names lie in the same one."""

    def add(self, path: str, folder: bool = False) -> str:
        """Add a name. Returns why it conflicts with the others, and then it is not added; empty if it does not."""
        above, _, name = path.rpartition("/")
        here: _Folder | str = self._last
        missing: list[str] = []
        if above != self._last_path:
            here, missing = self._find(above)
            if isinstance(here, str):
                return here
        fold = folded(name)
        if not missing and (other := here.content.get(fold)) is not None:
            spelled = other if isinstance(other, str) else other.spelled
            if spelled != name:
                return f"is taken for {shown(f'{above}/{spelled}'.lstrip('/'))} by some systems"
            return "" if folder and isinstance(other, _Folder) else "is there twice"
        for part in missing:
            inner = here.content[folded(part)] = _Folder(part)
            here = inner
        self.folders += len(missing)
        self._last_path, self._last = above, here
        here.content[fold] = _Folder(name) if folder else name
        return ""

    def _find(self, path: str) -> tuple[_Folder | str, list[str]]:
        """The innermost folder on the way that is there, and the parts that are not; or why there cannot be such a
        folder."""
        here = self._root
        parts = path.split("/") if path else []
        for known, part in enumerate(parts):
            inside = here.content.get(folded(part))
            if inside is None:
                return here, parts[known:]
            if isinstance(inside, str):
                leaf = "/".join((*parts[:known], inside))
                return f"lies below {shown(leaf)}, which is not a folder", []
            if inside.spelled != part:
                alike = "/".join((*parts[:known], inside.spelled))
                return f"lies in a folder that some systems take for {shown(alike)}", []
            here = inside
        return here, []
