"""The order for one attempt: what to run, and within which limits. Pure; the standard library only, for the shim."""

import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
DURATION_MS_MAX = 2**53
_BYTES_MAX = 128 * 1024
"""Limit of argv and environment together: the kernel accepts this much in an exec."""
_RESOURCES = ("cpu_milli", "memory_mib", "disk_mib", "gpus")
_LIMITS = ("pids", "cpu_s", "net_kib_s", "disk_kib_s")


class OrderError(ValueError):
    """The order is invalid. The text names the field."""


def _no_words() -> dict[str, str]:
    return {}


def _no_resources() -> dict[str, int]:
    return {}


@dataclass(frozen=True)
class Order:
    """What to run and within which limits: `order.json`. Validated on construction, whatever its source."""

    attempt: str
    fence: int
    job: str
    argv: tuple[str, ...]
    time_limit_ms: int
    orphan_ms_max: int
    stop_grace_ms: int
    log_bytes_max: int
    """Size limit of stdout and of stderr, each."""
    env: dict[str, str] = field(default_factory=_no_words)
    lease_ms: int = 0
    """0: no lease."""
    wait_for_go: bool = False
    runtime: str = "bubblewrap"
    resources: dict[str, int] = field(default_factory=_no_resources)
    network: bool = False
    """The body may use the network."""
    image: str = ""
    """Runtime `container`: the id of an image that is in the engine."""
    engine: str = ""
    """Runtime `container`: the socket of the engine."""
    venv: str = ""
    """A prepared virtual environment, which the body sees read-only as /venv."""
    requirements: bool = False
    """Its environment is built on its own disk first."""
    checkpoint: bool = False
    """The body gets a checkpoint folder."""
    gpu_ids: tuple[str, ...] = ()
    """Assigned to this body alone."""
    limits: dict[str, int] = field(default_factory=_no_resources)
    """Limits beyond `resources`: see `_LIMITS`. Missing or 0: no limit."""

    def __post_init__(self) -> None:
        for name in (self.attempt, self.job, self.runtime):
            if not _NAME.fullmatch(name):
                raise OrderError(f"{name!r} is not a valid name: letters, digits, '_', '-' and '.' only")
        if not self.argv or not self.argv[0]:
            raise OrderError("argv is empty: there is nothing to run")
        words = (*self.argv, *self.env, *self.env.values())
        if any("\0" in word for word in words):
            raise OrderError("argv and env cannot hold a NUL character")
        if any(not key or "=" in key for key in self.env):
            raise OrderError("a name in env is empty or holds '='")
        size = sum(len(word.encode(errors="replace")) + 1 for word in words)
        if size > _BYTES_MAX:
            raise OrderError(f"argv and env are {size} bytes; at most {_BYTES_MAX} can be run")
        for key, least in (("fence", 0), ("time_limit_ms", 1), ("orphan_ms_max", 1), ("stop_grace_ms", 0),
                           ("log_bytes_max", 0), ("lease_ms", 0)):  # fmt: skip
            value = getattr(self, key)
            if not least <= value <= DURATION_MS_MAX:
                raise OrderError(f"{key} is {value}; it must be between {least} and 2^53")
        if any(key not in _RESOURCES or amount < 0 for key, amount in self.resources.items()):
            raise OrderError(f"resources may hold {', '.join(_RESOURCES)}, none negative")
        if any(key not in _LIMITS or amount < 0 for key, amount in self.limits.items()):
            raise OrderError(f"limits may hold {', '.join(_LIMITS)}, none negative")
        if any("\0" in word for word in (self.image, self.engine, self.venv, *self.gpu_ids)):
            raise OrderError("image, engine, venv and gpu_ids cannot hold a NUL character")
        if self.wait_for_go and self.lease_ms == 0:
            raise OrderError("wait_for_go needs a lease: without one nothing bounds the body")

    def to_dict(self) -> dict[str, Any]:
        """The content of `order.json`."""
        return asdict(self) | {"argv": list(self.argv), "gpu_ids": list(self.gpu_ids)}

    @staticmethod
    def from_dict(raw: object) -> "Order":
        """Read `order.json`. Raises OrderError for a field that is unknown, missing or of the wrong type."""
        if not isinstance(raw, dict):
            raise OrderError("an order is a JSON object")
        given = cast("dict[str, Any]", raw)
        known = {f.name: f.type for f in fields(Order)}
        for key, value in given.items():
            if key not in known:
                raise OrderError(f"an order has no field {key!r}")
            if not _is(value, str(known[key])):
                raise OrderError(f"{key} is of the wrong type: {type(value).__name__}")
        whole: dict[str, Any] = {**given, **{key: tuple(given.get(key, ())) for key in ("argv", "gpu_ids")}}
        try:
            return Order(**whole)
        except TypeError as error:
            raise OrderError(f"the order is incomplete: {error}") from None


def _is(value: Any, declared: str) -> bool:
    if "tuple" in declared:
        return isinstance(value, list | tuple) and all(isinstance(w, str) for w in cast("list[Any]", value))
    if "dict" in declared:
        kind = int if "int" in declared else str
        items = cast("dict[Any, Any]", value).items() if isinstance(value, dict) else [(0, 0)]
        return all(isinstance(k, str) and type(v) is kind for k, v in items)
    if "bool" in declared:
        return isinstance(value, bool)
    return type(value) is (int if "int" in declared else str)
