"""`python -m holdfast.sim`: replay one world, run a range of seeds, or search for failing ones until stopped.

python -m holdfast.sim story SEED [--quiet] [--json]
python -m holdfast.sim run FIRST COUNT
python -m holdfast.sim fuzz [--for SECONDS] [--from SEED] [--corpus FILE]
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from holdfast.sim.scene import WorldVerdict, run
from holdfast.sim.story import tell

CORPUS = Path("tests/simulation/corpus.txt")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.sim", description="Simulated worlds. Every bug is a seed."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    story = commands.add_parser("story", help="replay one world and tell what happened")
    story.add_argument("seed", type=int)
    story.add_argument("--quiet", action="store_true", help="the verdict only")
    story.add_argument("--json", action="store_true")
    several = commands.add_parser("run", help="run a range of seeds")
    several.add_argument("first", type=int)
    several.add_argument("count", type=int)
    fuzz = commands.add_parser("fuzz", help="run new seeds until stopped; bad ones go into the corpus")
    fuzz.add_argument("--for", dest="seconds", type=float, default=None)
    fuzz.add_argument("--from", dest="first", type=int, default=None, help="default: a seed that was not run before")
    fuzz.add_argument("--corpus", type=Path, default=CORPUS)
    given = parser.parse_args(words)
    match given.command:
        case "story":
            return tell(given.seed, not given.quiet, given.json)
        case "run":
            return _run(range(given.first, given.first + given.count), None, None)
        case _:
            first = time.time_ns() // 1_000_000 if given.first is None else given.first
            return _run(range(first, sys.maxsize), given.seconds, given.corpus)


def _run(seeds: range, seconds: float | None, corpus: Path | None) -> int:
    """Run seeds until they or the time are used up, or the run is interrupted. Returns 0 if every rule held."""
    began, cpu = time.monotonic(), time.process_time()
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    try:
        for seed in seeds:
            if seconds is not None and time.monotonic() - began >= seconds:
                break
            verdict = run(seed)
            totals.update(seeds=1, events=verdict.events, bad=not verdict.ok)
            faults.update(verdict.faults)
            if not verdict.ok:
                _keep(verdict, corpus)
    except KeyboardInterrupt:
        sys.stdout.write("\nstopped\n")
    spent = max(1e-9, time.process_time() - cpu)
    sys.stdout.write(
        f"{totals['seeds']} seeds, {totals['bad']} bad; {totals['events'] / spent:,.0f} events a CPU second, "
        f"{totals['seeds'] / spent * 60:,.0f} seeds a CPU minute\n"
    )
    sys.stdout.write(", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())) + "\n")
    return 1 if totals["bad"] else 0


def _keep(verdict: WorldVerdict, corpus: Path | None) -> None:
    sys.stdout.write(f"{verdict.says}\nreplay: {verdict.replay}\n")
    if corpus is None:
        return
    known = {line.split()[0] for line in corpus.read_text().splitlines() if line.strip()} if corpus.exists() else set()
    if str(verdict.seed) not in known:
        with corpus.open("a") as lines:
            lines.write(f"{verdict.seed}  # {verdict.says.partition(':')[0]}\n")


if __name__ == "__main__":
    sys.exit(main())
