"""Finds what a Dockerfile has an engine fetch: the images it names. Pure. The text is untrusted.

An engine resolves names itself, follows redirects, and connects from the node's own network, so it is never told to
fetch an address: `ADD` takes files of the folder only. Where a word depends on a variable that an image may set, what
it would become is not known here, and the file is refused.
"""

import re
from collections.abc import Iterator, Mapping

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::([-+])([^${}]*))?\})")
_REMOTE = re.compile(r"://|git@|^git:", re.IGNORECASE)
_FROM_FLAG = re.compile(r"--from=(\S+)")
_MOUNT = re.compile(r"--mount=(\S+)")


class BadDockerfile(ValueError):
    """It names what no build may fetch. The text explains why, for the job's owner."""


def images(text: str, args: Mapping[str, str]) -> list[str]:
    """The references of all images that it is built from, with variables replaced, in their order. `args`: the build
    arguments. Raises BadDockerfile."""
    return list(dict.fromkeys(_Reader(args).images(text)))


class _Reader:
    def __init__(self, args: Mapping[str, str]) -> None:
        self._args = args
        self._known: dict[str, str] = {}
        """Arguments from before the first `FROM`. Only these count in a `FROM`, and no image can change them."""
        self._stages = 0
        self._names = {"scratch"}

    def images(self, text: str) -> Iterator[str]:
        for line in _instructions(text):
            word, _, rest = line.partition(" ")
            while word.upper() == "ONBUILD":
                word, _, rest = rest.strip().partition(" ")
            match word.upper():
                case "ARG" if not self._stages:
                    self._learn(rest)
                case "FROM":
                    yield from self._stage(_plain(line, self._expanded(_unquoted(rest))))
                case "ADD":
                    if _REMOTE.search(_plain(line, _unquoted(rest))):
                        raise BadDockerfile(
                            f"{line[:100]!r} fetches an address: give it to the job with --input, and use COPY"
                        )
                case "COPY":
                    flags = " ".join(part for part in rest.split() if part.startswith("--"))
                    yield from self._from(_FROM_FLAG.findall(_plain(line, _unquoted(flags))))
                case "RUN":
                    mounts = [_plain(line, _unquoted(mount)) for mount in _MOUNT.findall(rest)]
                    pairs = [pair.partition("=") for mount in mounts for pair in mount.split(",")]
                    yield from self._from([value for key, _, value in pairs if key.lower() == "from"])
                case _:
                    pass

    def _learn(self, rest: str) -> None:
        for part in rest.split():
            name, _, value = part.partition("=")
            self._known[name] = self._args.get(name, self._expanded(_unquoted(value)))

    def _expanded(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            known = self._known.get(match[1] or match[2])
            if match[3] == "+":
                return match[4] if known else ""
            if match[3] == "-":
                return known or match[4]
            return match[0] if known is None else known

        return _VARIABLE.sub(value, text)

    def _stage(self, rest: str) -> Iterator[str]:
        words = [word for word in rest.split() if not word.startswith("--")]
        yield from self._from(words[:1])
        if len(words) == 3 and words[1].upper() == "AS":
            self._names.add(words[2].lower())
        self._names.add(str(self._stages))
        self._stages += 1

    def _from(self, references: list[str]) -> Iterator[str]:
        yield from (one for one in references if one.lower() not in self._names)


def _plain(line: str, text: str) -> str:
    if "$" in text:
        raise BadDockerfile(f"{line[:100]!r} depends on a variable, which an image may set: write the word itself")
    return text


def _unquoted(text: str) -> str:
    """Engines remove quotes and escapes inside of words too."""
    return re.sub(r"[\"'\\`]", "", text)


def _instructions(text: str) -> Iterator[str]:
    """Lines with their continuations joined, without comments."""
    escape = re.escape("`" if re.match(r"(?:#.*\n)*#\s*escape\s*=\s*`", text, re.IGNORECASE) else "\\")
    held = ""
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        held += line
        if re.search(rf"{escape}[ \t]*$", held):
            held = re.sub(rf"{escape}[ \t]*$", "", held)
            continue
        yield " ".join(held.split())
        held = ""
    if held.strip():
        yield " ".join(held.split())
