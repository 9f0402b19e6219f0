"""Reads the settings of a node. Precedence: flags, environment, file, default (SPEC N3).

Reads only the given environment and one file; does not know what the settings do.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from holdfast.errors import Misconfigured
from holdfast.node.operator.hours import parse_hours, spoken

DEFAULT_HOME = Path("~/.holdfast/node")
CONFIG_FILE_VARIABLE = "HOLDFAST_CONFIG"


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    orchestrator: str
    """`HOST:PORT` that the node connects to."""
    home: Path
    """Folder for the key, the uuid, the highest epoch seen, and a folder per attempt."""
    uuid: str = ""
    """Empty: generated at the first start and stored in the home folder."""
    token: str = ""
    """A join token or an invitation: lets this node join, and pins the orchestrator's certificate."""
    port: int = 0
    """Port on loopback that serves the local status; 0: none."""
    s3_bucket: str = ""
    """The object store's bucket; its state is shown in the local status."""
    name: str = ""
    site: str = ""
    """Failure domain: machines of one site are expected to fail together."""
    cpu_milli: int | None = None
    """What the network may use; None: all that the machine has."""
    memory_mib: int | None = None
    disk_mib: int | None = None
    gpus: int | None = None
    unsafe_process_runtime: bool = False
    """Run jobs as plain processes if no sandbox works. Shown in every listing."""
    engine: str = ""
    """The socket of a container engine; empty: the usual one, if it exists; `none`: no engine."""
    private_inputs: bool = False
    """Whether jobs may name addresses and registries inside the node's own network."""
    builds: bool = True
    """Whether images may be built here from Dockerfiles of jobs, if there is a container engine."""
    network: bool = True
    """Whether jobs that ask for it may use the network, through a router of their own."""
    index_hosts: tuple[tuple[str, int], ...] = ()
    """Hosts and ports that Python packages may come from, beside those of the indexes that pip is configured with."""
    local_images: tuple[str, ...] = ()
    """Names of images in the container engine that jobs may use although the node did not pull them; `*`: all."""
    hours: str = ""
    """When the node offers itself, in the syntax of `hours`; empty: always."""
    grace_ms: int = 60_000
    """How much time running work gets to finish when the node is asked to leave."""
    origins: dict[str, str] = {}
    """Where each setting came from: `flag`, an environment variable, or a file."""

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name != "token"}
        return f"NodeConfig({shown}, token={'given' if self.token else 'none'})"


# --- parsing of values ---


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > 512:
        raise ValueError("it takes up to 512 printable characters")
    return value


def _label(value: object) -> str:
    if len(_text(value)) > 128:
        raise ValueError("it takes up to 128 characters")
    return _text(value)


def _uuid(value: object) -> str:
    try:
        return str(UUID(_text(value).strip().removeprefix("node_")))
    except ValueError:
        raise ValueError("it takes a UUID: 32 hex digits, with or without dashes") from None


def _address(value: object) -> str:
    text = _text(value).removeprefix("grpc://")
    host, colon, port = text.rpartition(":")
    if not host or not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError("it takes HOST:PORT")
    return text


def _bucket(value: object) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", _text(value)):
        raise ValueError("it takes 3 to 63 lower-case letters, digits, '.' and '-'")
    return _text(value)


