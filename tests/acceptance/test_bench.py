"""Every program of bench/ runs, at its smallest size. What it measures is for bench/ to judge; here only that it was
measured. `make bench` runs them in full, `make release-check CHECKS=benches` in their short forms.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.__main__ import QUICK, SMALLEST

pytestmark = pytest.mark.timeout(330)
BENCH = Path(__file__).parents[2] / "bench"
PARTS = {"checkpoints.py", "failover_peers.py", "neural_reference.py", "swarm.py"}
"""What the programs of bench/ import or start."""
OFFLINE = {"neural_curves.py"}
"""Trains for hours; docs/neural.md has what it found."""
JUDGED = {"runtime.py", "failover.py"}
"""Programs of whose rows a test below says more."""


def measured(program: str) -> Any:
    command = [sys.executable, str(BENCH / program), *SMALLEST[program], "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_every_program_has_its_sizes() -> None:
    programs = {path.name for path in BENCH.glob("*.py")} - {"__main__.py"} - PARTS - OFFLINE
    assert programs == set(QUICK) == set(SMALLEST)


@pytest.mark.parametrize("program", sorted(SMALLEST.keys() - JUDGED))
def test_every_program_runs_at_its_smallest_size(program: str) -> None:
    assert measured(program)


@pytest.mark.spec("J6")
def test_a_checkpoint_of_which_little_has_changed_sends_little() -> None:
    """Given a state of 64 MiB, when one part in a hundred of it changes in one place, then the next capture sends the
    pieces that this lies in, and what is unchanged is not sent again."""
    whole, one, several = measured("runtime.py")
    assert whole["bytes"] == one["bytes"] == several["bytes"] == 64 << 20
    assert whole["percent"] > 99
    assert 0 < one["sent_mib"] <= 8.1
    assert one["sent_mib"] < several["sent_mib"] <= 64.1


@pytest.mark.spec("J5")
def test_the_time_until_a_killed_machines_job_runs_elsewhere_is_measured() -> None:
    """Given two machines, when the one that runs a job is killed, then the job's body says when it ran on the other."""
    (row,) = measured("failover.py")
    assert (row["row"], row["who"], row["rounds"]) == ("kill", "holdfast", 1)
    assert 0 < row["median_s"] < row["limit_s"]
