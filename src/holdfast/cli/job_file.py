"""Reads the job file, holdfast.toml, which `holdfast run` uses if no command is typed. Reports every mistake with its
line and key.

A key is a flag of `run` without its dashes; `command` is what follows `--`; `input` and `env` are tables, because their
flags are repeatable. Values are written as for the flags. A file may come with someone else's code, so it can set
neither the address of the network nor credentials, and cannot name anything outside its own folder.
"""

import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError, Misconfigured
from holdfast.quantities import assignments, cpu_milli, duration_ms, size_mib

NAME = "holdfast.toml"
BYTES_MAX = 1 << 20


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("it takes text")
    return value


def _amount(read: Callable[[str], int]) -> Callable[[object], str]:
    """Accepts what the flag accepts, as text or as a number."""

    def checked(value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError("it takes text or a number")
        read(str(value))
        return str(value)

    return checked


def _number(least: int, most: int) -> Callable[[object], int]:
    def checked(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"it takes a whole number from {least} to {most}")
        return value

    return checked


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it takes true or false")
    return value


def _class(value: object) -> str:
    if value not in ("restart", "resume", "never"):
        raise ValueError('it takes "restart", "resume" or "never"')
    return str(value)


def _command(value: object) -> list[str]:
    """A list of words, or one line that is split as in a shell."""
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as wrong:
        raise ValueError(f"it cannot be split into words: {wrong}") from None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError("it takes a list of words, or one line of them")
    return [str(word) for word in words]


def _pairs(value: object) -> list[str]:
    if not isinstance(value, dict):
        raise ValueError('it takes a table with lines NAME = "TEXT"')
    for name, text in value.items():
        if not isinstance(text, str):
            raise ValueError(f"{name} takes text")
    return [f"{name}={text}" for name, text in value.items()]


def _variables(value: object) -> list[str]:
    pairs = _pairs(value)
    assignments(pairs)
    return pairs


class JobFileKey(NamedTuple):
    parameter: str
    """The parameter of `run` that the key sets."""
    read: Callable[[object], Any]
    takes: str
    """The values that it accepts, for the documentation."""


KEYS: dict[str, JobFileKey] = {
    "command": JobFileKey("argv", _command, 'list of words, or one line: `["python3", "train.py"]`'),
    "name": JobFileKey("name", _text, "text"),
    "image": JobFileKey("image", _text, "text: NAME@sha256:…"),
    "dockerfile": JobFileKey("dockerfile", _text, "path of a file in the folder"),
    "requirements": JobFileKey("requirements", _text, "path of a file in the folder"),
    "cpu": JobFileKey("cpu", _amount(cpu_milli), 'cores: `2`, `0.5`, `"250m"`'),
    "memory": JobFileKey("memory", _amount(size_mib), 'size: `"512MiB"`, `"2GiB"`'),
    "disk": JobFileKey("disk", _amount(size_mib), "size"),
    "gpu": JobFileKey("gpu", _number(0, 64), "whole number"),
    "gpu-memory": JobFileKey("gpu_memory", _amount(size_mib), "size"),
    "gpu-model": JobFileKey("gpu_model", _text, "text"),
    "network": JobFileKey("network", _truth, "true or false"),
    "time-limit": JobFileKey("time_limit", _amount(duration_ms), 'duration: `"90s"`, `"2h"`'),
    "queue-limit": JobFileKey("queue_limit", _amount(duration_ms), "duration"),
    "class": JobFileKey("recovery", _class, '`"restart"`, `"resume"` or `"never"`'),
    "attempts": JobFileKey("attempts", _number(1, 1_000_000), "whole number"),
    "priority": JobFileKey("priority", _number(0, 9), "0 (last) to 9 (first)"),
    "checkpoint": JobFileKey("checkpoint", _truth, "true or false"),
    "checkpoint-every": JobFileKey("checkpoint_every", _amount(duration_ms), "duration"),
    "folder": JobFileKey("folder", _text, "path of a folder"),
    "no-folder": JobFileKey("no_folder", _truth, "true or false"),
    "no-gitignore": JobFileKey("no_gitignore", _truth, "true or false"),
    "array": JobFileKey("array", _text, "path of a file with one item to a line"),
    "input": JobFileKey("input", _pairs, "table: NAME = WHAT"),
    "env": JobFileKey("env", _variables, "table: NAME = VALUE"),
}
PATHS = frozenset({"dockerfile", "requirements", "folder", "array"})
NO_PATHS = ("http://", "https://", "s3://", "job:")
"""Prefixes of inputs that are not paths on this machine."""
EITHER = (frozenset({"image", "dockerfile", "requirements"}), frozenset({"folder", "no_folder"}))
"""Parameters that exclude each other: a flag for one overrides what the file says about the others."""


def read_job_file(path: Path) -> dict[str, Any]:
    """The values in the file, by parameter of `run`."""
    text = _content(path)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise _refused(f"{path.name} is not valid TOML: {wrong}") from None
    said: dict[str, Any] = {}
    for name, value in content.items():
        where = f"{path.name}, line {line_of(text, name)}: {name}"
        if name not in KEYS:
            raise _refused(f"{where}: there is no such key", near(name))
        try:
            said[KEYS[name].parameter] = words = KEYS[name].read(value)
            strays = [one for one in _named(name, words) if _strays(path.parent, one)]
        except ValueError as wrong:
            raise _refused(f"{where}: {wrong}") from None
        except HoldfastError as wrong:
            raise _refused(f"{where}: {wrong.says}", wrong.hint) from None
        if strays:
            raise Misconfigured(
                f"{where}: {strays[0]} is outside the folder of {path.name}, and a job file cannot send that",
                hint=f"If you want to send it, remove the line and type it as a flag, --{name}. If someone else wrote "
                "the file, ask them why they want it.",
                code="job_file_outside",
            )
    if "checkpoint_every" in said:
        said.setdefault("checkpoint", True)
    return said


def _named(key: str, words: Any) -> list[str]:
    """The local paths that a key names."""
    if key == "input":
        whats = [text.partition("=")[2] for text in words]
        return [what for what in whats if not what.startswith(NO_PATHS)]
    return [words] if key in PATHS and (key, words) != ("array", "-") else []


def _strays(folder: Path, named: str) -> bool:
    """Whether a path, with links resolved, is outside the folder, or contains the home folder."""
    inside = folder.resolve()
    try:
        place = (inside / named).resolve()
    except (OSError, RuntimeError):
        # A cycle of links.
        return True
    return not place.is_relative_to(inside) or Path.home().resolve().is_relative_to(place)


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise _refused(f"{path.name} is larger than a job file can be")
        return data.decode()
    except (OSError, UnicodeDecodeError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else "it is not UTF-8 text"
        raise _refused(f"{path.name} cannot be read: {why}") from None


def line_of(text: str, key: str) -> int:
    """The line number of a top-level key or table."""
    escaped = rf"""["']?{re.escape(key)}["']?"""
    top = re.compile(rf"^\s*{escaped}\s*[.=]")
    table = re.compile(rf"^\s*\[\s*{escaped}\s*[].]")
    in_table = False
    for number, line in enumerate(text.splitlines(), 1):
        if table.match(line) or (not in_table and top.match(line)):
            return number
        in_table = in_table or line.lstrip().startswith("[")
    return 1


def near(name: str) -> str:
    """A hint: the key that may have been meant, and all keys."""
    from difflib import get_close_matches

    found = get_close_matches(name.replace("_", "-"), KEYS, 1)
    meant = f"Did you mean {found[0]}? " if found else ""
    return f"{meant}The keys are: {', '.join(KEYS)}."


def _refused(says: str, hint: str = "") -> Misconfigured:
    return Misconfigured(
        says, hint=hint or "`holdfast init --force` writes a new one; docs/job-file.md explains the keys.",
        code="bad_job_file",
    )  # fmt: skip
