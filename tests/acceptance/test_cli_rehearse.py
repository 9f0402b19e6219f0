"""Rehearsals: real networks of this machine, real kills, and a true word about what that changed."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.errors import WaitExpired
from holdfast.node.runtimes import scratch, trials
from holdfast.testing import rehearsal as module
from holdfast.testing.processes import READY_S, LocalNetwork, NotInTime, wait_for
from holdfast.testing.rehearsal import (
    HURRY_MAX,
    LAST_LINES,
    LATEST,
    Kill,
    Rehearsal,
    RehearsalReport,
    RehearsalRun,
    clear_up,
    first_difference,
)
from holdfast.wire.http import JobRequest

pytestmark = [pytest.mark.spec("A7"), pytest.mark.xdist_group("rehearsal"), pytest.mark.timeout(450)]

STEPS = "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.15; done; "


@pytest.fixture(scope="module")
def rehearsal() -> Iterator[Rehearsal]:
    # With the settings that ship: a machine that is merely slow for a second is no reason for a second attempt.
    with Rehearsal(chance=random.Random(7)) as rehearsal:
        yield rehearsal


def played(
    rehearsal: Rehearsal, script: str, kills: int = 1, recovery: str = "restart", every_ms: int = 0
) -> RehearsalReport:
    request = JobRequest(["sh", "-c", script], cpu_milli=200, memory_mib=64, disk_mib=64, recovery=recovery)
    if every_ms:
        request = JobRequest(["python3", "-c", script], cpu_milli=200, memory_mib=64, disk_mib=64, recovery=recovery,
                             checkpoint_ms=every_ms)  # fmt: skip
    return rehearsal.play(request, kills=kills)


def test_a_job_that_bears_it_is_told_so(rehearsal: Rehearsal) -> None:
    report = played(rehearsal, STEPS + "mkdir made; echo 42 > made/answer", kills=2)
    assert report.finding == "same" and report.good, report
    assert report.torn is not None and report.torn.attempts >= 3
    assert report.calm.files.keys() == report.torn.files.keys() == {"made/answer"}
    assert [kill.recovered_s is not None for kill in report.kills] == [True, True]
    # and the kills came while it worked, however long it took to get that far
    assert 1 <= report.calm.worked_s <= report.calm.seconds
    assert all(kill.after_s <= LATEST * report.calm.worked_s for kill in report.kills)


def test_one_that_differs_by_itself_is_told_apart(rehearsal: Rehearsal) -> None:
    report = played(rehearsal, STEPS + "date +%s%N > when")
    assert report.finding == "unsteady" and not report.good
    assert report.differences == ("when: different content",) and report.again is not None
    (where,) = report.details
    assert where.startswith("when: line 1: '1") and " became '1" in where


def test_one_that_notices_the_kill_is_told_so(rehearsal: Rehearsal) -> None:
    # given a job that writes down which attempt it is
    report = played(rehearsal, STEPS + "echo ${HOLDFAST_ATTEMPT##*.} > which; echo ${HOLDFAST_ATTEMPT##*.}")
    assert report.finding == "differs"
    assert report.differences == ("which: different content", "what it printed")
    assert report.details == ("which: line 1: '1' became '2'", "what it printed: line 11: '1' became '2'")
    assert report.again is not None and report.again.files == report.calm.files


CONTINUES = """
import time
from holdfast import checkpoint
state = checkpoint.load({"step": 0, "sum": 0})
pause = 0.02 if state["step"] else 0.1  # nobody waits for a kill any more
for step in range(state["step"], 40):
    state = {"step": step + 1, "sum": state["sum"] + step * step}
    checkpoint.save(state, as_json=True)
    time.sleep(pause)
