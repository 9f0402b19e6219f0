"""`make shake`: what it stops, and that nothing stays so."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.testing.processes import wait_for

SCRIPT = Path(__file__).parents[2] / "scripts" / "shake.py"
LASTING = [sys.executable, "-c", "import sys; sys.stdin.read()"]
"""Ends when its parent does, unless it stands still."""
A_TEST = f"""
import pathlib, subprocess, time

HERE = pathlib.Path(__file__).parent


def test_of_a_process():
    child = subprocess.Popen({LASTING}, stdin=subprocess.PIPE)
    (HERE / "child.new").write_text(str(child.pid))
    (HERE / "child.new").rename(HERE / "child")
    while not (HERE / "release").exists():
        time.sleep(0.02)
    raise RuntimeError("torn")
"""


def state(pid: int) -> str:
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "gone"


@pytest.fixture
def child() -> Iterator[psutil.Process]:
    with subprocess.Popen(LASTING, stdin=subprocess.PIPE) as child:
        yield psutil.Process(child.pid)
        child.kill()


def test_who_is_not_below_and_whom_a_test_has_stopped_are_left_alone(child: psutil.Process) -> None:
    spec = importlib.util.spec_from_file_location("shake", SCRIPT)
    assert spec is not None and spec.loader is not None
    shake = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shake)
    # given a process that is below another one than is said, then it runs on
    with shake.stopped(child, child.pid):
        assert child.status() != psutil.STATUS_STOPPED
    # when it is below, then it stands still for as long as that lasts
    with shake.stopped(child, os.getpid()):
        wait_for(lambda: child.status() == psutil.STATUS_STOPPED, "it to stand still")
    wait_for(lambda: child.status() != psutil.STATUS_STOPPED, "it to go on")
    # and longer, when a test stops it as well, before or meanwhile
    with shake.stopped(child, os.getpid()):
        wait_for(lambda: child.status() == psutil.STATUS_STOPPED, "it to stand still")
        child.send_signal(signal.SIGSTOP)
    with shake.stopped(child, os.getpid()):
        pass
    assert child.status() == psutil.STATUS_STOPPED


@pytest.fixture
def run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "test_torn.py").write_text(A_TEST)
    words = [sys.executable, str(SCRIPT), "--seed", "7", "--rounds", "1", "test_torn.py", f"--rootdir={tmp_path}"]
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # it starts sooner
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(words, cwd=tmp_path, env=bare, **out) as run:
        yield run
        run.terminate()


def standing_still(folder: Path) -> int:
    """The process that the shaken test has started, once it does."""
    wait_for((folder / "child").exists, "the test to begin")
    pid = int((folder / "child").read_text())
    wait_for(lambda: state(pid) == psutil.STATUS_STOPPED, "its process to stand still")
    return pid


def test_what_was_stopped_goes_on_and_a_failure_has_its_seed(run: subprocess.Popen[str], tmp_path: Path) -> None:
    pid = standing_still(tmp_path)
    wait_for(lambda: state(pid) not in (psutil.STATUS_STOPPED, "gone"), "it to go on")
    (tmp_path / "release").touch()
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "FAILED test_torn.py::test_of_a_process" in said and "seed 7: did NOT hold" in said


def test_whoever_ends_it_leaves_nothing_stopped(run: subprocess.Popen[str], tmp_path: Path) -> None:
    pid = standing_still(tmp_path)
    run.terminate()
    wait_for(lambda: state(pid) in (psutil.STATUS_ZOMBIE, "gone"), "the process to go on and end with its parent")
    run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM
