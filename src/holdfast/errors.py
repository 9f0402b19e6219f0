"""All errors that the client and the commands raise. Each one says what happened, why, and what to do.

    HoldfastError
    ├── Misuse               usage             2    the call itself is invalid
    ├── Misconfigured        config           78    a file, flag or variable has an invalid value
    ├── RequestError                                the orchestrator did not do what was asked
    │   ├── Unreachable      unreachable      69    there is no answer
    │   ├── Untrusted        untrusted        76    the server does not have the pinned certificate
    │   ├── NotAllowed       not_allowed      77    the token is missing, not valid, or does not allow this
    │   ├── NotFound         not_found        66    no such job, node or token
    │   ├── Refused          (the answer's)   65    understood and declined: no fit, bad request, conflict
    │   ├── Busy             busy             75    overloaded or restarting; try again later
    │   ├── NotEnded         not_ended        75    the job has not ended; it has no results yet
    │   └── Garbled          garbled          76    the answer is invalid: versions too far apart?
    ├── JobError                                    a job that was waited for did not succeed
    │   ├── JobFailed        (the failure's)  see below
    │   │   └── FunctionRaised                      a function that ran as a job raised something
    │   └── JobCancelled     cancelled       130
    ├── BlobError                                   a file transfer or store failed: see `holdfast.blobs.errors`
    └── WaitExpired          wait_expired     75    it did not happen within the time limit; nothing is lost

`code` is stable and meant for programs. The number is the exit code of the command line. A job that fails by its user's
own fault gives its own exit code (128 + n for signal n, 137 for memory, 124 for its time limit, as the shell and
`timeout` do); one that fails for any other reason gives 75 if trying again may help, otherwise 1. This module knows
nothing about HTTP or terminals.
"""

import textwrap
from typing import TYPE_CHECKING, Any

from holdfast.codes import what_to_do

if TYPE_CHECKING:
    # Nodes raise some of these errors, and know neither jobs nor failures as the API shows them.
    from holdfast.wire.errors import FailureView
    from holdfast.wire.http import JobView

EXIT_INTERNAL = 70
"""For internal errors: a bug of ours, not a mistake in the call."""


class HoldfastError(Exception):
    """Something did not work."""

    code = "internal"
    exit_code = EXIT_INTERNAL

    def __init__(self, says: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(says)
        self.says = says
        """What happened, to what, and why."""
        if code is not None:
            self.code = code
        self.hint = hint or what_to_do(self.code)
        """What to do about it."""

    def __str__(self) -> str:
        return f"{self.says} [{self.code}]" + ("\n" + textwrap.indent(self.hint, "  ") if self.hint else "")


class Misuse(HoldfastError):
    code = "usage"
    exit_code = 2


class Misconfigured(HoldfastError):
    code = "config"
    exit_code = 78


class RequestError(HoldfastError):
    """The orchestrator did not do what was asked."""


class Unreachable(RequestError):
    code = "unreachable"
    exit_code = 69


class Untrusted(RequestError):
    code = "untrusted"
    exit_code = 76


class NotAllowed(RequestError):
    code = "not_allowed"
    exit_code = 77


class NotFound(RequestError):
    code = "not_found"
    exit_code = 66


class Refused(RequestError):
    code = "refused"
    exit_code = 65

    def __init__(
        self, says: str, *, hint: str = "", code: str | None = None, failure: "FailureView | None" = None
    ) -> None:
        super().__init__(says, hint=hint, code=code)
        self.failure = failure
        """Set if the refusal is a job's failure, such as `no_fit`."""


class Busy(RequestError):
    code = "busy"
    exit_code = 75


class NotEnded(RequestError):
    code = "not_ended"
    exit_code = 75


class Garbled(RequestError):
    code = "garbled"
    exit_code = 76


class JobError(HoldfastError):
    """A job that was waited for did not succeed. `job` describes how it ended."""

    def __init__(self, job: "JobView", says: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(says, hint=hint, code=code)
        self.job = job


class JobCancelled(JobError):
    code = "cancelled"
    exit_code = 130


class JobFailed(JobError):
    values: list[Any] | None = None
    """For one call of several (`Function.map`): the return values of the others."""

    def __init__(self, job: "JobView") -> None:
        failure = job.failure
        if failure is None:
            super().__init__(job, f"{job.id} failed without a stated reason", code="unknown")
            self.exit_code = 1
            return
        detail = f" ({failure.detail})" if failure.detail else ""
        hint = "" if failure.blame == "user" else f"The fault lies with the {failure.blame}; you pay nothing for it."
        super().__init__(job, f"{job.id} failed: {failure.says}{detail}", hint=hint, code=failure.code)
        self.failure = failure
        self.exit_code = exit_code_of(failure)


class FunctionRaised(JobFailed):
    """A function that ran as a job raised an exception, or ended its process. `trace` is its stderr."""

    def __init__(self, job: "JobView", trace: str) -> None:
        super().__init__(job)
        self.trace = trace
        last = trace.strip().splitlines()[-1] if trace.strip() else "(no output on stderr)"
        self.says = f"{job.name or job.id} raised: {last}"
        self.hint = textwrap.indent(trace.rstrip(), "| ") if trace.strip() else ""


class WaitExpired(HoldfastError):
    code = "wait_expired"
    exit_code = 75


def exit_code_of(failure: "FailureView") -> int:
    """The exit code that tells a shell why a job failed."""
    if failure.code == "exit_code":
        if failure.signal:
            return 128 + failure.signal
        return failure.exit_code or 1
    fixed = {"oom_job": 137, "time_limit": 124, "cancelled": 130}
    return fixed.get(failure.code, 75 if failure.retryable else 1)


def verdict_error(job: "JobView") -> JobError | None:
    """What to raise for a job that ended, or None if it succeeded."""
    if job.verdict == "succeeded":
        return None
    if job.verdict == "cancelled":
        return JobCancelled(job, f"{job.id} was stopped before it ended")
    return JobFailed(job)