open("sum", "w").write(str(state["sum"]))
"""


def test_one_that_goes_on_from_its_checkpoint_is_compared_by_its_files(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given kills that come when there is something to go on from
    kill = rehearsal._kill

    def late(job: str, span: float) -> Kill | None:
        def saved_or_over() -> bool:
            view = rehearsal.client.jobs.get(job)
            return view.checkpoint is not None or view.phase == "ended"

        wait_for(saved_or_over, f"a checkpoint of {job}")
        return kill(job, span)

    monkeypatch.setattr(rehearsal, "_kill", late)
    report = played(rehearsal, CONTINUES, recovery="resume", every_ms=1000)
    assert report.finding == "same", report
    # and one that forgets a part of its state is found out
    forgets = CONTINUES.replace('"sum": state["sum"] +', '"sum": (state["sum"] if step != start else 0) +')
    forgets = forgets.replace("for step", 'start = state["step"]\nfor step')
    report = played(rehearsal, forgets.replace("if step != start", "if step != start or not start"), recovery="resume",
                    every_ms=1000)  # fmt: skip
    assert report.finding == "differs" and "checkpoint" in report.advice


def test_one_that_must_not_run_twice_fails_and_is_told_why(rehearsal: Rehearsal) -> None:
    report = played(rehearsal, STEPS, recovery="never")
    assert report.finding == "failed" and "never" in report.advice


def test_what_fails_in_peace_or_ends_at_once_is_not_disturbed(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = played(rehearsal, "seq 1 30; echo it went wrong >&2; exit 3")
    # what went wrong is said, and what it has not got
    assert failed.finding == "failed" and "exit code 3" in failed.says and "--network" in failed.advice
    assert "it went wrong" in failed.calm.printed and len(failed.calm.printed) == LAST_LINES
    monkeypatch.setattr(module, "SHORTEST_S", 60.0)  # on a busy machine nothing is over at once
    report = played(rehearsal, "true")
    assert (report.finding, report.torn) == ("undisturbed", None)


def test_the_command_says_it_and_ends_accordingly(tmp_path: Path) -> None:
    # given a folder with a job that reads an input, a variable and the folder
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "work.sh").write_text(STEPS + "cat inputs/data/words .env notes; echo $WORD > word")
    (desk / ".env").write_text("x")
    (desk / "notes").write_text("y")
    (desk / ".gitignore").write_text("notes\n")
    (desk / "requirements.txt").write_text("")
    (tmp_path / "words").write_text("hello\n")
    network = LocalNetwork(tmp_path / "unused")
    done = network.cli(
        "rehearse", "--kills", "1", "--cpu", "0.2", "--memory", "64MiB", "--disk", "64MiB", "--network",
        "--class", "resume", "--checkpoint", "--checkpoint-every", "1s",
        "--folder", str(desk), "--include", ".env", "--no-gitignore", "--requirements", str(desk / "requirements.txt"),
        "--input", f"data={tmp_path / 'words'}", "--env", "WORD=kept", "--json", "--", "sh", "work.sh",
        timeout_s=300, check=0,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["finding"] == "same" and report["torn"]["attempts"] >= 2
    assert "kill -9: all of machine-" in done.stderr


def holdfast(*words: str) -> Any:
    return CliRunner().invoke(app, words)


def test_the_command_ends_with_1_where_the_job_does_not_end_well(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Rehearsal", lambda told: contextlib.nullcontext(rehearsal))  # a network is there
    done = holdfast("rehearse", "--no-folder", "--memory", "64MiB", "--disk", "64MiB", "--", "false")
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    assert "NOT SHOWN: it fails even when undisturbed" in done.stdout and "exit code 1" in done.stdout


class Brief:
    """As much of a network as a kill needs. Its job is seen running, and has ended when its machine is looked for."""

    def __init__(self) -> None:
        self.jobs = self
        self.nodes = SimpleNamespace(list=list, get=lambda name: None)
        self._phases = iter(("running", "running", "uploading", "uploading"))

    def client(self) -> "Brief":
        return self

    def get(self, job: str) -> Any:
        phase = next(self._phases, "ended")
        return SimpleNamespace(
            phase=phase, attempts=[SimpleNamespace(phase=phase, revoked=False, started_ms=1, node="n")]
        )


def test_a_job_that_ends_while_its_machine_is_looked_for_is_not_waited_for() -> None:
    # given a job that ends between the moment to kill and the kill
    rehearsal = Rehearsal()
    brief: Any = Brief()
    rehearsal.network = brief
    # then that is a job that was quicker
    assert rehearsal._kill("job_1", 0.0) is None


class Quicker(Rehearsal):
    """A job that took ten seconds in peace, and then `seconds`: a busy machine that became idle."""

    def __init__(self, seconds: float) -> None:
        super().__init__(chance=random.Random(1))
        self.seconds = seconds
        self.spans: list[float] = []

    def _have_machines(self, number: int) -> None:
        """None is needed."""

    def _run(self, request: JobRequest, how: str, spans: list[float]) -> tuple[RehearsalRun, tuple[Kill, ...]]:
        self.spans += spans
        kills = tuple(Kill("n", span, 0.1) for span in spans if span < self.seconds)
        return RehearsalRun("job_1", "succeeded", 10.0, 1 + len(kills), {}, "", worked_s=10.0), kills


def test_a_job_that_is_quicker_than_the_kill_is_run_again_and_killed_sooner() -> None:
    # given a job that was slowed down while it ran in peace
    rehearsal = Quicker(seconds=LATEST * 10.0 / HURRY_MAX)
    report = rehearsal.play(JobRequest(["true"]))
    # then its machine is killed all the same, at the second or third try
    assert report.finding == "same" and len(report.kills) == 1
    assert len(rehearsal.spans) > 1 and rehearsal.spans[-1] < rehearsal.seconds <= rehearsal.spans[0]
    # and where it is always quicker, that is said after a few tries
    never = Quicker(seconds=0.0)
    assert never.play(JobRequest(["true"])).finding == "undisturbed"
    assert len(never.spans) == 1 + HURRY_MAX.bit_length() - 1


@pytest.mark.parametrize("json", [False, True])
def test_a_machine_that_is_too_slow_shows_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch, json: bool) -> None:
    # given a machine on which nothing starts in time
    def slow(self: Rehearsal) -> None:
        raise NotInTime("waited 60 s in vain for node machine-1 to be ready")

    monkeypatch.setattr(Rehearsal, "__enter__", slow)
    # when something is rehearsed
    done = holdfast("rehearse", "--no-folder", *(["--json"] if json else []), "--", "true")
    # then nothing was shown, with the exit code for that, and no fault is claimed
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    assert "NOT SHOWN: this machine was too slow" in done.output and "Rehearse it again" in done.output
    assert not json or done.stdout == ""


# --- ended in its midst ---


class Begun:
    """`holdfast rehearse` with temporary files of its own, and a job that would take long, seen to run. Whatever
    becomes of the test, nothing of it stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        script = f"{HEARS}import sys; sys.argv = {COMMAND!r}; from holdfast.cli.main import main; main()"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", script], env=os.environ | {"TMPDIR": str(folder)}, cwd=folder,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> "Begun":
        with contextlib.ExitStack() as ending:
            ending.push(self.__exit__)
            wait_for(lambda: list(self.folder.glob("holdfast-*/node-*/attempts/*/status.json")), self.log.read_text)
            ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.ended_by(signal.SIGTERM)
        self.process.kill()
        self.process.wait()
        for folder in self.folder.glob("holdfast-*"):
            clear_up(str(folder))
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        wait_for(lambda: not self.processes(), "what was killed to be gone")

    def ended_by(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(READY_S)

    def left(self) -> list[str]:
        """Everything on the machine that names its folder."""
        found = [str(path) for path in self.folder.glob("holdfast-*")]
        found += scratch.mounts_below(str(self.folder)) + scratch.loops_below(str(self.folder))
        return found + [f"process {process.pid}" for process in self.processes()]

    def processes(self) -> list[psutil.Process]:
        """All that have its folder for their temporary files, but itself."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != self.process.pid and process.environ().get("TMPDIR") == str(self.folder):
                    found.append(process)
        return found


HEARS = "import signal; [signal.signal(n, signal.default_int_handler if n == 2 else 0) for n in (1, 2, 15)]; "
"""Whoever runs the tests may have them started deaf to some signals."""
COMMAND = ["holdfast", "rehearse", "--no-folder", "--memory", "64MiB", "--disk", "64MiB", "--", "sleep", "1000"]


def test_whoever_ends_a_rehearsal_leaves_nothing_on_the_machine(tmp_path: Path) -> None:
    with Begun(tmp_path) as begun:
        assert begun.left()
        assert begun.ended_by(signal.SIGTERM) == 128 + signal.SIGTERM
        assert "interrupted" in begun.log.read_text()
        assert begun.left() == []


def test_what_a_killed_rehearsal_left_is_cleared_up_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given one that could not clear up after itself
    with Begun(tmp_path) as begun:
        begun.ended_by(signal.SIGKILL)
        assert [word for word in begun.left() if word.startswith("process")]
        # when the next one makes itself a folder, then nothing of the first is left
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with trials.folder_for(module.WHAT, clear_up) as folder:
            assert begun.left() == [folder]


HEEDS = (
    HEARS
    + """
import os, sys
from holdfast.cli.commands.rehearse import _heeding_signals
ignored, sent = int(sys.argv[1]), int(sys.argv[2])
if ignored:
    signal.signal(ignored, signal.SIG_IGN)
with _heeding_signals():
    try:
        os.kill(os.getpid(), sent)
        print("not heard")
    finally:
        for number in (1, 2, 15):
            os.kill(os.getpid(), number)
        print("cleared")
"""
)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_clearing_up_is_not_interrupted(sent: int) -> None:
    done = subprocess.run([sys.executable, "-c", HEEDS, "0", str(int(sent))], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (128 + sent, "cleared\n"), done.stderr


def test_what_whoever_started_it_told_it_to_ignore_is_ignored() -> None:
    words = ["-c", HEEDS.replace("for number in (1, 2, 15)", "for number in (1,)"), "1", "1"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "not heard\ncleared\n"), done.stderr


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (b"a\nb\n", b"a\nc\n", "line 2: 'b' became 'c'"),
        (b"a\n", b"a\nb\n", "line 2: nothing became 'b'"),
        (b"x" * 80, b"y", f"line 1: '{'x' * 57}...' became 'y'"),
        (b"\0ab", b"\0ac", "from byte 2 on"),
        (b"\0a", b"\0ac", "from byte 2 on"),
        (b"same", b"same", "somewhere behind its first 4 bytes"),
    ],
)
def test_where_something_differs_is_shown(one: bytes, other: bytes, says: str) -> None:
    assert first_difference(one, other) == says


class Slow(Rehearsal):
    """A job that runs for three questions."""

    def __init__(self, told: Callable[[str], None]) -> None:
        super().__init__(told)
        self.asked = 0
        jobs = SimpleNamespace(wait=self.wait, get=lambda job: SimpleNamespace(phase="running"))
        network: Any = SimpleNamespace(client=lambda: SimpleNamespace(jobs=jobs))
        self.network = network

    def wait(self, job: str, *, timeout_s: float, check: bool) -> Any:
        self.asked += 1
        if self.asked < 3:
            raise WaitExpired(job)
        return SimpleNamespace(phase="ended")


def test_a_job_that_runs_long_is_told_to_run_still() -> None:
    said: list[str] = []
    assert Slow(said.append)._until_ended("job_1", 1000.0)
    assert len(said) == 2 and all(line.startswith("it is running, ") for line in said)
