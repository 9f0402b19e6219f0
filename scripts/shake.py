"""Runs tests while processes below them stand still for a moment, again and again: what a busy machine does by chance.

`python scripts/shake.py [--rounds 5] [--seed 1] TESTS...`; pytest's own words may follow `TESTS`. A failure that comes
only here is a race, in the test or in the product. The seed says who is stopped and for how long, as far as the same
processes are there again.

Stops nothing but descendants of its own pytest, and leaves alone what a test has stopped. At its end it lets go of all
that it stopped, also where a signal told it to end; not where it was killed (SIGKILL): then what stood still in that
moment does so until somebody continues it, and pytest runs on.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

STILL_S, BETWEEN_S, AT_ONCE = 0.6, 0.3, 3
"""The longest that one stands still, the longest until the next, and how many at most stand still together."""

ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
ENDING_S = 60
"""For tests that are cut short to clear up."""


@contextlib.contextmanager
def stopped(process: psutil.Process, top: int) -> Iterator[None]:
    """While this lasts the process stands still, if it is one below `top` that runs."""
    file = os.pidfd_open(process.pid)  # whoever gets its number later is not meant
    try:
        runs = process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)
        if not runs or top not in [parent.pid for parent in process.parents()]:
            yield
            return
        try:
            signal.pidfd_send_signal(file, signal.SIGSTOP)
            wait_until_still(process)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                if not stopped_by_another_too(process.pid):
                    signal.pidfd_send_signal(file, signal.SIGCONT)
    finally:
        os.close(file)


def wait_until_still(process: psutil.Process) -> None:
    """On a busy machine it takes a while; who waits for a disk may take longer, and is not waited for."""
    until = time.monotonic() + 0.2
    while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE) and time.monotonic() < until:
        time.sleep(0.002)


def stopped_by_another_too(pid: int) -> bool:
    """A second request to stop waits at a process that stands still already: a test made it, and relies on it. Where it
    does not stand still yet, the request that waits is the shaker's own."""
    with contextlib.suppress(OSError):
        told = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        asked = bool(int(told["ShdPnd"], 16) & 1 << signal.SIGSTOP - 1)
        return asked and told["State"].split()[0] == "T"
    return False


def shake(top: psutil.Process, dice: random.Random) -> None:
    """Stop some of what is below `top`, for a moment."""
    with contextlib.ExitStack() as held:
        below = top.children(recursive=True)
        for process in dice.sample(below, min(len(below), dice.randint(1, AT_ONCE))):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                held.enter_context(stopped(process, top.pid))
        time.sleep(dice.uniform(0, STILL_S))


def shaken(words: list[str], seed: int) -> bool:
    """Whether the tests hold in one round."""
    dice = random.Random(seed)
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", *words]
    tests = subprocess.Popen(command, process_group=0)  # what is typed at a terminal ends this, and this ends those
    try:
        top = psutil.Process(tests.pid)
        while tests.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                shake(top, dice)
            time.sleep(dice.uniform(0, BETWEEN_S))
    finally:
        if tests.poll() is None:
            tests.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                tests.wait(ENDING_S)
            tests.kill()
    print(f"seed {seed}: {'held' if tests.returncode == 0 else 'did NOT hold'}", flush=True)
    return tests.returncode == 0


def end(number: int, _: object) -> None:
    for each in ENDS:
        signal.signal(each, signal.SIG_IGN)  # nothing cuts short the letting go
    sys.exit(128 + number)


def main() -> None:
    for each in ENDS:
        signal.signal(each, end)
    parser = argparse.ArgumentParser(description="Run tests while processes below them stand still now and then.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; each has the next")
    known, words = parser.parse_known_args()
    first = random.SystemRandom().randrange(1_000_000) if known.seed is None else known.seed
    failed = [seed for seed in range(first, first + known.rounds) if not shaken(words, seed)]
    if failed:
        sys.exit(f"{len(failed)} of {known.rounds} rounds did not hold: seeds {', '.join(map(str, failed))}")


if __name__ == "__main__":
    main()
