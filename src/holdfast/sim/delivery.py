"""What travels on the bulk stream of the virtual world: an ended attempt's logs, and the word that they are kept."""

import msgspec

from holdfast.model import AttemptId


class Logs(msgspec.Struct, frozen=True):
    """All of an attempt's output, as one piece: offsets and resumption are the business of the real shells."""

    attempt: AttemptId
    stdout_sha256: str
    stdout_bytes: int


class LogsKept(msgspec.Struct, frozen=True):
    attempt: AttemptId
