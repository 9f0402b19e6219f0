"""A machine that runs out of memory is not the user's fault (SPEC J7), and takes the job, not the node."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node import linux
from holdfast.node.launcher import Launcher
from holdfast.testing.attempts import Attempts
from holdfast.testing.processes import wait_for

SMALL_BYTES = 160 << 20


class SmallMachine:
    """A memory cgroup, version 1 or 2, in which the kernel runs out of memory as a small machine would."""

    def __init__(self) -> None:
        name = f"holdfast-test-{os.getpid()}"
        v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        if v1.is_dir():
            self.folder, limits = v1 / name, ("memory.limit_in_bytes",)
        else:
            (v2 / "cgroup.subtree_control").write_text("+memory")
            self.folder, limits = v2 / name, ("memory.max", "memory.swap.max")
        self.folder.mkdir()
        for number, limit in enumerate(limits):
            (self.folder / limit).write_text(str(SMALL_BYTES) if number == 0 else "0")

    def take(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def empty(self) -> bool:
        return not (self.folder / "cgroup.procs").read_text().strip()


@pytest.fixture
def small_machine() -> Iterator[SmallMachine]:
    machine = SmallMachine()
    yield machine
    wait_for(machine.empty, "the small machine to be empty")
    machine.folder.rmdir()


@pytest.mark.serial  # where nothing confines a body, whoever else runs out of memory meanwhile is seen as well
@pytest.mark.spec("J7", "N4")
@pytest.mark.parametrize(("runtime", "asked_mib"), [("bubblewrap", 0), ("bubblewrap", 1024), ("process", 0)])
def test_a_machine_out_of_memory_is_told_apart_from_a_program_that_died(
    small_machine: SmallMachine, tmp_path: Path, runtime: str, asked_mib: int
) -> None:
    # given a launcher on a machine with little memory
    launcher = Launcher()
    launcher.start()
    attempts = Attempts(tmp_path, launcher)
    try:
        small_machine.take(launcher.pid)
        before = linux.oom_kills()
        # when a body needs more than there is
        greedy = "x = bytearray(1 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1"
        attempt = attempts.start("python3", "-c", greedy, runtime=runtime, resources={"memory_mib": asked_mib})
        outcome = attempt.outcome()
        # then the kernel took the body and not the shim, and the machine is to blame
        assert linux.oom_kills() > before
        assert (outcome["kind"], outcome["code"], outcome["signal"]) == ("fault", "oom_node", 9)
        assert attempt.shim_lives()
        # and a body that is killed while there is memory enough has only itself to blame
        killed = attempts.start("sh", "-c", "kill -9 $$", runtime=runtime).outcome()
        assert (killed["kind"], killed["signal"]) == ("exit", 9)
    finally:
        for made in attempts.made:
            made.clean_up()
        launcher.close()
