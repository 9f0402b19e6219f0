"""Decides what a shim's final status means: a result, or a failure with its code (SPEC J7)."""

from holdfast.model import Failure, FailureCode, Result
from holdfast.node.core.attempt_lifecycle import EndKind
from holdfast.node.core.events import ShimStatus

_FULL = ("ENOSPC", "EDQUOT")
_FAULTS = (
    FailureCode.RUNTIME_FAULT,
    FailureCode.NODE_DISK_FULL,
    FailureCode.OOM_NODE,
    FailureCode.OOM_JOB,
    FailureCode.DISK_QUOTA,
    FailureCode.TIME_LIMIT,
)
"""Codes that a shim may report: a failure of the runtime, or a limit that the body exceeded. Any other code is read as
`runtime_fault`."""


def verdict(status: ShimStatus) -> Result | Failure:
    """The result or failure of an ended body. Only an exit by itself with code 0 is a result."""
    outcome = status.outcome
    if outcome is None:
        return Failure(FailureCode.RUNTIME_FAULT, "the shim ended without an outcome")
    code, signal, detail = outcome.exit_code, outcome.signal, outcome.detail
    match outcome.kind:
        case EndKind.EXIT if code == 0 and signal is None:
            return Result(status.stdout_sha256, status.stdout_bytes, status.stderr_bytes)
        case EndKind.EXIT:
            return Failure(FailureCode.EXIT_CODE, detail, code, signal)
        case EndKind.TIME_LIMIT:
            return Failure(FailureCode.TIME_LIMIT, detail, code, signal)
        case EndKind.LEASE:
            return Failure(FailureCode.LEASE_LOST, detail, code, signal)
        case EndKind.ORPHAN:
            return Failure(FailureCode.ORPHANED, detail, code, signal)
        case EndKind.STOPPED:
            # A stop that the orchestrator requested ends in a discard, and its outcome is never reported.
            return Failure(FailureCode.DRAINED, detail, code, signal)
        case EndKind.FAULT:
            named = [fault for fault in _FAULTS if fault.value == outcome.code]
            return Failure(named[0] if named else FailureCode.RUNTIME_FAULT, detail, code, signal)


def spawn_failure(errno_name: str, detail: str) -> Failure:
    """Why no shim could be started. A full disk has its own code."""
    code = FailureCode.NODE_DISK_FULL if errno_name in _FULL else FailureCode.RUNTIME_FAULT
    return Failure(code, detail)
