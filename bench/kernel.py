"""Decisions per second of the kernel: fleets of 100, 10,000 and 1,000,000 nodes, 70 % and 90 % full.

A decision is one whole `Kernel.apply(Submitted)` that ends with an attempt offered to a node: queueing, the choice,
the fence, the rows and the messages, in processor time. Between decisions the oldest attempt of the benchmark ends, so
that the fill stays constant; that part is not timed. One node in 10,000 (but at least one) meets the rare need. A job
that does not fit anywhere at the moment waits and is counted as "no fit". Fleets of all sizes are measured in turns.
Path: in process, no TLS, no fsync, no isolation; shipped defaults.

    python bench/kernel.py [--json] [--nodes 100 10000 1000000] [--decisions 4000]
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections import deque
from typing import Any

from holdfast.kernel.decision import Decision, ToSession
from holdfast.kernel.events import Led, NodeJoined, NodeSaid, Submitted
from holdfast.kernel.kernel import Kernel
from holdfast.model import (
    Attempt,
    AttemptId,
    AttemptPhase,
    Failure,
    FailureCode,
    Gpu,
    Hardware,
    Instant,
    JobId,
    JobSpec,
    Meta,
    Need,
    Node,
    NodeId,
    NodeState,
    Owner,
    Resources,
    Settings,
)
from holdfast.model.messages import Held, HeldPhase, Hello, Report, Start

RARE_SHARE = 10_000
"""One node in this many has the GPU that the rare need asks for."""
ORDINARY = [
    Need(Resources(500, 512, 1024)), Need(Resources(1000, 2048, 4096)), Need(Resources(2000, 4096, 8192)),
    Need(Resources(1500, 1024, 2048)), Need(Resources(4000, 8192, 8192)), Need(Resources(1000, 6000, 4096)),
]  # fmt: skip
STEADY = 30
"""The number of attempts of the benchmark itself that run at a time; new ones replace the oldest."""
TURNS = 20
"""Each fleet is measured in this many turns."""
RARE = Need(Resources(1000, 2048, 1024, 1), gpu_memory_mib=140_000)


def machine(rng: random.Random, rare: bool) -> Hardware:
    cpus = 64 if rare else rng.choice([2, 4, 4, 8, 8, 8, 16, 16, 32, 64])
    total = Resources(cpus * 1000, cpus * rng.choice([1024, 2048, 4096, 4000]) - rng.randrange(400), 500_000)
    gpus: tuple[Gpu, ...] = ()
    if rare:
        gpus = (Gpu("H200", 143_771),) * 4
    elif rng.random() < 0.15:
        gpus = (rng.choice([Gpu("RTX 4090", 24_564), Gpu("A100", 81_920), Gpu("RTX 3060", 12_288)]),) * rng.choice(
            [1, 1, 2, 4]
        )
    return Hardware(
        arch=rng.choice(["x86_64"] * 9 + ["arm64"]),
        total=Resources(total.cpu_milli, total.memory_mib, total.disk_mib, len(gpus)),
        gpus=gpus,
    )


class Fleet:
    """A kernel with a fleet that is `fill` full: some nodes completely, the others to a uniformly random degree.

    The fill consists of attempts that are revoked but not gone yet: they occupy room like any other, and need no job.
    """

    def __init__(self, nodes: int, fill: float, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        settings = Settings(open_join=True, owner_live_jobs_max=10**9, live_jobs_max=10**9)
        self.now = 1_700_000_000_000
        machines = [machine(self.rng, i % RARE_SHARE == min(nodes, RARE_SHARE) // 2) for i in range(nodes)]
        rows = [
            Node(
                NodeId(f"node_{i:07d}"),
                f"k{i}",
                "1",
                hardware,
                Instant(self.now),
                NodeState.READY,
                offered=hardware.total,
            )
            for i, hardware in enumerate(machines)
        ]
        ballast = [self._ballast(i, row, fill) for i, row in enumerate(rows)]
        meta = Meta(epoch=1, seed=7, fence=nodes, now_ms=Instant(self.now))
        self.kernel = Kernel.load(settings, [meta, *rows, *ballast])
        self.kernel.apply(Led(2), Instant(self.now))
        self.seq: dict[str, int] = {}
        self.running: deque[tuple[int, str, Start]] = deque()
        self.jobs = 0
        for i, (row, held) in enumerate(zip(rows, ballast, strict=True)):
            hello = Hello(
                row.id, "i", row.public_key, "1", row.hardware, row.offered, "bubblewrap",
                held=(Held(held.id, held.fence, HeldPhase.RUNNING),),
            )  # fmt: skip
            self.kernel.apply(NodeJoined(i + 1, hello), Instant(self.now))

    def _ballast(self, i: int, node: Node, fill: float) -> Attempt:
        rare = any(g.model == "H200" for g in node.hardware.gpus)
        brim = self.rng.random() < 2 * fill - 1
        share = 0.5 if rare else 1.0 if brim else self.rng.random()
        total = node.offered
        holds = Resources(
            int(total.cpu_milli * share), int(total.memory_mib * share), int(total.disk_mib * share * 0.5)
        )
        why = Failure(FailureCode.SUPERSEDED)
        job = JobId(f"job_b{i:013d}")
        return Attempt(
            AttemptId(f"att_b{i:013d}.1"), job, node.id, i + 1, Instant(self.now), holds=holds,
            phase=AttemptPhase.RUNNING, phase_until_ms=Instant(self.now + 10**12), revoked=why,
        )  # fmt: skip

    def decide(self, need: Need) -> float | None:
        """Seconds that the decision took; None if the job found no room."""
        self.jobs += 1
        event = Submitted(JobId(f"job_{self.jobs:012d}"), Owner(f"o{self.jobs % 50}"), JobSpec(("x",), need=need), "h")
        started = time.thread_time()
        decision = self.kernel.apply(event, Instant(self.now))
        took = time.thread_time() - started
        return took if self._started(decision) else None

    def _started(self, decision: Decision) -> int:
        starts = [s for s in decision.sends if isinstance(s, ToSession) and isinstance(s.message, Start)]
        self.running.extend((s.session, s.node, s.message) for s in starts)
        return len(starts)

    def end_oldest(self) -> None:
        session, node, start = self.running.popleft()
        seq = self.seq[node] = self.seq.get(node, 0) + 1
        held = Held(start.attempt, start.fence, HeldPhase.FINISHED, failure=Failure(FailureCode.EXIT_CODE, exit_code=1))
        report = NodeSaid(session, NodeId(node), Report(seq, False, (held,)))
        self._started(self.kernel.apply(report, Instant(self.now)))


class Row:
    """The measurements of one fleet and one kind of need."""

    def __init__(self, fleet: Fleet, nodes: int, fill: float, name: str, needs: list[Need]) -> None:
        self.fleet = fleet
        self.about = {"nodes": nodes, "fill_percent": round(fill * 100), "need": name}
        self.needs = needs
        self.keep = STEADY if name == "ordinary" else 0
        self.times: list[float] = []
        self.missed = 0

    def turn(self, decisions: int) -> None:
        for i in range(decisions):
            took = self.fleet.decide(self.needs[i % len(self.needs)])
            if took is None:
                self.missed += 1
                continue
            self.times.append(took)
            if len(self.fleet.running) > self.keep:
                self.fleet.end_oldest()

    def finish(self) -> dict[str, Any]:
        while self.fleet.running:
            self.fleet.end_oldest()
        times = sorted(self.times)
        return {
            **self.about, "decisions": len(times), "no_fit": self.missed,
            "per_s": round(len(times) / sum(times)), "p50_us": round(statistics.median(times) * 1e6, 1),
            "p99_us": round(times[int(len(times) * 0.99)] * 1e6, 1),
            "path": "in process", "tls": False, "fsync": False, "isolation": "none",
        }  # fmt: skip


def measure(sizes: list[int], fill: float, decisions: int) -> list[dict[str, Any]]:
    """Fleets of all sizes in turns, so that other load on the machine affects all of them alike."""
    fleets = {nodes: Fleet(nodes, fill) for nodes in sizes}
    gc.collect()
    gc.freeze()
    found: list[dict[str, Any]] = []
    for name, needs in (("ordinary", ORDINARY), ("rare", [RARE])):
        rows = [Row(fleet, nodes, fill, name, needs) for nodes, fleet in fleets.items()]
        for _ in range(TURNS):
            for row in rows:
                row.turn(decisions // TURNS)
        found += [row.finish() for row in rows]
    gc.unfreeze()
    return found


def growth(rows: list[dict[str, Any]]) -> dict[tuple[str, int], float]:
    """By need and fill: the time of a decision in the largest fleet, as a multiple of that in the smallest."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in sorted(rows, key=lambda r: r["nodes"]):
        found.setdefault((row["need"], row["fill_percent"]), []).append(row["per_s"])
    return {key: rates[0] / rates[-1] for key, rates in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, nargs="*", default=[100, 10_000, 1_000_000])
    parser.add_argument("--fill", type=float, nargs="*", default=[0.7, 0.9])
    parser.add_argument("--decisions", type=int, default=4_000)
    args = parser.parse_args()
    rows = [row for fill in args.fill for row in measure(args.nodes, fill, args.decisions)]
    rows.sort(key=lambda r: (r["nodes"], r["fill_percent"], r["need"]))
    if args.json:
        json.dump(rows, sys.stdout, indent=2)
        return 0
    print(f"{'nodes':>9} {'full':>5} {'need':>9} {'decisions/s':>12} {'p50 µs':>8} {'p99 µs':>8} {'no fit':>7}")
    for r in rows:
        row = (r["nodes"], r["fill_percent"], r["need"], r["per_s"], r["p50_us"], r["p99_us"], r["no_fit"])
        print("{:>9,} {:>4}% {:>9} {:>12,} {:>8} {:>8} {:>7}".format(*row))
    for (need, fill), times in growth(rows).items():
        print(f"{need}, {fill} % full: {times:.2f}x from {min(args.nodes):,} to {max(args.nodes):,} nodes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
