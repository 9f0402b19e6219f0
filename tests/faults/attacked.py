"""An orchestrator under attack, and an honest client that measures it. Everything runs on loopback and ends in time."""

import contextlib
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import msgspec
import psutil

from holdfast.orchestrator.connection_limits import ConnectionLimits
from holdfast.testing.processes import READY_S, free_port, wait_for

NO_LIMITS = {field.name: 0 for field in msgspec.structs.fields(ConnectionLimits)}
PROCESSES = 4
HALF_A_CORE_US, PERIOD_US = 50_000, 100_000
BACK_S = 10.0
ANSWER_S = 30.0
"""A machine that is busy otherwise may be slow: that is no refusal."""
MEMORY_SLACK = 48 << 20
"""What an allocator may keep of what it once had."""
DESCRIPTORS_SLACK = 8
"""Log files and connections of the measuring client."""
SPIN_S = 0.2
HERE = Path(__file__).parent


def idle_machine() -> bool:
    """Whether nothing else takes this machine's processors: a loop gets nearly all of the time that it runs for."""
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() < began + SPIN_S:
        pass
    return time.process_time() - used > 0.8 * (time.monotonic() - began)


class Measured(msgspec.Struct):
    """Times of an honest client's requests in seconds, and what went wrong."""

    times_s: list[float] = []
    failures: list[str] = []

    @property
    def p99_s(self) -> float:
        return sorted(self.times_s)[int(len(self.times_s) * 0.99)] if self.times_s else float("inf")


class Attacked:
    """`with Attacked(folder) as server`."""

    def __init__(
        self,
        folder: Path,
        limits: dict[str, int] | None = None,
        tls: bool | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._answer_s = answer_s
        self.ports = {"http": free_port(), "nodes": free_port(), "files": free_port()}
        self.tls = bool(tls)
        self._data = folder / "orchestrator"
        self._log = folder / "orchestrator.log"
        config = {"data": str(self._data), "limits": limits or {}, "tls": tls, "ports": self.ports}
        self._config = json.dumps(config)

    def __enter__(self) -> "Attacked":
        with self._log.open("wb") as log:
            self.process = _started("server", [self._config], stdout=log, stderr=log)
        self.about = psutil.Process(self.process.pid)
        wait_for((self._data / "endpoint.json").exists, lambda: f"the server: {self.output()[-2000:]}")
        self.token = (self._data / "admin.token").read_text().strip()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(READY_S)
        finally:
            self.process.kill()

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    # --- an honest client ---

    def connection(self) -> HTTPConnection:
        if not self.tls:
            return HTTPConnection("127.0.0.1", self.ports["http"], timeout=self._answer_s)
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        return HTTPSConnection("127.0.0.1", self.ports["http"], timeout=self._answer_s, context=trusting)

    def measure(self, seconds: float) -> Measured:
        """Ask for health on new connections, and submit on one that is kept, in turn."""
        seen = Measured()
        kept = self.connection()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.closing(self.connection()) as fresh:
                self._ask(fresh, "GET", "/healthz", {}, None, 200, seen)
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            self._ask(kept, "POST", "/v1/jobs", headers, b'{"argv":["true"]}', 201, seen)
        kept.close()
        return seen

    def _ask(
        self,
        line: HTTPConnection,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes | None,
        expected: int,
        seen: Measured,
    ) -> None:
        began = time.monotonic()
        try:
            line.request(method, path, body, headers)
            answer = line.getresponse()
            answer.read()
        except (OSError, HTTPException) as wrong:
            line.close()
            seen.failures.append(f"{path}: {wrong!r}")
            return
        seen.times_s.append(time.monotonic() - began)
        if answer.status != expected:
            seen.failures.append(f"{path}: {answer.status}")

    # --- attackers ---

    @contextlib.contextmanager
    def attack(
        self, name: str, port: str, connections: int, seconds: float, *more: str
    ) -> Iterator[Callable[[], object]]:
        """Several processes that share half a core, until the block ends or the time is up. Gives a function that waits
        until all have begun."""
        words = ["127.0.0.1", str(self.ports[port]), str(seconds), str(connections // PROCESSES), *more]
        with _half_a_core() as join:
            attackers = [_started(name, words, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
            try:
                for attacker in attackers:
                    join(attacker.pid)
                yield lambda: [_line(attacker) for attacker in attackers]
                ended_early = [attacker.poll() for attacker in attackers if attacker.poll() not in (None, 0)]
                assert not ended_early, f"{name} failed: {ended_early}"
            finally:
                for attacker in attackers:
                    attacker.kill()
                    attacker.wait(READY_S)
                    if attacker.stdout is not None:
                        attacker.stdout.close()

    # --- what it takes ---

    def taken(self) -> tuple[int, int]:
        """Descriptors and resident bytes."""
        return self.about.num_fds(), self.about.memory_info().rss

    def back_at(self, start: tuple[int, int]) -> bool:
        descriptors, resident = self.taken()
        return descriptors <= start[0] + DESCRIPTORS_SLACK and resident <= start[1] + MEMORY_SLACK


def _line(process: "subprocess.Popen[Any]") -> bytes:
    return process.stdout.readline() if process.stdout is not None else b""


def _started(name: str, words: list[str], **streams: Any) -> "subprocess.Popen[Any]":
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen([sys.executable, "-m", f"attacks.{name}", *words], env=env, cwd=HERE, **streams)


@contextlib.contextmanager
def _half_a_core() -> Iterator[Any]:
    """A control group with half a core; `join(pid)` puts a process into it. Without the right to make one, attackers
    run at the lowest priority."""
    one, two = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    root = one if one.is_dir() else two
    group = root / f"holdfast-attack-{os.getpid()}"
    try:
        group.mkdir()
        if root is one:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(HALF_A_CORE_US))
        else:
            (group / "cpu.max").write_text(f"{HALF_A_CORE_US} {PERIOD_US}")
    except OSError:
        yield lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19)
        return
    try:
        yield lambda pid: (group / "cgroup.procs").write_text(str(pid))
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), "the attackers to be gone")
        group.rmdir()
