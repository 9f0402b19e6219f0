"""The HTTP types for errors: what every endpoint answers when it refuses, and how a job failed."""

import msgspec


class FailureView(msgspec.Struct, frozen=True):
    code: str
    says: str
    detail: str
    blame: str
    retryable: bool
    billable: bool
    exit_code: int | None = None
    signal: int | None = None


class ErrorView(msgspec.Struct, frozen=True):
    """What happened, to what, why, what to do; and a stable code."""

    code: str
    says: str
    hint: str = ""
    failure: FailureView | None = None
    oldest: int | None = None
    """`cursor_expired`: the oldest cursor from which the stream can be resumed."""
