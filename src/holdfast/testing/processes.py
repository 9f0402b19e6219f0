"""A whole network as real processes on loopback. It starts, kills, freezes, restarts and cleans them up.

    with LocalNetwork(folder) as network:
        network.start_orchestrator()
        node = network.start_node("a")
        job = network.client().jobs.submit(["sleep", "60"])
        network.wait_for(lambda: node.bodies(), "a body to run")
        node.kill_tree()

Everything is started through the command line, as a person would. A process is ended only if it belongs to
this network: it was started here, descends from one that was, is named in a shim's own file, or has this
network's mark in its environment or its folder in its arguments. Times are deadlines, never fixed delays.
"""

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil

from holdfast.client import Client
from holdfast.node.attempt import attempt_folders
from holdfast.node.runtimes.child import WORK_DIR

T = TypeVar("T")

MARK = "HOLDFAST_TESTING_NETWORK"
READY_S = 60.0
"""Limit for a process to start, in seconds, on a machine that runs other tests as well. Far above what an idle machine
needs."""


class NotInTime(AssertionError):
    """An awaited condition did not become true."""


PORTS = (10_000, 32_000)


def wait_for(
    condition: Callable[[], T], what: str | Callable[[], str], timeout_s: float = READY_S, every_s: float = 0.03
) -> T:
    """Poll until the condition is true, and return its value. After `timeout_s`, fail with `what`: a text, or a
    function that returns one."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise NotInTime(f"waited {timeout_s:g} s in vain for {what if isinstance(what, str) else what()}")
        time.sleep(every_s)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that no process listens on, below the range that the kernel assigns to outgoing connections: an outgoing
    connection could take a port of that range before it is used. No port is given out twice, nor to two workers of one
    test run: its user may start late, or be killed and start again on it."""
    share = _share_of_ports()
    for port in random.SystemRandom().sample(share, min(len(share), 200)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            if port in _given_ports:
                continue
            probe.bind((host, port))
            _given_ports.add(port)
            return port
    raise RuntimeError(f"no free port found on {host}")


_given_ports: set[int] = set()


def _share_of_ports() -> range:
    """The ports of this process, if pytest-xdist runs several."""
    low, high = PORTS
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0) % workers
    each = (high - low) // workers
    return range(low + mine * each, low + (mine + 1) * each)


