"""The options of a job, with the names that the command line and `holdfast.function` use: `cpu=2, memory="4GiB"`.

Converts them to the request of the API and rejects invalid values before anything is sent. The API's own names
(`cpu_milli=2000`) are accepted too. `JobOptions` describes them to editors and type checkers.
"""

import difflib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypedDict

import msgspec

from holdfast.errors import Misuse
from holdfast.quantities import cpu_milli, duration_ms, size_mib
from holdfast.wire.http import InputRequest, JobRequest

Command = JobRequest | Sequence[str | os.PathLike[str]]
Amount = int | float | str

FOLDER, INCLUDE, GITIGNORE = FOLDER_OPTIONS = ("folder", "include", "gitignore")
"""The options about the folder to send: it is sent before the job, and they are no part of the request."""


class CommonOptions(TypedDict, total=False):
    """Options of both jobs and functions. None means not given."""

    cpu: Amount | None
    """Cores: 2, 0.5 or "250m"."""
    memory: Amount | None
    """"512MiB", "2GiB"; a number is MiB."""
    disk: Amount | None
    gpu: int | None
    """How many whole GPUs."""
    gpu_memory: Amount | None
    image: str | None
    requirements: str | None
    """Path of a requirements file in the folder."""
    network: bool | None
    time_limit: Amount | None
    """"90s", "30m", "2h"; a number is seconds."""
    queue_limit: Amount | None
    recovery: Literal["restart", "resume", "never"] | None
    """What may happen when its machine is lost."""
    attempts: int | None
    priority: int | None
    env: dict[str, str] | None
    name: str | None
    folder: str | os.PathLike[str] | None
    """The folder to send."""
    include: Sequence[str] | None
    """Files of the folder that are sent although an ignore file names them or they look secret."""
    gitignore: bool | None
    """Whether `.gitignore` files in the folder count; they do unless this is False."""


class JobOptions(CommonOptions, total=False):
    """Options of a job."""

    inputs: Mapping[str, Any] | Sequence[InputRequest | Mapping[str, Any]] | None
    """`{"data": an address, a job, or sent content}`: available at inputs/data."""
    checkpoint: Amount | None
    """How often its checkpoint folder is captured: "5m"."""
    key: str | None
    """Idempotency key: repeating the call with the same key returns the same job."""
    workload: Literal["batch", "training", "inference", "service"] | None
    arch: str | None
    gpu_model: str | None
    gpu_driver_min: str | None
    cuda_min: str | None
    dockerfile: str | None
    """Path in the folder."""
    package: str | None
    """The manifest of content sent earlier, in place of a folder."""


def _same(value: Any) -> Any:
    return value


_WORDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "cpu": ("cpu_milli", lambda amount: cpu_milli(str(amount))),
    "memory": ("memory_mib", lambda amount: size_mib(str(amount))),
    "disk": ("disk_mib", lambda amount: size_mib(str(amount))),
    "gpu": ("gpus", _same),
    "gpu_memory": ("gpu_memory_mib", lambda amount: size_mib(str(amount))),
    "time_limit": ("time_limit_ms", lambda span: duration_ms(str(span))),
    "queue_limit": ("queue_limit_ms", lambda span: duration_ms(str(span))),
    "checkpoint": ("checkpoint_ms", lambda span: duration_ms(str(span))),
    "attempts": ("attempts_max", _same),
    "inputs": ("inputs", lambda given: _inputs(given)),
}
"""Option name -> field of the request, and its parser."""
FIELDS = {field.name: field.type for field in msgspec.structs.fields(JobRequest)}
_CHOICES = {"recovery": ("restart", "resume", "never"), "workload": ("batch", "training", "inference", "service")}
_TAKES = {
    int: "a whole number",
    bool: "True or False",
    str: "text",
    dict[str, str]: 'text by name: {"SEED": "7"}',
}


def requested(command: Command, options: Mapping[str, Any]) -> JobRequest:
    """The request for a command with these options. Raises Misuse if an option is unknown or invalid."""
    request = command if isinstance(command, JobRequest) else JobRequest(_words(command))
    return _with_options(request, options, _checked)


