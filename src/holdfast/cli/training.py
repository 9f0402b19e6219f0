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

from holdfast.cli import telling
from holdfast.cli.bars import counted

if TYPE_CHECKING:
    from holdfast.neural import Metrics, Network

KEEP_EVERY_S = 30.0
"""Of training, between two checkpoints: what a kill may cost."""


class _Interrupted(Exception):
    """Between two steps, because somebody asked for it."""

    def __init__(self, number: int) -> None:
        self.number = number


def train(network: "Network", data: str, steps: int, weights: str | None, tell: Callable[["Metrics"], None]) -> None:
    """So many steps more; with `weights`, kept there every half minute and at the end, however it ends."""
    begun, kept_at = network.trainer.state.step, time.monotonic()
    with _interrupts() as asked, counted("training", steps, "steps") as advance:

        def stepped(metrics: "Metrics") -> None:
            nonlocal kept_at
            tell(metrics)
            advance()
            if asked:
                raise _Interrupted(asked[0])
            if weights is not None and time.monotonic() - kept_at >= KEEP_EVERY_S:
                network.save(weights)
                kept_at = time.monotonic()

        try:
            network.train_local(data, steps, stepped)
        except _Interrupted as interrupted:
            left = steps - (network.trainer.state.step - begun)
            after = interrupted
        else:
            left, after = 0, None
        if weights is not None:
            network.save(weights)
    if after is not None:
        kept = f"{weights} has it: --steps {left} goes on" if weights else "nothing is kept without --weights"
        telling.say(f"interrupted after step {network.trainer.state.step}; {kept}")
        raise typer.Exit(128 + after.number)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The signals that asked for an end. The second one of a kind does what it always does."""
    asked: list[int] = []

    def heard(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        signal.signal(number, before[number])

    before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, heard)
    try:
        yield asked
    finally:
        for number, was in before.items():
            signal.signal(number, was)
