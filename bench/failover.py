"""A machine dies or freezes under a job: seconds until its body runs on another one. Holdfast, Ray and Dask.

    kill      SIGKILL of the node's whole process tree (agent, launcher, shim, body; raylet or worker, and theirs)
    freeze    SIGSTOP of the same tree: its connections stay open, but nothing answers
    idle      memory and processor use of an idle `holdfast node`, over a minute

Each has two machines (process trees on this one); a machine that was killed is replaced by a fresh one before the next
round. The time is measured from the first signal to the moment at which the body reports, by its own clock, that it
runs. All have their default settings; the task or job may be run again, and nothing intervenes. Kills alternate between
the contestants. For the freeze, Ray and Dask wait for a limit, both at once, while the idle node is observed.
Ray and Dask have their own environment (bench/constraints-peers.txt), created at the first run under the user's cache
folder or HOLDFAST_BENCH_CACHE. Bars: kill, median below Ray's, aim 0.3 s; freeze 6 s; idle 80 MiB, 1 % of a core.
Path: gRPC over loopback, no TLS (loopback); fsync on; bubblewrap. The peers sync and isolate nothing.

    python bench/failover.py [--kills 10] [--freezes 5] [--limit 60] [--idle 60] [--no-peers] [--json] [--check]
"""

import argparse
import contextlib
import hashlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import psutil

from holdfast.testing.processes import LocalNetwork, NodeProcesses, wait_for

HERE = Path(__file__).parent
PEERS = {"ray": "Ray", "dask": "Dask distributed"}
PEER_KILLS_MAX = 5
"""A new Ray machine takes long to start."""
KILL_AIM_S, FREEZE_S_MAX, IDLE_MIB_MAX, IDLE_PERCENT_MAX = 0.3, 6.0, 80, 1.0
START_S_MAX = 90.0
SETTLE_S = 5.0
BODY = ["/bin/bash", "-c", "echo $EPOCHREALTIME; exec sleep 600"]
NUMBERS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
OURS = {"path": "gRPC, loopback", "tls": False, "fsync": True, "isolation": "bubblewrap"}
THEIRS = {"path": "loopback", "tls": False, "fsync": False, "isolation": "none"}
Row = dict[str, Any]


class Contestant(Protocol):
    def strike(self, how: str) -> float | None:
        """Seconds until the body ran again; None: not within the limit."""
        ...

    def close(self) -> None: ...


class Holdfast:
    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._made = 0
        self._network = LocalNetwork()
        self._network.start_orchestrator(preset="lan")
        self._nodes: list[NodeProcesses] = []

    def _two_machines(self) -> None:
        self._nodes = [node for node in self._nodes if node.running()]
        fresh = []
        while len(self._nodes) < 2:
            self._made += 1
            fresh.append(f"n{self._made}")
            self._nodes.append(self._network.start_node(fresh[-1], flags=["--engine", "none"], wait=False))
        for name in fresh:
            self._network.wait_node(name)
        wait_for(lambda: all(map(is_warm, self._nodes)), "the nodes to be warm", START_S_MAX)

    def strike(self, how: str) -> float | None:
        self._two_machines()
        client = self._network.client()
        job = client.jobs.submit(BODY)
        node = self._network.node_running(job.id, START_S_MAX)
        wait_for(lambda: self._ran(job.id), "the body to say that it runs", START_S_MAX)
        machine = node.tree()
        struck = time.time()
        for process in machine:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(NUMBERS[how])
        try:
            wait_for(lambda: len(self._ran(job.id)) > 1, "the body to run again", self._limit_s)
            return self._ran(job.id)[1] - struck
        except AssertionError:
            return None
        finally:
            node.kill_tree()
            client.jobs.stop(job.id)
            client.jobs.wait(job.id, timeout_s=START_S_MAX, check=False)

    def _ran(self, job: str) -> list[float]:
        """When each attempt's body started, by its own clock."""
        said = self._network.client().jobs.logs(job, stream="stdout")
        return [float(line.text) for line in said if line.stream == "stdout"]

    def close(self) -> None:
        self._network.close()


