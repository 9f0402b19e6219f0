"""The same fault under Ray and under Dask distributed, with their defaults, for bench/failover.py.

Run by a Python that has them, not by Holdfast's own. Reads one command per line, `kill` or `freeze`, applies it to the
machine that runs a task (two process trees stand for two machines), and answers with the seconds until the body ran on
the other, or null after a time limit. Knows nothing about Holdfast.

    python bench/failover_peers.py ray|dask LIMIT_S
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

START_S_MAX = 60.0
_SUBREAPER = 36


def body(folder: str) -> None:
    """Reports when it runs, by its own clock, and stays until it may end."""
    with open(f"{folder}/ran", "a") as file:
        file.write(f"{time.time()} {os.getpid()}\n")
    while not os.path.exists(f"{folder}/done"):
        time.sleep(0.05)


def ran(folder: Path) -> list[tuple[float, int]]:
    with contextlib.suppress(OSError):
        lines = (folder / "ran").read_text().splitlines(keepends=True)
        return [(float(at), int(pid)) for at, pid in (line.split() for line in lines if line.endswith("\n"))]
    return []


def until(true: Callable[[], Any], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def tree(roots: list[int]) -> set[int]:
    found = set(roots)
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {child.pid for child in psutil.Process(root).children(recursive=True)}
    return found


def send(pids: set[int], number: int) -> None:
    for pid in sorted(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Dask:
    def __init__(self, folder: Path) -> None:
        from distributed import Client

        self._folder = folder
        self._programs: list[subprocess.Popen[bytes]] = []
        self._scheduler = self._start("scheduler", "--port", "0", "--scheduler-file", str(folder / "scheduler.json"))
        if not until((folder / "scheduler.json").exists, START_S_MAX):
            raise SystemExit("the Dask scheduler did not start")
        self.client = Client(scheduler_file=str(folder / "scheduler.json"))
        self._workers: list[subprocess.Popen[bytes]] = []
        self.two_machines()

    def _start(self, *words: str) -> "subprocess.Popen[bytes]":
        with (self._folder / "log").open("ab") as log:
            program = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:], "--host", "127.0.0.1"]
            started = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder)
        self._programs.append(started)
        return started

    def two_machines(self) -> None:
        self._workers = [worker for worker in self._workers if worker.poll() is None]
        while len(self._workers) < 2:
            options = ("--scheduler-file", str(self._folder / "scheduler.json"), "--nthreads", "1")
            self._workers.append(self._start("worker", *options))
        self.client.wait_for_workers(2, timeout=START_S_MAX)

    def submit(self, folder: str) -> Any:
        return self.client.submit(body, folder, pure=False)

    def wait(self, task: Any) -> None:
        task.result(timeout=START_S_MAX)

    def machine_of(self, pid: int) -> set[int]:
        return next(found for worker in self._workers if pid in (found := tree([worker.pid])))

    def close(self) -> None:
        self.client.close(timeout=5)
        for program in self._programs:
            send(tree([program.pid]), signal.SIGKILL)
            program.wait()


class Ray:
    def __init__(self, folder: Path) -> None:
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(folder)}
        import ray
        from ray.cluster_utils import Cluster

        self._ray = ray
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self._nodes: list[Any] = []
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")
        self._task = ray.remote(body)
        self.two_machines()

    def two_machines(self) -> None:
        self._nodes = [node for node in self._nodes if node.any_processes_alive()]
        while len(self._nodes) < 2:
            self._nodes.append(self._cluster.add_node(num_cpus=1))
        if not until(lambda: self._ray.cluster_resources().get("CPU") == 2, START_S_MAX):
            raise SystemExit(f"Ray has {self._ray.cluster_resources()}")

    def submit(self, folder: str) -> Any:
        return self._task.remote(folder)

    def wait(self, task: Any) -> None:
        self._ray.get(task, timeout=START_S_MAX)

    def machine_of(self, pid: int) -> set[int]:
        return next(found for node in self._nodes if pid in (found := self._tree(node)))

    def _tree(self, node: Any) -> set[int]:
        return tree([info.process.pid for kind in node.all_processes.values() for info in kind])

    def close(self) -> None:
        self._ray.shutdown()
        for node in (*self._nodes, self._cluster.head_node):
            send(self._tree(node), signal.SIGKILL)


def strike(peer: Any, number: int, limit_s: float) -> float | None:
    """Seconds from the signal until the body ran on the other machine; None: not within the limit."""
    folder = Path(tempfile.mkdtemp(prefix="failover-"))
    try:
        peer.two_machines()
        waiting = peer.submit(str(folder))
        if not until(lambda: ran(folder), START_S_MAX):
            raise SystemExit("the task did not start")
        machine = peer.machine_of(ran(folder)[0][1])
        struck = time.time()
        send(machine, number)
        found = until(lambda: len(ran(folder)) > 1, limit_s)
        took = ran(folder)[1][0] - struck if found else None
        send(machine, signal.SIGKILL)
        (folder / "done").touch()
        peer.wait(waiting)  # or the body would stay, with nothing left to end it
        return took
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)  # adopt the processes that a killed machine leaves behind
    folder = Path(tempfile.mkdtemp(prefix="hfpeer-"))
    peer = {"ray": Ray, "dask": Dask}[sys.argv[1]](folder)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the peers is not an answer
    try:
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            number = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}[line.strip()]
            print(json.dumps(strike(peer, number, float(sys.argv[2]))), file=answers, flush=True)
    finally:
        peer.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
