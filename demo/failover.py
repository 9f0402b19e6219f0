"""`make demo`: runs the same job twice, once undisturbed, once with its machine killed, and compares the results.

Starts an orchestrator and three nodes as separate processes, on free loopback ports, in a temporary folder, with the
shipped defaults. Shows a live timeline on a terminal and plain lines elsewhere. Ends what it started. Exit code 0 only
if both results are equal and the second run really lost its machine.
"""

import argparse
import os
import random
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path

from screen import Screen

from holdfast.client import Client
from holdfast.errors import HoldfastError
from holdfast.testing.processes import LocalNetwork, NotInTime, wait_for
from holdfast.wire.http import AttemptView, JobView

STEPS = 16
NODES = ("ant", "bee", "cat")
WORK = """
import sys
from hashlib import sha256
steps, rounds = int(sys.argv[1]), int(sys.argv[2])
state = b"holdfast"
for step in range(1, steps + 1):
    for count in range(rounds):
        state = sha256(state + count.to_bytes(8, "big")).digest()
    print(f"step {step} of {steps}: {state.hex()}", flush=True)
"""


def rounds_per_step(seconds: float) -> int:
    """How many rounds make a step, so that the whole job takes about this long here. Both runs use this number.
    Measured in processor time: a machine that is busy now would otherwise be taken for a slow one."""
    state, count, start = b"holdfast", 0, time.process_time()
    while time.process_time() - start < 0.3:
        for _ in range(1000):
            state = sha256(state + count.to_bytes(8, "big")).digest()
            count += 1
    return max(1000, round(count / (time.process_time() - start) * seconds / STEPS))


class Run:
    """One observed run of the job."""

    def __init__(self, network: LocalNetwork, client: Client, screen: Screen, title: str, rounds: int) -> None:
        self._network, self._client, self._screen = network, client, screen
        screen.chapter(title)
        job = client.jobs.submit(
            ["python3", "-c", WORK, str(STEPS), str(rounds)], name="sum", memory_mib=256, disk_mib=64
        )
        self.id = job.id
        self.killed_ms: int | None = None
        self.steps_lost = 0
        self._steps: dict[str, int] = {}
        threading.Thread(target=self._count_steps, daemon=True).start()

    def _count_steps(self) -> None:
        """Progress, read from the job's own output as it arrives."""
        try:
            for piece in self._client.jobs.logs(self.id, stream="stdout", follow=True):
                if piece.stream == "stdout":
                    self._steps[piece.attempt] = self._steps.get(piece.attempt, 0) + piece.text.count("\n")
                    self._screen.progress(self._steps[piece.attempt], STEPS, piece.attempt)
        except HoldfastError as error:
            self._screen.say(f"(the log could not be followed: {error})")

    def kill_its_node(self, after_s: float) -> None:
        """kill -9 of every process of the machine that runs the job, at a random moment within a step."""
        node = self._network.node_running(self.id, timeout_s=60)
        running = self._running()
        if running is None:
            return
        started = running.started_ms or round(time.time() * 1000)
        due = started / 1000 + after_s
        wait_for(lambda: time.time() >= due or self.ended(), "the moment to kill", after_s + 60)
        if self.ended():
            return
        processes = len(node.tree())
        self.steps_lost = self._steps.get(running.id, 0)
        self.killed_ms = round(time.time() * 1000)
        self._screen.say(f"KILL -9: all {processes} processes of {node.name}, in the middle of the job", "bold red")
        node.kill_tree()

    def _running(self) -> AttemptView | None:
        return next((a for a in self._client.jobs.get(self.id).attempts[::-1] if a.phase == "running"), None)

    def ended(self) -> bool:
        return self._client.jobs.get(self.id).phase == "ended"

    def outcome(self) -> JobView:
        job = self._client.jobs.wait(self.id, timeout_s=180, check=False)
        wait_for(lambda: self._screen.has_shown_end(self.id), "the last event of the job", 10)
        return job


def start(network: LocalNetwork, screen: Screen) -> Client:
    network.start_orchestrator(preset="lan")
    screen.say("orchestrator: up, with the settings that ship (preset lan)")
    if network.unsafe:
        screen.say("bubblewrap does not work here: nodes run with --unsafe-process-runtime, jobs are NOT isolated",
                   style="bold yellow")  # fmt: skip
    client = network.client()
    for name in NODES:
        network.start_node(name, flags=["--cpu", "1", "--memory", "1GiB"], wait=False)
    ids = {network.wait_node(name): name for name in NODES}
    wait_for(
        lambda: all(n.state in ("ready", "probation") for n in client.nodes.list()),
        "three nodes to be ready",
        60,
    )
    screen.say(f"nodes: {', '.join(NODES)} joined by token, each a separate process with its own key")
    screen.follow(client, ids)
    return client


