"""`holdfast plan` as a person types it, and its answer held against a real network whose machine is killed."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.sim.planning import Cause, Question
from holdfast.sim.planning_world import SUBMIT_MS, PlannedNetwork
from holdfast.testing.processes import LocalNetwork, wait_for

pytestmark = [pytest.mark.spec("A6", "J3"), pytest.mark.xdist_group("cli-plan")]

SMALL = ("--job-length", "2h", "--runs", "4")


def holdfast(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, env={**os.environ, **(env or {})})


def test_a_plan_answers_with_goodput_times_causes_cost_and_the_best_interval(tmp_path: Path) -> None:
    # when a plan is asked for, with everything that can be said
    picture = tmp_path / "plan.svg"
    done = holdfast(
        "plan", "--nodes", "6", "--churn", "mtbf=6h", "--return", "10m", "--job-length", "4h", "--checkpoint-every",
        "20m", "--checkpoint-cost", "15s", "--prepare", "5s", "--jobs", "2", "--attempts", "50", "--price", "0.5",
        "--preset", "lan", "--runs", "6", "--seed", "3", "--svg", str(picture),
    )  # fmt: skip

    # then everything is there, in 80 columns
    assert done.returncode == 0, done.stderr
    for word in ("goodput", "p50", "p95", "node hours", "at 0.5 an hour", "best", "asked for", "Young and Daly"):
        assert word in done.stdout, word
    assert "p95 is the longest of 12 jobs" in done.stdout
    for cause in Cause:
        assert cause.value in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert any("⠀" <= sign <= "⣿" for sign in done.stdout), "a plot"
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_the_same_seed_gives_the_same_answer_for_programs() -> None:
    once = holdfast("plan", "--nodes", "4", "--churn", "5/day", *SMALL, "--checkpoint-every", "30m", "--json")
    again = holdfast("plan", "--nodes", "4", "--churn", "5/day", *SMALL, "--checkpoint-every", "30m", "--json")
    told = json.loads(once.stdout)
    assert once.stdout == again.stdout
    assert told["question"]["mtbf_ms"] == 86_400_000 // 5
    assert told["here"]["runs"] == 4 and told["best_every_ms"] in {one["every_ms"] for one in told["sweep"]}
    assert sum(told["here"]["spent_ms"].values()) == pytest.approx(told["here"]["mean_ms"], abs=10)


def test_churn_is_said_in_several_ways() -> None:
    def mtbf(churn: str) -> int:
        told = holdfast("plan", "--nodes", "2", "--churn", churn, "--return", "never", *SMALL, "--json")
        return json.loads(told.stdout)["question"]["mtbf_ms"]

    assert mtbf("10%/day") == 864_000_000
    assert mtbf("none") == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--nodes", "3"), "how often do nodes go down?"),
        (("--churn", "none"), "how many nodes?"),
        (("--nodes", "3", "--churn", "often"), "'often' is not a churn rate"),
        (("--nodes", "3", "--churn", "none", "--preset", "moon"), "there are no settings called 'moon'"),
        (("--nodes", "999999", "--churn", "none"), "--nodes 999999 is more than"),
        (("--nodes", "100", "--churn", "none", "--jobs", "100000"), "this cannot be planned"),
    ],
)
def test_what_makes_no_sense_is_said(words: tuple[str, ...], says: str) -> None:
    done = holdfast("plan", *SMALL, *words)
    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr


def test_a_picture_that_cannot_be_written_is_said_before_anything_is_simulated(tmp_path: Path) -> None:
    done = holdfast("plan", "--nodes", "2", "--churn", "none", *SMALL, "--svg", str(tmp_path / "no" / "plan.svg"))
    assert done.returncode == 78
    assert "plan.svg" in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


def test_a_large_fleet_is_simulated_as_a_part_of_it_and_that_is_said() -> None:
    asked = ("plan", "--nodes", "1000", "--jobs", "1000", "--churn", "10%/day", "--job-length", "2h", "--runs", "1")
    done = holdfast(*asked)
    assert done.returncode == 0, done.stderr
    assert "1,000 jobs of 2 h" in done.stdout
    assert "simulated as 50 nodes and 50 jobs" in done.stdout
    assert "all jobs" not in done.stdout, "when the last of a thousand ends is not known from fifty"
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_ctrl_c_gives_what_is_known_so_far() -> None:
    # given a plan that will take long, whose bar shows that a world has been simulated
    ours, theirs = pty.openpty()
    asked = ("plan", "--nodes", "3", "--churn", "mtbf=6h", "--job-length", "5d", "--checkpoint-every", "30m")
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", *asked, "--runs", "1000", "--json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, text=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
    ) as plan:  # fmt: skip
        os.close(theirs)
        shown = b""
        while not re.search(rb"[1-9]\d*/\d+", shown):
            shown += os.read(ours, 4096)
        # when somebody has had enough
        plan.send_signal(signal.SIGINT)
        told, _ = plan.communicate(timeout=60)
        os.close(ours)
    # then it is answered from what there is, and says so; nobody is left who would write on
    answer = json.loads(told)
    assert plan.returncode == 0
    assert (answer["stopped"], answer["runs_meant"]) == ("interrupted", 1000)
    assert 1 <= answer["here"]["runs"] < 1000
    assert {one["runs"] for one in answer["sweep"]} <= {answer["here"]["runs"], answer["here"]["runs"] - 1}


# --- against a real network ---

LENGTH_S, STEP_S, KILL_S = 6.0, 0.25, 4.0
WORK = f"""
import time
began = time.monotonic()
for step in range({round(LENGTH_S / STEP_S)}):
    time.sleep(max(0, began + (step + 1) * {STEP_S} - time.monotonic()))
