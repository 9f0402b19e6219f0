"""Startup time of commands, in wall clock and processor time, and of an orchestrator.

    help      `holdfast --help`, the most frequent one
    version   the least that a command does
    jobs      a request over HTTP to an orchestrator on loopback, with the response shown as a table
    up        `holdfast up` in an empty folder, until it answers and has printed what to type next

Commands alternate with those of others, so that all run under the same load: `python -c pass` (the lower bound for any
Python program), `pip --help`, and, if installed, `uv --help` and `ray --help`; medians. Files are in the cache, as for
a second command. Bars: `--help` 150 ms wall and 80 ms of processor time, `up` 3 s; they apply to an otherwise idle
machine, and the load is printed.

    python bench/startup.py [--rounds 15] [--ups 3] [--json] [--check]
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.testing.processes import LocalNetwork, free_port, wait_for

HELP_WALL_MS_MAX, HELP_CPU_MS_MAX, UP_S_MAX = 150.0, 80.0, 3.0
SCRIPTS = Path(sysconfig.get_path("scripts"))

Row = dict[str, Any]


def spent(words: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Milliseconds of wall clock and of processor time that a command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall * 1e3, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def contestants() -> dict[str, list[str]]:
    holdfast = str(SCRIPTS / "holdfast")
    found = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "holdfast --help": [holdfast, "--help"],
        "holdfast version": [holdfast, "version"],
        "holdfast jobs": [holdfast, "jobs"],
        "pip --help": [sys.executable, "-m", "pip", "--help"],
    }
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-bench"
    places = [SCRIPTS, *sorted(cache.glob("peers-*/bin"))]
    for name in ("uv", "ray"):
        program = shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, places)))
        if program:
            found[f"{name} --help"] = [program, "--help"]
    return found


def command_rows(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, LocalNetwork(Path(folder)) as network:
        network.start_orchestrator(preset="lan")
        for _ in range(20):
            network.client().jobs.submit(["true"], memory_mib=64, disk_mib=16)
        env = network.environment()
        programs = contestants()
        for words in programs.values():  # once for the cache
            spent(words, env)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for _ in range(rounds):
            for name, words in programs.items():
                taken[name].append(spent(words, env))
    rows: list[Row] = []
    for name, times in taken.items():
        wall, cpu = (round(statistics.median(one[part] for one in times), 1) for part in (0, 1))
        row: Row = {"row": name, "rounds": rounds, "wall_ms": wall, "cpu_ms": cpu}
        if name == "holdfast --help":
            row |= {
                "bar": f"{HELP_WALL_MS_MAX:g} ms wall, {HELP_CPU_MS_MAX:g} ms of processor time",
                "met": wall <= HELP_WALL_MS_MAX and cpu <= HELP_CPU_MS_MAX,
            }
        rows.append(row)
    return rows


def up_row(rounds: int) -> Row:
    """Until it has printed what to type next: by then it has answered a request of its own."""
    taken: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, LocalNetwork(Path(folder)) as network:
            began = time.perf_counter()
            where = ["--http", f"127.0.0.1:{free_port()}", "--listen", f"127.0.0.1:{free_port()}"]
            up = network.start_cli("up", *where, log=Path(folder) / "up.log")
            wait_for(lambda up=up: "holdfast run" in up.output(), "the orchestrator to be up", 60, every_s=0.005)
            taken.append(time.perf_counter() - began)
    median = round(statistics.median(taken), 2)
    return {
        "row": "holdfast up", "rounds": rounds, "wall_ms": median * 1e3, "all_s": [round(one, 2) for one in taken],
        "bar": f"ready in {UP_S_MAX:g} s", "met": median <= UP_S_MAX,
    }  # fmt: skip


def told(row: Row) -> str:
    cpu = f"{row['cpu_ms']:7.0f} ms of processor time" if "cpu_ms" in row else " " * 28
    bar = f"   {'met' if row['met'] else 'NOT MET'}: {row['bar']}" if "bar" in row else ""
    return f"{row['row']:<18}{row['wall_ms']:7.0f} ms{cpu}{bar}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ups", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    rows = command_rows(args.rounds) if args.rounds else []
    rows += [up_row(args.ups)] if args.ups else []
    if args.json:
        print(json.dumps(rows))
    else:
        print(f"load before: {load:.1f}")
        for row in rows:
            print(told(row))
    return int(args.check and not all(row.get("met", True) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
