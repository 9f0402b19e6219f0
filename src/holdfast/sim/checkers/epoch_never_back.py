"""DESIGN "commands carry the leader's epoch": once a node has seen an epoch, commands with a lower epoch have no
effect, and the node stores the highest epoch on its disk."""

from typing import Any

from holdfast.model import NodeId
from holdfast.sim.watch import Rule, SceneView


class EpochNeverBack(Rule):
    def __init__(self, scene: SceneView) -> None:
        super().__init__(scene)
        self._highest: dict[NodeId, int] = {}

    def commanded(self, node: NodeId, message: Any, did: bool) -> None:
        highest = self._highest.get(node, 0)
        if message.epoch < highest and did:
            self.fail(f"{node} obeyed {type(message).__name__} of epoch {message.epoch} after it had seen {highest}")
        if message.epoch > self.scene.machines[node].epoch:
            self.fail(f"{node} heard of epoch {message.epoch} and remembers only {self.scene.machines[node].epoch}")
        self._highest[node] = max(highest, message.epoch)
