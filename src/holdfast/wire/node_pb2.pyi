from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HeldPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HELD_UNSAID: _ClassVar[HeldPhase]
    HELD_PREPARING: _ClassVar[HeldPhase]
    HELD_READY: _ClassVar[HeldPhase]
    HELD_RUNNING: _ClassVar[HeldPhase]
    HELD_UPLOADING: _ClassVar[HeldPhase]
    HELD_FINISHED: _ClassVar[HeldPhase]
    HELD_REFUSED: _ClassVar[HeldPhase]
    HELD_GONE: _ClassVar[HeldPhase]

class FailureCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_UNSAID: _ClassVar[FailureCode]
    FAILURE_EXIT_CODE: _ClassVar[FailureCode]
    FAILURE_OOM_JOB: _ClassVar[FailureCode]
    FAILURE_OOM_NODE: _ClassVar[FailureCode]
    FAILURE_TIME_LIMIT: _ClassVar[FailureCode]
    FAILURE_DISK_QUOTA: _ClassVar[FailureCode]
    FAILURE_NODE_DISK_FULL: _ClassVar[FailureCode]
    FAILURE_IMAGE: _ClassVar[FailureCode]
    FAILURE_BUILD: _ClassVar[FailureCode]
    FAILURE_DATA: _ClassVar[FailureCode]
    FAILURE_NODE_LOST: _ClassVar[FailureCode]
    FAILURE_NETWORK: _ClassVar[FailureCode]
    FAILURE_RUNTIME_FAULT: _ClassVar[FailureCode]
    FAILURE_INVALID_RESULT: _ClassVar[FailureCode]
    FAILURE_OFFER_UNANSWERED: _ClassVar[FailureCode]
    FAILURE_REFUSED: _ClassVar[FailureCode]
    FAILURE_PREPARE_TIMEOUT: _ClassVar[FailureCode]
    FAILURE_UPLOAD_TIMEOUT: _ClassVar[FailureCode]
    FAILURE_ORPHANED: _ClassVar[FailureCode]
    FAILURE_LEASE_LOST: _ClassVar[FailureCode]
    FAILURE_NODE_UNHEALTHY: _ClassVar[FailureCode]
    FAILURE_DRAINED: _ClassVar[FailureCode]
    FAILURE_SUPERSEDED: _ClassVar[FailureCode]
    FAILURE_CANCELLED: _ClassVar[FailureCode]
    FAILURE_QUEUE_EXPIRED: _ClassVar[FailureCode]
    FAILURE_NO_FIT: _ClassVar[FailureCode]
    FAILURE_POISON: _ClassVar[FailureCode]
    FAILURE_REFUTED: _ClassVar[FailureCode]
    FAILURE_DAMAGED: _ClassVar[FailureCode]

