"""Converts the parts of messages (held attempts, offers, requests) to protobuf and back, strictly.

Used by wire.convert only. Reading raises only BadMessage.
"""

from collections.abc import Iterable
from typing import Any

from holdfast.model import (
    Failure,
    FailureCode,
    Gpu,
    Hardware,
    Input,
    JobSpec,
    Need,
    Recovery,
    Resources,
    Result,
    Workload,
)
from holdfast.model.messages import Held, HeldPhase, Load, Progress
from holdfast.wire import checks, limits
from holdfast.wire import node_pb2 as pb
from holdfast.wire.checks import BadMessage

_LABEL = limits.LABEL_CHARS_MAX
_WORDS = limits.WORDS_CHARS_MAX
_EXIT_MAX = 2**32
"""Some systems use all 32 bits of an exit code, signed or unsigned."""

PHASES: dict[int, HeldPhase] = {pb.HeldPhase.Value(f"HELD_{p.name}"): p for p in HeldPhase}
_PHASE_NUMBERS: dict[HeldPhase, Any] = {phase: value for value, phase in PHASES.items()}
CODES: dict[int, FailureCode] = {pb.FailureCode.Value(f"FAILURE_{c.name}"): c for c in FailureCode}
_CODE_NUMBERS: dict[FailureCode, Any] = {code: value for value, code in CODES.items()}
WORKLOADS: dict[int, Workload] = {pb.Workload.Value(f"WORKLOAD_{w.name}"): w for w in Workload}
_WORKLOAD_NUMBERS: dict[Workload, Any] = {workload: value for value, workload in WORKLOADS.items()}
RECOVERIES: dict[int, Recovery] = {pb.Recovery.Value(f"RECOVERY_{r.name}"): r for r in Recovery}
_RECOVERY_NUMBERS: dict[Recovery, Any] = {recovery: value for value, recovery in RECOVERIES.items()}


def held_to(held: Held, detail: int) -> pb.Held:
    return pb.Held(
        attempt=held.attempt,
        fence=held.fence,
        phase=_PHASE_NUMBERS[held.phase],
        result=None if held.result is None else _result_to(held.result),
        failure=None if held.failure is None else _failure_to(held.failure, detail),
        progress=None if held.progress is None else _progress_to(held.progress),
    )


def all_held_from(said: Iterable[pb.Held]) -> tuple[Held, ...]:
    held = [_held_from(item) for item in said]
    if held:
        checks.count(len(held), limits.HELD_MAX, "held")
        checks.distinct([item.attempt for item in held], "held")
    return tuple(held)


def _held_from(said: pb.Held) -> Held:
    attempt = checks.attempt(said.attempt)
    phase = PHASES.get(said.phase)
    if phase is None:
        raise BadMessage("bad_enum", f"{attempt} is in phase {said.phase}, which this version does not know")
    result = _result_from(said.result) if said.HasField("result") else None
    failure = _failure_from(said.failure) if said.HasField("failure") else None
    if result is not None and failure is not None:
        raise BadMessage("contradiction", f"{attempt} has a result and a failure; it can only have one")
    if phase is HeldPhase.FINISHED and result is None and failure is None:
        raise BadMessage("missing", f"{attempt} is finished, but has neither a result nor a failure")
    if phase is HeldPhase.REFUSED and failure is None:
        raise BadMessage("missing", f"{attempt} is refused, but no reason is given")
    fence = checks.number(said.fence, limits.COUNT_MAX, "fence", least=1)
    progress = _progress_from(said.progress) if said.HasField("progress") else None
    return Held(attempt, fence, phase, result, failure, progress)


def _progress_to(progress: Progress) -> pb.Progress:
    return pb.Progress(
        stage=progress.stage,
        done=progress.done,
        total=progress.total,
        cpu_ms=progress.cpu_ms,
        memory_mib=progress.memory_mib,
        printed=progress.printed,
    )


def _progress_from(said: pb.Progress) -> Progress:
    return Progress(
        checks.word(said.stage, "progress.stage"),
        checks.number(said.done, limits.BYTES_MAX, "progress.done"),
        checks.number(said.total, limits.BYTES_MAX, "progress.total"),
        checks.number(said.cpu_ms, limits.COUNT_MAX, "progress.cpu_ms"),
        checks.number(said.memory_mib, limits.MEMORY_MIB_MAX, "progress.memory_mib"),
        checks.number(said.printed, limits.BYTES_MAX, "progress.printed"),
    )


