"""What a job asks for, in the words of the command line and of `holdfast.function`: `cpu=2, memory="4GiB"`.

Turns them into the request that the API takes, and says what is wrong with them before anything is sent. The API's own
names (`cpu_milli=2000`) are taken as well.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.errors import Misuse
from holdfast.quantities import cpu_milli, duration_ms, size_mib
from holdfast.wire.http import InputRequest, JobRequest

Command = JobRequest | Sequence[str]

FOLDER = "folder"
"""What goes along. The one wish that has to be sent before the job is."""


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
"""A person's word -> the request's field, and how it is read."""
FIELDS = frozenset(field.name for field in msgspec.structs.fields(JobRequest))


def requested(command: Command, wishes: dict[str, Any]) -> JobRequest:
    """The request for a command with these wishes. Misuse where a wish is unknown or makes no sense."""
    if isinstance(command, str):
        raise Misuse(
            f"the command is one string: {command[:60]!r}", hint='A command is a list of words: ["echo", "hi"].'
        )
    fields: dict[str, Any] = {}
    for word, value in wishes.items():
        name, read = _WORDS.get(word, (word, _same))
        if name not in FIELDS or name == "argv":
            known = sorted(
                (set(_WORDS) | FIELDS | {FOLDER}) - {field for field, _ in _WORDS.values()} - {"argv"} | {"inputs"}
            )
            raise Misuse(f"a job has no wish {word!r}", hint=f"There are {', '.join(known)}.")
        if name in fields:
            raise Misuse(f"{word} and {name} are the same wish", hint="Give one of them.")
        fields[name] = read(value)
    if isinstance(command, JobRequest):
        return msgspec.structs.replace(command, **fields) if fields else command
    return JobRequest(argv=[str(word) for word in command], **fields)


def _inputs(given: Any) -> list[InputRequest]:
    """As the API takes them, or `{"data": an address}`, `{"data": a job}`, `{"data": what was sent}`."""
    if not isinstance(given, dict):
        return list(given)
    return [_input(name, source) for name, source in given.items()]


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
        f"the input {name!r} is {text[:60]!r}, which is neither an address, a job nor something that was sent",
        hint="Send a folder with `client.content.send`, and give what it returns.",
    )
