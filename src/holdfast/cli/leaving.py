"""What Ctrl-C means to someone who watches work: leave it running, or stop it. At a terminal they are asked; elsewhere,
and at a second Ctrl-C, the work goes on, because that loses nothing.
"""

import os
import sys
from collections.abc import Callable
from enum import Enum
from typing import NoReturn, TypeVar

import typer

from holdfast.cli import telling

T = TypeVar("T")

QUESTION = "Detach (it goes on), stop it, or keep watching? [d/s/k] "


class Choice(Enum):
    DETACH = b"d"
    STOP = b"s"
    KEEP = b"k"


def seen_through(what: str, until_ended: Callable[[], T], stop: Callable[[], object], later: dict[str, str]) -> T:
    """What `until_ended` gives. `later`: what to type when one has left, by what it is for."""
    stopping = False
    while True:
        try:
            return until_ended()
        except KeyboardInterrupt:
            choice = Choice.DETACH if stopping else _chosen()
        if choice is Choice.DETACH:
            _left(what, later)
        if choice is Choice.STOP:
            stop()
            stopping = True
            telling.say(f"-- {what} is being stopped; Ctrl-C leaves without waiting for it", dim=True)


def _left(what: str, later: dict[str, str]) -> NoReturn:
    lines = [f"  {aim + ':':<11} {command}" for aim, command in later.items()]
    telling.say("\n".join([f"\n{what} goes on without you.", *lines]))
    raise typer.Exit(telling.EXIT_INTERRUPTED)


def _chosen() -> Choice:
    try:
        return asked()
    except KeyboardInterrupt:  # a second one, at any moment of the question
        return Choice.DETACH


def asked() -> Choice:
    """One key, without Enter. Whoever cannot be asked detaches."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return Choice.DETACH
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        # This forgets what was typed until now, which answers no question; so the question comes after it.
        tty.setcbreak(terminal)
        sys.stderr.write(f"\n{QUESTION}")
        sys.stderr.flush()
        while True:
            key = os.read(terminal, 1).lower()
            if key == b"" or key in {choice.value for choice in Choice}:
                choice = Choice(key) if key else Choice.DETACH
                sys.stderr.write(f"{choice.name.lower()}\n")
                return choice
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        sys.stderr.flush()
