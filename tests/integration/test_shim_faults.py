"""What is left when things around a body die, freeze or fill up: nothing that should not be. Real processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.node import linux
from holdfast.node.attempt.attempt_folders import end_processes
from holdfast.node.launcher import Launcher, LauncherError
from holdfast.testing import attempts as testing_attempts
from holdfast.testing.attempts import Attempts, RealAttempt, all_dead, now, under_limit
from holdfast.testing.processes import wait_for

RUNTIMES = ("bubblewrap", "process")
both_runtimes = pytest.mark.parametrize("runtime", RUNTIMES)
WAITS = "echo here; while [ ! -e finish ]; do sleep 0.02; done; echo whole"

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        print("daemon", flush=True)
        time.sleep(1000)
    os._exit(0)
os.wait()
print("parent", flush=True)
while not os.path.exists("finish"):
    time.sleep(0.02)
"""


def finish(attempt: RealAttempt) -> None:
    (attempt.home / "work" / "finish").touch()


# --- death ---


@pytest.mark.spec("J5", "N9")
@both_runtimes
def test_kill_9_of_the_shim_takes_the_body_along(attempts: Attempts, runtime: str) -> None:
    attempt = attempts.start("sh", "-c", "echo here; exec sleep 1000", runtime=runtime)
    attempt.printed("here")
    family = attempt.family()
    assert family
    attempt.signal(signal.SIGKILL)
    wait_for(lambda: all_dead(family), "the body to die with its shim")
    # and the file does not claim an end that nobody saw
    assert attempt.on_disk()["outcome"] is None


@pytest.mark.spec("J5", "N9")
def test_kill_9_of_the_shim_takes_everything_in_the_sandbox_along(attempts: Attempts) -> None:
    attempt = attempts.start("python3", "-c", DAEMON)
    attempt.printed("daemon")
    attempt.printed("parent")
    family = attempt.family()
    attempt.signal(signal.SIGKILL)
    wait_for(lambda: all_dead(family), "daemon and body to die with the shim")


@pytest.mark.spec("N9")
def test_what_an_unconfined_body_leaves_after_its_shim_was_killed_can_be_ended(attempts: Attempts) -> None:
    attempt = attempts.start("python3", "-c", DAEMON, runtime="process")
    attempt.printed("daemon")
    attempt.printed("parent")
    family = attempt.family()
    assert len(family) == 2
    # the body itself dies with the shim; its daemon does not know of it
    attempt.signal(signal.SIGKILL)
    body = attempt.on_disk()["body_pid"]
    wait_for(lambda: all_dead([one for one in family if one[0] == body]), "the body to die")
    assert not all_dead(family)
    # the agent, which finds the shim dead, finds the daemon too
    end_processes(attempt.home)
    assert all_dead(family)


@pytest.mark.spec("J14", "N9")
@both_runtimes
def test_kill_9_of_the_launcher_leaves_its_shims_alone_and_the_next_spawn_gets_a_fresh_one(
    attempts: Attempts, runtime: str
) -> None:
    attempt = attempts.start("sh", "-c", WAITS, runtime=runtime)
    attempt.printed("here")
    killed = attempts.launcher.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    later = attempts.start("echo", "again", runtime=runtime)
    assert later.outcome()["exit_code"] == 0
    assert attempts.launcher.pid != killed
    finish(attempt)
    assert attempt.outcome()["exit_code"] == 0
    assert attempt.log("stdout") == "here\nwhole\n"


