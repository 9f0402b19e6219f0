"""All measurements, one after another. Each is a program of its own beside this file.

python -m bench               the tables of docs/benchmarks.md, in full
python -m bench --quick       smaller, for a look; `make release-check` runs this
python -m bench --smallest    so small that it measures nothing: it shows that every program runs
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
QUICK = {
    "kernel.py": ["--nodes", "100", "10000", "--decisions", "1000"],
    "sim.py": ["--seeds", "40"],
    "jobs.py": ["--jobs", "1000", "--stores", "sqlite"],
    "nodes.py": ["--nodes", "200", "--watch", "10"],
    "blobs.py": ["--mib", "128", "--files", "5000", "--rounds", "1"],
    "runtime.py": ["--rounds", "4", "--mib", "128"],
    "failover.py": ["--kills", "3", "--freezes", "1", "--limit", "20", "--idle", "15"],
    "startup.py": ["--rounds", "3", "--ups", "1"],
    "neural.py": ["--part", "products", "--times", "1"],
}
SMALLEST = {
    "kernel.py": ["--nodes", "100", "--fill", "0.7", "--decisions", "100"],
    "sim.py": ["--seeds", "1"],
    "jobs.py": ["--jobs", "64", "--batch", "8", "--stores", "sqlite"],
    "nodes.py": ["--nodes", "4", "--watch", "0.5"],
    "blobs.py": ["--mib", "1", "--files", "10", "--rounds", "1"],
    "runtime.py": ["--parts", "checkpoint", "--mib", "64"],
    "failover.py": ["--no-peers", "--kills", "1", "--freezes", "0", "--idle", "0"],
    "startup.py": ["--rounds", "1", "--ups", "1"],
    "neural.py": ["--part", "products", "--times", "1", "--width", "512", "--on", "numpy"],
}


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = words.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const=QUICK, dest="sizes")
    size.add_argument("--smallest", action="store_const", const=SMALLEST, dest="sizes")
    sizes = words.parse_args().sizes or {name: [] for name in QUICK}
    worst = 0
    for name, size in sizes.items():
        print(f"\n{name}", flush=True)
        worst = max(worst, subprocess.call([sys.executable, str(HERE / name), *size]))
    return worst


if __name__ == "__main__":
    sys.exit(main())
