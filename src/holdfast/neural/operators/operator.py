"""What an operator is: shapes, parameters, cost, forward, backward, and the inner products that can be checked.

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
    """An operator cannot work on what it is given. The reader of the network adds where that stands."""

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
    """A weight: its shape, and how far from zero its first values reach. `fill` is used where `reach` is 0."""

    shape: Shape
    reach: float = 0.0
    fill: float = 0.0
    decays: bool = True
    """Whether weight decay touches it: matrices yes, biases and gains no."""

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Product:
    """A matrix product of one sample's forward: M×K by K×N, `times` of them. Backward does twice as much."""

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
    """An option as it may stand in a network's file."""

    kind: type
    default: Any = None
    required: bool = False
    at_least: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()


@dataclass
class Run:
    """The circumstances of a computation: its arithmetic, its random key, and what it has cached."""

    ar: Arithmetic
    key: str = ""
    """job/step/microbatch; the operator's name is added to it, so a split into stages changes nothing."""
    train: bool = False
    cache: dict[str, Any] | None = None
    """Keys and values of earlier positions, by operator; None: no cache."""
    position: int = 0
    """Where in the sequence the first given position stands."""


Grads = tuple[list[Array | None], dict[str, Array]]


@dataclass
class Operator:
    """Base of all operators. `name` is the node's name in its network."""

    name: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    kind: ClassVar[str] = ""
    accepts: ClassVar[dict[str, Option]] = {}
    inputs_min: ClassVar[int] = 1
    inputs_max: ClassVar[int] = 1
    is_loss: ClassVar[bool] = False
    sequential: ClassVar[bool] = True
    """Whether a position's result depends on itself and earlier positions only, so that a cache can serve it."""
    no_gradient: ClassVar[frozenset[int]] = frozenset()
    """Inputs, by position, that get no gradient: labels and masks."""
    multiplies_rows: ClassVar[bool] = False
    """Whether forward multiplies the rows of its input with a weight, once."""

    def signal(self, given: Sequence[Signal]) -> Signal:
        """What comes out for what goes in. Raises Misfit."""
        return given[0]

    def parameters(self, given: Sequence[Signal]) -> dict[str, Parameter]:
        return {}

    def products(self, given: Sequence[Signal]) -> list[Product]:
        """The inner products of one sample's forward."""
        return []

    def other_flops(self, given: Sequence[Signal]) -> int:
        """Elementwise work of one sample's forward, in floating-point operations, roughly."""
        return self.signal(given).size

    def flops(self, given: Sequence[Signal]) -> int:
        return sum(p.flops for p in self.products(given)) + self.other_flops(given)

    def saved_bytes(self, given: Sequence[Signal]) -> int:
        """What one sample's backward needs to be kept."""
        return 8 * sum(s.size for s in given)

    def forward(self, run: Run, weights: dict[str, Array], inputs: list[Array]) -> tuple[Array, Any]:
        """The result, and what backward needs."""
        raise AssertionError(f"{type(self).__name__} has no forward")

    def backward(self, run: Run, weights: dict[str, Array], saved: Any, grad: Array) -> Grads:
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
