"""Whatever is killed in whatever moment: no process, mount, loop device, control group or user stays (SPEC N9)."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.node import attempts as folders
from holdfast.node import linux
from holdfast.node.core.warden import Order
from holdfast.node.runtimes import bubblewrap, cgroups, child, owners, runtime, scratch
from holdfast.testing.attempts import Attempts, all_dead

pytestmark = pytest.mark.spec("N9", "N4")

RUNTIMES = os.path.dirname(runtime.__file__)
EVERY = int(os.environ.get("HOLDFAST_TEST_EVERY_LINE", "5"))
"""One line in this many is died at: each costs a fifth of a second. 1 was run, and is for whoever changes them."""
LIMITED = {"cpu_milli": 500, "memory_mib": 64, "disk_mib": 4}


def remains(folder: Path) -> list[str]:
    """Everything of an attempt on the machine that is no file of its folder."""
    name = cgroups.name_of(str(folder))
    found = [f"process {pid}" for pid in folders.processes_of(folder)]
    found += scratch.mounts_below(str(folder)) + scratch.loops_below(str(folder))
    found += [group for group, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(group) == name]
    return found + [
        f"user {uid}"
        for uid in os.listdir(owners.REGISTRY)
        if os.path.realpath(os.path.join(owners.REGISTRY, uid)) == str(folder)
    ]


def live(order: Order, folder: Path) -> None:
    """What a shim does with a runtime, from its first to its last line."""
    null = os.open("/dev/null", os.O_RDWR)
    bubblewrap.RUNTIME.prepare(order, str(folder))
    body = bubblewrap.RUNTIME.start(order, str(folder), null, null)
    body.usage()
    body.signal(signal.SIGKILL)
    body.ended(child.wait(body.pid, 10), "")
    bubblewrap.RUNTIME.clean(str(folder))


def in_a_process(play: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        linux.adopt_orphans()
        try:
            play()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def counting(at: int, seen: set[tuple[str, int]]) -> Callable[[FrameType, str, Any], Any]:
    """A tracer that notes the lines of the runtimes, and kills its process when it comes to the `at`th new one."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(RUNTIMES):
            return None
        if event == "line":
            seen.add((frame.f_code.co_filename, frame.f_lineno))
            if len(seen) == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


@pytest.mark.timeout(300)
@pytest.mark.parametrize("network", [False, True])
def test_kill_9_at_any_line_leaves_nothing(tmp_path: Path, network: bool) -> None:
    # given how many lines there are between the first word of an attempt and the last
    order = Order("att_0a.1", 7, "job_0a", ("sleep", "60"), 1, 1, 0, 0, resources=LIMITED, network=network)
    bubblewrap.RUNTIME.warm()
    count = tmp_path / "count"

    def whole() -> None:
        seen = set[tuple[str, int]]()
        sys.settrace(counting(-1, seen))
        live(order, folder)
        sys.settrace(None)
        count.write_text(str(len(seen)))

    folder = tmp_path / "att"
    folder.mkdir()
    in_a_process(whole)
    lines = int(count.read_text())
    assert lines > 150
    assert remains(folder) == []
    folders.remove(folder)
    # when it is killed at one of them
    for number in range(1, lines, EVERY):
        folder.mkdir()

        def broken(number: int = number) -> None:
            sys.settrace(counting(number, set()))
            live(order, folder)

        in_a_process(broken)
        # then whoever finds the folder can clear up and remove it
        folders.end_processes(folder)
        folders.clean(folder)
        assert remains(folder) == [], f"killed at line {number} of {lines}"
        folders.remove(folder)


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
    copy = Path(f"/proc/{stranger.pid}/root{attempt.home}/work/file")
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


def test_scratch_that_was_unmounted_by_a_restart_of_the_machine_is_mounted_again(tmp_path: Path) -> None:
    # given an attempt with a file in its scratch, on a machine that was switched off in good order
    order = Order("att_0a.1", 7, "job_0a", ("true",), 1, 1, 0, 0, resources=LIMITED, checkpoint=True)
    bubblewrap.RUNTIME.prepare(order, str(tmp_path))
    (tmp_path / "work" / "file").write_text("kept")
    for place in scratch.mounts_below(str(tmp_path)):
        linux.unmount(place)
    assert not (tmp_path / "work" / "file").exists()
    # when it is prepared again, then the file is there
    bubblewrap.RUNTIME.prepare(order, str(tmp_path))
    assert (tmp_path / "work" / "file").read_text() == "kept"
    bubblewrap.RUNTIME.prepare(order, str(tmp_path))
    assert len(scratch.mounts_below(str(tmp_path))) == 2
    bubblewrap.RUNTIME.clean(str(tmp_path))
    assert remains(tmp_path) == []
