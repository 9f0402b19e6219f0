"""The interface of operators: shapes, parameters, cost, forward, backward, and the inner products that can be checked.

Shapes are those of one sample; arrays carry the batch as their first axis. An operator holds no numbers: weights
and inputs come in, results and gradients go out. It does not know graphs, stages or files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

from holdfast.neural.arithmetic import Arithmetic
from holdfast.neural.arrays import Array

Shape = tuple[int, ...]


class Misfit(Exception):
    """An operator cannot use its inputs. The reader of the description adds the position."""

    def __init__(self, says: str, option: str | None = None) -> None:
        super().__init__(says)
        self.says = says
        self.option = option


@dataclass(frozen=True)
class Signal:
    """What flows along an edge: real numbers, or indices below `below`."""

    shape: Shape
    below: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def is_index(self) -> bool:
        return self.below > 0

    def __str__(self) -> str:
        shape = "×".join(str(n) for n in self.shape) or "scalar"
        return f"{shape} (index < {self.below})" if self.below else shape


@dataclass(frozen=True)
class Parameter:
    """A weight: its shape, and the range of its initial values. `fill` is used if `reach` is 0."""

    shape: Shape
    reach: float = 0.0
    fill: float = 0.0
    decays: bool = True
    """Whether weight decay applies: to matrices, not to biases and gains."""

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Product:
    """A matrix product in the forward pass of one sample: M×K by K×N, `times` of them. Backward takes twice as much."""

    label: str
    m: int
    k: int
    n: int
    times: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n * self.times


@dataclass(frozen=True)
class Option:
    """An option in the description of a neural network."""

    kind: type
    default: Any = None
    required: bool = False
    at_least: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()


@dataclass
class RunContext:
    """The context of a computation: its arithmetic, its random key, and its cache."""

    ar: Arithmetic
    key: str = ""
    """job/step/microbatch; the operator's name is added to it, so splitting into stages changes nothing."""
    train: bool = False
    cache: dict[str, Any] | None = None
    """Keys and values of earlier positions, by operator; None: no cache."""
    position: int = 0
    """The index in the sequence of the first given position."""


Grads = tuple[list[Array | None], dict[str, Array]]


@dataclass
class Operator:
    """Base of all operators. `name` is the node's name in its neural network."""

    name: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    kind: ClassVar[str] = ""
    accepts: ClassVar[dict[str, Option]] = {}
    inputs_min: ClassVar[int] = 1
    inputs_max: ClassVar[int] = 1
    is_loss: ClassVar[bool] = False
    sequential: ClassVar[bool] = True
    """Whether a position's result depends only on itself and earlier positions, so that a cache can be used."""
    no_gradient: ClassVar[frozenset[int]] = frozenset()
    """Inputs, by position, that get no gradient: labels and masks."""
    multiplies_rows: ClassVar[bool] = False
    """Whether forward multiplies the rows of its input by a weight, once."""

    def signal(self, given: Sequence[Signal]) -> Signal:
        """The output signal for these inputs. Raises Misfit."""
        return given[0]

    def parameters(self, given: Sequence[Signal]) -> dict[str, Parameter]:
        return {}

    def products(self, given: Sequence[Signal]) -> list[Product]:
        """The inner products in the forward pass of one sample."""
        return []

    def other_flops(self, given: Sequence[Signal]) -> int:
        """Elementwise work in the forward pass of one sample, in floating-point operations, roughly."""
        return self.signal(given).size

    def flops(self, given: Sequence[Signal]) -> int:
        return sum(p.flops for p in self.products(given)) + self.other_flops(given)

    def saved_bytes(self, given: Sequence[Signal]) -> int:
        """The size of what backward needs for one sample."""
        return 8 * sum(s.size for s in given)

    def forward(self, run: RunContext, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        """The result, and the values that backward needs."""
        raise AssertionError(f"{type(self).__name__} has no forward")

    def backward(self, run: RunContext, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
        """Gradients of the inputs (None for indices) and of the weights."""
        raise AssertionError(f"{type(self).__name__} has no backward")


def real_input(given: Sequence[Signal], rank_min: int = 0) -> Signal:
    """The first input, which must be real numbers of at least this rank."""
    first = given[0]
    if first.is_index:
        raise Misfit("its input holds indices; it needs real numbers")
    if len(first.shape) < rank_min:
        raise Misfit(f"its input is {first}; it needs at least {rank_min} dimension{'s' * (rank_min > 1)}")
    return first