def is_warm(node: NodeProcesses) -> bool:
    """Its launcher sets its process name once it has loaded what it will fork."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(process.name() == "holdfast-launch" for process in node.descendants())
    return False


class PeerFailed(Exception):
    """It did not start, or gave up: earlier measurements stay valid, and the reason is printed."""


class Peer:
    """A peer in its own Python process, controlled line by line."""

    def __init__(self, name: str, python: Path, limit_s: float) -> None:
        self._name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this lives
        words = [str(python), str(HERE / "failover_peers.py"), name, str(limit_s)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True
        )
        self._answer_s_max = limit_s + 2 * START_S_MAX
        if self._heard(START_S_MAX) != "ready":
            self.close()
            raise PeerFailed(f"{name} did not start:\n{self._words()}")

    def _heard(self, limit_s: float) -> str:
        """Output is one line at a time, so whatever is readable is a whole line; empty: nothing in time."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], limit_s)
        return self._process.stdout.readline().strip() if ready else ""

    def _words(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]

    def strike(self, how: str) -> float | None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{how}\n")
        self._process.stdin.flush()
        if not (said := self._heard(self._answer_s_max)):
            raise PeerFailed(f"{self._name} gave up:\n{self._words()}")
        return json.loads(said)

    def close(self) -> None:
        """Shut it down cleanly, or else kill each of its processes by id."""
        with contextlib.suppress(psutil.NoSuchProcess, subprocess.TimeoutExpired, OSError):
            left = psutil.Process(self._process.pid).children(recursive=True)
            try:
                self._process.communicate(timeout=20)
            finally:
                for process in [*left, self._process]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                self._process.wait()


def peers_python() -> Path:
    """A Python with the peers, created once for each list of versions."""
    listed = HERE / "constraints-peers.txt"
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-bench"
    cache = Path(os.environ.get("HOLDFAST_BENCH_CACHE") or usual)
    made = cache / f"peers-{hashlib.sha256(listed.read_bytes()).hexdigest()[:12]}"
    python = made / "bin" / "python"
    if not (made / "whole").exists():
        print(f"installing Ray and Dask distributed into {made}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(made)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "-r", str(listed)], check=True, stderr=subprocess.DEVNULL
        )
        (made / "whole").touch()
    return python


# --- measuring ---


def kills(contestants: dict[str, Contestant], rounds: int) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, contestant in list(contestants.items()):
            if name == "holdfast" or number < PEER_KILLS_MAX:
                try:
                    took = contestant.strike("kill")
                except PeerFailed as wrong:
                    said(str(wrong))
                    del contestants[name]
                    continue
                found[name].append(took)
                said(f"kill {number + 1}, {name}: {'not in time' if took is None else f'{took:.2f} s'}")
    return found


def said(text: str) -> None:
    """Progress, on standard error: standard output is for the results."""
    print(text, file=sys.stderr, flush=True)


