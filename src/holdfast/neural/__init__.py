"""Networks of a fixed set of operators, in arithmetic that gives the same bits on every machine.

    network = Network.from_yaml("net.yaml")
    network.train_local("digits", steps=500)

Usable alone: it needs NumPy, and knows nothing of jobs, nodes or the orchestrator.
"""

from holdfast.neural.network import Network
from holdfast.neural.refusals import DataError, MissingPart, NeuralError, NotFinite, StateError, TopologyError
from holdfast.neural.stage import Key, Outcome, Stage, stages_of
from holdfast.neural.state import State
from holdfast.neural.training import Metrics, Trainer

__all__ = [
    "DataError", "Key", "Metrics", "MissingPart", "Network", "NeuralError", "NotFinite", "Outcome", "Stage", "State",
    "StateError", "TopologyError", "Trainer", "stages_of",
]  # fmt: skip