def _result_to(result: Result) -> pb.Result:
    if result.exit_code != 0:
        raise BadMessage("contradiction", f"a result with exit code {result.exit_code} is a failure")
    return pb.Result(
        stdout_sha256=bytes.fromhex(result.stdout_sha256),
        stdout_bytes=result.stdout_bytes,
        stderr_bytes=result.stderr_bytes,
        manifest=bytes.fromhex(result.manifest),
        files=result.files,
        files_bytes=result.files_bytes,
    )


def _result_from(said: pb.Result) -> Result:
    return Result(
        checks.exactly(said.stdout_sha256, 32, "stdout_sha256").hex(),
        checks.number(said.stdout_bytes, limits.BYTES_MAX, "stdout_bytes"),
        checks.number(said.stderr_bytes, limits.BYTES_MAX, "stderr_bytes"),
        manifest=checks.digest(said.manifest, "manifest"),
        files=checks.number(said.files, limits.COUNT_MAX, "files"),
        files_bytes=checks.number(said.files_bytes, limits.BYTES_MAX, "files_bytes"),
    )


def _failure_to(failure: Failure, detail: int) -> pb.Failure:
    return pb.Failure(
        code=_CODE_NUMBERS[failure.code],
        detail=checks.clean(failure.detail, detail, "\n\t"),
        exit_code=failure.exit_code,
        signal=failure.signal,
    )


def _failure_from(said: pb.Failure) -> Failure:
    code = CODES.get(said.code)
    if code is None:
        raise BadMessage("bad_enum", f"failure code {said.code} is not known to this version")
    return Failure(
        code,
        checks.words(said.detail, "detail"),
        checks.number(said.exit_code, 2**32, "exit_code", least=-(2**32)) if said.HasField("exit_code") else None,
        checks.number(said.signal, 128, "signal") if said.HasField("signal") else None,
    )


def load_to(load: Load) -> pb.Load:
    return pb.Load(
        cpu_permille=load.cpu_permille,
        memory_used_mib=load.memory_used_mib,
        disk_free_mib=load.disk_free_mib,
        sick=checks.clean(load.sick, _WORDS, "\n\t"),
    )


def load_from(said: pb.Load) -> Load:
    return Load(
        checks.number(said.cpu_permille, limits.PERMILLE_MAX, "cpu_permille"),
        checks.number(said.memory_used_mib, limits.MEMORY_MIB_MAX, "memory_used_mib"),
        checks.number(said.disk_free_mib, limits.DISK_MIB_MAX, "disk_free_mib"),
        checks.words(said.sick, "sick"),
    )


def resources_to(amount: Resources) -> pb.Resources:
    return pb.Resources(
        cpu_milli=amount.cpu_milli, memory_mib=amount.memory_mib, disk_mib=amount.disk_mib, gpus=amount.gpus
    )


def resources_from(said: pb.Resources, field: str) -> Resources:
    return Resources(
        checks.number(said.cpu_milli, limits.CPU_MILLI_MAX, f"{field}.cpu_milli"),
        checks.number(said.memory_mib, limits.MEMORY_MIB_MAX, f"{field}.memory_mib"),
        checks.number(said.disk_mib, limits.DISK_MIB_MAX, f"{field}.disk_mib"),
        checks.number(said.gpus, limits.GPUS_MAX, f"{field}.gpus"),
    )


def hardware_to(hardware: Hardware) -> pb.Hardware:
    return pb.Hardware(
        arch=checks.clean(hardware.arch, _LABEL),
        os=checks.clean(hardware.os, _LABEL),
        cpu_model=checks.clean(hardware.cpu_model, _LABEL),
        hostname=checks.clean(hardware.hostname, _LABEL),
        total=resources_to(hardware.total),
        gpus=[
            pb.Gpu(
                model=checks.clean(gpu.model, _LABEL),
                memory_mib=gpu.memory_mib,
                driver=checks.clean(gpu.driver, _LABEL),
                cuda=checks.clean(gpu.cuda, _LABEL),
                id=checks.clean(gpu.id, _LABEL),
            )
            for gpu in hardware.gpus
        ],
        # For people only, so it is truncated: a machine with a hundred bridges can still join.
        network=[checks.clean(line, _LABEL) for line in hardware.network[: limits.INTERFACES_MAX]],
    )


