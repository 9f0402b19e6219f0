"""SPEC N4: a body gets as many GPUs of its machine as its job requested, and no GPU is leased to two bodies at once."""

from holdfast.model import AttemptId, JobId, NodeId
from holdfast.sim.watch import Rule, SceneView


class OneGpuOneBody(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._wanted = {job.id: job.spec.need.resources.gpus for job in scene.plan.jobs}

    def body_started(self, node: NodeId, attempt: AttemptId, job: JobId) -> None:
        machine = self.scene.machines[node]
        leased = machine.shims[attempt].order.gpu_ids
        if len(set(leased)) != self._wanted[job] or not set(leased) <= set(machine.gpu_ids):
            self.fail(f"{attempt} asked for {self._wanted[job]} GPUs of {machine.gpu_ids} and has {leased}")
        for other, shim in sorted(machine.shims.items()):
            both = set(leased) & set(shim.order.gpu_ids)
            if other != attempt and both:
                self.fail(f"{attempt} starts on {node} with {sorted(both)}, which {other} still has")
