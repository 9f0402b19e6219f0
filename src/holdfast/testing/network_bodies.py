"""Defines what jobs do in a test network: take time, print, write files, exit with a code. Fixed, or computed by a
function.

The function is called when an attempt starts, with the attempt's number and node, so that a test can let the first
attempt fail and the second succeed. Knows nothing about clocks: a duration is only a number here.
"""

import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import Misuse
from holdfast.quantities import duration_ms

REAL_S_MAX = 60.0
"""Time limit for a command that a test really runs, in seconds."""
FUNCTION = ("python3", "inputs/call/callee.py")
"""The command that `holdfast.function` submits. These jobs are really run, so that they return their values."""


class Body(msgspec.Struct, frozen=True):
    """What one attempt does."""

    takes: float | str = "1s"
    """How long it takes: seconds, or `90s`, `30m`, `2h`."""
    exit_code: int = 0
    prints: str | bytes = ""
    """Written to stdout. It arrives when the body ends."""
    complains: str | bytes = ""
    """Written to stderr."""
    files: Mapping[str, str | bytes] = {}
    """Files that it writes to its working folder, by path."""
    ignores_stop: bool = False
    """It ignores SIGTERM and has to be killed."""
    fells_node: bool = False
    """It takes its machine down when its time is over."""

    @property
    def takes_ms(self) -> int:
        return duration_ms(str(self.takes))


class Run(msgspec.Struct, frozen=True):
    """One attempt, as passed to the function that decides what it does."""

    job: str
    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    node: str
    attempt: int
    """The number of the attempt, from 1."""
    saved_s: float = 0.0
    """For a job that resumes: how many seconds of its work an earlier attempt saved."""
    lay_out: Callable[[Path], None] = lambda folder: None
    """Puts the package and the inputs of the job into a folder."""


Deed = Body | Callable[[Run], Any]
"""A body, or a function that gets a `Run` and returns a body, text to print, an exit code, or None."""


class Bodies:
    """The rules that map jobs to bodies. The newest rule that matches a job applies."""

    def __init__(self, usual: Deed) -> None:
        self._usual = usual
        self._rules: list[tuple[str, Deed]] = []

    def rule(self, what: str, deed: Deed) -> None:
        self._rules.append((what, deed))

    def of(self, run: Run) -> Body:
        for what, deed in reversed(self._rules):
            if what in (run.name, run.argv[0], " ".join(run.argv)):
                return _done(deed, run)
        if run.argv[:2] == FUNCTION:
            return _done(really(), run)
        return _done(self._usual, run)


def _done(deed: Deed, run: Run) -> Body:
    if isinstance(deed, Body):
        return deed
    try:
        said = deed(run)
    except Exception:
        # As Python ends a program: traceback on stderr, exit code 1.
        return Body(exit_code=1, complains=traceback.format_exc())
    match said:
        case Body():
            return said
        case bool():
            return Body(exit_code=0 if said else 1)
        case int():
            return Body(exit_code=said)
        case str() | bytes():
            return Body(prints=said)
        case None:
            return Body()
        case _:
            raise Misuse(
                f"the body of {run.name or run.job} returned {type(said).__name__}",
                hint="Return a holdfast.testing.Body, a text to print, an exit code, or nothing.",
            )


def really(takes: float | str = "1s") -> Callable[[Run], Body]:
    """Really run the job's command on this machine, in a folder of its own. It takes `takes` in virtual time. The
    command runs without isolation: use this only for your own code."""

    def body(run: Run) -> Body:
        with tempfile.TemporaryDirectory(prefix="holdfast-body-") as name:
            folder = Path(name)
            run.lay_out(folder)
            before = _files(folder)
            argv = [sys.executable if run.argv[0] in ("python", "python3") else run.argv[0], *run.argv[1:]]
            env = {**os.environ, **run.env}
            try:
                done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, timeout=REAL_S_MAX)
            except subprocess.TimeoutExpired:
                return Body(takes, 124, complains=f"it did not end within {REAL_S_MAX:g} real seconds\n")
            except OSError as wrong:
                return Body(takes, 127, complains=f"{wrong}\n")
            left = {path: data for path, data in _files(folder).items() if before.get(path) != data}
            code = done.returncode if done.returncode >= 0 else 128 - done.returncode
            return Body(takes, code, done.stdout, done.stderr, {} if code else left)

    return body


def _files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
