"""Questions to the person at the terminal, all of them: a key to press, or a line to type.

Nobody is asked where nobody can answer: stdin or stderr is no terminal. Then, and at the end of the input (Ctrl-D), the
answer is the one that does no harm, which whoever asks has to name. Ctrl-C at a question is left to them. Nothing else
is said while a question is open.
"""

import os
import sys
from collections.abc import Mapping
from typing import TypeVar

from holdfast.cli import connection_monitor

T = TypeVar("T")


def possible() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def key(question: str, answers: Mapping[bytes, T], harmless: T) -> T:
    """One key, without Enter; others are not listened to."""
    if not possible():
        return harmless
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        # This forgets what was typed until now, which answers no question; so the question comes after it.
        tty.setcbreak(terminal)
        with connection_monitor.through(_unsaid):
            sys.stderr.write(question)
            sys.stderr.flush()
            while True:
                pressed = os.read(terminal, 1).lower()
                if pressed in (b"", b"\x04"):
                    return harmless
                if pressed in answers:
                    return answers[pressed]
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        sys.stderr.flush()


def line(question: str, harmless: str) -> str:
    """What is typed, with Enter behind it; with nothing before that, `harmless`, which is shown."""
    if not possible():
        return harmless
    with connection_monitor.through(_unsaid):
        sys.stderr.write(f"{question} [{harmless}]: ")
        sys.stderr.flush()
        typed = sys.stdin.readline()
    if not typed.endswith("\n"):
        sys.stderr.write("\n")
    return typed.strip() or harmless


def _unsaid(text: str) -> None:
    """Where a word of the network's silence would stand in the middle of a question."""
