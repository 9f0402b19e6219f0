"""A machine on which attempts come and go at every moment: whoever dies while a sandbox or a disk is being made leaves
nothing behind, and nobody who looked at the machine in that moment keeps a disk that was given up."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.node import linux
from holdfast.node.attempt import attempt_folders
from holdfast.node.core.order import Order
from holdfast.node.runtimes import bubblewrap, cgroups, child, owners, scratch
from holdfast.node.runtimes.hindrances import Hindrance
from holdfast.testing.processes import wait_for

pytestmark = pytest.mark.spec("N9", "N4")

LIMITED = {"cpu_milli": 500, "memory_mib": 64, "disk_mib": 4}
ORDER = Order("att_0a.1", 7, "job_0a", ("true",), 1, 1, 0, 0, resources=LIMITED)
STUCK = "#!/bin/sh\nsetsid sh -c 'echo $$; exec sleep 1000' &\nwait\n"
"""In place of bwrap: what of it is left where its first process dies before it has let the second one go on. That one
is in nobody's sandbox yet, belongs to no parent, and holds the attempt's disk."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / ORDER.attempt
    folder.mkdir(mode=0o755)
    yield folder
    if folder.exists():
        attempt_folders.end_processes(folder)
        attempt_folders.clean(folder)


@contextmanager
def a_stranger() -> Iterator[subprocess.Popen[str]]:
    """Somebody else's process with a copy of all mounts, as they are now."""
    words = ["unshare", "--mount", "sh", "-c", "echo copied; exec sleep 1000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        try:
            assert stranger.stdout.readline() == "copied\n"
            yield stranger
        finally:
            stranger.kill()


def start_and_die(folder: Path, programs: Path) -> tuple[int, int]:
    """A shim that dies while its sandbox is being set up; what identifies the process that it leaves behind."""
    programs.mkdir(mode=0o755)
    (programs / "bwrap").write_text(STUCK)
    (programs / "bwrap").chmod(0o755)
    bubblewrap.RUNTIME.warm()  # by the real one
    said, stdout = os.pipe()
    shim = os.fork()
    if shim == 0:
        try:
            os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
            bubblewrap.RUNTIME.prepare(ORDER, str(folder))
            os.waitpid(bubblewrap.RUNTIME.start(ORDER, str(folder), stdout, stdout).pid, 0)
        finally:
            os._exit(1)
    os.close(stdout)
    with open(said) as words:
        left = int(words.readline())
    ticks = linux.start_ticks(left)
    assert ticks is not None
    os.kill(shim, signal.SIGKILL)
    os.waitpid(shim, 0)
    return left, ticks


def assert_nothing_is_left(folder: Path, process: tuple[int, int]) -> None:
    assert not linux.is_alive(*process)
    assert scratch.mounts_below(str(folder)) + scratch.loops_below(str(folder)) == []
    groups = cgroups.recorded(str(folder))
    assert groups is None or [place for place in groups.places.values() if os.path.exists(place)] == []


@pytest.fixture
def programs() -> Iterator[Path]:
    """Where the user that a body becomes can read as well, which a test's own folder is not."""
    base = Path(tempfile.mkdtemp(prefix="holdfast-programs-"))
    base.chmod(0o755)
    yield base / "bin"
    shutil.rmtree(base)


def test_the_agents_sweep_ends_what_a_dead_shim_left_half_made(folder: Path, programs: Path) -> None:
    # given a shim that was killed while its sandbox was being set up
    process = start_and_die(folder, programs)
    assert linux.is_alive(*process), "nobody told it to end"
    # when the attempt is swept away, then it goes at once, with its process and its disk
    asyncio.run(attempt_folders.until_removed(folder))
    assert not folder.exists()
    assert_nothing_is_left(folder, process)


def test_it_is_found_without_the_folder_that_it_was_made_for(folder: Path, programs: Path) -> None:
    # given the same, where a sweep was broken off when it had just taken the folders away
    process = start_and_die(folder, programs)
    linux.unmount(str(folder / "work"))
    (folder / "work").rmdir()
    # when it is swept again
    assert process[0] in attempt_folders.processes_of(folder)
    attempt_folders.end_processes(folder)
    attempt_folders.clean(folder)
    assert_nothing_is_left(folder, process)


def test_clearing_up_ends_what_holds_the_disk_before_it_takes_the_disk(folder: Path, programs: Path) -> None:
    # given the same, and somebody who knows nothing of processes and only clears up
    process = start_and_die(folder, programs)
    attempt_folders.clean(folder)
    # then the control group told whom to end, and not only after the disk could not be had
    assert_nothing_is_left(folder, process)


def test_who_looked_while_a_disk_was_being_made_does_not_keep_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a stranger whose mounts were copied while the disk was mounted where nobody is to find it
    made: list[str] = []
    unmount = linux.unmount

    def copied_before(target: str) -> None:
        if not made:
            made.append(target)
            copy = stack.enter_context(a_stranger())
            assert os.path.ismount(f"/proc/{copy.pid}/root{target}")
        unmount(target)

    with ExitStack() as stack:
        monkeypatch.setattr(linux, "unmount", copied_before)
        scratch.make(str(folder), ("work",), 4, 0)
        assert made == [str(folder / "disk")]
        # when the attempt is over, then its disk is given back although the stranger lives on
        attempt_folders.clean(folder)
        assert scratch.loops_below(str(folder)) == []


def test_a_disk_goes_from_a_strangers_view_also_by_the_second_sweep(folder: Path) -> None:
    # given a stranger with a copy of the mounts, and a sweep that died right behind the first of its two steps
    scratch.make(str(folder), ("work",), 4, 0)
    with a_stranger() as copy:
        assert os.path.ismount(f"/proc/{copy.pid}/root{folder}/work")
        linux.unmount(str(folder / "work"))
        assert scratch.loops_below(str(folder)) != [], "the stranger keeps it"
        # when it is swept again
        attempt_folders.clean(folder)
        # then the kernel takes the copy away, and the disk is free
        wait_for(lambda: scratch.loops_below(str(folder)) == [], "the disk to be free")


@pytest.mark.spec("J7", "N9")
def test_scratch_never_covers_files_that_were_put_there_without_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an agent that found that this machine cannot mount a file, and put the job's files into a plain folder
    order = Order("att_0a.1", 7, "job_0a", ("true",), 1, 1, 0, 0, resources={"disk_mib": 4})
    with monkeypatch.context() as patched:
        patched.setattr(scratch, "hindrance", lambda: Hindrance("no file can be mounted"))
        child.make_folders(order, str(folder))
    (folder / "work" / "given").write_text("text")
    # when its shim finds that it can
    child.make_folders(order, str(folder))
    # then the body still sees the files
    assert (folder / "work" / "given").read_text() == "text"
    assert scratch.mounts_below(str(folder)) == []


def test_only_our_own_and_the_attempts_user_are_believed_to_be_of_it(tmp_path: Path) -> None:
    # given an attempt's folder, also by another name, and processes of three users that bear its mark
    folder = tmp_path / "att_0a.1"
    (folder / "work").mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    owner, stranger = 1_900_000_001, 1_900_000_002
    (folder / owners.RECORD).write_text(str(owner))
    mark = {child.WORK_DIR: f"{folder}/work"}
    with ExitStack() as ends:
        marked = {}
        for user in (os.getuid(), owner, stranger):
            process = subprocess.Popen(["sleep", "600"], env=mark, cwd="/", user=user)
            ends.callback(process.wait)
            ends.callback(process.kill)
            marked[user] = process.pid
        # then another job's processes, which may bear any mark, are not taken for this one's
        expected = sorted((marked[os.getuid()], marked[owner]))
        for name in (folder, tmp_path / "link"):
            wait_for(lambda name=name: attempt_folders.processes_of(name) == expected, "both to be seen, and no more")
        # and live on when it is swept
        attempt_folders.end_processes(folder)
        assert Path(f"/proc/{marked[stranger]}/cmdline").read_bytes() == b"sleep\0" + b"600\0"
