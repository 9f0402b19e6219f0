"""Which files of a folder are excluded from a build: its `.dockerignore`, read as `docker build` reads it.

A pattern is anchored at the folder and also covers everything below what it names; `*`, `?` and `[a-z]` match within
one name, `**` matches any number of folders, `!` includes again, and the last matching line decides. The file is
untrusted: the time to match is bounded by the lengths of pattern and path. Knows names only.
"""

import posixpath
import re
from collections.abc import Iterable, Sequence

import msgspec

IGNORE_FILE = ".dockerignore"
BYTES_MAX = 64 * 1024
LINES_MAX = 1_000
_PIECE = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])+\]|\*+|.", re.DOTALL)


class IgnoreRule(msgspec.Struct, frozen=True):
    takes_back: bool
    names: tuple[str, ...]
    """The pattern, split at its slashes."""


def rules(text: str) -> tuple[IgnoreRule, ...]:
    """The rules of the file, without comments and empty lines. Raises ValueError if there are too many."""
    if len(text.encode()) > BYTES_MAX:
        raise ValueError(f"{IGNORE_FILE} is longer than {BYTES_MAX >> 10} KiB")
    found: list[IgnoreRule] = []
    for line in text.removeprefix("\ufeff").splitlines():
        words = line.strip()
        if not words or line.startswith("#"):
            continue
        takes_back = words.startswith("!")
        pattern = posixpath.normpath("/" + words.removeprefix("!").strip()).strip("/")
        if pattern:
            found.append(IgnoreRule(takes_back, tuple(pattern.split("/"))))
    if len(found) > LINES_MAX:
        raise ValueError(f"{IGNORE_FILE} has more than {LINES_MAX} lines")
    return tuple(found)


def leaves_out(rules: Iterable[IgnoreRule], path: str) -> bool:
    parts = path.split("/")
    out = False
    for rule in rules:
        if rule.takes_back == out and _covers(rule.names, parts):
            out = not rule.takes_back
    return out


def _covers(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether the pattern matches the path, or a folder above it."""
    at = _open(names, {0})
    for part in parts:
        stayed = {place for place in at if names[place] == "**"}
        passed = {place + 1 for place in at if names[place] != "**" and _fits(names[place], part)}
        # A ** at the end matches what is below a folder, so it must consume a name.
        if len(names) in passed or (len(names) - 1 in stayed):
            return True
        at = _open(names, stayed | passed)
    return False


def _open(names: Sequence[str], places: set[int]) -> set[int]:
    """These positions in the pattern, and those after any ** there, which may match nothing."""
    reached = set(places)
    for place in sorted(places):
        while place < len(names) and names[place] == "**":
            place += 1
            reached.add(place)
    return {place for place in reached if place < len(names)}


def _fits(pattern: str, name: str) -> bool:
    """Match one name against one pattern. Only the last star is ever extended, so nothing is tried twice."""
    pieces: list[str] = _PIECE.findall(pattern)
    piece = letter = 0
    star, resume = -1, 0
    while letter < len(name):
        if piece < len(pieces) and pieces[piece].startswith("*"):
            star, resume = piece, letter
            piece += 1
        elif piece < len(pieces) and _is(pieces[piece], name[letter]):
            piece += 1
            letter += 1
        elif star >= 0:
            resume += 1
            piece, letter = star + 1, resume
        else:
            return False
    return all(left.startswith("*") for left in pieces[piece:])


def _is(piece: str, letter: str) -> bool:
    if piece == "?":
        return True
    if piece.startswith("\\") and len(piece) > 1:
        return piece[1] == letter
    if piece.startswith("[") and len(piece) > 1:
        inside = piece[1:-1]
        negated = inside.startswith("^")
        letters = re.findall(r"\\.|.", inside.removeprefix("^"), re.DOTALL)
        return _among([one[-1] for one in letters], letter) != negated
    return piece == letter


def _among(letters: Sequence[str], letter: str) -> bool:
    place = 0
    while place < len(letters):
        if place + 2 < len(letters) and letters[place + 1] == "-":
            if letters[place] <= letter <= letters[place + 2]:
                return True
            place += 3
        else:
            if letters[place] == letter:
                return True
            place += 1
    return False