def bubblewrap_works() -> bool:
    """Whether jobs can be isolated on this machine."""
    if shutil.which("bwrap") is None:
        return False
    probe = [
        "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "true",
    ]
    try:
        return subprocess.run(probe, capture_output=True, timeout=READY_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


class HoldfastProcess:
    """One `holdfast` process in the foreground, with its output in a file."""

    def __init__(
        self, words: list[str], env: dict[str, str], log: Path, through: Iterable[str] = (), cwd: Path | None = None
    ) -> None:
        """`through`: a command that runs this one, such as `ip netns exec NAME`. It must replace itself by exec, not
        wait for a child."""
        self.words = words
        self.log = log
        self._out = log.open("ab")
        self.process = subprocess.Popen(
            [*through, sys.executable, "-m", "holdfast.cli", *words],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def running(self) -> bool:
        return self.process.poll() is None

    def itself(self) -> list[psutil.Process]:
        """The process while it is alive. It may have ended without our having been notified."""
        try:
            return [psutil.Process(self.pid)] if self.running() else []
        except psutil.NoSuchProcess:
            return []

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def signal(self, number: int) -> None:
        if self.running():
            self.process.send_signal(number)

    def terminate(self, timeout_s: float = READY_S) -> int:
        """Send SIGTERM, for an orderly shutdown, and return the exit code."""
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise NotInTime(
                f"`holdfast {self.words[0]}` did not end on SIGTERM within {timeout_s:g} s:\n{self.tail()}"
            ) from None

    def kill(self) -> None:
        """Send SIGKILL to this process alone, not to its children."""
        self.signal(signal.SIGKILL)
        self.process.wait(READY_S)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.output().splitlines()[-lines:])

    def close(self) -> None:
        self._out.close()


class OrchestratorProcess(HoldfastProcess):
    """An orchestrator process, with what is needed to start it again."""

    def __init__(self, words: list[str], env: dict[str, str], log: Path, url: str, listen: str) -> None:
        super().__init__(words, env, log)
        self.url = url
        self.listen = listen
        """The address that nodes connect to."""


class NodeProcesses(HoldfastProcess):
    """A node: its agent, its launcher, and a shim with a body for every attempt it holds."""

    def __init__(
        self, name: str, home: Path, words: list[str], env: dict[str, str], log: Path, through: Iterable[str] = ()
    ) -> None:
        super().__init__(words, env, log, through)
        self.name = name
        self.home = home
        self.env = env
        self.through = tuple(through)

    @property
    def id(self) -> str:
        """The id that the node created at its first start."""
        return "node_" + (self.home / "uuid").read_text().strip().replace("-", "")

    def shims(self) -> list[psutil.Process]:
        """The live shims, identified by pid and start time: a reused pid does not count."""
        found: list[psutil.Process] = []
        for path in sorted(self.home.glob("attempts/*/shim.json")):
            process = _identified(path)
            if process is not None:
                found.append(process)
        return found

    def bodies(self) -> list[psutil.Process]:
        """The processes under the shims: sandbox and job."""
        return [child for shim in self.shims() for child in _children(shim)]

    def tree(self) -> list[psutil.Process]:
        """Every process of this node, as if it were one machine."""
        roots = self.itself()
        found: dict[int, psutil.Process] = {}
        for root in [*roots, *self.shims()]:
            for process in [root, *_children(root)]:
                found[process.pid] = process
        return list(found.values())

    def kill_agent(self) -> None:
        self.kill()

    def kill_shims(self) -> None:
        end(self.shims())

    def kill_tree(self) -> None:
        """Simulate a power cut: all processes are stopped before they are killed, so that none can react to the end of
        another."""
        end(self.freeze_tree())
        self.process.wait(READY_S)

    def freeze_tree(self) -> list[psutil.Process]:
        """Stop every process, including those that start meanwhile, and return all of them."""
        stopped: dict[int, psutil.Process] = {}
        while fresh := [process for process in self.tree() if process.pid not in stopped]:
            _signal(fresh, signal.SIGSTOP)
            stopped |= {process.pid: process for process in fresh}
        return list(stopped.values())

    def thaw_tree(self) -> None:
        _signal(self.tree(), signal.SIGCONT)


class LocalNetwork:
    """An orchestrator and its nodes in one folder. Use it with `with`: leaving ends every process."""

    def __init__(self, folder: Path | None = None) -> None:
        self._own_folder = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-")) if folder is None else folder
        self.mark = secrets.token_hex(8)
        self.orchestrator: OrchestratorProcess | None = None
        self.nodes: dict[str, NodeProcesses] = {}
        self._clients: list[Client] = []
        self._programs: list[HoldfastProcess] = []
        self._token: str | None = None
        self.unsafe = not bubblewrap_works()

    # --- starting ---

    @property
    def home(self) -> Path:
        """HOLDFAST_HOME of everything in this network."""
        return self.folder / "home"

    @property
    def desk(self) -> Path:
        """The default folder for commands: `run` sends the current folder, so commands get one of their own."""
        folder = self.folder / "desk"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def environment(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        """This process's environment without the variables that point to another network."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PNODE_", "ORCHESTRATOR_"))}
        return {**kept, "HOLDFAST_HOME": str(self.home), MARK: self.mark, **(extra or {})}

    def start_orchestrator(
        self,
        preset: str = "test",
        store_url: str | None = None,
        env: dict[str, str] | None = None,
        flags: Iterable[str] = (),
        wait: bool = True,
        host: str = "127.0.0.1",
    ) -> OrchestratorProcess:
        """Start `holdfast up` on free ports. After a kill: on the same ports and data. `host`: the address that nodes
        connect to."""
        before = self.orchestrator
        url = before.url if before else f"http://127.0.0.1:{free_port()}"
        listen = before.listen if before else f"{host}:{free_port(host)}"
        words = ["up", "--data-dir", str(self.home / "orchestrator"), "--http", url.removeprefix("http://")]
        words += [
            "--listen",
            listen,
            "--files",
            f"{host}:{free_port(host)}",
            "--preset",
            preset,
            *(["--store", store_url] if store_url else []),
            *flags,
        ]
        self.home.mkdir(parents=True, exist_ok=True)
        log = self.folder / "orchestrator.log"
        self.orchestrator = self.launch(words, env, log, url, listen)
        self._programs.append(self.orchestrator)
        if wait:
            self.wait_ready()
        return self.orchestrator

    def launch(
        self, words: list[str], env: dict[str, str] | None, log: Path, url: str, listen: str
    ) -> OrchestratorProcess:
        """Create the orchestrator's process. Subclasses override this to change every start of it."""
        return OrchestratorProcess(words, self.environment(env), log, url, listen)

    def restart_orchestrator(self, env: dict[str, str] | None = None, wait: bool = True) -> OrchestratorProcess:
        """kill -9 if it still runs, then start it again with the same flags, ports and data."""
        before = self._up()
        before.kill()
        before.close()
        after = self.launch(before.words, env, before.log, before.url, before.listen)
        self.orchestrator = after
        self._programs.append(after)
        if wait:
            self.wait_ready()
        return after

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        orchestrator = self._up()

        def ready() -> bool:
            if not orchestrator.running():
                raise AssertionError(f"the orchestrator ended while starting:\n{orchestrator.tail()}")
            return _answers(orchestrator.url + "/healthz")

        wait_for(ready, f"the orchestrator to answer; it says:\n{orchestrator.tail()}", timeout_s)

    def start_node(
        self,
        name: str,
        flags: Iterable[str] = (),
        env: dict[str, str] | None = None,
        token: str | None = None,
        wait: bool = True,
        through: Iterable[str] = (),
    ) -> NodeProcesses:
        """Start `holdfast node`. A name that was used before gets its old home: it is the same machine again."""
        if token is None:
            token = self._token = self._token or self.client().tokens.create(uses=-1).token
        home = self.folder / f"node-{name}"
        words = [
            "node",
            "--orchestrator",
            self._up().listen,
            "--token",
            token,
            "--name",
            name,
            "--home",
            str(home),
        ]
        words += ["--unsafe-process-runtime"] if self.unsafe else []
        log = self.folder / f"node-{name}.log"
        node = NodeProcesses(name, home, [*words, *flags], self.environment(env), log, through)
        self.nodes[name] = node
        self._programs.append(node)
        if wait:
            self.wait_node(name)
        return node

    def wait_node(self, name: str, state: str | None = None, timeout_s: float = READY_S) -> str:
        """Wait until the node with this name accepts work, or is in `state`, and return its id."""
        node = self.nodes[name]
        states = {state} if state else {"ready", "probation"}

        def there() -> str | None:
            if state is None and not node.running():
                raise AssertionError(f"node {name} ended while starting:\n{node.tail()}")
            seen = [v for v in self.client().nodes.list() if v.name == name and v.state in states]
            return next((v.id for v in seen if state or v.connected), None)

        return str(wait_for(there, f"node {name} to be {' or '.join(sorted(states))}", timeout_s))

    def client(self, patience_s: float = 20.0) -> Client:
        """A client for this network, which is closed with it. The first one is kept and shared."""
        if self._clients and patience_s == 20.0:
            return self._clients[0]
        token = (self.home / "orchestrator" / "admin.token").read_text().strip()
        client = Client(self._up().url, token, patience_s=patience_s)
        self._clients.append(client)
        return client

    def cli(
        self,
        *words: str,
        timeout_s: float = 120.0,
        env: dict[str, str] | None = None,
        check: int | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one `holdfast` command to its end, with piped output. `check`: the exit code it must have. `cwd`: `desk`
        by default."""
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli", *words],
            env=self.environment(env),
            cwd=cwd or self.desk,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check is not None and done.returncode != check:
            said = done.stdout + done.stderr
            raise AssertionError(f"`holdfast {' '.join(words)}`: {done.returncode}, not {check}:\n{said}")
        return done

    def start_cli(
        self, *words: str, log: Path, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> HoldfastProcess:
        """Start one `holdfast` command and leave it running, with its output in a file. `cwd`: `desk` by default."""
        program = HoldfastProcess(list(words), self.environment(env), log, cwd=cwd or self.desk)
        self._programs.append(program)
        return program

    def node_running(self, job: str, timeout_s: float = READY_S) -> NodeProcesses:
        """The node that runs the newest attempt of a job, once its body runs."""

        def running() -> NodeProcesses | None:
            attempts = [a for a in self.client().jobs.get(job).attempts if a.phase == "running" and not a.revoked]
            names = {v.id: v.name for v in self.client().nodes.list()}
            return self.nodes.get(names.get(attempts[-1].node, "")) if attempts else None

        found = wait_for(running, f"{job} to run on some node", timeout_s)
        assert found is not None
        return found

    wait_for = staticmethod(wait_for)

    def _up(self) -> OrchestratorProcess:
        if self.orchestrator is None:
            raise AssertionError("no orchestrator was started in this network")
        return self.orchestrator

    # --- ending ---

    def leftovers(self) -> list[psutil.Process]:
        """Every process that belongs to this network, however it was started."""
        found: dict[int, psutil.Process] = {}
        for program in self._programs:
            members = program.tree() if isinstance(program, NodeProcesses) else program.descendants()
            found.update({p.pid: p for p in [*program.itself(), *members]})
        for process in psutil.process_iter():
            if process.pid not in found and process.pid != os.getpid() and self._ours(process):
                found[process.pid] = process
        return list(found.values())

    def _ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            env = process.environ()
            # A sandbox that is being set up has none of its node's environment, and may have lost its shim.
            if env.get(MARK) == self.mark or env.get(WORK_DIR, "").startswith(f"{self.folder}/"):
                return True
            return any(str(self.folder) in word for word in process.cmdline())
        except (psutil.Error, OSError):
            return False

    def close(self) -> None:
        """End everything, shims and bodies included, and wait until it is gone."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        deadline = time.monotonic() + READY_S
        while (left := self.leftovers()) and time.monotonic() < deadline:
            # Frozen first: an agent that sees a shim die must not start another one.
            _signal(left, signal.SIGSTOP)
            with contextlib.suppress(NotInTime):  # end the others even if one does not end
                end(left)
        for program in self._programs:
            if program.running():
                program.kill()
            program.process.wait(READY_S)
            program.close()
        for node in self.nodes.values():  # what a killed node could not clean up itself
            for folder in node.home.glob("attempts/*"):
                attempt_folders.end_processes(folder)
                attempt_folders.clean(folder)
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def end(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL these and wait until none of them runs. They may remain as zombies: the process that reaps them may be
    slow (a machine's first process takes seconds here and there) or stopped."""
    listed = list(processes)
    _signal(listed, signal.SIGKILL)
    wait_for(lambda: not any(_lives(process) for process in listed), "killed processes to be gone", every_s=0.005)


def _lives(process: psutil.Process) -> bool:
    """A zombie does not count: its parent may be stopped and unable to reap it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _identified(path: Path) -> psutil.Process | None:
    """The live process that a shim's file names."""
    try:
        said = json.loads(path.read_text())
        stat = Path(f"/proc/{int(said['pid'])}/stat").read_text()
        # Field 22, counted after the command name, which may itself contain spaces and brackets.
        started = stat.rpartition(")")[2].split()[19]
        return psutil.Process(int(said["pid"])) if str(said["start_ticks"]) == started else None
    except (OSError, ValueError, KeyError, IndexError, psutil.NoSuchProcess):
        return None


def _answers(url: str) -> bool:
    """Whether an orchestrator serves at this URL. Does not use httpx, which prepares TLS at every call and is
    slower."""
    address, _, path = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(address, timeout=2.0)
    try:
        connection.request("GET", f"/{path}")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
