"""Decides which Dockerfiles an engine may build, and finds the images that they name. Pure. The text is untrusted.

An engine resolves names itself, follows redirects, and connects from the node's own network, so it is never told to
fetch an address: `ADD` takes files of the folder only. Engines differ in how they read a file, and this is a third
reader: what any of them could read in another way is refused. Allowed is what is listed here:

    FROM          with `--platform`; variables from an `ARG` before the first FROM
    COPY, ADD     with the flags of `_COPY_FLAGS`, no addresses, no variables in `--from`
    RUN           with `--mount=type=tmpfs`. Other mounts read secrets or caches that are shared between owners, or
                  sources that some releases of Podman resolve on the host (CVE-2024-1753)
    the rest      without conditions: it fetches nothing
"""

import re
from collections.abc import Iterator, Mapping

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::([-+])([^${}]*))?\})")
_REMOTE = re.compile(r"://|\w@[\w.-]+:|(?:^|[\s\[,])github\.com/", re.IGNORECASE)
_DIRECTIVE = re.compile(r"#[ \t]*(syntax|escape|check)[ \t]*=[ \t]*(.*)", re.IGNORECASE)
_FRONTEND = re.compile(r"(docker\.io/)?docker/dockerfile(:[\w.-]+)?(@sha256:[0-9a-f]{64})?")
_HEREDOC = re.compile(r"(?:^|\s)\d*<<-?[^<\s]")
_ARGUMENT = re.compile(r"""(\w+)(?:=("[^"'\\\s]*"|'[^"'\\\s$]*'|[^"'\\\s]*))?""", re.ASCII)
_GIVEN_BY_ENGINE = re.compile(r"(TARGET|BUILD)(PLATFORM|OS|OSVERSION|ARCH|VARIANT)", re.ASCII)
_STAGE = re.compile(r"[a-z][a-z0-9._-]*", re.IGNORECASE | re.ASCII)
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?", re.ASCII)
_COPY_FLAGS = {"from", "chown", "chmod", "link", "parents", "exclude"}
_NAME = re.compile(r"[A-Za-z0-9._/-]+", re.ASCII)
_READS_NAMES = {"FROM", "ARG", "ADD", "COPY", "ONBUILD"}


class BadDockerfile(ValueError):
    """No build may use it. The text explains why, for the job's owner."""


