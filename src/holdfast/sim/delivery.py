"""Messages on the simulated bulk stream: the logs of an ended attempt, and their acknowledgement."""

import msgspec

from holdfast.model import AttemptId


class Logs(msgspec.Struct, frozen=True):
    """All output of an attempt, in one piece: only the real shells handle offsets and resumption."""

    attempt: AttemptId
    stdout_sha256: str
    stdout_bytes: int


class LogsKept(msgspec.Struct, frozen=True):
    attempt: AttemptId
