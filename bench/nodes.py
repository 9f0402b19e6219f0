"""How many nodes one orchestrator can serve: real gRPC over TLS, production heartbeats, 1 % churn a minute.

Starts an orchestrator as a separate process with the shipped defaults, then several processes of node clients
(`bench/swarm.py`: each client has its own connection, control and bulk stream, key and identity). Three rows:

    join     clients connect, a bounded number at a time, until all have joined
    hold     all have joined; the orchestrator's processor and memory use is observed
    storm    the orchestrator is killed (SIGKILL) and restarted at once; all clients reconnect as shipped nodes do

Path: gRPC over loopback; TLS; SQLite with fsync (joins and churn are commits); no jobs. Clients and orchestrator share
the machine: on two cores, join and storm are limited by both together.

    python bench/nodes.py [--nodes 5000] [--watch 45] [--json]
"""

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from holdfast.client import Client
from holdfast.testing.processes import free_port

SWARM_NODES = 1_250
"""Clients in one process."""
DIALLING = 16
"""First connections in progress in one process at a time."""
CHURN_PER_MINUTE = 0.01
JOIN_S_MAX, STORM_S_MAX, SETTLE_S = 120.0, 90.0, 10.0


class Orchestrator:
    """`holdfast up` in a separate folder, over several lifetimes with the same ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "HOLDFAST_HOME": str(folder)}
        self.nodes_at = f"127.0.0.1:{free_port()}"
        self._http = f"127.0.0.1:{free_port()}"
        self.start()

    def start(self) -> None:
        up = [sys.executable, "-m", "holdfast.cli", "up", "--http", self._http]
        # Listening on every address turns TLS on.
        up += ["--listen", f"0.0.0.0:{self.nodes_at.rpartition(':')[2]}"]
        # All machines join from one address, with one token.
        up += ["--limit", "joins_per_address_max=0", "--limit", "joins_per_token_max=0"]
        with (self.folder / "up.log").open("a") as log:
            self.process = subprocess.Popen(up, env=self.env, stdout=log, stderr=log)
        self.seen = psutil.Process(self.process.pid)

    def client(self) -> Client:
        endpoint = self.folder / "orchestrator" / "endpoint.json"
        until(lambda: endpoint.exists() and self._pid_in(endpoint) == self.process.pid, 30, "the orchestrator to lead")
        os.environ["HOLDFAST_HOME"] = str(self.folder)
        return Client.find()

    def _pid_in(self, endpoint: Path) -> int:
        return json.loads(endpoint.read_text())["pid"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def busy_s(self) -> float:
        used = self.seen.cpu_times()
        return used.user + used.system

    def mib(self) -> float:
        return self.seen.memory_info().rss / 2**20


class Swarms:
    """The client processes. Each reports when all of its clients have been welcomed under an epoch."""

    def __init__(self, orchestrator: Orchestrator, token: str, count: int) -> None:
        self._said: queue.Queue[tuple[str, int, float]] = queue.Queue()
        self.processes: list[subprocess.Popen[str]] = []
        sizes = [SWARM_NODES] * (count // SWARM_NODES) + ([count % SWARM_NODES] if count % SWARM_NODES else [])
        swarm = [sys.executable, str(Path(__file__).with_name("swarm.py")), orchestrator.nodes_at]
        options = ["--dialling", str(DIALLING), "--churn", str(CHURN_PER_MINUTE)]
        for seed, size in enumerate(sizes):
            command = [*swarm, str(size), str(seed), *options]
            env = {**orchestrator.env, "HOLDFAST_TOKEN": token}
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
            self.processes.append(process)
            threading.Thread(target=self._hear, args=(process,), daemon=True).start()

    def _hear(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            what, epoch, at = line.split()
            self._said.put((what, int(epoch), float(at)))

    def wait_for(self, epoch: int, timeout_s: float) -> tuple[float, float]:
        """The times (CLOCK_MONOTONIC) at which the first and the last client were welcomed under an epoch."""
        deadline = time.monotonic() + timeout_s
        first: list[float] = []
        done: list[float] = []
        while len(done) < len(self.processes):
            try:
                what, said, at = self._said.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise SystemExit(
                    f"after {timeout_s:.0f} s, {len(done)} of {len(self.processes)} swarms were in (epoch {epoch})"
                ) from None
            if said == epoch:
                (first if what == "first" else done).append(at)
        return min(first), max(done)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def until(true: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.02)


def states(client: Client) -> tuple[int, Counter[str]]:
    """(connected nodes, nodes by state)."""
    views = client.nodes.list()
    return sum(1 for view in views if view.connected), Counter(view.state for view in views)


def measure(count: int, watch_s: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        orchestrator = Orchestrator(Path(folder))
        swarms: Swarms | None = None
        try:
            client = orchestrator.client()
            empty_mib, busy_s = orchestrator.mib(), orchestrator.busy_s()
            swarms = Swarms(orchestrator, client.tokens.create(uses=-1).token, count)
            first, last = swarms.wait_for(1, JOIN_S_MAX)
            join = {
                "row": "join", "nodes": count, "seconds": round(last - first, 1),
                "joins_per_s": round(count / (last - first)), "cpu_ms_per_join": spent(orchestrator, busy_s, count),
            }  # fmt: skip
            settle_s = min(SETTLE_S, watch_s)  # whoever watches for less wants to see it run, not what it says
            time.sleep(settle_s)
            hold = watch(orchestrator, client, watch_s, empty_mib)
            return [join, hold, storm(orchestrator, swarms, count, settle_s)]
        finally:
            if swarms is not None:
                swarms.kill()
            orchestrator.kill()


def spent(orchestrator: Orchestrator, before_s: float, count: int) -> float:
    return round(1e3 * (orchestrator.busy_s() - before_s) / count, 2)


def watch(orchestrator: Orchestrator, client: Client, watch_s: float, empty_mib: float) -> dict[str, Any]:
    busy_s, at = orchestrator.busy_s(), time.monotonic()
    time.sleep(watch_s)
    core = (orchestrator.busy_s() - busy_s) / (time.monotonic() - at)
    mib = orchestrator.mib()
    connected, by_state = states(client)
    return {
        "row": "hold", "nodes": connected, "seconds": round(watch_s), "cpu_percent_of_core": round(100 * core, 1),
        "cpu_us_per_node_s": round(1e6 * core / connected, 1), "mib": round(mib),
        "kib_per_node": round((mib - empty_mib) * 1024 / connected, 1), "states": dict(by_state),
    }  # fmt: skip


def storm(orchestrator: Orchestrator, swarms: Swarms, count: int, settle_s: float) -> dict[str, Any]:
    killed = time.monotonic()
    orchestrator.kill()
    orchestrator.start()
    client = orchestrator.client()
    led_s = time.monotonic() - killed
    back_s = swarms.wait_for(2, STORM_S_MAX)[1] - killed
    busy = spent(orchestrator, 0.0, count)
    time.sleep(settle_s)
    connected, by_state = states(client)
    return {
        "row": "storm", "nodes": connected, "seconds_to_lead": round(led_s, 1), "seconds_to_all": round(back_s, 1),
        "cpu_ms_per_join": busy, "states": dict(by_state),
    }  # fmt: skip


SETTING = {
    "heartbeat_s": 30, "churn_per_minute": CHURN_PER_MINUTE, "path": "gRPC, loopback", "tls": True, "fsync": True,
    "isolation": "none (no jobs)", "store": "sqlite", "fill": "idle",
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--watch", type=float, default=45)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = measure(args.nodes, args.watch)
    if args.json:
        json.dump([{**row, **SETTING} for row in rows], sys.stdout, indent=2)
    else:
        for row in rows:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    held = min(row["nodes"] for row in rows)
    return 0 if held >= 0.98 * args.nodes else 1


if __name__ == "__main__":
    sys.exit(main())
