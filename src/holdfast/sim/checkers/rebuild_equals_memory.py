"""SPEC J14: the state that a new leader rebuilds from the store equals the current leader's state in memory."""

from holdfast.kernel.kernel import Kernel
from holdfast.sim.watch import Rule, SceneView

EVERY = 8
"""A comparison costs as much as many events, so only some quiet moments are checked."""


class RebuildEqualsMemory(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._moments = 0

    def at_rest(self, kernel: Kernel) -> None:
        self._moments += 1
        if self._moments % EVERY:
            return
        again = Kernel.load(self.scene.settings, self.scene.store.live())
        if again.digest() != kernel.digest():
            mine, stored = kernel.rows(), again.rows()
            odd = [row for row in mine if row not in stored] + [row for row in stored if row not in mine]
            self.fail(f"memory and store differ in {odd[:2] or 'what follows from the rows'}")
