"""Decides which lines of a Python requirements file are used, and says why one is not. Pure.

The file is a stranger's. What it may say is a list of its own: names, versions, markers and hashes, and options that
only make pip stricter. Everything else is refused by name, because it would make pip read, fetch or run something that
the node's settings do not allow.
"""

import re
from enum import Enum

TEXT_BYTES_MAX = 256 * 1024
LINES_MAX = 2_000
_QUOTED_MAX = 100

_VERSION = r"(===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9][A-Za-z0-9.*+!_-]*"
_HASH = r"--hash=sha(256|384|512):[0-9a-f]{64,128}"
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\s*(\[[A-Za-z0-9._,\s-]{0,200}\])?\s*"
    rf"({_VERSION}(\s*,\s*{_VERSION}){{0,20}})?\s*(;[A-Za-z0-9_.<>=!~'\"(),+*\s-]{{1,300}}?)?(\s+{_HASH}){{0,200}}"
)
_ALLOWED = frozenset({"--require-hashes", "--pre", "--prefer-binary", "--only-binary :all:", "--only-binary=:all:"})
_VCS = re.compile(r"(git|hg|svn|bzr)\+", re.IGNORECASE)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class RefusedLine(Enum):
    """Why a line is not used. The value is the sentence for the owner of the job."""

    INDEX = "packages come from the indexes that the node's settings name; remove the option"
    FIND_LINKS = "packages come from the indexes that the node's settings name; remove the option"
    FILE = "other files are not read; put their lines into this one"
    EDITABLE = "nothing is built; put the code into the job's folder"
    VCS = "nothing is fetched from a repository or built; name a released version"
    ADDRESS = "packages come from the indexes that the node's settings name; give a name and a version"
    PATH = "no path is installed; put the code into the job's folder"
    BUILD = "only wheels are installed, and nothing is built; remove the option"
    OPTION = "this option of pip cannot be used; it takes names, versions, markers and hashes"
    SYNTAX = "it takes names and versions; no options, addresses or paths"


_OPTIONS = {
    **dict.fromkeys(("-i", "--trusted-host", "--proxy", "--cert", "--client-cert"), RefusedLine.INDEX),
    **dict.fromkeys(("-f", "--find-links"), RefusedLine.FIND_LINKS),
    **dict.fromkeys(("-r", "--requirement", "-c", "--constraint"), RefusedLine.FILE),
    **dict.fromkeys(("-e", "--editable"), RefusedLine.EDITABLE),
    **dict.fromkeys(("--no-binary", "--config-settings", "--config-setting", "-C"), RefusedLine.BUILD),
    **dict.fromkeys(("--global-option", "--install-option", "--build-option"), RefusedLine.BUILD),
    **dict.fromkeys(("--use-pep517", "--no-build-isolation", "--only-binary"), RefusedLine.BUILD),
}


class RequirementsRefused(Exception):
    """The file cannot be used; the text is for the owner of the job."""


def listed(text: str) -> tuple[str, ...]:
    """The lines of this text that pip gets, without comments. Raises RequirementsRefused."""
    if len(text.encode(errors="replace")) > TEXT_BYTES_MAX:
        raise RequirementsRefused(f"the requirements are longer than {TEXT_BYTES_MAX >> 10} KiB")
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.replace("\\\n", " ").splitlines()]
    found = tuple(" ".join(line.split()) for line in lines if line)
    if len(found) > LINES_MAX:
        raise RequirementsRefused(f"there are more than {LINES_MAX} requirements")
    for line in found:
        if (refused := refusal(line)) is not None:
            said = f"the requirement {line[:_QUOTED_MAX]!r} cannot be used: {refused.value}"
            raise RequirementsRefused(said)
    return found


def refusal(line: str) -> RefusedLine | None:
    """Why this line, without comment and with single spaces, is not used; None: it is."""
    if line in _ALLOWED:
        return None
    for word in line.split():
        if word.startswith("-") and not re.fullmatch(_HASH, word):
            return _refused_option(word)
    if _REQUIREMENT.fullmatch(line):
        return None
    if _VCS.search(line):
        return RefusedLine.VCS
    if _ADDRESS.search(line) or " @ " in line:
        return RefusedLine.ADDRESS
    return RefusedLine.PATH if line.startswith((".", "/", "~")) else RefusedLine.SYNTAX


def _refused_option(word: str) -> RefusedLine:
    """Short options may have their value attached: `-rother.txt`. Whatever its name, an option that ends in `-url` or
    `-index` says where packages come from."""
    name = word.partition("=")[0]
    if name.startswith("--") and name.endswith(("-url", "-index")):
        return RefusedLine.INDEX
    if not word.startswith("--"):
        name = word[:2]
    return _OPTIONS.get(name, RefusedLine.OPTION)
