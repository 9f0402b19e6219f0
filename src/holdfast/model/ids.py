"""Identifiers. Each has a prefix that names its kind, so that a pasted id is never mistaken for another kind."""

from hashlib import sha256
from typing import NewType

JobId = NewType("JobId", str)
AttemptId = NewType("AttemptId", str)
NodeId = NewType("NodeId", str)
TokenId = NewType("TokenId", str)
AccessId = NewType("AccessId", str)
Owner = NewType("Owner", str)
ArrayId = NewType("ArrayId", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: no letter that looks like a digit."""


def readable(digest: bytes, letters: int) -> str:
    """The first `letters` base-32 letters of a digest."""
    number = int.from_bytes(digest, "big")
    bits = len(digest) * 8
    return "".join(_ALPHABET[(number >> (bits - 5 * (i + 1))) & 31] for i in range(letters))


def job_id(owner: str, key: str) -> JobId:
    """The id of the job that `owner` submits under an idempotency key: the same key, the same job."""
    digest = sha256(f"{len(owner)}:{owner}{key}".encode()).digest()
    return JobId("job_" + readable(digest, 14))


def array_id(owner: str, key: str) -> ArrayId:
    """The id of the array that `owner` submits under an idempotency key."""
    digest = sha256(f"array:{len(owner)}:{owner}{key}".encode()).digest()
    return ArrayId("arr_" + readable(digest, 14))


def attempt_id(job: JobId, number: int) -> AttemptId:
    """`att_<job>.<number>`: attempts are numbered from 1 within their job."""
    return AttemptId(f"att_{job[4:]}.{number}")


def job_of(attempt: str) -> JobId:
    """The job an attempt belongs to, read from its id."""
    return JobId("job_" + attempt[4:].partition(".")[0])
