"""The public interface of a neural network: read, train, evaluate, generate, save and load."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.neural import data as sources
from holdfast.neural import state as states
from holdfast.neural import topology
from holdfast.neural.arithmetic import Arithmetic, arithmetic
from holdfast.neural.arrays import arrays
from holdfast.neural.graph import Graph
from holdfast.neural.refusals import NeuralError, StateError
from holdfast.neural.state import TrainingCheckpoint
from holdfast.neural.training import StepMetrics, Trainer


def read_graph(path: str | Path) -> Graph:
    """The checked graph that a file describes; no weights are created."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise NeuralError(f"{path} cannot be read: {why}") from None
    return topology.parse(text, str(path))


class NeuralNetwork:
    """A neural network with its weights, on one backend."""

    def __init__(self, graph: Graph, backend: str = "numpy", profile: str | None = None) -> None:
        self.graph = graph
        self.ar: Arithmetic = arithmetic(profile or graph.profile, arrays(backend))
        self.trainer = Trainer(graph, self.ar)
        self.letters = ""

    @classmethod
    def from_yaml(cls, path: str | Path, backend: str = "numpy", profile: str | None = None) -> "NeuralNetwork":
        return cls(read_graph(path), backend, profile)

    @classmethod
    def from_text(
        cls, text: str, source: str = "", backend: str = "numpy", profile: str | None = None
    ) -> "NeuralNetwork":
        return cls(topology.parse(text, source), backend, profile)

    def data(self, source: "str | sources.Data", part: str = "train") -> sources.Data:
        """Data for this neural network: `digits`, a file, or arrays by the names of the inputs."""
        if isinstance(source, str):
            found = sources.load(source, self.graph, part, self.letters)
        else:
            found = source
            sources.fit(self.graph, found)
        if found.letters:
            self.letters = found.letters
        return found

    def train_local(
        self, data: "str | sources.Data", steps: int, tell: Callable[[StepMetrics], None] = lambda _: None
    ) -> list[StepMetrics]:
        """Train in this process."""
        return self.trainer.train(self.data(data), steps, tell)

    def evaluate(self, data: "str | sources.Data", samples: int = 1_000, part: str = "test") -> dict[str, float]:
        return self.trainer.evaluate(self.data(data, part), samples)

    def generate(self, prompt: str, letters: int, **how: Any) -> str:
        """A text that continues the prompt. See `generation.generate`."""
        from holdfast.neural.generation import generate

        if not self.letters:
            raise StateError("this neural network has not been trained on text", hint="Train it on a text.")
        unknown = sorted(set(prompt) - set(self.letters))
        if unknown or not prompt:
            what = f"letters that the neural network does not know: {''.join(unknown)!r}" if unknown else "no letters"
            raise StateError(f"the prompt has {what}")
        tokens = generate(self.trainer, [self.letters.index(c) for c in prompt], letters, len(self.letters), **how)
        return "".join(self.letters[t] for t in tokens)

    def digest(self) -> str:
        """SHA-256 of the weights: equal on every backend with the profile `exact`."""
        return self.trainer.digest()

    def save(self, path: str | Path) -> str:
        """Write a checkpoint; returns its content hash."""
        about = {"name": self.graph.name, "profile": self.ar.profile, "letters": self.letters}
        checkpoint = TrainingCheckpoint(self.trainer.state, self.graph.digest, self.trainer.cursor, about)
        return states.save(Path(path), checkpoint, self.ar.xp)

    def load(self, path: str | Path) -> None:
        """Continue from a checkpoint of the same neural network."""
        found = states.load(Path(path), self.graph, self.ar)
        if found.network != self.graph.digest:
            raise StateError(
                f"{path} belongs to a neural network that differs from {self.graph.source or self.graph.name}",
                hint="Use the description it was trained with.",
            )
        self.letters = found.about.get("letters", "")
        self.trainer = Trainer(self.graph, self.ar, found.state, found.cursor)

    def export(self, path: str | Path, dtype: str = "float32") -> str:
        """Write the weights alone, for other programs; returns their content hash."""
        weights = {k: self.ar.xp.host(v).astype(dtype) for k, v in self.trainer.state.weights().items()}
        about = {"name": self.graph.name, "letters": self.letters}
        plain = TrainingCheckpoint(states.State(weights, self.trainer.state.step), self.graph.digest, about=about)
        return states.save(Path(path), plain, arrays("numpy"))