def _flag(value: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError("it takes true or false")


def _number(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"it takes a whole number from {least} to {most}")
        return value

    return read


def _path(value: object) -> Path:
    if isinstance(value, Path):
        return value.expanduser().absolute()
    return Path(_text(value)).expanduser().absolute()


def _hosts(value: object) -> tuple[tuple[str, int], ...]:
    """Text with commas between hosts, or a list in a file."""
    names = [_text(word) for word in value] if isinstance(value, list | tuple) else _text(value).split(",")
    found: list[tuple[str, int]] = []
    for name in (name.strip() for name in names):
        match = re.fullmatch(r"([A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)(?::([0-9]{1,5}))?", name)
        port = int(match[2] or 443) if match else 0
        if match is None or not 0 < port < 65_536:
            raise ValueError("it takes HOST or HOST:PORT, with commas between several")
        found.append((match[1].lower(), port))
    return tuple(found)


def _image_names(value: object) -> tuple[str, ...]:
    """Text with commas between names, or a list in a file."""
    names = [_text(word) for word in value] if isinstance(value, list | tuple) else _text(value).split(",")
    found = tuple(name.strip() for name in names)
    if not all(name == "*" or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9./:@_-]{0,255}", name) for name in found):
        raise ValueError("it takes names of images, with commas between several, or *")
    return found


def _hours(value: object) -> str:
    """Text, or a list of windows in a file."""
    text = "; ".join(map(_text, value)) if isinstance(value, list | tuple) else _text(value)
    return spoken(parse_hours(text))


class Setting(msgspec.Struct, frozen=True):
    variable: str
    read: Callable[[object], Any]


SETTINGS: dict[str, Setting] = {
    "orchestrator": Setting("ORCHESTRATOR_ADDRESS", _address),
    "home": Setting("HOLDFAST_NODE_HOME", _path),
    "uuid": Setting("PNODE_UUID", _uuid),
    "token": Setting("HOLDFAST_TOKEN", _text),
    "port": Setting("PNODE_PORT", _number(0, 65_535)),
    "s3_bucket": Setting("S3_BUCKET", _bucket),
    "name": Setting("HOLDFAST_NODE_NAME", _label),
    "site": Setting("HOLDFAST_NODE_SITE", _label),
    "cpu_milli": Setting("HOLDFAST_NODE_CPU_MILLI", _number(0, 10**8)),
    "memory_mib": Setting("HOLDFAST_NODE_MEMORY_MIB", _number(0, 2**31)),
    "disk_mib": Setting("HOLDFAST_NODE_DISK_MIB", _number(0, 2**36)),
    "gpus": Setting("HOLDFAST_NODE_GPUS", _number(0, 64)),
    "unsafe_process_runtime": Setting("HOLDFAST_UNSAFE_PROCESS_RUNTIME", _flag),
    "engine": Setting("HOLDFAST_NODE_ENGINE", _text),
    "private_inputs": Setting("HOLDFAST_NODE_PRIVATE_INPUTS", _flag),
    "builds": Setting("HOLDFAST_NODE_BUILDS", _flag),
    "network": Setting("HOLDFAST_NODE_NETWORK", _flag),
    "index_hosts": Setting("HOLDFAST_NODE_INDEX_HOSTS", _hosts),
    "local_images": Setting("HOLDFAST_NODE_LOCAL_IMAGES", _image_names),
    "hours": Setting("HOLDFAST_NODE_HOURS", _hours),
    "grace_ms": Setting("HOLDFAST_NODE_GRACE_MS", _number(0, 7 * 24 * 3_600_000)),
}
"""Every setting: its name as a flag and in the file, its environment variable, and its parser."""


def load_config(flags: Mapping[str, object | None], environ: Mapping[str, str], file: Path | None = None) -> NodeConfig:
    """The effective settings. `flags`: the command line, with None for flags that were not given. `file`: the path from
    `--config`. An empty environment variable counts as not set."""
    unknown = sorted(set(flags) - set(SETTINGS))
    if unknown:
        raise Misconfigured(f"there is no setting called {', '.join(unknown)}", code="bad_setting")
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def take(source: Mapping[str, object], origin: Callable[[str], str]) -> None:
        for name, raw in source.items():
            if name in values:
                continue
            try:
                values[name] = SETTINGS[name].read(raw)
            except ValueError as wrong:
                said = f"{origin(name)} sets {name} to an invalid value: {wrong}"
                raise Misconfigured(said, code="bad_setting") from None
            origins[name] = origin(name)

    take({name: raw for name, raw in flags.items() if raw is not None}, lambda name: f"--{name.replace('_', '-')}")
    given = {name: environ.get(setting.variable, "") for name, setting in SETTINGS.items()}
    take({name: raw for name, raw in given.items() if raw}, lambda name: SETTINGS[name].variable)
    if file is None and environ.get(CONFIG_FILE_VARIABLE):
        file = _path(environ[CONFIG_FILE_VARIABLE])
    explicit = file is not None
    path = file if file is not None else values.get("home", DEFAULT_HOME.expanduser()) / "node.toml"
    if explicit or path.exists():
        take(_read_file(path), lambda _: str(path))
    values.setdefault("home", _path(str(DEFAULT_HOME)))
    if "orchestrator" not in values:
        raise Misconfigured(
            "no orchestrator is configured",
            hint="Give --orchestrator HOST:PORT, set ORCHESTRATOR_ADDRESS, or write it to the file.",
            code="missing_setting",
        )
    return NodeConfig(**values, origins=origins)


def _read_file(path: Path) -> dict[str, object]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as wrong:
        raise Misconfigured(f"the file {path} cannot be read: {wrong}", code="bad_file") from None
    unknown = sorted(set(content) - set(SETTINGS))
    if unknown:
        raise Misconfigured(
            f"{path} has unknown settings: {', '.join(unknown)}",
            hint=f"Known are: {', '.join(sorted(SETTINGS))}.",
            code="bad_file",
        )
    return content