def requested_by_flags(argv: list[str], options: Mapping[str, Any]) -> JobRequest:
    """The request for a command line. Amounts are parsed; the orchestrator judges everything else, so a command line
    that is older than the orchestrator does not reject what the orchestrator accepts."""
    return _with_options(JobRequest(argv), options, lambda word, field, value, read: read(value))


def _with_options(
    request: JobRequest, options: Mapping[str, Any], convert: Callable[[str, Any, Any, Callable[[Any], Any]], Any]
) -> JobRequest:
    """`convert` makes the value of a field from the option's name, the field's type, the option's value and its
    parser."""
    fields: dict[str, Any] = {}
    for word, value in options.items():
        name, read = _WORDS.get(word, (word, _same))
        if name not in FIELDS or name == "argv":
            raise unknown(f"a job has no option {word!r}", word, JobOptions.__annotations__)
        if value is None:
            continue
        if name in fields:
            raise Misuse(f"{word} and {name} are the same option", hint="Give one of them.")
        fields[name] = convert(word, FIELDS[name], value, read)
    return msgspec.structs.replace(request, **fields) if fields else request


def unknown(says: str, word: str, known: Collection[str]) -> Misuse:
    """The error for an unknown name, with the one that was perhaps meant."""
    near = difflib.get_close_matches(word, known, 1, 0.55)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    return Misuse(says, hint=f"{meant}There are {', '.join(sorted(known))}.")


def _words(command: Any) -> list[str]:
    if isinstance(command, str | bytes):
        raise Misuse(
            f"the command is one string: {command[:60]!r}", hint='A command is a list of words: ["echo", "hi"].'
        )
    words = list(command) if isinstance(command, Sequence) else []
    if not words:
        raise Misuse(f"{command!r:.60} is not a command", hint='A command is a list of words: ["echo", "hi"].')
    for number, word in enumerate(words, start=1):
        if isinstance(word, bool) or not isinstance(word, str | int | float | os.PathLike):
            raise Misuse(f"word {number} of the command is {word!r:.60}", hint="Words are text, numbers or paths.")
    return [str(word) for word in words]


def _checked(word: str, kind: Any, given: Any, read: Callable[[Any], Any]) -> Any:
    try:
        value = read(given)
    except Misuse as wrong:
        raise Misuse(f"{word}: {wrong.says}", hint=wrong.hint) from None
    if value not in (choices := _CHOICES.get(word, (value,))):
        raise Misuse(f"{word} is {value!r:.60}", hint=f"It can be {', '.join(choices)}.")
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError:
        takes = next((says for one, says in _TAKES.items() if kind in (one, one | None)), "something else")
        raise Misuse(f"{word} is {value!r:.60}", hint=f"It takes {takes}.") from None


def _inputs(given: Any) -> list[InputRequest]:
    """As the API takes them, or `{"data": an address}`, `{"data": a job}`, `{"data": sent content}`."""
    if isinstance(given, Mapping):
        return [_input(name, source) for name, source in given.items()]
    if isinstance(given, list | tuple):
        with suppress(msgspec.ValidationError):
            return [one if isinstance(one, InputRequest) else msgspec.convert(one, InputRequest) for one in given]
    raise Misuse(f"they are {given!r:.60}", hint='Give each a name: {"data": an address, a job, or what was sent}.')


def _input(name: str, source: Any) -> InputRequest:
    if isinstance(source, InputRequest):
        return source
    if manifest := getattr(source, "manifest", ""):
        return InputRequest(name, manifest=manifest)
    text = str(getattr(source, "id", source))
    if text.startswith("job_"):
        return InputRequest(name, job=text)
    if "://" in text:
        return InputRequest(name, url=text)
    raise Misuse(
        f"{name!r} is {text[:60]!r}, which is neither an address, a job nor something that was sent",
        hint="Send a folder with `client.content.send`, and give what it returns.",
    )
