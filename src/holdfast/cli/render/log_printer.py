"""Prints the output of a job piece by piece: stdout, stderr and the messages of the platform, each in its place.

A pipe or a file gets exactly what the job wrote; the platform's lines go to stderr. At a terminal a job must not be
able to imitate them: every line of its output starts with a gutter that the job cannot remove or omit, also where a
long line continues, and control characters are shown, not obeyed, except newline, tab and colours.
"""

import base64
import contextlib
import os
import re
import sys
import threading
import unicodedata
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from holdfast.cli import error_output

if TYPE_CHECKING:
    from holdfast.wire.http import LogLine

GUTTER = "| "
_TAB = 8
_WIDTH = 80
_PLAIN = "\x1b[0m"
_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
_UNFINISHED = re.compile(r"(?:\r|\x1b(?:\[[0-9;]{0,40})?)$")
_HIDING = {5, 6, 8}
"""Blinking and concealed text: not a colour."""
_COLOUR_CHARS_MAX = 200


class LogPrinter:
    """Writes pieces of output to the right stream, one after the other, from any thread."""

    def __init__(self, *, aside: bool = False) -> None:
        """`aside`: everything goes to stderr, because stdout is for something else."""
        self._aside = aside
        self._screen = threading.RLock()
        self._body = {"stdout": TerminalText(), "stderr": TerminalText()}
        self._column = 0
        """Of the terminal. What goes into a pipe does not move it."""

    @property
    def at_line_start(self) -> bool:
        return self._column == 0

    def put(self, line: "LogLine") -> None:
        if line.stream == "platform":
            self.platform(line.text)
            return
        file = sys.stderr if self._aside or line.stream == "stderr" else sys.stdout
        with self._screen:
            if file.isatty():
                shown, self._column = self._body[line.stream].shown(line.text, self._column, _width(file))
                file.write(shown)
            elif line.raw:
                file.flush()
                file.buffer.write(base64.b64decode(line.raw))
            else:
                file.write(line.text)
            file.flush()

    def platform(self, text: str) -> None:
        """A line from the platform: on its own line, marked, and never mixed into the job's stdout."""
        from holdfast.cli.render.jobs import clean

        with self._screen:
            self.end_line()
            error_output.say(f"-- {clean(text)}", dim=True)

    def end_line(self) -> None:
        """Whatever is printed next at the terminal starts a line of its own."""
        with self._screen:
            if not self.at_line_start and sys.stderr.isatty():
                sys.stderr.write("\n")
                sys.stderr.flush()
            self._column = 0


@contextlib.contextmanager
def closing_line(printer: LogPrinter) -> Iterator[None]:
    """What is printed afterwards starts a line of its own."""
    try:
        yield
    finally:
        printer.end_line()


class TerminalText:
    """One stream of a job as a terminal may show it. Keeps the colours in use, and what a piece has cut in two."""

    def __init__(self) -> None:
        self._colours = ""
        self._cut = ""

    def shown(self, text: str, column: int, width: int) -> tuple[str, int]:
        """The text with gutters, from this column of a terminal of this width; and the column behind it. Colours end
        with each line and each piece, so that they reach nothing else."""
        text = self._cut + text
        self._cut = found[0] if (found := _UNFINISHED.search(text)) else ""
        text = text[: len(text) - len(self._cut)].replace("\r\n", "\n")
        out: list[str] = [self._colours] if column else []
        # With one group, every second part is the numbers of a colour sequence.
        parts = _COLOUR.split(text)
        for number, part in enumerate(parts):
            if number % 2 == 0:
                column = self._letters(part, column, width, out)
            elif _is_colour(part):
                self._colour(part)
                out.append(f"\x1b[{part}m" if column else "")
            else:
                column = self._letters(f"\x1b[{part}m", column, width, out)
        if self._colours and column:
            out.append(_PLAIN)
        return "".join(out), column

    def _letters(self, text: str, column: int, width: int, out: list[str]) -> int:
        end = f"{_PLAIN}\n" if self._colours else "\n"
        for letter in text:
            if letter == "\n":
                out.append(end if column else f"{GUTTER.rstrip()}\n")
                column = 0
                continue
            for shown in letter if letter == "\t" else visible(letter):
                wide = _TAB - column % _TAB if shown == "\t" else cells(shown)
                # One column stays free: some terminals wrap when the last one is filled, others before the next letter.
                if column and column + wide >= max(width, len(GUTTER) + 4):
                    out.append(end)
                    column = 0
                if not column:
                    out.append(GUTTER + self._colours)
                    column = len(GUTTER)
                    wide = _TAB - column % _TAB if shown == "\t" else wide
                out.append(shown)
                column += wide
        return column

    def _colour(self, numbers: str) -> None:
        if not numbers.strip("0;"):
            self._colours = ""
        else:
            self._colours = (self._colours + f"\x1b[{numbers}m")[-_COLOUR_CHARS_MAX:]
            # The oldest sequences are dropped whole.
            self._colours = self._colours[self._colours.index("\x1b") :]


def _width(file: IO[str]) -> int:
    """Asked of the terminal itself each time: it may have been resized, and COLUMNS may be wrong."""
    try:
        return os.get_terminal_size(file.fileno()).columns or _WIDTH
    except (OSError, ValueError):
        return _WIDTH


def visible(letter: str) -> str:
    """A character as it is if it can be seen, otherwise its escape: `\\x1b`, `\\r`, `\\u202e`."""
    if letter.isprintable():
        return letter
    return " " if unicodedata.category(letter) == "Zs" else letter.encode("unicode_escape").decode()


def cells(letter: str) -> int:
    """The most columns that a terminal gives it. Too many only break a line early; too few would let it wrap."""
    if letter.isascii():
        return 1
    return 2 if letter >= "\U0001f000" or unicodedata.east_asian_width(letter) in "WFA" else 1


def _is_colour(numbers: str) -> bool:
    """Whether the sequence only sets colours and weights. Parts of an extended colour (`38;5;8`) hide nothing."""
    found = [int(number or 0) for number in numbers.split(";")]
    at = 0
    while at < len(found):
        if found[at] in (38, 48, 58):
            at += {5: 3, 2: 5}.get(found[at + 1] if at + 1 < len(found) else 0, 1)
            continue
        if found[at] in _HIDING or found[at] > 107:
            return False
        at += 1
    return len(numbers) <= 40
