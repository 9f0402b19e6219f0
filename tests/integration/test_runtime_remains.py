"""Whatever is killed in whatever moment: no process, mount, loop device, control group or user stays (SPEC N9)."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import killed_lines
import pytest
from killed_lines import LIMITED, remains

from holdfast.node import linux
from holdfast.node.attempt import attempt_folders as folders
from holdfast.node.core.order import Order
from holdfast.node.runtimes import bubblewrap, owners, scratch
from holdfast.testing.attempts import Attempts, all_dead
from holdfast.testing.processes import wait_for

pytestmark = pytest.mark.spec("N9", "N4")

EVERY = int(os.environ.get("HOLDFAST_TEST_EVERY_LINE", "10"))
"""One line in this many is died at, with a network at others than without: each costs a fifth of a second. 1 was run,
and is for whoever changes them."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("network", "first"), [("alone", 1), ("network", 1 + EVERY // 2)])
def test_kill_9_at_any_line_leaves_nothing(tmp_path: Path, network: str, first: int) -> None:
    # given an attempt with a network or without, when it is killed at one line of the runtimes after the other
    words = [sys.executable, killed_lines.__file__, str(tmp_path / "att"), network, str(first), str(EVERY)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=580)
    # then whoever finds the folder can clear up and remove it
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 150, "how many lines there are"


def test_the_remains_of_one_attempt_are_not_held_by_another_that_runs(attempts: Attempts) -> None:
    # given two attempts, the second started while the first had its scratch mounted
    first = attempts.start("sh", "-c", "echo here; sleep 1000", resources=LIMITED)
    first.printed("here")
    second = attempts.start("sh", "-c", "echo here; sleep 1000", resources=LIMITED)
    second.printed("here")
    # when the first one is swept away
    first.signal(signal.SIGKILL)
    folders.end_processes(first.home)
    folders.clean(first.home)
    # then nothing of it is left, and the second runs on
    assert remains(first.home) == []
    assert second.shim_lives()
    assert not all_dead(second.family())


def test_a_strangers_copy_of_a_mount_is_taken_away_too(attempts: Attempts) -> None:
    # given an attempt, and a stranger on the machine whose mount namespace was copied meanwhile
    attempt = attempts.start("sh", "-c", "echo x > file; echo here; sleep 1000", resources=LIMITED)
    attempt.printed("here")
    stranger = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", "echo copied; exec sleep 1000"], stdout=subprocess.PIPE, text=True
    )
    assert stranger.stdout is not None
    stranger.stdout.readline()
    copy = Path(f"/proc/{stranger.pid}/root{attempt.home}") / "work" / "file"
    try:
        assert copy.read_text() == "x\n"
        # when the attempt is removed
        attempt.signal(signal.SIGKILL)
        folders.end_processes(attempt.home)
        folders.clean(attempt.home)
        # then the stranger sees nothing of it, and nothing keeps the device
        assert not copy.exists()
        assert remains(attempt.home) == []
        folders.remove(attempt.home)
    finally:
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()


def test_the_agents_sweep_takes_everything_along(attempts: Attempts) -> None:
    import asyncio

    attempt = attempts.start(
        "sh", "-c", "echo here; sleep 1000", resources=LIMITED, network=True, limits={"disk_kib_s": 1000}
    )
    attempt.printed("here")
    assert remains(attempt.home)
    asyncio.run(folders.until_removed(attempt.home))
    assert not attempt.home.exists()
    assert remains(attempt.home) == []


def test_an_ended_body_leaves_no_control_group_behind_but_its_files_stay(attempts: Attempts) -> None:
    attempt = attempts.start("sh", "-c", "echo made > file", resources=LIMITED)
    attempt.ended()
    assert [left for left in remains(attempt.home) if "cgroup" in left] == []
    assert (attempt.home / "work" / "file").read_text() == "made\n"
    assert os.stat(attempt.home / "work").st_uid >= owners.FIRST


RECOVERABLE = Order("att_0a.1", 7, "job_0a", ("true",), 1, 1, 0, 0, resources=LIMITED, checkpoint=True)
ENDED = '{"phase": "ended", "outcome": {"kind": "exit", "exit_code": 0}}'


@pytest.fixture
def ended(tmp_path: Path) -> Iterator[Path]:
    """An attempt that has ended with a file in its scratch, and was not delivered yet."""
    folder = tmp_path / "attempts" / RECOVERABLE.attempt
    folder.mkdir(parents=True)
    bubblewrap.RUNTIME.prepare(RECOVERABLE, str(folder))
    (folder / "order.json").write_text(json.dumps(RECOVERABLE.to_dict()))
    (folder / "status.json").write_text(ENDED)
    (folder / "work" / "file").write_text("kept")
    yield folder
    folders.clean(folder)
    assert remains(folder) == []


def unmount_everywhere(folder: Path) -> None:
    """As when the machine goes down. Whoever runs beside and copied its mounts meanwhile loses them with the place."""
    for place in scratch.mounts_below(str(folder)):
        linux.unmount(place)
        os.rmdir(place)
        os.mkdir(place, 0o700)
    wait_for(lambda: scratch.loops_below(str(folder)) == [], "the file system to be gone")


@pytest.mark.spec("J10")
def test_after_a_restart_of_the_machine_in_good_order_the_files_are_there_again(ended: Path) -> None:
    unmount_everywhere(ended)
    assert not (ended / "work" / "file").exists()
    # when an agent looks what survived
    (found,), litter = folders.scan(ended.parent)
    # then it finds the end and the files
    assert litter == []
    assert found.status is not None
    assert (ended / "work" / "file").read_text() == "kept"
    # and looking again changes nothing
    folders.scan(ended.parent)
    assert len(scratch.mounts_below(str(ended))) == 4


@pytest.mark.spec("J7", "J10")
def test_after_a_power_cut_an_end_without_its_files_does_not_count(ended: Path) -> None:
    # given a machine that lost its power before anything was written
    scratch._shut_down(str(ended / "work"))
    unmount_everywhere(ended)
    # when an agent looks what survived
    (found,), _ = folders.scan(ended.parent)
    # then nobody can take the empty folder for the job's result
    assert found.status is None
    assert folders.read_status(ended) is None
    assert "what the job had written is lost" in folders.last_words(ended)


def test_a_trial_that_was_killed_is_cleared_up_by_the_next_one(
    public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a node that was killed while it tried out its sandbox, where no other node clears up
    scratch.hindrance()
    monkeypatch.setenv("TMPDIR", str(public_folder))
    monkeypatch.setattr(tempfile, "tempdir", str(public_folder))
    stages: list[Path] = []
    for line in range(20, 400, 37):
        found = subprocess.run([sys.executable, "-c", TRIAL, str(line)], capture_output=True, text=True, timeout=60)
        stages += [Path(name) for name in found.stdout.split()]
    assert any(stage.exists() for stage in stages)
    # when the next one starts
    assert bubblewrap.RUNTIME.works() == (True, "")
    # then nothing of those is left
    assert [stage for stage in stages if stage.exists() or remains(stage)] == []


TRIAL = """
import os, signal, sys
from holdfast.node.runtimes import bubblewrap, runtime, trials
folder = os.path.dirname(runtime.__file__)
at, seen = int(sys.argv[1]), set()
def trace(frame, event, _):
    if not frame.f_code.co_filename.startswith(folder):
        return None
    if event == "line":
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        if len(seen) == at:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace
made = trials.tempfile.mkdtemp
def told(**words):
    print(name := made(**words), flush=True)
    return name
trials.tempfile.mkdtemp = told
sys.settrace(trace)
bubblewrap.RUNTIME.works()
"""
