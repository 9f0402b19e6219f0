"""Real attempts for tests: a folder, an order, a shim started by a real launcher, and a connection to it.

Takes the place of the agent. Used by the conformance suite for runtimes and by the shim's own tests.
"""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.boottime import boottime_ms
from holdfast.model import Failure, Result
from holdfast.node import control, linux
from holdfast.node.attempt import attempt_folders as folders
from holdfast.node.core.order import Order
from holdfast.node.core.verdicts import verdict
from holdfast.node.launcher import Launcher
from holdfast.testing.processes import wait_for

PATIENCE_S = 60.0
"""Limit for every wait in a test, in seconds. Far above what an idle machine needs: a busy one may take seconds for
anything."""

Status = dict[str, Any]


def now() -> int:
    """The time of the clock that limits are measured with, in milliseconds."""
    return boottime_ms()


class RealAttempt:
    """One attempt as the agent sees it. `hear` reads statuses from the shim's socket; `on_disk` reads the status
    file."""

    def __init__(self, home: Path, launcher: Launcher, argv: tuple[str, ...], **changes: Any) -> None:
        self.home = home
        self.launcher = launcher
        home.mkdir(parents=True, exist_ok=True)
        fields: dict[str, Any] = {"time_limit_ms": 150_000, "orphan_ms_max": 150_000, "stop_grace_ms": 300}
        fields |= {"log_bytes_max": 1 << 20, **changes}
        self.order = Order("att_0a.1", 7, "job_0a", argv, **fields)
        (home / "order.json").write_text(json.dumps(self.order.to_dict()))
        self.line: socket.socket | None = None
        self._heard = b""
        self.pid = 0
        self.ticks = 0

    def start(self) -> "RealAttempt":
        self.spawn()
        self.dial()
        return self

    def spawn(self) -> None:
        """Start the shim, without connecting to it."""
        self.pid = self.launcher.spawn_now(str(self.home))
        self.ticks = json.loads((self.home / "shim.json").read_text())["start_ticks"]

    def dial(self) -> None:
        line = wait_for(self._try_dial, lambda: f"a shim to listen: {self.log('shim')}", PATIENCE_S, 0.002)
        assert line is not None
        line.settimeout(PATIENCE_S)
        self.line = line
        self._heard = b""

    def _try_dial(self) -> socket.socket | None:
        with contextlib.suppress(OSError):
            return control.dial(str(self.home))
        return None

    def say(self, do: str, **words: Any) -> None:
        assert self.line is not None
        self.line.sendall(json.dumps({"do": do, **words}).encode() + b"\n")

    def hear(self) -> Status:
        """The next status line."""
        assert self.line is not None
        while b"\n" not in self._heard:
            chunk = self.line.recv(1 << 16)
            assert chunk, "the shim hung up"
            self._heard += chunk
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)

    def until(self, condition: Callable[[Status], bool], patience_s: float = PATIENCE_S) -> Status:
        deadline = now() + int(patience_s * 1000)
        while now() < deadline:
            if condition(status := self.hear()):
                return status
        raise AssertionError("no such status in time")

    def running(self) -> Status:
        return self.until(lambda status: status["phase"] == "running")

    def ended(self, patience_s: float = PATIENCE_S) -> Status:
        return self.until(lambda status: status["phase"] == "ended", patience_s)

    def outcome(self, patience_s: float = PATIENCE_S) -> Status:
        return self.ended(patience_s)["outcome"]

    def verdict(self, patience_s: float = PATIENCE_S) -> Result | Failure:
        """The node's verdict on how the attempt ended."""
        return verdict(folders.status_from(self.ended(patience_s)))

    def printed(self, text: str) -> None:
        """Wait until the body has printed this text."""
        wait_for(
            lambda: text in self.log("stdout"),
            lambda: f"the body to print {text!r}: {self.log('stderr')[-300:]} {self.log('shim')[-300:]}",
            PATIENCE_S,
            0.005,
        )

    def log(self, name: str) -> str:
        path = self.home / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def on_disk(self) -> Status:
        return json.loads((self.home / "status.json").read_text())

    def is_over(self) -> bool:
        return (self.home / "status.json").exists() and self.on_disk()["phase"] == "ended"

    def shim_lives(self) -> bool:
        return linux.is_alive(self.pid, self.ticks)

    def family(self) -> list[tuple[int, int]]:
        """All descendants of the shim as (pid, start ticks), which tells them apart from a reused pid."""
        found = [(pid, linux.start_ticks(pid)) for pid in linux.descendants(self.pid)]
        return [(pid, ticks) for pid, ticks in found if ticks is not None]

    def signal(self, number: int) -> None:
        assert self.shim_lives()
        os.kill(self.pid, number)

    def clean_up(self) -> None:
        """End all processes and remove everything of the attempt but its files."""
        if self.line is not None:
            self.line.close()
        family = self.family() if self.pid and self.shim_lives() else []
        if self.pid and self.shim_lives():
            os.kill(self.pid, signal.SIGKILL)
        for pid, ticks in family:
            if linux.is_alive(pid, ticks):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.home.exists():
            folders.end_processes(self.home)
            folders.clean(self.home)


def under_limit(start: Callable[[int], RealAttempt], text: str, shortest_ms: int = 1_500) -> tuple[RealAttempt, int]:
    """Start an attempt with a time limit that it is meant to reach, and wait until it has printed `text`. Returns the
    attempt and the limit in milliseconds. At least half of the limit is left; if the machine is too slow for that, a
    new attempt gets a longer limit, and with the longest one less than half may be left."""
    longest_ms = 16 * shortest_ms
    for limit_ms in (shortest_ms, 4 * shortest_ms, longest_ms):
        began = now()
        attempt = start(limit_ms)
        wait_for(lambda at=attempt: text in at.log("stdout") or at.is_over(), f"{text!r} or the end", PATIENCE_S, 0.005)
        if text in attempt.log("stdout") and (now() - began <= limit_ms // 2 or limit_ms == longest_ms):
            return attempt, limit_ms
    raise AssertionError(f"no body printed {text!r} before it met its limit")


def all_dead(family: list[tuple[int, int]]) -> bool:
    return not any(linux.is_alive(pid, ticks) for pid, ticks in family)


class Attempts:
    """Starts attempts, each in its own folder. `defaults`: order fields that apply unless a test overrides them."""

    def __init__(self, folder: Path, launcher: Launcher, **defaults: Any) -> None:
        self.folder = folder
        self.launcher = launcher
        self.defaults = defaults
        self.made: list[RealAttempt] = []

    def prepare(self, *argv: str, home: Path | None = None, **changes: Any) -> RealAttempt:
        """An attempt whose shim is not started yet."""
        home = home or self.folder / f"att{len(self.made)}"
        attempt = RealAttempt(home, self.launcher, argv, **(self.defaults | changes))
        self.made.append(attempt)
        return attempt

    def start(self, *argv: str, home: Path | None = None, **changes: Any) -> RealAttempt:
        return self.prepare(*argv, home=home, **changes).start()

    def clean_up(self) -> None:
        for attempt in self.made:
            attempt.clean_up()
