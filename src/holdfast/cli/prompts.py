"""All questions to the person at the terminal: a key to press, or a line to type.

If stdin or stderr is not a terminal, no question is asked. Then, and at the end of the input (Ctrl-D), the answer is
the harmless one, which the caller names. Ctrl-C at a question is left to the caller. No other message is printed while
a question is open.
"""

import os
import sys
from collections.abc import Mapping
from typing import TypeVar

from holdfast.cli import connection_monitor

T = TypeVar("T")


def possible() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def key(question: str, answers: Mapping[bytes, T], harmless: T) -> T:
    """Wait for one key, without Enter; other keys are ignored."""
    if not possible():
        return harmless
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        # This discards what was typed before the question, so the question is printed after it.
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
    """The line that is typed; if it is empty, `harmless`, which is shown."""
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
    """Drops messages about a silent network, which would appear in the middle of a question."""
