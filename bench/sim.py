"""How fast the simulator runs: simulated events per CPU second, and worlds (seeds) per minute on one core.

The production kernel, commit loop, node core and shim decisions under a virtual clock, with every invariant checked at
every commit. Path: in process; no TLS, no fsync, no isolation.

    python bench/sim.py [--seeds 200] [--json]
"""

import argparse
import json
import sys
import time

from holdfast.sim.scene import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    wall, cpu = time.perf_counter(), time.process_time()
    verdicts = [run(seed) for seed in range(args.seeds)]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    events = sum(v.events for v in verdicts)
    row = {
        "seeds": args.seeds, "events": events, "broken": sum(1 for v in verdicts if not v.ok),
        "events_per_cpu_s": round(events / cpu), "seeds_per_minute": round(60 * args.seeds / wall),
        "path": "in process", "tls": False, "fsync": False, "isolation": "none",
    }  # fmt: skip
    if args.json:
        json.dump(row, sys.stdout, indent=2)
    else:
        for name, value in row.items():
            print(f"{name:>18}  {value}")
    return 1 if row["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
