"""Decisions per second of the kernel: fleets of 100, 10,000 and 1,000,000 nodes, 70 % and 90 % full.

A decision is one whole `Kernel.apply(Submitted)` that ends with an attempt offered to a node: queueing, the choice,
the fence, the rows and the messages. Between decisions the oldest attempt of the fleet ends, so that the fill stays
where it is; that part is not timed. Path: in process, no TLS, no fsync, no isolation; shipped defaults.

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

from holdfast.kernel.kernel import Kernel
from holdfast.kernel.events import Led, NodeJoined, NodeSaid, Submitted
from holdfast.kernel.decision import Decision, ToSession
from holdfast.model import Gpu, Hardware, Instant, JobId, JobSpec, Need, NodeId, Owner, Resources, Settings
from holdfast.model.messages import Held, HeldPhase, Hello, Report, Start
from holdfast.model.failure import Failure, FailureCode

RARE_SHARE = 10_000
"""One node in this many has the card that the rare need asks for."""
ORDINARY = [
    Need(Resources(500, 512, 1024)), Need(Resources(1000, 2048, 4096)), Need(Resources(2000, 4096, 8192)),
    Need(Resources(1500, 1024, 2048)), Need(Resources(4000, 8192, 8192)), Need(Resources(1000, 6000, 4096)),
]  # fmt: skip
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
    def __init__(self, nodes: int, fill: float, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        settings = Settings(open_join=True, owner_live_jobs_max=10**9, live_jobs_max=10**9, attempts_per_node_max=10**6)
        self.kernel = Kernel(settings)
        self.now = 1_700_000_000_000
        self.kernel.apply(Led(1, 7), Instant(self.now))
        self.seq: dict[str, int] = {}
        self.running: deque[tuple[int, str, object]] = deque()
        self.jobs = 0
        capacity = 0
        for i in range(nodes):
            hardware = machine(self.rng, i % RARE_SHARE == min(nodes, RARE_SHARE) // 2)
            capacity += hardware.total.cpu_milli
            hello = Hello(NodeId(f"node_{i:07d}"), "i", f"k{i}", "1", hardware, hardware.total, "bubblewrap")
            self.kernel.apply(NodeJoined(i + 1, hello), Instant(self.now))
        used = 0
        while used < capacity * fill:
            need = self.rng.choice(ORDINARY)
            if self.decide(need) is None:
                break
            used += need.resources.cpu_milli

    def decide(self, need: Need) -> float | None:
        """Seconds the decision took; None if the job found no room."""
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
        self._end(session, node, start)

    def end_newest(self) -> None:
        self._end(*self.running.pop())

    def _end(self, session: int, node: str, start) -> None:
        seq = self.seq[node] = self.seq.get(node, 0) + 1
        held = Held(start.attempt, start.fence, HeldPhase.FINISHED, failure=Failure(FailureCode.EXIT_CODE, exit_code=1))
        report = NodeSaid(session, NodeId(node), Report(seq, False, (held,)))
        self._started(self.kernel.apply(report, Instant(self.now)))


def measure(nodes: int, fill: float, decisions: int) -> list[dict[str, object]]:
    fleet = Fleet(nodes, fill)
    gc.collect()
    gc.freeze()
    rows = []
    for name, needs in (("ordinary", ORDINARY), ("rare", [RARE])):
        times, missed = [], 0
        for i in range(decisions):
            took = fleet.decide(needs[i % len(needs)])
            if took is None:
                missed += 1
                while fleet.kernel.waiting:
                    fleet.end_oldest()
                continue
            times.append(took)
            if name == "rare":
                fleet.end_newest()
            else:
                fleet.end_oldest()
        times.sort()
        rows.append(
            {
                "nodes": nodes,
                "fill_percent": round(fill * 100),
                "need": name,
                "decisions": len(times),
                "no_fit": missed,
                "per_s": round(len(times) / sum(times)) if times else 0,
                "p50_us": round(statistics.median(times) * 1e6, 1) if times else None,
                "p99_us": round(times[int(len(times) * 0.99)] * 1e6, 1) if times else None,
                "path": "in process",
                "tls": False,
                "fsync": False,
                "isolation": "none",
            }
        )
    gc.unfreeze()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, nargs="*", default=[100, 10_000, 1_000_000])
    parser.add_argument("--fill", type=float, nargs="*", default=[0.7, 0.9])
    parser.add_argument("--decisions", type=int, default=4_000)
    args = parser.parse_args()
    rows = [row for n in args.nodes for f in args.fill for row in measure(n, f, args.decisions)]
    if args.json:
        json.dump(rows, sys.stdout, indent=2)
        return 0
    print(f"{'nodes':>9} {'full':>5} {'need':>9} {'decisions/s':>12} {'p50 µs':>8} {'p99 µs':>8} {'no fit':>7}")
    for r in rows:
        print(
            f"{r['nodes']:>9,} {r['fill_percent']:>4}% {r['need']:>9} {r['per_s']:>12,} {r['p50_us']!s:>8} {r['p99_us']!s:>8} {r['no_fit']:>7}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