class Workload(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKLOAD_UNSAID: _ClassVar[Workload]
    WORKLOAD_BATCH: _ClassVar[Workload]
    WORKLOAD_TRAINING: _ClassVar[Workload]
    WORKLOAD_INFERENCE: _ClassVar[Workload]
    WORKLOAD_SERVICE: _ClassVar[Workload]

class Recovery(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECOVERY_UNSAID: _ClassVar[Recovery]
    RECOVERY_RESTART: _ClassVar[Recovery]
    RECOVERY_RESUME: _ClassVar[Recovery]
    RECOVERY_NEVER: _ClassVar[Recovery]

class LogStream(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOG_UNSAID: _ClassVar[LogStream]
    LOG_STDOUT: _ClassVar[LogStream]
    LOG_STDERR: _ClassVar[LogStream]
HELD_UNSAID: HeldPhase
HELD_PREPARING: HeldPhase
HELD_READY: HeldPhase
HELD_RUNNING: HeldPhase
HELD_UPLOADING: HeldPhase
HELD_FINISHED: HeldPhase
HELD_REFUSED: HeldPhase
HELD_GONE: HeldPhase
FAILURE_UNSAID: FailureCode
FAILURE_EXIT_CODE: FailureCode
FAILURE_OOM_JOB: FailureCode
FAILURE_OOM_NODE: FailureCode
FAILURE_TIME_LIMIT: FailureCode
FAILURE_DISK_QUOTA: FailureCode
FAILURE_NODE_DISK_FULL: FailureCode
FAILURE_IMAGE: FailureCode
FAILURE_BUILD: FailureCode
FAILURE_DATA: FailureCode
FAILURE_NODE_LOST: FailureCode
FAILURE_NETWORK: FailureCode
FAILURE_RUNTIME_FAULT: FailureCode
FAILURE_INVALID_RESULT: FailureCode
FAILURE_OFFER_UNANSWERED: FailureCode
FAILURE_REFUSED: FailureCode
FAILURE_PREPARE_TIMEOUT: FailureCode
FAILURE_UPLOAD_TIMEOUT: FailureCode
FAILURE_ORPHANED: FailureCode
FAILURE_LEASE_LOST: FailureCode
FAILURE_NODE_UNHEALTHY: FailureCode
FAILURE_DRAINED: FailureCode
FAILURE_SUPERSEDED: FailureCode
FAILURE_CANCELLED: FailureCode
FAILURE_QUEUE_EXPIRED: FailureCode
FAILURE_NO_FIT: FailureCode
FAILURE_POISON: FailureCode
FAILURE_REFUTED: FailureCode
FAILURE_DAMAGED: FailureCode
WORKLOAD_UNSAID: Workload
WORKLOAD_BATCH: Workload
WORKLOAD_TRAINING: Workload
WORKLOAD_INFERENCE: Workload
WORKLOAD_SERVICE: Workload
RECOVERY_UNSAID: Recovery
RECOVERY_RESTART: Recovery
RECOVERY_RESUME: Recovery
RECOVERY_NEVER: Recovery
LOG_UNSAID: LogStream
LOG_STDOUT: LogStream
LOG_STDERR: LogStream

class NodeFrame(_message.Message):
    __slots__ = ("hello", "report", "pong", "leaving", "offers")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    hello: SignedHello
    report: Report
    pong: Pong
    leaving: Leaving
    offers: Offers
    def __init__(self, hello: _Optional[_Union[SignedHello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., offers: _Optional[_Union[Offers, _Mapping]] = ...) -> None: ...

class OrchestratorFrame(_message.Message):
    __slots__ = ("challenge", "welcome", "refusal", "start", "go", "discard", "renewed", "ping", "save", "drained")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    GO_FIELD_NUMBER: _ClassVar[int]
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    challenge: Challenge
    welcome: Welcome
    refusal: Refusal
    start: Start
    go: Go
    discard: Discard
    renewed: Renewed
    ping: Ping
    save: Save
    drained: Drained
    def __init__(self, challenge: _Optional[_Union[Challenge, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., go: _Optional[_Union[Go, _Mapping]] = ..., discard: _Optional[_Union[Discard, _Mapping]] = ..., renewed: _Optional[_Union[Renewed, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., save: _Optional[_Union[Save, _Mapping]] = ..., drained: _Optional[_Union[Drained, _Mapping]] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("nonce", "protocol_min", "protocol_max", "version")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    protocol_min: int
    protocol_max: int
    version: str
    def __init__(self, nonce: _Optional[bytes] = ..., protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class SignedHello(_message.Message):
    __slots__ = ("protocol", "protocol_min", "protocol_max", "node", "version", "public_key", "signature", "instance", "token_id", "token_secret", "hardware", "offered", "isolation", "name", "site", "held", "epoch_seen", "features")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_SECRET_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    OFFERED_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_SEEN_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    protocol_min: int
    protocol_max: int
    node: str
    version: str
    public_key: bytes
    signature: bytes
    instance: str
    token_id: str
    token_secret: bytes
    hardware: Hardware
    offered: Resources
    isolation: str
    name: str
    site: str
    held: _containers.RepeatedCompositeFieldContainer[Held]
    epoch_seen: int
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol: _Optional[int] = ..., protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., node: _Optional[str] = ..., version: _Optional[str] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., instance: _Optional[str] = ..., token_id: _Optional[str] = ..., token_secret: _Optional[bytes] = ..., hardware: _Optional[_Union[Hardware, _Mapping]] = ..., offered: _Optional[_Union[Resources, _Mapping]] = ..., isolation: _Optional[str] = ..., name: _Optional[str] = ..., site: _Optional[str] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., epoch_seen: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("node", "epoch", "heartbeat_ms", "keepalive_ms", "lease_ms", "orphan_ms_max", "stop_grace_ms", "bulk_key", "data_url")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    STOP_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    BULK_KEY_FIELD_NUMBER: _ClassVar[int]
    DATA_URL_FIELD_NUMBER: _ClassVar[int]
    node: str
    epoch: int
    heartbeat_ms: int
    keepalive_ms: int
    lease_ms: int
    orphan_ms_max: int
    stop_grace_ms: int
    bulk_key: str
    data_url: str
    def __init__(self, node: _Optional[str] = ..., epoch: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ..., keepalive_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., orphan_ms_max: _Optional[int] = ..., stop_grace_ms: _Optional[int] = ..., bulk_key: _Optional[str] = ..., data_url: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "says", "final")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SAYS_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    code: str
    says: str
    final: bool
    def __init__(self, code: _Optional[str] = ..., says: _Optional[str] = ..., final: _Optional[bool] = ...) -> None: ...

class Resources(_message.Message):
    __slots__ = ("cpu_milli", "memory_mib", "disk_mib", "gpus")
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    DISK_MIB_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    cpu_milli: int
    memory_mib: int
    disk_mib: int
    gpus: int
    def __init__(self, cpu_milli: _Optional[int] = ..., memory_mib: _Optional[int] = ..., disk_mib: _Optional[int] = ..., gpus: _Optional[int] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("model", "memory_mib", "driver", "cuda", "id")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    CUDA_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    model: str
    memory_mib: int
    driver: str
    cuda: str
    id: str
    def __init__(self, model: _Optional[str] = ..., memory_mib: _Optional[int] = ..., driver: _Optional[str] = ..., cuda: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class Hardware(_message.Message):
    __slots__ = ("arch", "os", "cpu_model", "hostname", "total", "gpus", "network")
    ARCH_FIELD_NUMBER: _ClassVar[int]
    OS_FIELD_NUMBER: _ClassVar[int]
    CPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    arch: str
    os: str
    cpu_model: str
    hostname: str
    total: Resources
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    network: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, arch: _Optional[str] = ..., os: _Optional[str] = ..., cpu_model: _Optional[str] = ..., hostname: _Optional[str] = ..., total: _Optional[_Union[Resources, _Mapping]] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., network: _Optional[_Iterable[str]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("cpu_permille", "memory_used_mib", "disk_free_mib", "sick")
    CPU_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_MIB_FIELD_NUMBER: _ClassVar[int]
    SICK_FIELD_NUMBER: _ClassVar[int]
    cpu_permille: int
    memory_used_mib: int
    disk_free_mib: int
    sick: str
    def __init__(self, cpu_permille: _Optional[int] = ..., memory_used_mib: _Optional[int] = ..., disk_free_mib: _Optional[int] = ..., sick: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "detail", "exit_code", "signal")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    code: FailureCode
    detail: str
    exit_code: int
    signal: int
    def __init__(self, code: _Optional[_Union[FailureCode, str]] = ..., detail: _Optional[str] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("stdout_sha256", "stdout_bytes", "stderr_bytes", "manifest", "files", "files_bytes")
    STDOUT_SHA256_FIELD_NUMBER: _ClassVar[int]
    STDOUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDERR_BYTES_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    FILES_BYTES_FIELD_NUMBER: _ClassVar[int]
    stdout_sha256: bytes
    stdout_bytes: int
    stderr_bytes: int
    manifest: bytes
    files: int
    files_bytes: int
    def __init__(self, stdout_sha256: _Optional[bytes] = ..., stdout_bytes: _Optional[int] = ..., stderr_bytes: _Optional[int] = ..., manifest: _Optional[bytes] = ..., files: _Optional[int] = ..., files_bytes: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("stage", "done", "total", "cpu_ms", "memory_mib", "printed")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    CPU_MS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    PRINTED_FIELD_NUMBER: _ClassVar[int]
    stage: str
    done: int
    total: int
    cpu_ms: int
    memory_mib: int
    printed: int
    def __init__(self, stage: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., cpu_ms: _Optional[int] = ..., memory_mib: _Optional[int] = ..., printed: _Optional[int] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("attempt", "fence", "phase", "result", "failure", "progress")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    attempt: str
    fence: int
    phase: HeldPhase
    result: Result
    failure: Failure
    progress: Progress
    def __init__(self, attempt: _Optional[str] = ..., fence: _Optional[int] = ..., phase: _Optional[_Union[HeldPhase, str]] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("seq", "full", "held", "load", "renew")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    seq: int
    full: bool
    held: _containers.RepeatedCompositeFieldContainer[Held]
    load: Load
    renew: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, seq: _Optional[int] = ..., full: _Optional[bool] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., renew: _Optional[_Iterable[str]] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("grace_ms", "done")
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    grace_ms: int
    done: bool
    def __init__(self, grace_ms: _Optional[int] = ..., done: _Optional[bool] = ...) -> None: ...

class Offers(_message.Message):
    __slots__ = ("offered", "paused", "grace_ms", "why")
    OFFERED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    offered: Resources
    paused: bool
    grace_ms: int
    why: str
    def __init__(self, offered: _Optional[_Union[Resources, _Mapping]] = ..., paused: _Optional[bool] = ..., grace_ms: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class Need(_message.Message):
    __slots__ = ("resources", "arch", "gpu_model", "gpu_memory_mib", "gpu_driver_min", "cuda_min", "features")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    ARCH_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_DRIVER_MIN_FIELD_NUMBER: _ClassVar[int]
    CUDA_MIN_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    resources: Resources
    arch: str
    gpu_model: str
    gpu_memory_mib: int
    gpu_driver_min: str
    cuda_min: str
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resources: _Optional[_Union[Resources, _Mapping]] = ..., arch: _Optional[str] = ..., gpu_model: _Optional[str] = ..., gpu_memory_mib: _Optional[int] = ..., gpu_driver_min: _Optional[str] = ..., cuda_min: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("name", "manifest", "url", "sha256", "bytes_max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    manifest: bytes
    url: str
    sha256: bytes
    bytes_max: int
    def __init__(self, name: _Optional[str] = ..., manifest: _Optional[bytes] = ..., url: _Optional[str] = ..., sha256: _Optional[bytes] = ..., bytes_max: _Optional[int] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("argv", "name", "env", "need", "workload", "recovery", "priority", "time_limit_ms", "queue_limit_ms", "attempts_max", "package", "image", "dockerfile", "requirements", "inputs", "checkpoint_ms")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ARGV_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    NEED_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_MAX_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    DOCKERFILE_FIELD_NUMBER: _ClassVar[int]
    REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_MS_FIELD_NUMBER: _ClassVar[int]
    argv: _containers.RepeatedScalarFieldContainer[str]
    name: str
    env: _containers.ScalarMap[str, str]
    need: Need
    workload: Workload
    recovery: Recovery
    priority: int
    time_limit_ms: int
    queue_limit_ms: int
    attempts_max: int
    package: bytes
    image: str
    dockerfile: str
    requirements: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    checkpoint_ms: int
    def __init__(self, argv: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ..., need: _Optional[_Union[Need, _Mapping]] = ..., workload: _Optional[_Union[Workload, str]] = ..., recovery: _Optional[_Union[Recovery, str]] = ..., priority: _Optional[int] = ..., time_limit_ms: _Optional[int] = ..., queue_limit_ms: _Optional[int] = ..., attempts_max: _Optional[int] = ..., package: _Optional[bytes] = ..., image: _Optional[str] = ..., dockerfile: _Optional[str] = ..., requirements: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., checkpoint_ms: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("epoch", "attempt", "fence", "job", "spec", "time_limit_ms", "lease_ms", "checkpoint")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    attempt: str
    fence: int
    job: str
    spec: JobSpec
    time_limit_ms: int
    lease_ms: int
    checkpoint: bytes
    def __init__(self, epoch: _Optional[int] = ..., attempt: _Optional[str] = ..., fence: _Optional[int] = ..., job: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., time_limit_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., checkpoint: _Optional[bytes] = ...) -> None: ...

class Go(_message.Message):
    __slots__ = ("epoch", "attempt", "fence", "seq")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    attempt: str
    fence: int
    seq: int
    def __init__(self, epoch: _Optional[int] = ..., attempt: _Optional[str] = ..., fence: _Optional[int] = ..., seq: _Optional[int] = ...) -> None: ...

class Discard(_message.Message):
    __slots__ = ("epoch", "attempt", "fence", "reason", "accepted")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    attempt: str
    fence: int
    reason: str
    accepted: bool
    def __init__(self, epoch: _Optional[int] = ..., attempt: _Optional[str] = ..., fence: _Optional[int] = ..., reason: _Optional[str] = ..., accepted: _Optional[bool] = ...) -> None: ...

class Renewed(_message.Message):
    __slots__ = ("epoch", "seq", "attempts")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    attempts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., attempts: _Optional[_Iterable[str]] = ...) -> None: ...

class Save(_message.Message):
    __slots__ = ("epoch", "attempt", "fence")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    attempt: str
    fence: int
    def __init__(self, epoch: _Optional[int] = ..., attempt: _Optional[str] = ..., fence: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("epoch", "nonce")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    nonce: int
    def __init__(self, epoch: _Optional[int] = ..., nonce: _Optional[int] = ...) -> None: ...

class Drained(_message.Message):
    __slots__ = ("epoch", "on")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    on: bool
    def __init__(self, epoch: _Optional[int] = ..., on: _Optional[bool] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("attempt", "fence", "stream", "offset", "data")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    attempt: str
    fence: int
    stream: LogStream
    offset: int
    data: bytes
    def __init__(self, attempt: _Optional[str] = ..., fence: _Optional[int] = ..., stream: _Optional[_Union[LogStream, str]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class LogAck(_message.Message):
    __slots__ = ("attempt", "stream", "durable_offset", "refused")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DURABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    attempt: str
    stream: LogStream
    durable_offset: int
    refused: str
    def __init__(self, attempt: _Optional[str] = ..., stream: _Optional[_Union[LogStream, str]] = ..., durable_offset: _Optional[int] = ..., refused: _Optional[str] = ...) -> None: ...
