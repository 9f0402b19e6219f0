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


class Names:
    """The names of one tree. Decides whether another one may be added, in any order."""

    def __init__(self) -> None:
        self._leaves: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        self._spelled: set[str] = set()
        """Folders whose parents are already known, by their exact spelling."""

    def add(self, path: str, folder: bool = False) -> str:
        """Add a name. Returns why it conflicts with the others, and then it is not added; empty if it does not."""
        parents: list[str] = []
        above = path.rpartition("/")[0]
        while above and above not in self._spelled:
            fold = folded(above)
            if fold in self._leaves:
                return f"lies below {shown(self._leaves[fold])}, which is not a folder"
            if self._folders.get(fold, above) != above:
                return f"lies in a folder that some systems take for {shown(self._folders[fold])}"
            parents.append(above)
            above = above.rpartition("/")[0]
        fold = folded(path)
        other = self._leaves.get(fold) or self._folders.get(fold)
        if other is not None and not (folder and other == path and fold in self._folders):
            return "is there twice" if other == path else f"is taken for {shown(other)} by some systems"
        for parent in parents:
            self._folders[folded(parent)] = parent
            self._spelled.add(parent)
        if folder:
            self._folders[fold] = path
            self._spelled.add(path)
        else:
            self._leaves[fold] = path
        return ""
