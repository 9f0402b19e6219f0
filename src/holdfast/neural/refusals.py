"""The errors of this package. Knows nothing about terminals or the orchestrator.

NeuralError
├── TopologyError    topology         the description of a neural network is wrong; gives the line and column
├── NotFinite        not_finite       a number left the range in which arithmetic is exact; names the operator
├── StateError       network_state    weights or a checkpoint do not fit the neural network, or were altered
├── DataError        training_data    the data does not fit this neural network
└── MissingPart      missing_part     an optional library is not installed
"""


class NeuralError(Exception):
    """An operation on a neural network failed: what happened (`says`), and what to do (`hint`)."""

    code = "neural"

    def __init__(self, says: str, *, hint: str = "") -> None:
        super().__init__(says)
        self.says = says
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.says} [{self.code}]" + (f"\n  {self.hint}" if self.hint else "")


class TopologyError(NeuralError):
    code = "topology"

    def __init__(self, says: str, *, source: str = "", line: int = 0, column: int = 0, hint: str = "") -> None:
        self.source = source
        self.line = line
        self.column = column
        where = f"{source or 'network'}:{line}:{column}: " if line else ""
        super().__init__(where + says, hint=hint)


class NotFinite(NeuralError):
    code = "not_finite"

    def __init__(self, operator: str, what: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator} met a number that is infinite, not a number or too large: {what}",
            hint="Lower the learning rate, clip the gradients, or look for such numbers in the data.",
        )


class StateError(NeuralError):
    code = "network_state"


class DataError(NeuralError):
    code = "training_data"


class MissingPart(NeuralError):
    code = "missing_part"
