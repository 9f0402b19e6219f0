"""`holdfast up` started in a tenth of a second: forked from a process that has imported everything already.

It runs the same entry with the same words and environment as the command, and dies the same deaths. Knows
nothing of what it starts beyond that.
"""

import functools
import importlib
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from holdfast.model import Settings
from holdfast.orchestrator import failpoints
from holdfast.testing.processes import OrchestratorProcess

SETTINGS = "HOLDFAST_TEST_SETTINGS"
"""JSON: what of the preset `test` is different for this orchestrator."""

CONSTANTS = "HOLDFAST_TEST_CONSTANTS"
"""JSON: `module:name` of a constant, such as a pause between two rounds, and its value in this orchestrator."""

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["holdfast.orchestrator.serve", "holdfast.cli.app", "alembic.command", "psycopg"])


def _be(words: list[str], env: dict[str, str], log: str) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for place in (1, 2):
        os.dup2(out, place)
    # Read at import, which here was long before this process was asked to be.
    failpoints.arm(env.get(failpoints.ENVIRONMENT))
    if changed := env.get(SETTINGS):
        settings = msgspec.structs.replace(Settings.test(), **msgspec.json.decode(changed))
        Settings.test = staticmethod(lambda: settings)
    for name, value in msgspec.json.decode(env.get(CONSTANTS, "{}")).items():
        module, _, path = name.partition(":")
        *owners, last = path.split(".")
        place = functools.reduce(getattr, owners, importlib.import_module(module))
        setattr(place, last, tuple(value) if isinstance(value, list) else value)
    sys.argv = ["holdfast", *words]
    from holdfast.cli.main import main

    main()


class _Forked:
    """As much of `subprocess.Popen` as `Program` uses."""

    def __init__(self, words: list[str], env: dict[str, str], log: Path) -> None:
        self._process = _forks.Process(target=_be, args=(words, env, str(log)), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("holdfast up", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class WarmOrchestrator(OrchestratorProcess):
    def __init__(self, words: list[str], env: dict[str, str], log: Path, url: str, listen: str) -> None:
        self.words = words
        self.log = log
        self._out = log.open("ab")
        self.process = _Forked(words, env, log)  # pyright: ignore[reportAttributeAccessIssue]
        self.url = url
        self.listen = listen
