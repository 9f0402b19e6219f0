"""What things are: jobs, attempts, nodes, failures, messages. Frozen and typed; no logic beyond own invariants."""

# The types are declared with gc=False: they form no cycles, and a fleet of a million nodes must not be walked through
# by the collector every few seconds.

from holdfast.model.failure import MEANINGS, Blame, Failure, FailureCode, Meaning
from holdfast.model.ids import ArrayId, AttemptId, JobId, NodeId, Owner, TokenId, array_id, attempt_id, job_id, job_of
from holdfast.model.job import (
    DEFAULT_RECOVERY,
    Attempt,
    AttemptPhase,
    Checkpoint,
    Input,
    Job,
    JobPhase,
    JobSpec,
    Keep,
    Move,
    MoveState,
    Pace,
    Promise,
    Purpose,
    Recovery,
    Result,
    Score,
    Verdict,
    Workload,
)
from holdfast.model.journal import Entry, Meta
from holdfast.model.node import JoinToken, Node, NodeState
from holdfast.model.resources import CONTAINER, FEATURES, JOBS, NETWORK, PLAIN, Gpu, Hardware, Need, Resources
from holdfast.model.settings import Settings
from holdfast.model.time import DAY_MS, HOUR_MS, MINUTE_MS, NEVER, SECOND_MS, Instant, after

__all__ = [
    "CONTAINER", "DAY_MS", "DEFAULT_RECOVERY", "FEATURES", "HOUR_MS", "JOBS", "MEANINGS", "MINUTE_MS", "NETWORK",
    "NEVER", "PLAIN", "SECOND_MS",
    "ArrayId", "Attempt", "AttemptId", "AttemptPhase", "Blame", "Checkpoint", "Entry", "Failure", "FailureCode", "Gpu",
    "Hardware", "Input", "Instant", "Job", "JobId", "JobPhase", "JobSpec", "JoinToken", "Keep", "Meaning", "Meta",
    "Move", "MoveState", "Need", "Node", "NodeId", "NodeState", "Owner", "Pace", "Promise", "Purpose", "Recovery",
    "Resources", "Result", "Score", "Settings", "TokenId", "Verdict", "Workload", "after", "array_id", "attempt_id",
    "job_id", "job_of",
]  # fmt: skip
