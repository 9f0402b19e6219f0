"""All measurements, one after another: `python -m bench [--quick]`. Each is a program of its own beside this file."""

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


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    worst = 0
    for name, smaller in QUICK.items():
        print(f"\n{name}", flush=True)
        worst = max(worst, subprocess.call([sys.executable, str(HERE / name), *(smaller if quick else [])]))
    return worst


if __name__ == "__main__":
    sys.exit(main())
