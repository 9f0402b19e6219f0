"""Runs an orchestrator, and a node of this machine beside it, as child processes: `up --node` and `up --detach`.

    begin ──► orchestrator starts ──► it serves ──► node starts ──► both run
                    │                                    │  └── one of them ends: it is started again after a pause
                    └── it cannot start: its exit code is ours
    SIGTERM, SIGINT ──► the node leaves the network within its grace ──► the orchestrator ends ──► end
    a second one    ──► the node ends at once

Neither child depends on this process: if it is killed, both go on, and `holdfast down` ends them by what
`supervisor.json` in the data folder says. Nothing is decided here about jobs.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from holdfast.durable import atomic_write
from holdfast.errors import HoldfastError, Misconfigured

RECORD = "supervisor.json"
LOG = "supervisor.log"
LOOK_S = 0.1
START_S_MAX = 120.0
PAUSE_S, PAUSE_S_MAX = 1.0, 30.0
"""The pause before a child that ended is started again; it doubles while the child does not stay up."""
STAYED_UP_S = 60.0
JOIN_S_MAX = 20.0
HOPELESS = (2, 78)
"""Exit codes of a wrong command line or a wrong configuration: starting it again would not help."""
TOKEN_TTL_MS = 600_000


class ProcessId(msgspec.Struct, frozen=True):
    """A process, told from a later one that has the same number."""

    pid: int
    started_s: float

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None

    def process(self) -> psutil.Process | None:
        """None: it has ended."""
        try:
            found = psutil.Process(self.pid)
            alive = abs(found.create_time() - self.started_s) < 1.0 and found.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return found if alive else None


class SupervisorRecord(msgspec.Struct, frozen=True):
    """What runs here."""

    supervisor: ProcessId
    orchestrator: ProcessId | None = None
    node: ProcessId | None = None

    @classmethod
    def read(cls, data: Path) -> "SupervisorRecord | None":
        try:
            return msgspec.json.decode((data / RECORD).read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise Misconfigured(f"{data / RECORD} cannot be read: {error}", hint="Check the data folder.") from None

    def running(self) -> dict[str, psutil.Process]:
        """What of it still runs, in the order in which it is to be ended."""
        named = {"supervisor": self.supervisor, "node": self.node, "orchestrator": self.orchestrator}
        return {name: found for name, id in named.items() if id is not None and (found := id.process()) is not None}


class _Child:
    """A command that is started again when it ends."""

    def __init__(self, what: str, words: list[str], env: dict[str, str]) -> None:
        self.what = what
        self._words = words
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._began_s = self._again_at_s = 0.0
        self._pause_s = PAUSE_S
        self._given_up = False

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        # In a session of its own: Ctrl-C at the terminal reaches this process alone, which ends both in order.
        argv = [sys.executable, "-m", "holdfast.cli", *self._words]
        self._process = subprocess.Popen(argv, env=self._env, stdin=subprocess.DEVNULL, start_new_session=True)
        self._began_s = time.monotonic()

    def ended(self) -> int | None:
        """Its exit code; None: it runs."""
        return self._process.poll() if self._process is not None else 0

    def again(self, say: Callable[[str], None]) -> bool:
        """Start it again if it ended and the pause is over; returns whether it was started."""
        code, now = self.ended(), time.monotonic()
        if code is None or self._given_up:
            return False
        if code in HOPELESS:
            self._given_up = True
            say(f"the {self.what} cannot run here; what it said stands above")
            return False
        if not self._again_at_s:
            self._pause_s = PAUSE_S if now - self._began_s > STAYED_UP_S else min(PAUSE_S_MAX, self._pause_s * 2)
            self._again_at_s = now + self._pause_s
            say(f"the {self.what} ended with {code}; it is started again in {self._pause_s:.0f} s")
        if now < self._again_at_s:
            return False
        self._again_at_s = 0.0
        self.start()
        return True

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


class Supervisor:
    def __init__(
        self, data: Path, words: list[str], *, node_home: str, with_node: bool, say: Callable[[str], None]
    ) -> None:
        """`words`: of the orchestrator's command line; `node_home`: the node's folder, empty for the usual one."""
        self._data = data
        self._node_home = node_home
        self._with_node = with_node
        self._say = say
        self._orchestrator = _Child("orchestrator", words, dict(os.environ))
        self._node: _Child | None = None
        self._signals = 0
        self._wake = threading.Event()

    def run(self, serves: Callable[[dict[str, Any]], None]) -> int:
        """Run both until a signal; returns the exit code. `serves` is called with the endpoint once both are up."""
        self._refuse_another()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        self._orchestrator.start()
        self._write()
        try:
            endpoint = self._until_it_serves()
            if endpoint is None:
                return self._orchestrator.ended() or 0
            if self._with_node:
                self._start_node(endpoint)
            serves(endpoint)
            while not self._signals:
                self._wake.wait(LOOK_S)
                code = self._orchestrator.ended()
                if code in HOPELESS:
                    return code
                started = [child.again(self._say) for child in self._children()]
                if any(started):
                    self._write()
        finally:
            self._end()
        return 0

    def _start_node(self, endpoint: dict[str, Any]) -> None:
        """Start it, and wait until it has joined."""
        from holdfast.client import Client

        token = (self._data / endpoint["token_file"]).read_text().strip()
        with Client(endpoint["url"], token, certificate=endpoint["certificate"]) as client:
            made = client.tokens.create(ttl_ms=TOKEN_TTL_MS, note="the node of this machine, by up --node")
            port = str(endpoint["nodes"]).rpartition(":")[2]
            words = ["node", "--orchestrator", f"127.0.0.1:{port}"]
            words += ["--home", self._node_home] if self._node_home else []
            # In the environment, which others on this machine cannot see.
            self._node = _Child("node", words, {**os.environ, "HOLDFAST_TOKEN": made.token})
            self._node.start()
            self._write()
            until = time.monotonic() + JOIN_S_MAX
            while time.monotonic() < until and not self._signals and self._node.ended() is None:
                if any(node.silent_ms is not None for node in client.nodes.list()):
                    return
                self._wake.wait(LOOK_S)

    def _children(self) -> list[_Child]:
        return [child for child in (self._node, self._orchestrator) if child is not None]

    def _signalled(self, number: int, frame: object) -> None:
        self._signals += 1
        self._wake.set()

    def _refuse_another(self) -> None:
        known = SupervisorRecord.read(self._data)
        if known is not None and known.running():
            raise Misconfigured(
                f"Holdfast runs already with {self._data}", hint="End it with: holdfast down", code="already_running"
            )

    def _until_it_serves(self) -> dict[str, Any] | None:
        """The endpoint of the orchestrator; None: it ended, or is to end."""
        until = time.monotonic() + START_S_MAX
        while time.monotonic() < until and not self._signals:
            if self._orchestrator.ended() is not None:
                return None
            with contextlib.suppress(OSError, msgspec.DecodeError):
                endpoint = msgspec.json.decode((self._data / "endpoint.json").read_bytes(), type=dict[str, Any])
                if endpoint.get("pid") == self._orchestrator.pid:
                    return endpoint
            self._wake.wait(LOOK_S)
        return None

    def _write(self) -> None:
        node = ProcessId.of(self._node.pid) if self._node is not None else None
        me = ProcessId.of(os.getpid())
        assert me is not None
        record = SupervisorRecord(me, ProcessId.of(self._orchestrator.pid), node)
        self._data.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(self._data / RECORD, msgspec.json.encode(record))

    def _end(self) -> None:
        """The node leaves first: its orchestrator moves its work, or keeps it for later."""
        for child in self._children():
            told = 0
            while child.ended() is None:
                # A second signal from outside becomes a second one to the node, which then ends at once.
                while told < max(1, self._signals):
                    child.signal(signal.SIGTERM)
                    told += 1
                self._wake.clear()
                self._wake.wait(LOOK_S)
        with contextlib.suppress(FileNotFoundError):
            (self._data / RECORD).unlink()


# --- from another terminal ---


def detached(words: list[str], data: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start this command again in the background, without a terminal; returns it and its log."""
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = data / LOG
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        argv = [sys.executable, "-m", "holdfast.cli", *words]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, start_new_session=True, close_fds=True
        )
    finally:
        os.close(fd)
    return process, log


def end(data: Path, *, now: bool, say: Callable[[str], None]) -> bool:
    """End what runs with this data folder, the node first; returns whether anything ran."""
    record = SupervisorRecord.read(data)
    running = record.running() if record is not None else {}
    if record is None or not running:
        return False
    if "supervisor" in running:
        _ended(running["supervisor"], now, say, "the node leaves: what runs may finish within its grace")
        running = record.running()
    for name, process in running.items():
        _ended(process, now, say, f"ending the {name}, which its supervisor left behind")
    with contextlib.suppress(FileNotFoundError):
        (data / RECORD).unlink()
    return True


def _ended(process: psutil.Process, now: bool, say: Callable[[str], None], says: str) -> None:
    """Raises HoldfastError if it belongs to somebody else."""
    say(says)
    try:
        process.send_signal(signal.SIGTERM)
        if now:
            time.sleep(LOOK_S)
            process.send_signal(signal.SIGTERM)
        process.wait()
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        raise HoldfastError(f"process {process.pid} belongs to another user", hint="Run this as that user.") from None
