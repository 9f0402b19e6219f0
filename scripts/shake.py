"""Runs tests while processes below them are stopped for moments, as happens on a busy machine.

`python scripts/shake.py [--rounds 5] [--seed 1] TESTS...`; arguments for pytest may follow `TESTS`. A failure that
occurs only here is a race, in the test or in the product. The seed determines which processes are stopped and for how
long, as far as the same processes exist again.

Stops only descendants of its own pytest, and leaves alone what a test has stopped. At its end it continues everything
that it stopped, also if a signal ended it, but not if it was killed (SIGKILL): then the processes stopped at that
moment stay stopped until somebody continues them, and pytest keeps running.
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
"""The longest stop, the longest pause between stops, and how many processes are stopped together at most."""

ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
ENDING_S = 60
"""Time for interrupted tests to clean up."""


@contextlib.contextmanager
def stopped(process: psutil.Process, top: int) -> Iterator[None]:
    """Stops the process for the duration of this context, if it is running and below `top`."""
    file = os.pidfd_open(process.pid)  # the number may be reused by another process
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
    """Stopping takes a while on a busy machine; a process that waits for a disk may take longer, and is not waited
    for."""
    until = time.monotonic() + 0.2
    while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE) and time.monotonic() < until:
        time.sleep(0.002)


def stopped_by_another_too(pid: int) -> bool:
    """Whether a test stopped the process and relies on it: a second request to stop waits at a process that is already
    stopped. If it is not stopped yet, the waiting request is our own."""
    with contextlib.suppress(OSError):
        told = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        asked = bool(int(told["ShdPnd"], 16) & 1 << signal.SIGSTOP - 1)
        return asked and told["State"].split()[0] == "T"
    return False


def shake(top: psutil.Process, dice: random.Random) -> None:
    """Stop some of the processes below `top`, for a moment."""
    with contextlib.ExitStack() as held:
        below = top.children(recursive=True)
        for process in dice.sample(below, min(len(below), dice.randint(1, AT_ONCE))):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                held.enter_context(stopped(process, top.pid))
        time.sleep(dice.uniform(0, STILL_S))


def shaken(words: list[str], seed: int) -> bool:
    """Whether the tests pass in one round."""
    dice = random.Random(seed)
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", *words]
    tests = subprocess.Popen(command, process_group=0)  # an interrupt from the terminal ends us, and we end the tests
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
        signal.signal(each, signal.SIG_IGN)  # continuing the stopped processes must not be interrupted
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
