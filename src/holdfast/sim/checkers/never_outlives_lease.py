"""SPEC J5, J8: when a job of class `never` is given up because its machine is away, its body runs nowhere.

The orchestrator waits longer for a lease than the node lets the body live. So a user who is told "it lost its lease"
can start the same work by hand without two copies running.
"""

from holdfast.kernel.decision import Row
from holdfast.model import AttemptId, FailureCode, Job, JobId, NodeId, Recovery
from holdfast.sim.watch import Rule, SceneView

DEAD = (FailureCode.LEASE_LOST, FailureCode.NODE_LOST)
"""Failure codes that promise that the body no longer runs."""


class NeverOutlivesLease(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._running: dict[JobId, tuple[AttemptId, NodeId]] = {}

    def body_started(self, node: NodeId, attempt: AttemptId, job: JobId) -> None:
        self._running[job] = (attempt, node)

    def body_ended(self, node: NodeId, attempt: AttemptId, job: JobId) -> None:
        if self._running.get(job) == (attempt, node):
            del self._running[job]

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        for _, row in rows:
            if not isinstance(row, Job) or row.spec.recovery is not Recovery.NEVER or row.failure is None:
                continue
            frozen = row.id in self._running and self._frozen(*self._running[row.id])
            if row.failure.code in DEAD and row.id in self._running and not frozen:
                attempt, node = self._running[row.id]
                self.fail(f"{row.id} was given up ({row.failure.code}) while {attempt} runs on {node}")

    def _frozen(self, attempt: AttemptId, node: NodeId) -> bool:
        """A frozen body does nothing, and is killed when it thaws before it can do anything."""
        shim = self.scene.machines[node].shims.get(attempt)
        return shim is not None and shim.frozen
