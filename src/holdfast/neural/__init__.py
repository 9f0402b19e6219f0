"""Neural networks of a fixed set of operators, in arithmetic that gives the same bits on every machine.

    network = NeuralNetwork.from_yaml("net.yaml")
    network.train_local("digits", steps=500)

Usable alone: it needs NumPy, and knows nothing of jobs, nodes or the orchestrator.
"""

from holdfast.neural.network import NeuralNetwork
from holdfast.neural.refusals import DataError, MissingPart, NeuralError, NotFinite, StateError, TopologyError
from holdfast.neural.stage import Stage, StageKey, StageOutcome, stages_of
from holdfast.neural.state import State
from holdfast.neural.training import StepMetrics, Trainer

__all__ = [
    "DataError",
    "MissingPart",
    "NeuralError",
    "NeuralNetwork",
    "NotFinite",
    "Stage",
    "StageKey",
    "StageOutcome",
    "State",
    "StateError",
    "StepMetrics",
    "TopologyError",
    "Trainer",
    "stages_of",
]  # fmt: skip
