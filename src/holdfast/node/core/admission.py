"""Decides whether a node accepts an assignment, and states the reason for a refusal (SPEC N5).

Messages of the orchestrator are validated like any other input: a node protects itself even from a compromised
network. A refusal costs the node nothing.
"""

import re

import msgspec

from holdfast.model import BUILD, CONTAINER, DAY_MS, JOBS, NETWORK, PLAIN, Resources, job_of
from holdfast.model.job import TIME_LIMIT_MS_MAX
from holdfast.model.messages import Start, Welcome
from holdfast.node.core.order import Order, OrderError

_ATTEMPT = re.compile(r"att_[0-9a-z]{1,64}\.[0-9]{1,9}")
"""Becomes the name of a folder, so it must not contain a path."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_HASH = re.compile(r"[0-9a-f]{64}")
_INPUT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Becomes the name of a file."""
_FENCE_MAX = 2**53
_MIB = 1 << 20


class NodeLimits(msgspec.Struct, frozen=True):
    """The most that a node accepts, whatever the orchestrator asks for."""

    attempts_max: int = 256
    """Attempts held at a time, so that a report fits into one message."""
    argv_bytes_max: int = 32 * 1024
    env_bytes_max: int = 32 * 1024
    log_bytes_max: int = 64 * 1024 * 1024
    """Per attempt and stream; less for a job with little disk (`output_bytes_max`)."""
    time_limit_ms_max: int = TIME_LIMIT_MS_MAX
    lease_ms_max: int = 1 * DAY_MS


def _no_limits() -> dict[str, int]:
    return {}


class Means(msgspec.Struct, frozen=True):
    """The runtimes, features and GPUs that a node runs jobs with."""

    runtime: str = "bubblewrap"
    """For jobs without an image."""
    features: tuple[str, ...] = (JOBS, PLAIN)
    engine: str = ""
    """The socket of the container engine; empty: there is none."""
    gpus: tuple[str, ...] = ()
    """The driver's ids of the offered GPUs."""
    limits: dict[str, int] = msgspec.field(default_factory=_no_limits)
    """The operator's limits for every job (see `Order.limits`)."""


def flaw(start: Start, limits: NodeLimits) -> str:
    """What is invalid in an assignment, in words; empty if it is valid."""
    spec = start.spec
    argv_bytes = sum(len(word.encode(errors="replace")) for word in spec.argv)
    env_bytes = sum(len((k + v).encode(errors="replace")) for k, v in spec.env.items())
    need = spec.need.resources
    checks = (
        (not _ATTEMPT.fullmatch(start.attempt), "the attempt's id is malformed"),
        (start.job != job_of(start.attempt), "the attempt does not belong to the job it names"),
        (not 0 <= start.fence <= _FENCE_MAX, f"the fence {start.fence} is out of range"),
        (not spec.argv or not spec.argv[0], "argv is empty"),
        (argv_bytes > limits.argv_bytes_max, f"argv is {argv_bytes} bytes, over {limits.argv_bytes_max}"),
        (env_bytes > limits.env_bytes_max, f"env is {env_bytes} bytes, over {limits.env_bytes_max}"),
        (any("\0" in word for word in (*spec.argv, *spec.env.values())), "argv or env holds a NUL character"),
        (not all(_ENV_NAME.fullmatch(name) for name in spec.env), "a name in env is malformed"),
        (
            min(need.cpu_milli, need.memory_mib, need.disk_mib, need.gpus) < 0,
            "a needed resource is negative",
        ),
        (
            not 0 < start.time_limit_ms <= limits.time_limit_ms_max,
            f"the time limit of {start.time_limit_ms} ms is out of range",
        ),
        (
            not 0 <= start.lease_ms <= limits.lease_ms_max,
            f"the lease of {start.lease_ms} ms is out of range",
        ),
        (spec.checkpoint_ms < 0, f"a checkpoint every {spec.checkpoint_ms} ms is out of range"),
        (not all(_HASH.fullmatch(named) for named in _hashes(start)), "the hash of a manifest is malformed"),
        (not all(_INPUT.fullmatch(item.name) for item in spec.inputs), "the name of an input is malformed"),
    )
    return next((words for wrong, words in checks if wrong), "")


def _hashes(start: Start) -> list[str]:
    spec = start.spec
    named = [spec.package, start.checkpoint, *(h for item in spec.inputs for h in (item.manifest, item.sha256))]
    return [hash_ for hash_ in named if hash_]


def unable(start: Start, means: Means) -> str:
    """Which features the job needs that this node does not offer, in words; empty if there are none."""
    spec = start.spec
    asked = {*spec.need.features, CONTAINER if spec.image or spec.dockerfile else PLAIN}
    if spec.dockerfile:
        asked.add(BUILD)
    missing = sorted(asked - set(means.features))
    return f"this node does not offer: {', '.join(missing)}" if missing else ""


def crowding(need: Resources, offered: Resources, in_use: Resources) -> str:
    """Which resource would be exceeded, in words; empty if the need fits beside the held attempts."""
    if (in_use + need).fits_in(offered):
        return ""
    for name in ("cpu_milli", "memory_mib", "disk_mib", "gpus"):
        asked, free = getattr(need, name), getattr(offered, name) - getattr(in_use, name)
        if asked > free:
            return f"{asked} {name} asked, {max(free, 0)} free of {getattr(offered, name)} offered"
    return ""


def disk_mib(need: Resources) -> int:
    """The disk that an attempt gets. Without a limit it could take all of the machine's, so it always has one."""
    return max(1, need.disk_mib)


def output_bytes_max(disk_mib: int, bytes_max: int) -> int:
    """Size limit of each of the two streams: together they take at most as much as the job's disk, or 1 MiB each."""
    return min(bytes_max, max(_MIB, disk_mib * _MIB // 2))


def order_for(
    start: Start, welcome: Welcome, means: Means, limits: NodeLimits, gpus: tuple[str, ...] = ()
) -> Order | str:
    """The order that a shim carries out for this assignment, or what is wrong with it. `gpus`: assigned to it alone."""
    need = start.spec.need.resources
    contained = bool(start.spec.image or start.spec.dockerfile)
    try:
        return Order(
            attempt=start.attempt,
            fence=start.fence,
            job=start.job,
            argv=start.spec.argv,
            time_limit_ms=start.time_limit_ms,
            orphan_ms_max=welcome.orphan_ms_max,
            stop_grace_ms=welcome.stop_grace_ms,
            log_bytes_max=output_bytes_max(disk_mib(need), limits.log_bytes_max),
            env=dict(start.spec.env),
            lease_ms=start.lease_ms,
            wait_for_go=start.lease_ms > 0,
            runtime=CONTAINER if contained else means.runtime,
            resources={**msgspec.structs.asdict(need), "disk_mib": disk_mib(need)},
            network=NETWORK in start.spec.need.features,
            engine=means.engine if contained else "",
            checkpoint=start.spec.checkpoint_ms > 0,
            gpu_ids=gpus,
            limits=dict(means.limits),
        )
    except OrderError as error:
        return str(error)
