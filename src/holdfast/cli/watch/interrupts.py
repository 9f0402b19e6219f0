"""Decides what Ctrl-C does to work that a person watches: leave it running, or stop it. At a terminal the person is
asked; elsewhere, and at a second Ctrl-C, the work goes on, because that loses nothing. It also goes on if the network
falls silent, or if nobody reads the output; a message says so.
"""

import sys
from collections.abc import Callable
from enum import Enum
from typing import NoReturn, TypeVar

import typer

from holdfast.cli import error_output, prompts

T = TypeVar("T")

QUESTION = "Detach (it goes on), stop it, or keep watching? [d/s/k] "


class Choice(Enum):
    DETACH = b"d"
    STOP = b"s"
    KEEP = b"k"


def seen_through(
    what: str,
    until_ended: Callable[[], T],
    stop: Callable[[], object],
    later: dict[str, str],
    confirming: Callable[[], bool] = lambda: False,
) -> T:
    """Returns what `until_ended` returns. `later`: the commands to type after detaching, by purpose. `confirming`:
    whether the work has failed and that is only confirmed: then Ctrl-C takes the verdict, and nobody is asked."""
    from holdfast.errors import Unreachable

    stopping = False
    while True:
        try:
            return until_ended()
        except KeyboardInterrupt:
            choice = Choice.DETACH if stopping else Choice.STOP if confirming() else _chosen()
        except Unreachable as silence:
            silence.hint = "\n".join([f"{what} goes on all the same. When the network answers again:", *lines(later)])
            raise
        except BrokenPipeError:
            error_output.say(_told(f"{what} goes on, though nobody reads its output.", later))
            raise
        if choice is Choice.DETACH:
            _left(f"{what} goes on without you.", later)
        if choice is Choice.STOP:
            try:
                stop()
            except KeyboardInterrupt:
                _left(f"the network has not confirmed yet that {what} is stopped: it may go on.", later)
            stopping = True
            error_output.say(f"-- {what} is being stopped; Ctrl-C leaves without waiting for it", dim=True)


def lines(later: dict[str, str]) -> list[str]:
    return [f"  {aim + ':':<11} {command}" for aim, command in later.items()]


def _told(says: str, later: dict[str, str]) -> str:
    return "\n".join([f"\n{says}", *lines(later)])


def _left(says: str, later: dict[str, str]) -> NoReturn:
    error_output.say(_told(says, later))
    raise typer.Exit(error_output.EXIT_INTERRUPTED)


def _chosen() -> Choice:
    try:
        return asked()
    except KeyboardInterrupt:  # a second Ctrl-C, at any moment of the question
        return Choice.DETACH


def asked() -> Choice:
    """Ask the person; detach if nobody can be asked."""
    if not prompts.possible():
        return Choice.DETACH
    choice = prompts.key(f"\n{QUESTION}", {choice.value: choice for choice in Choice}, Choice.DETACH)
    sys.stderr.write(f"{choice.name.lower()}\n")
    sys.stderr.flush()
    return choice
