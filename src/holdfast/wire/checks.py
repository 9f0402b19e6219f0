"""Validates what came over the wire: the form of ids, the range of numbers, the length and characters of text.

Everything from a peer is untrusted until it is checked here. A check either returns the value or raises `BadMessage`
with a stable code and a sentence that names the field. What a message means is decided elsewhere.
"""

import re
from collections.abc import Callable

from holdfast.model import CONTAINER, FEATURES, AttemptId, JobId, JobSpec, NodeId
from holdfast.model.job import CHECKPOINT_MS_MIN, TIME_LIMIT_MS_MAX
from holdfast.model.messages import Refusal
from holdfast.wire import limits


class BadMessage(Exception):
    """An invalid message.

    Codes: `bad_id`, `bad_number`, `bad_text`, `bad_bytes`, `bad_enum`, `bad_spec`, `missing`,
    `contradiction`, `too_many`, `too_long`, `too_large`, `unexpected`, `version`.
    """

    def __init__(self, code: str, says: str) -> None:
        super().__init__(f"{says} [{code}]")
        self.code = code
        self.says = says

    def refusal(self) -> Refusal:
        """The refusal to send to the peer. Final: it would send the same again."""
        return Refusal(self.code, self.says, final=True)


class UnknownMessage(BadMessage):
    """A kind of message that this release does not know. It is ignored after the handshake: a newer release may send
    more, and must not expect an older one to answer."""


_LETTERS = "[0-9a-hjkmnp-tv-z]"
_is_job = re.compile(rf"job_{_LETTERS}{{14}}").fullmatch
_is_attempt = re.compile(rf"att_{_LETTERS}{{14}}\.[1-9][0-9]{{0,8}}").fullmatch
_is_node = re.compile(r"node_[0-9a-f]{32}").fullmatch
_is_token = re.compile(r"tok_[0-9a-z]{8,32}").fullmatch
_is_word = re.compile(r"[A-Za-z0-9_.:+-]{1,64}").fullmatch
_is_key = re.compile(r"[A-Za-z0-9_-]{16,128}").fullmatch
_is_sha256 = re.compile(r"[0-9a-f]{64}").fullmatch
_is_input_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}").fullmatch
_is_image = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,511}").fullmatch
_is_version = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}").fullmatch
_is_address = re.compile(r"(https?|s3)://[\x21-\x7e]{1,2040}").fullmatch
_is_door = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]{0,255}:[0-9]{1,5}").fullmatch
_is_variable = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch


def _seen(text: str) -> str:
    """A peer's text, made safe to show in an error."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def attempt(text: str, field: str = "attempt") -> AttemptId:
    if not _is_attempt(text):
        raise BadMessage("bad_id", f"{field} is {_seen(text)}, not the shape of an attempt id")
    return AttemptId(text)


def job(text: str, field: str = "job") -> JobId:
    if not _is_job(text):
        raise BadMessage("bad_id", f"{field} is {_seen(text)}, not the shape of a job id")
    return JobId(text)


def node(text: str, field: str = "node") -> NodeId:
    if not _is_node(text):
        raise BadMessage("bad_id", f"{field} is {_seen(text)}; it is node_ and 32 lower-case hex digits")
    return NodeId(text)


def token(text: str, field: str = "token_id") -> str:
    """A token's id, or empty: no token."""
    if text and not _is_token(text):
        raise BadMessage("bad_id", f"{field} is {_seen(text)}, not the shape of a token id")
    return text


def word(text: str, field: str) -> str:
    """A code, an instance or a key: letters, digits and `_.:+-`, not empty."""
    if not _is_word(text):
        raise BadMessage("bad_text", f"{field} is {_seen(text)}; it takes 1 to 64 letters, digits and _.:+-")
    return text


def key(text: str, field: str) -> str:
    """A secret of a session that can be sent as metadata. Never shown in the error."""
    if not _is_key(text):
        raise BadMessage("bad_text", f"{field} takes 16 to 128 letters, digits, _ and -")
    return text


def data_url(text: str) -> str:
    """The URL of the files endpoint: scheme, host (may be missing) and port; or empty."""
    if text and not _is_door(text):
        raise BadMessage("bad_text", f"data_url is {_seen(text)}; it takes http(s)://HOST:PORT")
    return text


def number(value: int, most: int, field: str, least: int = 0) -> int:
    if not least <= value <= most:
        raise BadMessage("bad_number", f"{field} is {value}; it may be {least} to {most}")
    return value


