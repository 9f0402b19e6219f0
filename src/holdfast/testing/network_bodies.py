"""What jobs do in a network for tests: take time, print, leave files, end with a code; stated, or worked out.

A body is asked for when an attempt starts, and told which attempt it is and where, so a test can have the first fail
and the second succeed. Knows nothing of clocks: how long a body takes is a number, and somebody else lets it pass.
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
"""A command that is really run by a test ends within this."""
FUNCTION = ("python3", "inputs/call/callee.py")
"""How `holdfast.function` calls: these jobs are really run, so that they return their values."""


class Body(msgspec.Struct, frozen=True):
    """What one attempt does."""

    takes: float | str = "1s"
    """Seconds, or `90s`, `30m`, `2h`."""
    exit_code: int = 0
    prints: str | bytes = ""
    """To stdout. Arrives when the body ends."""
    complains: str | bytes = ""
    """To stderr."""
    files: Mapping[str, str | bytes] = {}
    """What it leaves in its working folder, by path."""
    ignores_stop: bool = False
    """It does not heed the polite signal, and has to be killed."""
    fells_node: bool = False
    """It takes its machine down with it when its time is over."""

    @property
    def takes_ms(self) -> int:
        return duration_ms(str(self.takes))


class Run(msgspec.Struct, frozen=True):
    """One attempt, as the function that decides what it does sees it."""

    job: str
    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    node: str
    attempt: int
    """1 for the first."""
    saved_s: float = 0.0
    """Of a job that resumes: how much of its work an earlier attempt saved."""
    lay_out: Callable[[Path], None] = lambda folder: None
    """Puts the package and the inputs of the job into a folder."""


Deed = Body | Callable[[Run], Any]
"""A body, or a function of the attempt that returns one, or a text it prints, or an exit code, or nothing."""


class Bodies:
    """Who does what: the newest rule that fits a job counts."""

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
        # As Python itself ends a program: what went wrong on stderr, and 1.
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
    """The job's command, really run on this machine in a folder of its own, and over in no virtual time but `takes`.
    Nothing keeps it in bounds: for your own code only."""

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
