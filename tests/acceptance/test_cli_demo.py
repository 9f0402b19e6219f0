"""`make demo` as a stranger runs it: it tells the truth by its exit code and leaves nothing behind."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

DEMO = Path(__file__).parents[2] / "demo" / "failover.py"


@pytest.mark.timeout(330)
@pytest.mark.spec("J5", "J8", "A7")
def test_the_demo_kills_a_machine_and_gets_the_same_result(tmp_path: Path) -> None:
    # when the demo runs, piped, with a shorter job
    command = [sys.executable, str(DEMO), "--seconds", "2", "--seed", "3", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)

    # then it ends well, in plain lines
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EQUAL" in done.stdout
    assert "KILL -9" in done.stdout
    assert "\x1b" not in done.stdout

    # and what it says of the two results is so
    hashes = re.findall(r"^result, .* ([0-9a-f]{64})", done.stdout, re.M)
    assert len(hashes) == 2
    assert len(set(hashes)) == 1
    assert re.search(r"time to detect +[0-9.]+ s", done.stdout)
    assert re.search(r"time to recover +[0-9.]+ s", done.stdout)

    # and none of its processes is left
    left = [
        p.info for p in psutil.process_iter(["pid", "cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])
    ]
    assert left == []