print("done")
"""
FACTOR = 1.35
"""Real and predicted time differ by no more than this, either way."""


class Killed(PlannedNetwork):
    """The machine that runs the job loses its power so long after the body's start."""

    def run_with_kill(self, after_ms: int) -> int:
        self.world.call_at(SUBMIT_MS, self._wait_for_body, after_ms)
        return self.run().took_ms[0]

    def _wait_for_body(self, after_ms: int) -> None:
        machine = next((m for m in self.machines.values() if m.running), None)
        if machine is None:
            self.world.call_in(10, self._wait_for_body, after_ms)
        else:
            self.world.call_in(after_ms, lambda: (machine.fall("killed"), self.ledger.fell(machine.spec.id)))


@pytest.fixture(scope="module")
def network() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network:
        # Patient with a busy machine. What dies is noticed by its connection, as soon as the simulated one's silence.
        network.start_orchestrator(preset="lan")
        for name in ("ant", "bee"):
            network.start_node(name, flags=["--cpu", "1", "--memory", "1GiB"])
        yield network


def test_a_plan_foretells_what_a_real_network_does(network: LocalNetwork) -> None:
    # given what the planner says of a job whose machine dies four seconds into it
    question = Question(2, round(LENGTH_S * 1000), preset="test")
    foretold_s = Killed(question, 1, leaps=False).run_with_kill(round(KILL_S * 1000)) / 1000
    assert foretold_s > LENGTH_S + KILL_S, "what was done is done again"

    # when that job runs on a real network, and all processes of its machine are killed at that moment
    client = network.client()
    job = client.jobs.submit(["python3", "-c", WORK], memory_mib=128, disk_mib=64)
    node = network.node_running(job.id, timeout_s=60)
    started = client.jobs.get(job.id).attempts[0].started_ms or round(time.time() * 1000)
    wait_for(lambda: time.time() * 1000 >= started + KILL_S * 1000, "the moment to kill", 30)
    node.kill_tree()
    ended = client.jobs.wait(job.id, timeout_s=90)
    took_s = ((ended.ended_ms or 0) - ended.submitted_ms) / 1000

    # then it took what was foretold, and what this machine, which may be busy, takes to start it twice
    assert ended.attempts_made == 2
    start_s = (started - ended.submitted_ms) / 1000
    assert foretold_s / FACTOR < took_s < foretold_s * FACTOR + 2 * start_s, (foretold_s, took_s, start_s)


def test_nodes_and_churn_are_taken_from_a_network(network: LocalNetwork) -> None:
    # given a network that lost a node (see above), or loses one now
    client = network.client()
    if not any(event.kind == "node.suspect" for event in client.events()):
        network.nodes["ant"].kill_tree()
        wait_for(lambda: any(e.kind == "node.suspect" for e in client.events()), "the loss to be seen", 30)
    token = network.home / "orchestrator" / "admin.token"
    url = network.orchestrator.url if network.orchestrator else ""
    where = {**network.environment()}

    # when a plan is asked for from there
    done = holdfast(
        "plan", "--from-network", "--url", url, "--token-file", str(token), "--job-length", "1h", "--runs", "3",
        "--json", env=where,
    )  # fmt: skip

    # then it knows how many there are and that they go
    assert done.returncode == 0, done.stderr
    asked = json.loads(done.stdout)["question"]
    assert asked["nodes"] == 2 and asked["mtbf_ms"] > 0
    missing = holdfast("plan", "--from-network", "--context", "nowhere", *SMALL, env=where)
    assert missing.returncode != 0 and "nowhere" in missing.stderr and "Traceback" not in missing.stderr
