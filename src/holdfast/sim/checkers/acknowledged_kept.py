"""SPEC J14: an acknowledged submission is in the store, from the acknowledgement on and for ever, or until a backup
from before the acknowledgement is restored."""

from holdfast.model import Job, JobId
from holdfast.sim.watch import Rule, SceneView


class AcknowledgedKept(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._promised: list[JobId] = []

    def acknowledged(self, job: JobId) -> None:
        self._promised.append(job)
        self._look(job)

    def restored(self) -> None:
        self._promised = [job for job in self._promised if ("job", job) in self.scene.store.rows]

    def finished(self) -> None:
        for job in self._promised:
            self._look(job)

    def _look(self, job: JobId) -> None:
        if not isinstance(self.scene.store.rows.get(("job", job)), Job):
            self.fail(f"{job} was acknowledged and is not in the store")
