"""A training in this process: a bar on a terminal, and a checkpoint now and then, so that a kill costs little.

An interrupt ends it after the step it is in: the state in the middle of a step is none that could be kept.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import typer

from holdfast.cli import error_output
from holdfast.cli.render.progress_bars import counted

if TYPE_CHECKING:
    from holdfast.neural import NeuralNetwork, StepMetrics

KEEP_EVERY_S = 30.0
"""Of training, between two checkpoints: what a kill may cost."""


class _Interrupted(Exception):
    """Between two steps, because somebody asked for it."""

    def __init__(self, number: int) -> None:
        self.number = number


def train(
    network: "NeuralNetwork",
    data: str,
    steps: int,
    weights: str | None,
    tell: Callable[["StepMetrics"], None],
    *,
    bar: bool = True,
) -> None:
    """So many steps more; with `weights`, kept there every half minute, when it is interrupted, and at the end."""
    last, kept_at = network.trainer.state.step + steps, time.monotonic()
    after = None
    with _interrupts() as asked, counted("training", steps, "steps", shown=bar) as advance:

        def stepped(metrics: "StepMetrics") -> None:
            nonlocal kept_at
            tell(metrics)
            advance()
            if asked and network.trainer.state.step < last:
                raise _Interrupted(asked[0])
            if weights is not None and time.monotonic() - kept_at >= KEEP_EVERY_S:
                _keep_on_the_way(network, weights)
                kept_at = time.monotonic()

        try:
            network.train_local(data, steps, stepped)
        except _Interrupted as interrupted:
            after = interrupted
        if weights is not None:
            network.save(weights)
    if after is not None:
        left = last - network.trainer.state.step
        kept = f"{weights} has it: --steps {left} goes on" if weights else "nothing is kept without --weights"
        error_output.say(f"interrupted after step {network.trainer.state.step}; {kept}")
        raise typer.Exit(128 + after.number)


def _keep_on_the_way(network: "NeuralNetwork", weights: str) -> None:
    """A disk that is full for a moment ends no training: the one before is kept, and the next is tried in its time."""
    from holdfast.neural.refusals import NeuralError

    try:
        network.save(weights)
    except NeuralError as error:
        error_output.say(f"step {network.trainer.state.step} is not kept: {error.says}")


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The signals that asked for an end. The second one of a kind does what it always does."""
    asked: list[int] = []

    def heard(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        signal.signal(number, before[number])
        error_output.say("it ends after this step; once more: at once")

    before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Whoever started this so that it ignores one of them meant it.
    before = {number: was for number, was in before.items() if was not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, heard)
    try:
        yield asked
    finally:
        for number, was in before.items():
            signal.signal(number, was)