def row_of(row: str, who: str, took: list[float | None], limit_s: float, bar: str, met: bool | None) -> Row:
    """Values over the limit count as the largest for the median."""
    ordered = sorted(took, key=lambda seconds: limit_s if seconds is None else seconds)
    seconds = ordered[len(ordered) // 2] if len(ordered) % 2 else _between(ordered)
    measured = [one for one in ordered if one is not None]
    return {
        "row": row, "who": who, "rounds": len(took), "median_s": None if seconds is None else round(seconds, 3),
        "least_s": round(measured[0], 3) if measured else None,
        "most_s": round(measured[-1], 3) if len(measured) == len(took) else None,
        "limit_s": limit_s, "bar": bar, "met": met, **(OURS if who == "holdfast" else THEIRS), "load": load(),
    }  # fmt: skip


def _between(ordered: list[float | None]) -> float | None:
    low, high = ordered[len(ordered) // 2 - 1], ordered[len(ordered) // 2]
    return None if low is None or high is None else statistics.mean((low, high))


def load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def kill_rows(took: dict[str, list[float | None]], limit_s: float) -> list[Row]:
    rows = [row_of("kill", name, times, limit_s, "", None) for name, times in took.items() if times]
    ours = rows[0]["median_s"]
    ray = next((row["median_s"] for row in rows if row["who"] == "ray"), None)
    against = f"below Ray's median, aim {KILL_AIM_S} s" if "ray" in took else f"aim {KILL_AIM_S} s"
    rows[0] |= {"bar": against, "met": ours is not None and (ours <= KILL_AIM_S if ray is None else ours < ray)}
    return rows


def freeze_row(holdfast: Contestant, rounds: int, limit_s: float) -> Row:
    took = [holdfast.strike("freeze") for _ in range(rounds)]
    said(f"freeze, holdfast: {took}")
    row = row_of("freeze", "holdfast", took, limit_s, f"at most {FREEZE_S_MAX:g} s", None)
    return row | {"met": row["most_s"] is not None and row["most_s"] <= FREEZE_S_MAX}


def idle_row(seconds: float) -> Row:
    """An idle node: its agent and its launcher."""
    with LocalNetwork() as network:
        network.start_orchestrator(preset="lan")
        node = network.start_node("idle", flags=["--engine", "none"])
        time.sleep(SETTLE_S)
        processes = node.tree()
        before, at = busy_s(processes), time.monotonic()
        time.sleep(seconds)
        percent = 100 * (busy_s(processes) - before) / (time.monotonic() - at)
        used = [process.memory_full_info() for process in processes]
    rss, pss = (round(sum(getattr(one, kind) for one in used) / 2**20, 1) for kind in ("rss", "pss"))
    return {
        "row": "idle", "who": "holdfast", "seconds": seconds, "processes": len(processes), "rss_mib": rss,
        "agent_rss_mib": round(used[0].rss / 2**20, 1), "pss_mib": pss, "cpu_percent_of_core": round(percent, 2),
        "bar": f"agent's RSS and PSS of all at most {IDLE_MIB_MAX} MiB, below {IDLE_PERCENT_MAX:g} % of a core",
        "met": max(pss, used[0].rss / 2**20) <= IDLE_MIB_MAX and percent < IDLE_PERCENT_MAX,
        **OURS, "isolation": "none (no job)", "load": load(),
    }  # fmt: skip


def busy_s(processes: list[psutil.Process]) -> float:
    return sum(used.user + used.system for used in (process.cpu_times() for process in processes))


def measure(args: argparse.Namespace) -> list[Row]:
    with contextlib.ExitStack() as running:
        contestants: dict[str, Contestant] = {"holdfast": Holdfast(args.limit)}
        running.callback(contestants["holdfast"].close)
        for name in () if args.no_peers else PEERS:
            said(f"{name} starts")
            try:
                contestants[name] = peer = Peer(name, peers_python(), args.limit)
                running.callback(peer.close)
            except PeerFailed as wrong:
                said(str(wrong))
        rows = kill_rows(kills(contestants, args.kills), args.limit) if args.kills else []
        if args.freezes:
            rows.append(freeze_row(contestants["holdfast"], args.freezes, args.limit))
        peers = {name: peer for name, peer in contestants.items() if name != "holdfast"}
        with ThreadPoolExecutor(len(peers) or 1) as pool:
            frozen = {name: pool.submit(peer.strike, "freeze") for name, peer in peers.items() if args.freezes}
            idle = idle_row(args.idle) if args.idle else None
            for name, took in frozen.items():
                try:
                    rows.append(row_of("freeze", name, [took.result()], args.limit, "", None))
                except PeerFailed as wrong:
                    said(str(wrong))
        return rows + ([idle] if idle else [])


def told(row: Row) -> str:
    def seconds(value: float | None) -> str:
        return f"> {row['limit_s']:g} s" if value is None else f"{value:.2f} s"

    who = PEERS.get(row["who"], "Holdfast")
    if row["row"] == "idle":
        found = (
            f"{row['pss_mib']} MiB PSS ({row['rss_mib']} RSS, of which the agent {row['agent_rss_mib']}),"
            f" {row['cpu_percent_of_core']} % of a core over {row['seconds']:g} s"
        )
    else:
        found = f"median {seconds(row['median_s'])} (least {seconds(row['least_s'])}, most {seconds(row['most_s'])})"
        found += f", n={row['rounds']}"
    verdict = {True: "met", False: "MISSED", None: ""}[row["met"]]
    bar = f"  [{row['bar']}: {verdict}]" if row["bar"] else ""
    return f"{row['row']:>7}  {who:<17} {found}{bar}  load {row['load']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--freezes", type=int, default=5)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which a failover counts as failed")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds to observe the idle node; 0: skip it")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends started processes, like any other exit
    rows = measure(args)
    if args.json:
        json.dump(rows, sys.stdout, indent=2)
    else:
        print("\n".join(map(told, rows)))
    return 1 if args.check and any(row["met"] is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