@pytest.mark.spec("J14")
def test_the_launcher_ends_with_the_agent_and_its_shims_do_not(tmp_path: Path) -> None:
    # given an agent with a launcher and a shim
    order = Attempts(tmp_path, Launcher()).prepare("sh", "-c", WAITS)
    agent = (
        "import time\n"
        "from holdfast.node.launcher import Launcher\n"
        "launcher = Launcher(); launcher.start()\n"
        f"print(launcher.spawn_now({str(order.home)!r}), launcher.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", agent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    order.pid, launcher = map(int, process.stdout.readline().split())
    ticks = linux.start_ticks(launcher)
    order.ticks = json.loads((order.home / "shim.json").read_text())["start_ticks"]
    assert ticks is not None
    order.printed("here")
    # when the agent is killed
    process.kill()
    process.wait()
    process.stdout.close()
    # then the launcher is gone, and the shim sees its body through
    wait_for(lambda: not linux.is_alive(launcher, ticks), "the launcher to end")
    order.dial()
    finish(order)
    assert order.outcome()["exit_code"] == 0
    order.clean_up()


@pytest.mark.spec("N9", "J5")
@both_runtimes
def test_no_child_that_daemonised_outlives_the_body(attempts: Attempts, runtime: str) -> None:
    # given a body with a daemon in a session of its own
    attempt = attempts.start("python3", "-c", DAEMON, runtime=runtime)
    attempt.printed("daemon")
    attempt.printed("parent")
    family = attempt.family()
    # when the body ends by itself
    finish(attempt)
    # then at its end nothing is left
    assert attempt.outcome() == {"kind": "exit", "exit_code": 0, "signal": None, "detail": "", "code": ""}
    assert all_dead(family)
    assert attempt.family() == []


@pytest.mark.spec("J5")
@both_runtimes
def test_a_stop_reaches_a_daemonised_child_too(attempts: Attempts, runtime: str) -> None:
    attempt = attempts.start("python3", "-c", DAEMON, runtime=runtime)
    attempt.printed("daemon")
    attempt.printed("parent")
    family = attempt.family()
    attempt.say("stop", reason="cancelled")
    assert attempt.outcome()["kind"] == "stopped"
    assert all_dead(family)


@pytest.mark.spec("J7")
@pytest.mark.serial
def test_kill_9_of_the_body_is_told_as_its_end(attempts: Attempts) -> None:
    """Alone: where nothing confines a body, one that is killed while the machine's kernel ends any other for want of
    memory is taken for one of those."""
    attempt = attempts.start("sh", "-c", "echo here; exec sleep 1000", runtime="process")
    attempt.printed("here")
    ((body, _),) = attempt.family()
    os.kill(body, signal.SIGKILL)
    outcome = attempt.outcome()
    assert (outcome["kind"], outcome["signal"]) == ("exit", signal.SIGKILL)


# --- one shim for an attempt ---


@pytest.mark.spec("J5", "N9")
def test_a_second_shim_for_the_same_attempt_is_refused(attempts: Attempts) -> None:
    attempt = attempts.start("sh", "-c", WAITS)
    attempt.printed("here")
    with pytest.raises(LauncherError, match="no shim for") as refused:
        attempt.launcher.spawn_now(str(attempt.home))
    assert refused.value.errno_name == "EEXIST"
    finish(attempt)
    assert attempt.outcome()["exit_code"] == 0
    assert attempt.log("stdout") == "here\nwhole\n"


@pytest.mark.spec("J5", "N9")
def test_an_attempt_whose_shim_died_never_gets_another(attempts: Attempts) -> None:
    attempt = attempts.start("sh", "-c", "echo here; sleep 1000")
    attempt.printed("here")
    attempt.signal(signal.SIGKILL)
    wait_for(lambda: not attempt.shim_lives(), "the shim to die")
    with pytest.raises(LauncherError) as refused:
        attempt.launcher.spawn_now(str(attempt.home))
    assert refused.value.errno_name == "EEXIST"


@pytest.mark.spec("N5")
def test_a_folder_that_is_not_there_gets_no_shim(attempts: Attempts, tmp_path: Path) -> None:
    with pytest.raises(LauncherError) as refused:
        attempts.launcher.spawn_now(str(tmp_path / "nowhere"))
    assert refused.value.errno_name == "ENOENT"


# --- freezing ---


@pytest.mark.spec("J5")
@both_runtimes
def test_a_shim_that_was_frozen_past_the_lease_enforces_it_in_the_moment_it_wakes(
    attempts: Attempts, runtime: str
) -> None:
    # given a body under a lease
    command = "trap '' TERM; echo deaf; while :; do sleep 0.02; done"
    until: list[int] = []

    def start(lease_ms: int) -> RealAttempt:
        leased = {"wait_for_go": True, "lease_ms": lease_ms, "stop_grace_ms": 60_000}
        attempt = attempts.start("sh", "-c", command, home=None, runtime=runtime, **leased)
        until.append(now() + lease_ms)
        attempt.say("lease", until_ms=until[-1])
        attempt.say("go")
        return attempt

    attempt, _ = under_limit(start, "deaf", 3_000)
    family = attempt.family()
    # when its shim is frozen until the lease is over
    attempt.signal(signal.SIGSTOP)
    wait_for(lambda: now() > until[-1] + 100, "the lease to end")
    assert not all_dead(family)
    attempt.signal(signal.SIGCONT)
    # then there is no grace any more
    outcome = attempt.outcome()
    assert (outcome["kind"], outcome["signal"]) == ("lease", signal.SIGKILL)
    assert all_dead(family)


@pytest.mark.spec("J5")
@pytest.mark.parametrize(("took_ms", "limit_ms"), [(400, 1_000), (900, 4_000), (3_900, 16_000), (15_900, 16_000)])
def test_a_limit_that_is_to_be_met_leaves_time_for_what_comes_before_it(
    monkeypatch: pytest.MonkeyPatch, took_ms: int, limit_ms: int
) -> None:
    # given a machine on which every body takes so long to say its word
    clock = [0]
    monkeypatch.setattr(testing_attempts, "now", lambda: clock[0])

    def start(limit_ms: int) -> Any:
        clock[0] += min(took_ms, limit_ms)
        said = "here" if took_ms < limit_ms else ""
        return SimpleNamespace(log=lambda name: said, is_over=lambda: not said)

    # then it is under the shortest limit of which half is left, or under the longest
    assert under_limit(start, "here", 1_000)[1] == limit_ms


@pytest.mark.spec("J5")
def test_a_frozen_tree_can_be_stopped(attempts: Attempts) -> None:
    attempt = attempts.start("sh", "-c", "echo here; sleep 1000")
    attempt.printed("here")
    family = attempt.family()
    for pid, _ in family:
        os.kill(pid, signal.SIGSTOP)
    attempt.say("stop", reason="superseded")
    assert attempt.outcome()["kind"] == "stopped"
    assert all_dead(family)


# --- the folder ---


@pytest.mark.spec("N9")
@both_runtimes
def test_when_the_folder_vanishes_body_and_shim_go_too(attempts: Attempts, runtime: str) -> None:
    attempt = attempts.start("sh", "-c", "echo here; sleep 1000", runtime=runtime)
    attempt.printed("here")
    family = attempt.family()

    def removed() -> bool:  # the body may be making files meanwhile
        shutil.rmtree(attempt.home, ignore_errors=True)
        return not attempt.home.exists()

    wait_for(removed, "the folder to be removed")
    wait_for(lambda: not attempt.shim_lives(), "the shim to go")
    assert all_dead(family)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one mebibyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.spec("J7", "N4")
@both_runtimes
def test_a_log_that_fills_the_disk_is_a_fault_of_the_node_told_on_disk(
    attempts: Attempts, small_disk: Path, runtime: str
) -> None:
    command = "head -c 3000000 /dev/zero; sleep 1000"
    attempt = attempts.start("sh", "-c", command, home=small_disk / "a", runtime=runtime, log_bytes_max=1 << 30)
    status = attempt.ended()
    assert (status["outcome"]["kind"], status["outcome"]["code"]) == ("fault", "node_disk_full")
    assert "stdout.log" in status["outcome"]["detail"]
    assert attempt.on_disk() == status
    assert attempt.family() == []


@pytest.mark.spec("J7", "N4")
@both_runtimes
def test_a_disk_filled_by_the_body_itself_still_leaves_room_for_the_last_word(
    attempts: Attempts, small_disk: Path, runtime: str
) -> None:
    command = "echo here; cat /dev/zero > filler; head -c 100000 /dev/zero; sleep 1000"
    attempt = attempts.start("sh", "-c", command, home=small_disk / "a", runtime=runtime)
    status = attempt.ended()
    assert (status["outcome"]["kind"], status["outcome"]["code"]) == ("fault", "node_disk_full")
    assert attempt.on_disk() == status


def free_bytes(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_bsize


@pytest.mark.spec("J7", "N4")
def test_on_a_disk_that_is_full_from_the_start_no_shim_is_started(attempts: Attempts, small_disk: Path) -> None:
    attempt = attempts.prepare("true", home=small_disk / "a")
    filler = os.open(small_disk / "filler", os.O_WRONLY | os.O_CREAT)
    os.posix_fallocate(filler, 0, free_bytes(small_disk))
    os.close(filler)
    with pytest.raises(LauncherError) as refused:
        attempt.launcher.spawn_now(str(attempt.home))
    assert refused.value.errno_name == "ENOSPC"


# --- the sandbox itself fails ---


@pytest.mark.spec("J7")
def test_a_sandbox_that_cannot_be_set_up_is_the_nodes_fault_not_the_jobs(
    tmp_path: Path, public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a machine whose bwrap does not work
    broken = public_folder / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:/usr/bin:/bin")
    launcher = Launcher()
    launcher.start()
    attempt = Attempts(tmp_path, launcher).start("true")
    # when a body is to be started there
    outcome = attempt.outcome()
    # then nobody mistakes it for the exit code of the job
    assert (outcome["kind"], outcome["code"]) == ("fault", "runtime_fault")
    assert "setting up uid map" in outcome["detail"]
    attempt.clean_up()
    launcher.close()