def hardware_from(said: pb.Hardware) -> Hardware:
    checks.count(len(said.gpus), limits.GPUS_MAX, "hardware.gpus")
    checks.count(len(said.network), limits.INTERFACES_MAX, "hardware.network")
    return Hardware(
        arch=checks.label(said.arch, "arch"),
        os=checks.label(said.os, "os"),
        cpu_model=checks.label(said.cpu_model, "cpu_model"),
        hostname=checks.label(said.hostname, "hostname"),
        total=resources_from(said.total, "total"),
        gpus=tuple(
            Gpu(
                checks.label(gpu.model, "gpu model"),
                checks.number(gpu.memory_mib, limits.MEMORY_MIB_MAX, "gpu memory_mib"),
                checks.label(gpu.driver, "gpu driver"),
                checks.label(gpu.cuda, "gpu cuda"),
                checks.label(gpu.id, "gpu id"),
            )
            for gpu in said.gpus
        ),
        network=tuple(checks.label(line, "network") for line in said.network),
    )


def features_from(said: Iterable[str]) -> tuple[str, ...]:
    """Sorted, without duplicates: nodes with equal features are of one kind."""
    return tuple(sorted({checks.word(feature, "feature") for feature in said}))


def spec_to(spec: JobSpec) -> pb.JobSpec:
    need = spec.need
    return pb.JobSpec(
        argv=spec.argv,
        name=spec.name,
        env=spec.env,
        need=pb.Need(
            resources=resources_to(need.resources),
            arch=need.arch,
            gpu_model=need.gpu_model,
            gpu_memory_mib=need.gpu_memory_mib,
            gpu_driver_min=need.gpu_driver_min,
            cuda_min=need.cuda_min,
            features=need.features,
        ),
        workload=_WORKLOAD_NUMBERS[spec.workload],
        recovery=_RECOVERY_NUMBERS[spec.recovery],
        priority=spec.priority,
        time_limit_ms=spec.time_limit_ms,
        queue_limit_ms=spec.queue_limit_ms,
        attempts_max=spec.attempts_max,
        package=bytes.fromhex(spec.package),
        image=spec.image,
        dockerfile=spec.dockerfile,
        requirements=spec.requirements,
        inputs=[
            pb.Input(
                name=item.name,
                manifest=bytes.fromhex(item.manifest),
                url=item.url,
                sha256=bytes.fromhex(item.sha256),
                bytes_max=item.bytes_max,
            )
            for item in spec.inputs
        ],
        checkpoint_ms=spec.checkpoint_ms,
    )


def spec_from(said: pb.JobSpec) -> JobSpec:
    workload, recovery = WORKLOADS.get(said.workload), RECOVERIES.get(said.recovery)
    if workload is None or recovery is None:
        raise BadMessage("bad_enum", "the job's workload or recovery class is not known to this version")
    need = said.need
    checks.count(len(need.features), limits.FEATURES_MAX, "need.features")
    checks.count(len(said.inputs), limits.INPUTS_MAX, "inputs")
    spec = JobSpec(
        argv=tuple(said.argv),
        name=said.name,
        env=dict(said.env),
        need=Need(
            resources_from(need.resources, "need"),
            need.arch,
            need.gpu_model,
            need.gpu_memory_mib,
            need.gpu_driver_min,
            need.cuda_min,
            features_from(need.features),
        ),
        workload=workload,
        recovery=recovery,
        priority=said.priority,
        time_limit_ms=said.time_limit_ms if said.HasField("time_limit_ms") else None,
        queue_limit_ms=said.queue_limit_ms if said.HasField("queue_limit_ms") else None,
        attempts_max=said.attempts_max if said.HasField("attempts_max") else None,
        package=checks.digest(said.package, "package"),
        image=said.image,
        dockerfile=said.dockerfile,
        requirements=said.requirements,
        inputs=tuple(
            Input(
                item.name,
                checks.digest(item.manifest, "input manifest"),
                item.url,
                checks.digest(item.sha256, "input sha256"),
                checks.number(item.bytes_max, limits.BYTES_MAX, "input bytes_max"),
            )
            for item in said.inputs
        ),
        checkpoint_ms=said.checkpoint_ms,
    )
    fault = checks.spec_fault(spec)
    if fault:
        raise BadMessage("bad_spec", fault)
    return spec
