"""The measurements of starting, keeping and failing over can be run: their short forms, on this machine. What they
measure is for bench/ to judge; here only that it was measured."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(330)
BENCH = Path(__file__).parents[2] / "bench"


def measured(program: str, *words: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(BENCH / program), *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.spec("J6")
def test_a_checkpoint_of_which_little_has_changed_sends_little() -> None:
    """Given a state of 64 MiB, when one part in a hundred of it changes in one place, then the next capture sends the
    pieces that this lies in, and what is unchanged is not sent again."""
    whole, one, several = measured("runtime.py", "--parts", "checkpoint", "--mib", "64")
    assert whole["bytes"] == one["bytes"] == several["bytes"] == 64 << 20
    assert whole["percent"] > 99
    assert 0 < one["sent_mib"] <= 8.1
    assert one["sent_mib"] < several["sent_mib"] <= 64.1


@pytest.mark.spec("J5")
def test_the_time_until_a_killed_machines_job_runs_elsewhere_is_measured() -> None:
    """Given two machines, when the one that runs a job is killed, then the job's body says when it ran on the other."""
    (row,) = measured("failover.py", "--no-peers", "--kills", "1", "--freezes", "0", "--idle", "0")
    assert (row["row"], row["who"], row["rounds"]) == ("kill", "holdfast", 1)
    assert 0 < row["median_s"] < row["limit_s"]
