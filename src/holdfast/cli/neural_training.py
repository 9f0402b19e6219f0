"""Trains a neural network in this process: a bar on a terminal, and regular checkpoints, so that a kill costs little.

An interrupt ends the training after the current step: the state in the middle of a step cannot be saved.
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
"""Seconds of training between two checkpoints: what a kill may cost."""


class _Interrupted(Exception):
    """Raised between two steps, after a signal."""

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
    """Run `steps` more steps; with `weights`, save them every half minute, when interrupted, and at the end."""
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
        kept = f"{weights} holds it: --steps {left} continues" if weights else "nothing is saved without --weights"
        error_output.say(f"interrupted after step {network.trainer.state.step}; {kept}")
        raise typer.Exit(128 + after.number)


def _keep_on_the_way(network: "NeuralNetwork", weights: str) -> None:
    """A full disk does not end the training: the last checkpoint is kept, and the next one is tried later."""
    from holdfast.neural.refusals import NeuralError

    try:
        network.save(weights)
    except NeuralError as error:
        error_output.say(f"step {network.trainer.state.step} is not saved: {error.says}")


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collects the signals that ask for an end. A second signal of the same kind has its usual effect."""
    asked: list[int] = []

    def heard(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        signal.signal(number, before[number])
        error_output.say("training ends after this step; interrupt again to end it at once")

    before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A signal that was ignored when this process started stays ignored.
    before = {number: was for number, was in before.items() if was not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, heard)
    try:
        yield asked
    finally:
        for number, was in before.items():
            signal.signal(number, was)
