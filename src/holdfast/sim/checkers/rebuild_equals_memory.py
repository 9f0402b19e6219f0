"""SPEC J14: what a new leader rebuilds from the store is what the present one has in mind."""

from holdfast.kernel.kernel import Kernel
from holdfast.sim.orchestrator import rebuilt
from holdfast.sim.watch import Rule, Scene

EVERY = 8
"""Comparing costs as much as many events, so only some quiet moments are looked at."""


class RebuildEqualsMemory(Rule):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._moments = 0

    def at_rest(self, kernel: Kernel) -> None:
        self._moments += 1
        if self._moments % EVERY:
            return
        again = rebuilt(Kernel, self.scene.settings, self.scene.store.live())
        if again.digest() != kernel.digest():
            mine, stored = kernel.rows(), again.rows()
            odd = [row for row in mine if row not in stored] + [row for row in stored if row not in mine]
            self.fail(f"memory and store differ in {odd[:2] or 'what follows from the rows'}")
