"""Failure codes: a closed list, each with blame, retryable and billable (SPEC J7).

Settlement, retries and the text that a person reads come from this table alone.
"""

from enum import StrEnum

import msgspec


class Blame(StrEnum):
    USER = "user"
    PROVIDER = "provider"
    NETWORK = "network"
    PLATFORM = "platform"


class FailureCode(StrEnum):
    EXIT_CODE = "exit_code"
    OOM_JOB = "oom_job"
    OOM_NODE = "oom_node"
    TIME_LIMIT = "time_limit"
    DISK_QUOTA = "disk_quota"
    NODE_DISK_FULL = "node_disk_full"
    IMAGE = "image"
    BUILD = "build"
    DATA = "data"
    DAMAGED = "damaged"
    NODE_LOST = "node_lost"
    NETWORK = "network"
    RUNTIME_FAULT = "runtime_fault"
    INVALID_RESULT = "invalid_result"
    OFFER_UNANSWERED = "offer_unanswered"
    REFUSED = "refused"
    PREPARE_TIMEOUT = "prepare_timeout"
    UPLOAD_TIMEOUT = "upload_timeout"
    ORPHANED = "orphaned"
    LEASE_LOST = "lease_lost"
    NODE_UNHEALTHY = "node_unhealthy"
    DRAINED = "drained"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    QUEUE_EXPIRED = "queue_expired"
    NO_FIT = "no_fit"
    POISON = "poison"
    REFUTED = "refuted"


class Meaning(msgspec.Struct, frozen=True, gc=False):
    blame: Blame
    retryable: bool
    billable: bool
    says: str
    """What happened, in words for the job's owner."""


MEANINGS: dict[FailureCode, Meaning] = {
    FailureCode.EXIT_CODE: Meaning(Blame.USER, False, True, "the program ended with a non-zero exit code or a signal"),
    FailureCode.OOM_JOB: Meaning(Blame.USER, False, True, "the job used more memory than it asked for"),
    FailureCode.OOM_NODE: Meaning(Blame.PROVIDER, True, False, "the machine ran out of memory below the job's limit"),
    FailureCode.TIME_LIMIT: Meaning(Blame.USER, False, True, "the job ran longer than its time limit"),
    FailureCode.DISK_QUOTA: Meaning(Blame.USER, False, True, "the job wrote more than the disk it asked for"),
    FailureCode.NODE_DISK_FULL: Meaning(Blame.PROVIDER, True, False, "the machine's disk was full"),
    FailureCode.IMAGE: Meaning(Blame.USER, False, False, "the image could not be had"),
    FailureCode.BUILD: Meaning(Blame.USER, False, False, "the environment could not be built"),
    FailureCode.DATA: Meaning(Blame.USER, False, False, "an input could not be had, or was not what its hash says"),
    FailureCode.DAMAGED: Meaning(
        Blame.PLATFORM, True, False, "files of the job are damaged or lost where the network keeps them"
    ),
    FailureCode.NODE_LOST: Meaning(Blame.PROVIDER, True, False, "the machine vanished while it held the job"),
    FailureCode.NETWORK: Meaning(Blame.NETWORK, True, False, "the network failed on the way"),
    FailureCode.RUNTIME_FAULT: Meaning(Blame.PROVIDER, True, False, "the machinery around the job broke"),
    FailureCode.INVALID_RESULT: Meaning(Blame.PROVIDER, True, False, "what was delivered is not what was declared"),
    FailureCode.OFFER_UNANSWERED: Meaning(Blame.NETWORK, True, False, "the machine did not answer the offer in time"),
    FailureCode.REFUSED: Meaning(Blame.PROVIDER, True, False, "the machine declined the job"),
    FailureCode.PREPARE_TIMEOUT: Meaning(Blame.PROVIDER, True, False, "the machine did not get the job ready in time"),
    FailureCode.UPLOAD_TIMEOUT: Meaning(Blame.NETWORK, True, False, "the result was not delivered in time"),
    FailureCode.ORPHANED: Meaning(Blame.NETWORK, True, False, "the job was cut off from the network for too long"),
    FailureCode.LEASE_LOST: Meaning(
        Blame.NETWORK, False, False, "a job that must not run twice lost its lease and was stopped"
    ),
    FailureCode.NODE_UNHEALTHY: Meaning(
        Blame.PROVIDER, True, False, "the machine was taken out of service while it held the job"
    ),
    FailureCode.DRAINED: Meaning(Blame.PLATFORM, True, False, "the machine was drained by its operator"),
    FailureCode.SUPERSEDED: Meaning(
        Blame.PLATFORM, False, False, "another attempt of the same job is the one that counts"
    ),
    FailureCode.CANCELLED: Meaning(Blame.USER, False, True, "the owner stopped the job"),
    FailureCode.QUEUE_EXPIRED: Meaning(
        Blame.PLATFORM, False, False, "no machine came free before the job's queue limit"
    ),
    FailureCode.NO_FIT: Meaning(Blame.USER, False, False, "no machine of this network could ever hold the job"),
    FailureCode.POISON: Meaning(Blame.USER, False, False, "the job brought down several machines, so it was stopped"),
    FailureCode.REFUTED: Meaning(
        Blame.PROVIDER, True, False, "the machine blamed the job's owner, and another machine finished the job"
    ),
}


class Failure(msgspec.Struct, frozen=True, gc=False):
    """One failure, as it is stored and shown."""

    code: FailureCode
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None

    @property
    def meaning(self) -> Meaning:
        return MEANINGS[self.code]