def label(text: str, field: str) -> str:
    """One line for a table. Control characters are refused: they would reach a terminal."""
    if len(text) > limits.LABEL_CHARS_MAX:
        raise BadMessage("too_long", f"{field} has {len(text)} characters; {limits.LABEL_CHARS_MAX} are allowed")
    if not text.isprintable():
        raise BadMessage("bad_text", f"{field} is {_seen(text)}; only printable characters are allowed")
    return text


def words(text: str, field: str) -> str:
    """Some lines for a person: printable characters, tabs and line breaks."""
    if len(text) > limits.WORDS_CHARS_MAX:
        raise BadMessage("too_long", f"{field} has {len(text)} characters; {limits.WORDS_CHARS_MAX} are allowed")
    if not text.isprintable() and not text.translate(_LINE_ENDS).isprintable():
        raise BadMessage("bad_text", f"{field} is {_seen(text)}; only printable characters are allowed")
    return text


_LINE_ENDS = {ord("\n"): " ", ord("\t"): " "}


def clean(text: str, most: int, keep: str = "") -> str:
    """Make our own text valid for sending: truncated, and without what `label` and `words` refuse."""
    if len(text) > most:
        text = text[: max(0, most - 1)] + "…" if most else ""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else "�" for c in text)


def exactly(data: bytes, size: int, field: str) -> bytes:
    if len(data) != size:
        raise BadMessage("bad_bytes", f"{field} has {len(data)} bytes; it takes {size}")
    return data


def digest(data: bytes, field: str) -> str:
    """A SHA-256 as hex, or empty: none."""
    return exactly(data, 32, field).hex() if data else ""


def size(bytes_: int, most: int, what: str) -> None:
    if bytes_ > most:
        raise BadMessage("too_large", f"{what} has {bytes_} bytes; {most} are allowed")


def count(items: int, most: int, field: str) -> None:
    if items > most:
        raise BadMessage("too_many", f"{field} has {items} items; {most} are allowed")


def distinct(ids: list[AttemptId], field: str) -> None:
    if len(set(ids)) != len(ids):
        raise BadMessage("contradiction", f"{field} names the same attempt twice")


def spec_fault(spec: JobSpec) -> str | None:
    """Why this job could not be sent to any node, or None. The HTTP API checks this before it accepts a job."""
    for fault in _SPEC_FAULTS:
        says = fault(spec)
        if says:
            return says
    return None


def _argv_fault(spec: JobSpec) -> str | None:
    if not spec.argv or not spec.argv[0]:
        return "argv is empty: there is nothing to run"
    if len(spec.argv) > limits.ARGV_ITEMS_MAX:
        return f"argv has {len(spec.argv)} items; {limits.ARGV_ITEMS_MAX} are allowed"
    if any("\0" in item for item in spec.argv):
        return "argv contains a NUL character, which no program can be given"
    taken = _utf8_size(spec.argv)
    if taken is None:
        return "argv contains half a character (a lone surrogate)"
    if taken > limits.ARGV_BYTES_MAX:
        return f"argv takes {taken} bytes; {limits.ARGV_BYTES_MAX} are allowed"
    return None


def _env_fault(spec: JobSpec) -> str | None:
    if len(spec.env) > limits.ENV_ITEMS_MAX:
        return f"env has {len(spec.env)} variables; {limits.ENV_ITEMS_MAX} are allowed"
    for name, value in spec.env.items():
        if not _is_variable(name):
            return f"env has a variable called {_seen(name)}; names take letters, digits and _"
        if "\0" in value:
            return f"the value of the variable {_seen(name)} contains a NUL character"
    taken = _utf8_size([*spec.env, *spec.env.values()])
    if taken is None:
        return "env contains half a character (a lone surrogate)"
    if taken > limits.ENV_BYTES_MAX:
        return f"env takes {taken} bytes; {limits.ENV_BYTES_MAX} are allowed"
    return None


def _rest_fault(spec: JobSpec) -> str | None:
    try:
        label(spec.name, "name")
        label(spec.need.arch, "need.arch")
        label(spec.need.gpu_model, "need.gpu_model")
        number(spec.priority, 9, "priority")
        number(spec.need.gpu_memory_mib, limits.MEMORY_MIB_MAX, "need.gpu_memory_mib")
        number(spec.need.resources.cpu_milli, limits.CPU_MILLI_MAX, "need.cpu_milli")
        number(spec.need.resources.memory_mib, limits.MEMORY_MIB_MAX, "need.memory_mib")
        number(spec.need.resources.disk_mib, limits.DISK_MIB_MAX, "need.disk_mib")
        number(spec.need.resources.gpus, limits.GPUS_MAX, "need.gpus")
        if spec.time_limit_ms is not None:
            number(spec.time_limit_ms, TIME_LIMIT_MS_MAX, "time_limit_ms", least=1)
        if spec.queue_limit_ms is not None:
            number(spec.queue_limit_ms, limits.MILLISECONDS_MAX, "queue_limit_ms")
        if spec.attempts_max is not None:
            number(spec.attempts_max, 1_000, "attempts_max", least=1)
    except BadMessage as bad:
        return bad.says
    return None