def check_name(path: str) -> None:
    """Refuse a path that an engine would not take for the name of a plain file: Podman reads some as a list of files of
    the host, and gives others to a preprocessor, which includes files of the host. Raises BadDockerfile."""
    if not _NAME.fullmatch(path) or path.endswith(".in"):
        raise BadDockerfile(f"{path[:100]!r} is no name for a Dockerfile: letters, digits, '.', '_', '-', and not *.in")


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
        for line, commented in _instructions(text):
            word, _, rest = line.partition(" ")
            if commented and word.upper() in _READS_NAMES:
                raise _bad(line, "has a comment inside, which some engines read as a part of it")
            while word.upper() == "ONBUILD":
                word, _, rest = rest.strip().partition(" ")
            yield from self._instruction(word.upper(), rest, line)

    def _instruction(self, word: str, rest: str, line: str) -> Iterator[str]:
        if word in ("RUN", "COPY", "ADD") and _HEREDOC.search(rest):
            raise _bad(line, "has a here-document: put the text into a file of the folder")
        match word:
            case "ARG" if not self._stages:
                self._learn(rest, line)
            case "FROM":
                yield from self._stage(rest, line)
            case "ADD" | "COPY":
                yield from self._copy(word, rest, line)
            case "RUN":
                for name, value in _flags(rest):
                    if name != "mount" or not _is_tmpfs(value):
                        raise _bad(line, "has an option that no build has here; the only mount is type=tmpfs")
            case _:
                pass

    def _copy(self, word: str, rest: str, line: str) -> Iterator[str]:
        flags = _flags(rest)
        if any(name not in _COPY_FLAGS for name, _ in flags):
            raise _bad(line, f"has an option that no build has here; there are {', '.join(sorted(_COPY_FLAGS))}")
        if word == "ADD" and ("\\" in rest or _REMOTE.search(_plain(line, _unquoted(rest)))):
            raise _bad(line, "fetches an address, or hides one: give it to the job with --input, and use COPY")
        yield from self._from([_plain(line, value) for name, value in flags if name == "from"])

    def _learn(self, rest: str, line: str) -> None:
        for part in rest.split():
            found = _ARGUMENT.fullmatch(part)
            if found is None or _GIVEN_BY_ENGINE.fullmatch(found[1]):
                raise _bad(line, "is not one that FROM can use: NAME=VALUE in plain characters, no name of Docker's")
            self._known[found[1]] = self._args.get(found[1], self._expanded((found[2] or "").strip("\"'")))

    def _expanded(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            known = self._known.get(match[1] or match[2])
            if match[3] == "+":
                return match[4] if known else ""
            if match[3] == "-":
                return known or match[4]
            return match[0] if known is None else known

        return _VARIABLE.sub(value, text)

    def _stage(self, rest: str, line: str) -> Iterator[str]:
        flags = _flags(rest)
        words = _plain(line, self._expanded(" ".join(rest.split()[len(flags) :]))).split()
        named = len(words) == 3 and words[1].upper() == "AS" and _STAGE.fullmatch(words[2])
        if any(name != "platform" for name, _ in flags) or not (len(words) == 1 or named):
            raise _bad(line, "is not of the form FROM IMAGE, or FROM IMAGE AS NAME")
        yield from self._from(words[:1])
        if named:
            self._names.add(words[2].lower())
        self._names.add(str(self._stages))
        self._stages += 1

    def _from(self, references: list[str]) -> Iterator[str]:
        yield from (one for one in references if one.lower() not in self._names)


def _bad(line: str, why: str) -> BadDockerfile:
    return BadDockerfile(f"{line[:100]!r} {why}")


def _flags(rest: str) -> list[tuple[str, str]]:
    """The options before the words, as written. One with quotes or escapes in its name has no name."""
    found: list[tuple[str, str]] = []
    for word in rest.split():
        if not word.startswith("--"):
            break
        flag = _FLAG.fullmatch(word)
        found.append((flag[1], flag[2] or "") if flag else ("", word))
    return found


def _is_tmpfs(mount: str) -> bool:
    pairs = [pair.partition("=") for pair in mount.split(",")]
    return [value for key, _, value in pairs if key == "type"] == ["tmpfs"] and not any(
        key.lower() in ("from", "source", "src") for key, _, _ in pairs
    )


def _plain(line: str, text: str) -> str:
    if "$" in text:
        raise _bad(line, "depends on a variable, which an image may set: write the word itself")
    return text


def _unquoted(text: str) -> str:
    """Engines remove quotes and escapes inside of words too."""
    return re.sub(r"[\"'\\`]", "", text)


def _instructions(text: str) -> Iterator[tuple[str, bool]]:
    """Lines with their continuations joined, without comments, and whether one of those was indented inside of an
    instruction: older engines take it for a part of the instruction."""
    held, commented = "", False
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        if not line.replace("\t", " ").isprintable():
            raise BadDockerfile("a line has characters that are not text, or spaces that are not plain ones")
        if line.lstrip().startswith("#"):
            _check_directive(line.strip())
            commented |= bool(held) and not line.startswith("#")
            continue
        if not line.strip():
            if held:
                raise _bad(held, "has an empty line inside")
            continue
        if re.search(r"\\\\[ \t]*$", line):
            raise _bad(line, "ends with two backslashes, which engines read in different ways")
        held += line
        if re.search(r"\\[ \t]*$", held):
            held = re.sub(r"\\[ \t]*$", "", held) or " "
            continue
        yield " ".join(held.split()), commented
        held, commented = "", False
    if held.strip():
        yield " ".join(held.split()), commented


def _check_directive(comment: str) -> None:
    """The engine's own builder reads every file: no other frontend is fetched, and none that reads another language is
    named."""
    found = _DIRECTIVE.fullmatch(comment)
    if found is None:
        return
    name, value = found[1].lower(), found[2].strip()
    if name == "syntax" and not _FRONTEND.fullmatch(value):
        raise _bad(comment, "names a frontend; only docker/dockerfile is understood")
    if name == "escape" and value != "\\":
        raise _bad(comment, "changes the character that continues a line")
