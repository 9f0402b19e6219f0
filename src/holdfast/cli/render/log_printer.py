"""Prints the output of a job piece by piece: stdout, stderr and the messages of the platform, each in its place."""

import sys
import threading
from typing import TYPE_CHECKING

from holdfast.cli import error_output

if TYPE_CHECKING:
    from holdfast.wire.http import LogLine


class LogPrinter:
    """Writes pieces of output to the right stream, one after the other, from any thread. A terminal gets no control
    sequences except colours."""

    def __init__(self, *, aside: bool = False) -> None:
        """`aside`: everything goes to stderr, because stdout is for something else."""
        self.at_line_start = True
        self._aside = aside
        self._screen = threading.RLock()

    def put(self, line: "LogLine") -> None:
        from holdfast.cli.render.jobs import clean

        if line.stream == "platform":
            self.platform(line.text)
            return
        file = sys.stderr if self._aside or line.stream == "stderr" else sys.stdout
        with self._screen:
            file.write(clean(line.text, colours=True, lines=True) if file.isatty() else line.text)
            file.flush()
            if line.text:
                self.at_line_start = line.text.endswith("\n")

    def platform(self, text: str) -> None:
        """A line from the platform: on its own line, marked, and never mixed into the job's stdout."""
        from holdfast.cli.render.jobs import clean

        with self._screen:
            if not self.at_line_start and sys.stderr.isatty():
                sys.stderr.write("\n")
            error_output.say(f"-- {clean(text)}", dim=True)
            self.at_line_start = True