def _data_fault(spec: JobSpec) -> str | None:
    """What it runs in, and its inputs: hashes, image, paths."""
    if spec.package and not _is_sha256(spec.package):
        return f"package is {_seen(spec.package)}; it takes the hash of a manifest: 64 hex digits"
    if spec.image and not _is_image(spec.image):
        return f"image is {_seen(spec.image)}; it takes a name like registry/name:tag or name@sha256:…"
    if ((spec.image or spec.requirements) and spec.dockerfile) or (spec.image and spec.requirements):
        return "a job has an image, a Dockerfile or Python requirements, not several of them"
    for field, path in (("dockerfile", spec.dockerfile), ("requirements", spec.requirements)):
        if path and not _is_inside(path):
            return f"{field} is {_seen(path)}; it takes the path of a file in the package"
        if path and not spec.package:
            return f"{field} names a file of the package, but there is no package"
    if spec.checkpoint_ms and not CHECKPOINT_MS_MIN <= spec.checkpoint_ms <= limits.MILLISECONDS_MAX:
        return f"checkpoint_ms is {spec.checkpoint_ms}; it may be 0 (no checkpoints) or {CHECKPOINT_MS_MIN} and more"
    return _inputs_fault(spec)


def _inputs_fault(spec: JobSpec) -> str | None:
    if len(spec.inputs) > limits.INPUTS_MAX:
        return f"there are {len(spec.inputs)} inputs; {limits.INPUTS_MAX} are allowed"
    names = [item.name for item in spec.inputs]
    if len({name.casefold() for name in names}) != len(names):
        return "two inputs have the same name"
    for item in spec.inputs:
        if not _is_input_name(item.name):
            return f"an input is called {_seen(item.name)}; names take letters, digits, '.', '_' and '-'"
        if bool(item.manifest) == bool(item.url):
            return f"the input {item.name} needs a manifest or an address, one of the two"
        if item.url and not _is_address(item.url):
            return f"the input {item.name} has the address {_seen(item.url)}; it takes http://, https:// or s3://"
        if any(hash_ and not _is_sha256(hash_) for hash_ in (item.manifest, item.sha256)):
            return f"a hash of the input {item.name} is not 64 hex digits"
        if not 0 <= item.bytes_max <= limits.BYTES_MAX:
            return f"bytes_max of the input {item.name} is {item.bytes_max}; it may be 0 to {limits.BYTES_MAX}"
    words = [spec.image, spec.dockerfile, spec.requirements, *names, *(item.url for item in spec.inputs)]
    taken = _utf8_size(words)
    if taken is None or taken > limits.REFERENCES_BYTES_MAX:
        return f"image, paths and inputs take more than {limits.REFERENCES_BYTES_MAX} bytes together"
    return None


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return len(path) <= 512 and path.isprintable() and not any(part in ("", ".", "..") for part in parts)


def _need_fault(spec: JobSpec) -> str | None:
    need = spec.need
    for field, version in (("gpu_driver_min", need.gpu_driver_min), ("cuda_min", need.cuda_min)):
        if version and not _is_version(version):
            return f"{field} is {_seen(version)}; versions are numbers with dots between"
    unknown = [feature for feature in need.features if feature not in FEATURES]
    if unknown or len(need.features) > limits.FEATURES_MAX:
        return f"features has {_seen(unknown[0] if unknown else '…')}; there are {', '.join(FEATURES)}"
    if bool(spec.image or spec.dockerfile) and CONTAINER not in need.features:
        return "an image needs a node with a container engine: features lacks `container`"
    return None


def _utf8_size(texts: tuple[str, ...] | list[str]) -> int | None:
    try:
        return sum(len(text.encode()) + 1 for text in texts)
    except UnicodeEncodeError:
        return None


_SPEC_FAULTS: tuple[Callable[[JobSpec], str | None], ...] = (
    _argv_fault,
    _env_fault,
    _rest_fault,
    _data_fault,
    _need_fault,
)