def tell(screen: Screen, calm: JobView, torn: JobView, run: Run, detected_ms: int | None) -> bool:
    """Print the numbers, and return whether the promise held."""
    assert run.killed_ms is not None
    after = [a for a in torn.attempts if a.started_ms and a.started_ms > run.killed_ms]
    first = torn.attempts[0]
    rows = [
        ("undisturbed run", f"{_span(calm):.1f} s"),
        ("run with its machine killed", f"{_span(torn):.1f} s, {torn.attempts_made} attempts"),
        ("time to detect", f"{(detected_ms - run.killed_ms) / 1000:.2f} s from the kill" if detected_ms else "?"),
        ("time to recover", f"{((after[0].started_ms or 0) - run.killed_ms) / 1000:.2f} s until it ran again"
         if after else "it never ran again"),
        ("work lost", f"{(run.killed_ms - (first.started_ms or run.killed_ms)) / 1000:.1f} s of computing,"
         f" {run.steps_lost} of {STEPS} steps done again (class restart starts over)"),
        ("result, undisturbed", str(calm.result_sha256)),
        ("result, after the kill", str(torn.result_sha256)),
    ]  # fmt: skip
    equal = calm.result_sha256 is not None and calm.result_sha256 == torn.result_sha256
    screen.table(rows)
    return equal and torn.attempts_made > 1


def _span(job: JobView) -> float:
    return ((job.ended_ms or job.submitted_ms) - job.submitted_ms) / 1000


def play(network: LocalNetwork, screen: Screen, chance: random.Random, seconds: float) -> int:
    client = start(network, screen)
    rounds = rounds_per_step(seconds)
    calm = Run(network, client, screen, "First run: undisturbed", rounds).outcome()
    after_s = chance.uniform(0.15, 0.8) * seconds
    for sooner in (1, 2, 4):  # on a busy machine, the second run may be the faster one
        run = Run(network, client, screen, "Second run: the same job, and its machine will be killed", rounds)
        run.kill_its_node(after_s / sooner)
        torn = run.outcome()
        if torn.attempts_made > 1 or torn.verdict != "succeeded":
            break
        screen.say("It ended before its machine could be killed: once more, and the kill comes sooner")
    detected = screen.first_ms("node.suspect", run.killed_ms or 0)
    screen.close()
    for job in (calm, torn):
        if job.verdict != "succeeded":
            print(f"{job.id} did not succeed: {job.failure.says if job.failure else job.verdict}", flush=True)
            return 1
    if run.killed_ms is None or torn.attempts_made == 1:
        print("The job ended before its machine could be killed; run the demo again.", flush=True)
        return 1
    if tell(screen, calm, torn, run, detected):
        screen.verdict("EQUAL: the machine died, the job did not. One job, one accepted result, the same bits.", True)
        return 0
    screen.verdict("NOT EQUAL: Holdfast broke its promise.", False)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a machine under a job and compare the results.")
    parser.add_argument("--seed", type=int, help="make the moment of the kill repeatable")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long the job computes, about")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it there, with all logs")
    arguments = parser.parse_args()
    screen = Screen()
    screen.intro(
        "Holdfast runs work on machines nobody controls, and gets it finished.\n"
        f"This demo runs one job twice on three nodes ({', '.join(NODES)}). The second time, the node that\n"
        "runs it is killed with kill -9. Watch who takes over, how fast, and whether the result is the same."
    )
    network = LocalNetwork(arguments.keep)
    try:
        return play(network, screen, random.Random(arguments.seed), arguments.seconds)
    except KeyboardInterrupt:
        screen.close()
        print("\nstopped; every process of the demo is being ended", flush=True)
        return 130
    except (HoldfastError, NotInTime, AssertionError) as error:
        screen.close()
        print(f"the demo failed: {error}", file=sys.stderr, flush=True)
        if os.environ.get("HOLDFAST_DEBUG") == "1":
            raise
        return 1
    finally:
        screen.close()
        network.close()


if __name__ == "__main__":
    sys.exit(main())
