"""Starting and preserving work: from submit to the first line of output, content transfer, and checkpoints.

    start        submit over HTTP until the first line arrives by following the logs, on a warm node: in the sandbox
                 against a bare `subprocess`, in a container against `docker run` and `podman run` of the same
                 image and command
    content      a file up and down against `curl` with the same store; by bench/blobs.py, which has more detail
    checkpoint   bytes sent for a checkpoint of which one percent has changed
    slowdown     the same computing body with and without captured checkpoints (bench/checkpoints.py)

Orchestrator and node are separate processes with the shipped defaults. Ours and the peer's runs alternate and medians
are compared, so that other load on the machine affects both. Bars: 150 ms over a bare subprocess, 300 ms over the
engine's own command, 60 % of curl, 3 % of the bytes, 5 % of the time.

    python bench/runtime.py [--parts start content checkpoint slowdown] [--rounds 20] [--mib 1024] [--json] [--check]
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import checkpoints
from holdfast.client import Client
from holdfast.testing.engines import Docker, EngineService, Podman, Registry, busybox_tar
from holdfast.testing.processes import LocalNetwork, NodeProcesses, wait_for

WORDS = ["/bin/sh", "-c", "echo started"]
SANDBOX_MS_MAX, CONTAINER_MS_MAX, CONTENT_PERCENT_MIN = 150, 300, 60
CONTENT_MIB_MAX = 256
ROUND_S_MAX = 60.0
SETTING = {"path": "HTTP and gRPC, loopback", "tls": False, "fsync": True}
PARTS = ("start", "content", "checkpoint", "slowdown")
Row = dict[str, Any]


# --- from submit to the first line ---


@contextmanager
def a_node(flags: Iterable[str]) -> Iterator[tuple[Client, NodeProcesses]]:
    with LocalNetwork() as network:
        network.start_orchestrator(preset="lan")
        node = network.start_node("bench", flags=flags)
        yield network.client(), node


def first_line_ms(client: Client, node: NodeProcesses, image: str) -> float:
    """One job, from the call to its first line; returns when nothing of it is left on the node."""
    began = time.perf_counter()
    job = client.jobs.submit(WORDS, image=image)
    for line in client.jobs.logs(job.id, stream="stdout", follow=True):
        if line.stream == "stdout":
            break
    else:
        raise SystemExit(f"{job.id} ended without a word: {client.jobs.get(job.id).failure}")
    took = 1e3 * (time.perf_counter() - began)
    client.jobs.wait(job.id, timeout_s=ROUND_S_MAX)
    wait_for(lambda: not any((node.home / "attempts").iterdir()), "the attempt's folder to go", ROUND_S_MAX)
    return took


def plain_ms(words: list[str], env: dict[str, str] | None = None) -> float:
    began = time.perf_counter()
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        took = 1e3 * (time.perf_counter() - began)
    if said != b"started\n":
        raise SystemExit(f"`{' '.join(words)}` ended with {process.returncode} and said nothing")
    return took


def in_turns(ours: Callable[[], float], peer: Callable[[], float], rounds: int) -> tuple[list[float], list[float]]:
    """The first round of each is not counted: it is not warm."""
    rows = [(ours(), peer()) if number % 2 else (peer(), ours())[::-1] for number in range(rounds + 1)][1:]
    return [ours for ours, _ in rows], [peer for _, peer in rows]


def start_row(
    case: str,
    peer_name: str,
    isolation: str,
    bar: int,
    flags: list[str],
    image: str,
    peer: Callable[[], float],
    rounds: int,
) -> Row:
    before = os.getloadavg()[0]
    with a_node(flags) as (client, node):
        ours, plain = in_turns(lambda: first_line_ms(client, node, image), peer, rounds)
    over = statistics.median(ours) - statistics.median(plain)
    return {
        "part": "start", "case": case, "peer": peer_name, "rounds": rounds, "ms": round(statistics.median(ours)),
        "ms_best": round(min(ours)), "peer_ms": round(statistics.median(plain)), "over_ms": round(over),
        "bar": f"at most {bar} ms over", "met": over <= bar, "isolation": isolation, **SETTING, "load": load(before),
    }  # fmt: skip


def load(before: float) -> str:
    """The load of the machine including this benchmark, as one-minute averages."""
    return f"{before:.1f} to {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def start_rows(rounds: int) -> Iterator[Row]:
    with LocalNetwork() as network:
        isolation = "none" if network.unsafe else "bubblewrap"
    yield start_row(
        "sandbox",
        "bare subprocess",
        isolation,
        SANDBOX_MS_MAX,
        ["--engine", "none"],
        "",
        lambda: plain_ms(WORDS),
        rounds,
    )
    with Registry() as registry:
        image = registry.add_image("bench", busybox_tar())
        for engine in (Docker(), Podman(insecure=[registry.address])):
            with engine:
                yield container_row(engine, image, rounds)


def container_row(engine: EngineService, image: str, rounds: int) -> Row:
    reach = engine.command()[: engine.command().index("system")] if engine.kind == "podman" else []
    words = [
        *(reach or ["docker", "--host", f"unix://{engine.socket}"]),
        "run",
        "--rm",
        "--network",
        "none",
        image,
        *WORDS,
    ]
    env = engine.environment()
    flags = ["--engine", engine.socket, "--private-inputs"]  # the registry is on loopback
    return start_row(
        f"container, {engine.kind}", f"{engine.kind} run", engine.kind, CONTAINER_MS_MAX, flags, image,
        lambda: plain_ms(words, env), max(3, rounds // 2),
    )  # fmt: skip


# --- content ---


def content_rows(mib: int, rounds: int) -> Iterator[Row]:
    before = os.getloadavg()[0]
    words = ["--mib", str(mib), "--files", "100", "--rounds", str(rounds), "--json"]
    program = [sys.executable, str(Path(__file__).with_name("blobs.py")), *words]
    found = json.loads(subprocess.run(program, check=True, stdout=subprocess.PIPE).stdout)
    for title, row in found.items():
        store = title.partition(",")[0]
        if "up_with_scan_percent" not in row:
            continue
        for way, ours in (("up", "up_with_scan"), ("down", "down")):
            percent = row[f"{ours}_percent"]
            yield {
                "part": "content", "case": f"{mib} MiB {way}, {store}", "peer": "curl, same store", "rounds": rounds,
                "mb_s": row[f"{ours}_mb_s"], "peer_mb_s": row[f"{way}_plain_mb_s"], "cp_mb_s": row["cp_mb_s"],
                "percent": percent, "bar": f"at least {CONTENT_PERCENT_MIN} % of curl",
                "met": percent >= CONTENT_PERCENT_MIN, "isolation": "none (nothing runs)", "path": "HTTP, loopback",
                "tls": False, "fsync": "what is accepted", "load": load(before),
            }  # fmt: skip


# --- checkpoints ---


def checkpoint_rows(mib: int) -> Iterator[Row]:
    before = os.getloadavg()[0]
    with a_node(["--engine", "none"]) as (client, node):
        for row in checkpoints.sent_rows(client, node, mib):
            yield {"part": "checkpoint", **row, "isolation": "bubblewrap", **SETTING, "load": load(before)}


def slowdown_rows(rounds: int) -> Iterator[Row]:
    before = os.getloadavg()[0]
    with a_node(["--engine", "none"]) as (client, node):
        row = checkpoints.slowdown_row(client, node, rounds)
    yield {"part": "slowdown", **row, "isolation": "bubblewrap", **SETTING, "load": load(before)}


# --- the table ---


def told(row: Row) -> str:
    match row["part"]:
        case "start":
            found = (
                f"{row['ms']} ms (best {row['ms_best']}), {row['peer']} {row['peer_ms']} ms: {row['over_ms']} ms over"
            )
        case "content":
            found = f"{row['mb_s']} MB/s, curl {row['peer_mb_s']}, cp {row['cp_mb_s']}: {row['percent']} %"
        case "checkpoint":
            found = f"{row['sent_mib']} MiB sent: {row['percent']} %"
        case _:
            found = (
                f"{row['s']} s, without {row['peer_s']} s: {row['percent']} % slower"
                f" ({row['cpu_percent']} % in processor time, {row['captures']} captures)"
            )
    verdict = {True: "met", False: "MISSED", None: "no bar"}[row["met"]]
    bar = f"{row['bar']}: {verdict}; n={row['rounds']}; load {row['load']}"
    return f"{row['part']:>10}  {row['case']:<34} {found}  [{bar}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=20, help="starts in the sandbox; half as many in each engine")
    parser.add_argument("--mib", type=int, default=1024, help="size of the checkpoint")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends started processes, like any other exit
    few = max(1, min(3, args.rounds // 4))
    rows: list[Row] = []
    for part, measured in {
        "start": lambda: start_rows(args.rounds),
        "content": lambda: content_rows(min(args.mib, CONTENT_MIB_MAX), few),
        "checkpoint": lambda: checkpoint_rows(args.mib),
        "slowdown": lambda: slowdown_rows(few),
    }.items():
        for row in measured() if part in args.parts else ():
            rows.append(row)
            if not args.json:
                print(told(row), flush=True)
    if args.json:
        json.dump(rows, sys.stdout, indent=2)
    else:
        print(
            "all: HTTP and gRPC over loopback, no TLS (loopback), fsync on, shipped defaults; load: one-minute averages"
        )
    return 1 if args.check and any(row["met"] is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
