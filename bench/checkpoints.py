"""The cost of checkpoints: bytes sent when little has changed, and how much capturing slows the job down.

For bench/runtime.py. Bodies run in the sandbox of a real node; the bytes sent are those that the node reports.
"""

import json
import re
import statistics
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from holdfast.client import Client
from holdfast.testing.processes import NodeProcesses, wait_for

SENT_PERCENT_MAX, SLOWER_PERCENT_MAX = 3.0, 5.0
CAPTURE_S_MAX = 120.0
PLACES = 10
KEPT = re.compile(r"a checkpoint of (\d+) bytes is kept \((\d+) sent\)")

WRITER = """
import os, sys, time
mib, places = int(sys.argv[1]), int(sys.argv[2])
state = os.environ["HOLDFAST_CHECKPOINT_DIR"] + "/state"
def told(word):
    print(word, flush=True)
    while not os.path.exists(word):
        time.sleep(0.05)
with open(state, "wb") as file:
    for _ in range(mib):
        file.write(os.urandom(1 << 20))
told("whole")
part = (mib << 20) // 100
with open(state, "r+b") as file:
    file.seek((mib << 19) + 12345)
    file.write(os.urandom(part))
told("one")
with open(state, "r+b") as file:
    for place in range(places):
        file.seek((mib << 20) // places * place + 54321)
        file.write(os.urandom(part // places))
told("several")
"""
"""Changes one percent of its state, first in one place, then in several; each time it waits for a signal to
continue."""

COMPUTER = """
import json, os, sys, time
from hashlib import sha256
rounds, mib = int(sys.argv[1]), int(sys.argv[2])
state = os.environ.get("HOLDFAST_CHECKPOINT_DIR", ".") + "/state"
with open(state, "wb") as file:
    for _ in range(mib):
        file.write(os.urandom(1 << 20))
value, began, used = b"", time.monotonic(), time.process_time()
for step in range(100):
    for _ in range(rounds // 100):
        value = sha256(value).digest()
    with open(state, "r+b") as file:
        file.seek(step * (mib << 20) // 100)
        file.write(value * (mib * 32768 // 10000))
print(json.dumps([time.monotonic() - began, time.process_time() - used]), flush=True)
"""
"""A hundred steps; after each it saves one thousandth of its state."""
STATE_MIB, COMPUTE_S, EVERY_MS = 64, 10.0, 5_000
"""Captured every five seconds, where the shipped default is five minutes."""


def sent_rows(client: Client, node: NodeProcesses, mib: int) -> Iterator[dict[str, Any]]:
    """The body's state captured as a whole, then with one percent changed. A file that is open for writing is not
    captured, and an unchanged folder is not captured again: there is one capture for each line that the body prints."""
    words = ["python3", "-c", WRITER, str(mib), str(PLACES)]
    job = client.jobs.submit(words, memory_mib=512, disk_mib=mib + mib // 4 + 64, checkpoint_ms=1_000)
    cases = {
        "whole": "all of it, at first",
        "one": "1 % changed, in one place",
        "several": f"1 % changed, in {PLACES} places",
    }
    try:
        for number, (word, case) in enumerate(cases.items()):
            wait_for(lambda word=word: said(client, job.id, word), f"the body to say {word!r}", CAPTURE_S_MAX)
            wait_for(lambda number=number: captures(node)[number:], "a capture", CAPTURE_S_MAX)
            kept, sent = captures(node)[number]
            percent = round(100 * sent / (mib << 20), 2)
            has_bar = word == "one"
            yield {
                "case": f"{mib} MiB, {case}", "rounds": 1, "bytes": kept, "sent_mib": round(sent / 2**20, 1),
                "percent": percent, "bar": f"at most {SENT_PERCENT_MAX:g} %" if has_bar else "sent in pieces of 4 MiB",
                "met": percent <= SENT_PERCENT_MAX if has_bar else None,
            }  # fmt: skip
            (work,) = node.home.glob("attempts/*/work")
            (work / word).touch()  # the signal to continue: the body has no other input
    finally:
        client.jobs.stop(job.id)


def said(client: Client, job: str, word: str) -> bool:
    view = client.jobs.get(job)
    if view.phase == "ended":
        raise SystemExit(f"{job} ended: {view.failure or view.verdict}")
    return any(word in line.text.split() for line in client.jobs.logs(job, stream="stdout"))


def captures(node: NodeProcesses) -> list[tuple[int, int]]:
    return [(int(kept), int(sent)) for kept, sent in KEPT.findall(node.output())]


# --- the cost for the job ---


def slowdown_row(client: Client, node: NodeProcesses, rounds: int) -> dict[str, Any]:
    words = ["python3", "-c", COMPUTER, str(hashes_in(COMPUTE_S)), str(STATE_MIB)]
    with_s: list[list[float]] = []
    without_s: list[list[float]] = []
    before = len(captures(node))
    for number in range(2 * rounds):
        captured = number % 4 in (0, 3)  # alternating, and neither is always the first of a pair
        job = client.jobs.submit(
            words, memory_mib=512, disk_mib=4 * STATE_MIB, checkpoint_ms=EVERY_MS if captured else 0
        )
        client.jobs.wait(job.id, timeout_s=CAPTURE_S_MAX)
        said = "".join(line.text for line in client.jobs.logs(job.id, stream="stdout") if line.stream == "stdout")
        (with_s if captured else without_s).append(json.loads(said))
    wall, cpu = (statistics.median(took[which] for took in with_s) for which in (0, 1))
    plain_wall, plain_cpu = (statistics.median(took[which] for took in without_s) for which in (0, 1))
    slower = round(100 * (wall / plain_wall - 1), 1)
    return {
        "case": f"{STATE_MIB} MiB captured every {EVERY_MS / 1000:g} s", "rounds": rounds, "s": round(wall, 2),
        "peer": "the same body, nothing captured", "peer_s": round(plain_wall, 2), "percent": slower,
        "cpu_percent": round(100 * (cpu / plain_cpu - 1), 1), "captures": len(captures(node)) - before,
        "bar": f"at most {SLOWER_PERCENT_MAX:g} % slower", "met": slower <= SLOWER_PERCENT_MAX,
    }  # fmt: skip


def hashes_in(seconds: float) -> int:
    """How many hashes the body computes in about this many seconds of processor time, so that other load does not
    count."""
    value, count, began = b"", 0, time.process_time()
    while time.process_time() - began < 0.3:
        for _ in range(1_000):
            value = sha256(value).digest()
        count += 1_000
    return round(count / (time.process_time() - began) * seconds)
