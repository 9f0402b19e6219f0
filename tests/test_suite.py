"""How the suite itself behaves when a test process dies. No SPEC id: it guards the tests, not a behaviour."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

DEADLY = """
import os, signal
import pytest

@pytest.mark.parametrize("number", range(AT))
def test_before(number):
    pass

def test_deadly():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.parametrize("number", range(12 - AT))
def test_after(number):
    pass

@pytest.mark.serial
@pytest.mark.parametrize("number", range(3))
def test_last(number):
    pass
"""


@pytest.mark.parametrize("at", [6, 12])
def test_a_worker_that_dies_is_named_at_once_and_holds_nobody_up(tmp_path: Path, at: int) -> None:
    # given a test under which its worker dies, among others: on the way, or last of those that have neighbours
    (tmp_path / "test_some.py").write_text(DEADLY.replace("AT", str(at)))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = serial\n")
    words = ["-p", "tests.plugins.alone", "-p", "tests.plugins.crashes", "-n", "2", "--dist", "loadgroup"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # when they run
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--no-loadscope-reorder", "test_some.py"],
        cwd=tmp_path,
        env=env | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    # then the run comes to its end, all others have run, and the deadly one is named where it happened
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.index("a worker died under test_some.py::test_deadly") < done.stdout.index("FAILURES")
    assert "1 failed, 15 passed" in done.stdout
