"""SPEC N4, J7: a body is stopped at its time limit, and when its machine has had no contact for the allowed time."""

from holdfast.model import AttemptId, JobId, NodeId
from holdfast.sim.watch import Rule, SceneView

SLACK_MS = 1_000
"""Signals take a moment, and clock rates differ by up to two percent."""


class LimitsKept(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._limits = {job.id: job.spec.time_limit_ms for job in scene.plan.jobs}

    def body_ended(self, node: NodeId, attempt: AttemptId, job: JobId) -> None:
        machine, settings = self.scene.machines[node], self.scene.settings
        shim = machine.shims.get(attempt)
        if shim is None or shim.body is None:
            return
        limit = self._limits[job]
        grace = settings.stop_grace_ms + SLACK_MS
        if limit is not None and shim.body.ran_ms > limit * 1.03 + grace:
            self.fail(f"{attempt} ran {shim.body.ran_ms} ms on {node}, its limit is {limit} ms")
        silent_ms = self.scene.world.now - machine.contact_at
        alone_ms = min(silent_ms, shim.body.ran_ms)
        if alone_ms > settings.orphan_ms_max * 1.13 + grace and shim.body.awake_ms > grace:
            self.fail(
                f"{attempt} ran on {node} for {silent_ms} ms without contact, {settings.orphan_ms_max} ms are allowed"
            )
