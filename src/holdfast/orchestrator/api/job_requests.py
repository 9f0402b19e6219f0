"""Validates a job request and turns it into a job's specification. An error says what is wrong with the request."""

from hashlib import sha256
from typing import TypeVar

import msgspec

from holdfast.kernel.events import Submitted
from holdfast.model import (
    BUILD,
    CONTAINER,
    DEFAULT_RECOVERY,
    JOBS,
    NETWORK,
    PLAIN,
    Input,
    Job,
    JobSpec,
    Need,
    Owner,
    Recovery,
    Resources,
    Role,
    Settings,
    Workload,
    job_id,
)
from holdfast.model.access import is_reserved
from holdfast.orchestrator.api_error import ApiError
from holdfast.wire.checks import spec_fault
from holdfast.wire.http import AccessRequest, JobRequest, TokenRequest

Choice = TypeVar("Choice", Workload, Recovery, Role)

KEY_CHARS_MAX = 200
OWNER_CHARS_MAX = 100
TOKEN_TTL_MS_MAX = 10 * 366 * 86_400_000


def submission(request: JobRequest, owner: str, key: str, settings: Settings) -> Submitted:
    """The event for one job. The same owner and key always give the same job."""
    spec = _spec(request, settings)
    return Submitted(job_id(owner, key), Owner(owner), spec, hash_of(spec))


def hash_of(spec: JobSpec) -> str:
    """Equal if two submissions under one key ask for the same job."""
    return sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()


def _spec(request: JobRequest, settings: Settings) -> JobSpec:
    workload = _one_of(Workload, request.workload, "workload")
    # A request with checkpoints means to resume from them.
    usual = Recovery.RESUME if request.checkpoint_ms else DEFAULT_RECOVERY[workload]
    recovery = usual if request.recovery is None else _one_of(Recovery, request.recovery, "recovery")
    spec = JobSpec(
        argv=tuple(request.argv),
        name=request.name,
        env=dict(request.env),
        need=Need(
            Resources(request.cpu_milli, request.memory_mib, request.disk_mib, request.gpus),
            arch=request.arch,
            gpu_model=request.gpu_model,
            gpu_memory_mib=request.gpu_memory_mib,
            gpu_driver_min=request.gpu_driver_min,
            cuda_min=request.cuda_min,
            features=_features(request),
        ),
        workload=workload,
        recovery=recovery,
        priority=request.priority,
        time_limit_ms=request.time_limit_ms,
        queue_limit_ms=request.queue_limit_ms,
        attempts_max=request.attempts_max,
        package=request.package,
        image=request.image,
        dockerfile=request.dockerfile,
        requirements=request.requirements,
        inputs=tuple(Input(i.name, i.manifest, i.url, i.sha256, i.bytes_max) for i in request.inputs),
        checkpoint_ms=request.checkpoint_ms,
    )
    if request.cpu_milli <= 0 or request.memory_mib <= 0:
        raise ApiError(
            "bad_request",
            f"cpu_milli is {request.cpu_milli} and memory_mib {request.memory_mib}; a job needs some of both",
            "Leave them out for the defaults: 1000 (one core) and 512.",
        )
    fault = spec_fault(spec)
    if fault:
        raise ApiError("bad_request", fault)
    size = sum(len(item.encode()) + 1 for item in spec.argv)
    if size > settings.argv_bytes_max:
        raise ApiError(
            "bad_request",
            f"argv takes {size} bytes; this network allows {settings.argv_bytes_max}",
            "Put long input into a file or the environment instead.",
        )
    return spec


def _features(request: JobRequest) -> tuple[str, ...]:
    contained = bool(request.image or request.dockerfile)
    asked = {JOBS: True, NETWORK: request.network, CONTAINER: contained, PLAIN: not contained}
    asked[BUILD] = bool(request.dockerfile)
    return tuple(sorted(feature for feature, wanted in asked.items() if wanted))


def _one_of(kind: type[Choice], value: str, field: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        raise ApiError("bad_request", f"{field} is {value[:60]!r}; it can be {', '.join(kind)}") from None


def no_item(named: str, job: Job) -> Job:
    """The job. Raises ApiError if it was found by the name of an array, which does not mean one of its jobs."""
    array = job.spec.array
    if not array or not job.live or named != job.spec.name:
        return job
    hint = f"`holdfast jobs --array {array}` lists its jobs; `holdfast stop {array}` stops them all."
    raise ApiError("ambiguous", f"{named[:80]!r} is the name of an array, {array}, and not of one job", hint)


def checked_key(key: str) -> str:
    """An idempotency key, from the header or the body."""
    if not key or len(key) > KEY_CHARS_MAX or not key.isprintable():
        raise ApiError(
            "bad_request",
            f"the idempotency key has {len(key)} characters; it takes 1 to {KEY_CHARS_MAX} printable ones",
        )
    return key


def checked_owner(owner: str) -> str:
    if not 1 <= len(owner) <= OWNER_CHARS_MAX or not owner.isprintable() or owner != owner.strip():
        raise ApiError("bad_request", f"the owner {owner[:60]!r} needs 1 to {OWNER_CHARS_MAX} printable characters")
    if is_reserved(owner):
        raise ApiError("bad_request", f"{owner!r} is reserved: it can be no owner's name", "Choose another name.")
    return owner


def checked_access(request: AccessRequest) -> AccessRequest:
    role = _one_of(Role, request.role, "role")
    if request.owner or role is not Role.NETWORK_OPERATOR:
        checked_owner(request.owner)
    if not 1_000 <= request.ttl_ms <= TOKEN_TTL_MS_MAX:
        raise ApiError(
            "bad_request", f"ttl_ms is {request.ttl_ms}; it may be 1000 (a second) to {TOKEN_TTL_MS_MAX} (ten years)"
        )
    if len(request.note) > 200 or not request.note.isprintable():
        raise ApiError("bad_request", "note takes up to 200 printable characters")
    return request


def checked_token(request: TokenRequest) -> TokenRequest:
    if not 1_000 <= request.ttl_ms <= TOKEN_TTL_MS_MAX:
        raise ApiError(
            "bad_request", f"ttl_ms is {request.ttl_ms}; it may be 1000 (a second) to {TOKEN_TTL_MS_MAX} (ten years)"
        )
    if request.uses != -1 and not 1 <= request.uses <= 1_000_000:
        raise ApiError("bad_request", f"uses is {request.uses}; it may be 1 to 1000000, or -1 for any number")
    if len(request.note) > 200 or not request.note.isprintable():
        raise ApiError("bad_request", "note takes up to 200 printable characters")
    return request
