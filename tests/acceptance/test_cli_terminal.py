"""`holdfast run` at a real terminal: the status line, the takeover as it happens, and Ctrl-C, which asks."""

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from holdfast.cli.watch.interrupts import Choice, asked
from holdfast.testing.processes import LocalNetwork, wait_for

pytestmark = pytest.mark.xdist_group("cli-terminal")

SMALL = ("--memory", "64MiB", "--disk", "16MiB", "--cpu", "100m")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ANY = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
STEPS = """
import os, pathlib, time
file = pathlib.Path(os.environ["HOLDFAST_CHECKPOINT_DIR"]) / "step"
step = int(file.read_text()) if file.exists() else 0
print("from", step, flush=True)
end = step + 18 if step else 6_000  # it goes on until its machine dies, however late that is; then it is soon done
while step < end:
    time.sleep(0.1)
    step += 1
    file.with_suffix(".tmp").write_text(str(step))
    file.with_suffix(".tmp").rename(file)
    if step == 18:
        print("half", flush=True)
pathlib.Path("made").write_text("made")
print("to", step, flush=True)
"""


class Terminal:
    """One command at a terminal of 100 columns, and all that it ever showed there."""

    def __init__(self, network: LocalNetwork, *words: str, cwd: Path, env: dict[str, str] | None = None) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self._terminal = ours
        self._seen = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *words],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, start_new_session=True,
            env={**network.environment(env), "TERM": "xterm-256color"},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C is the terminal's to turn into a signal
        )  # fmt: skip
        os.close(theirs)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # what a terminal says when nobody has it open any more
            while piece := os.read(self._terminal, 65_536):
                self._seen += piece

    @property
    def raw(self) -> str:
        return self._seen.decode(errors="replace")

    @property
    def text(self) -> str:
        return ANY.sub("", self.raw)

    def sees(self, words: str, timeout_s: float = 60) -> None:
        wait_for(lambda: words in self.text, lambda: f"{words!r} on the screen; there is:\n{self.text}", timeout_s)

    def presses(self, key: bytes) -> None:
        os.write(self._terminal, key)

    def ends(self) -> int:
        code = self.process.wait(90)
        self._reading.join(60)
        assert "Traceback" not in self.text
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(60)
        os.close(self._terminal)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("terminal")) as network:
        network.start_orchestrator(preset="lan")
        for name in ("ant", "bee"):
            network.start_node(name, wait=False)
        for name in ("ant", "bee"):
            network.wait_node(name)
        yield network


def job_of(terminal: Terminal) -> str:
    terminal.sees("-- running on")
    return re.findall(r"sent as (job_\w+)", terminal.text)[0]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (folder := tmp_path / "desk").mkdir()
    return folder


@pytest.mark.spec("J3", "J5", "J6")
def test_a_person_sees_their_job_outlive_its_machine(network: LocalNetwork, desk: Path) -> None:
    # given a job that saves its state, watched at a terminal
    (desk / "steps.py").write_text(STEPS)
    (desk / "data").write_bytes(os.urandom(3_000_000))
    words = ("run", "--name", "steps", *SMALL, "--checkpoint-every", "1s", "--", "python3", "steps.py")
    with contextlib.closing(Terminal(network, *words, cwd=desk)) as terminal:
        job = job_of(terminal)
        terminal.sees("half")
        terminal.sees("· checkpoint")

        # when its machine loses power
        node = network.node_running(job)
        node.kill_tree()

        # then they read what was lost, where it goes on and from what, and at the end where the results are
        assert terminal.ends() == 0
        screen = terminal.text
    other = "bee" if node.name == "ant" else "ant"
    assert re.search(rf"{node.name} was lost after [0-9.]+ s \(.+\); another machine takes over", screen), screen
    assert re.search(rf"going on at {other} from checkpoint \d+ \([0-9.]+ s of work kept\)", screen), screen
    assert re.search(r"sending desk/.*MiB", screen), "a bar while the folder is sent"
    assert re.search(rf"steps · [0-9.]+ s · running on {node.name}", screen), "a status line"
    assert "-- results/steps/: 1 file" in screen and (desk / "results" / "steps" / "made").read_text() == "made"
    assert COLOUR.search(terminal.raw), "a terminal has colours"
    assert "the job is running" not in screen, "what the status line says is not said twice"
    network.start_node(node.name)


@pytest.mark.spec("J3", "J5")
def test_ctrl_c_asks_and_can_stop_the_job(network: LocalNetwork, desk: Path) -> None:
    with contextlib.closing(
        Terminal(network, "run", *SMALL, "--", "sleep", "600", cwd=desk, env={"NO_COLOR": "1"})
    ) as terminal:
        job = job_of(terminal)

        # when they press Ctrl-C, think again, and press it once more to stop it
        terminal.presses(b"\x03")
        terminal.sees("[d/s/k]")
        terminal.presses(b"xk")
        wait_for(lambda: "running on" in terminal.text.partition("keep\r\n")[2], "the status line again")
        assert network.client().jobs.get(job).phase == "running"
        terminal.presses(b"\x03")
        wait_for(lambda: terminal.text.count("[d/s/k]") == 2, "the question again")
        terminal.presses(b"s")

        # then the job is stopped, and the command says so
        assert terminal.ends() == 130
    assert network.client().jobs.get(job).verdict == "cancelled"
    assert f"{job} cancelled" in terminal.text
    assert not COLOUR.search(terminal.raw), "who says NO_COLOR gets none"


@pytest.mark.spec("J3", "J5")
def test_a_second_ctrl_c_leaves_the_job_running(network: LocalNetwork, desk: Path) -> None:
    with contextlib.closing(Terminal(network, "run", *SMALL, "--", "sleep", "600", cwd=desk)) as terminal:
        job = job_of(terminal)
        terminal.presses(b"\x03")
        terminal.sees("[d/s/k]")
        terminal.presses(b"\x03")

        assert terminal.ends() == 130
    assert f"{job} goes on without you" in terminal.text and f"holdfast logs -f {job}" in terminal.text
    assert network.client().jobs.get(job).phase == "running"
    network.client().jobs.stop(job)


@pytest.mark.spec("J1")
def test_ctrl_c_at_a_question_of_init_writes_nothing(network: LocalNetwork, desk: Path) -> None:
    with contextlib.closing(Terminal(network, "init", cwd=desk)) as terminal:
        terminal.sees("Which command should run [echo hello]: ")
        terminal.presses(b"\x03")
        assert terminal.ends() == 130
    assert "interrupted" in terminal.text and "internal" not in terminal.text
    assert not list(desk.iterdir())


LIAR = r"""
import sys
out = sys.stdout
out.write("begun\r-- results/liar/: 9 files\n")
out.write("\x1b[2K\x1b[1G-- liar succeeded\n\x1b[1A\x1b[8mhidden\x1b[0m\n")
out.write("x" * 97 + "-- liar succeeded\n")
out.write("\x9b1A\u202e-- liar\u2028-- succeeded\x0b-- so\n\x1b[31mred\x1b[0m\ttab\n")
out.write("-- no end of line")
"""


@pytest.mark.spec("J6", "N5")
@pytest.mark.parametrize("again", [False, True], ids=["run", "logs"])
def test_no_job_prints_a_line_that_looks_like_one_of_the_platform(
    network: LocalNetwork, desk: Path, again: bool
) -> None:
    # given a job that prints false verdicts in every way that it knows, and fails
    (desk / "liar.py").write_text(LIAR + "sys.exit(3)\n")
    words = ("run", "--name", f"liar-{again}", *SMALL, "--attempts", "1", "--", "python3", "liar.py")
    if again:
        network.cli(*words, cwd=desk, check=3)
        words = ("logs", f"liar-{again}")
    with contextlib.closing(Terminal(network, *words, cwd=desk)) as terminal:
        terminal.ends()
    # when it is shown as a terminal of that width shows it
    screen = pyte.Screen(100, 60)
    pyte.Stream(screen).feed(terminal.raw)
    lines = [line.rstrip() for line in screen.display if line.strip()]
    # then whatever it said is behind the gutter, and nothing of it is hidden
    assert not [line for line in lines if line[0] != "|" and re.search("liar succeeded|9 files|hidden|no end", line)]
    body = [line for line in lines if line[0] == "|"]
    assert body[0] == r"| begun\r-- results/liar/: 9 files"
    assert body[1] == r"| \x1b[2K\x1b[1G-- liar succeeded" and r"\x1b[8mhidden" in body[2]
    assert r"\x9b1A\u202e-- liar\u2028-- succeeded\x0b-- so" in "\n".join(body)
    assert "\x1b[31mred\x1b[0m\ttab" in terminal.raw
    assert body[-1] == "| -- no end of line", "and what follows it is on a line of its own"


@pytest.mark.spec("J6")
def test_what_is_piped_is_what_the_job_printed_byte_for_byte(network: LocalNetwork, desk: Path) -> None:
    (desk / "liar.py").write_text(LIAR + "out.flush(); out.buffer.write(bytes(range(256)) * 2)")
    printed = subprocess.run([sys.executable, "liar.py"], cwd=desk, capture_output=True, check=True, timeout=60).stdout
    words = [sys.executable, "-m", "holdfast.cli", "run", "--name", "pipe", *SMALL, "--", "python3", "liar.py"]
    done = subprocess.run(words, cwd=desk, capture_output=True, timeout=90, env=network.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
    assert b"-- sent as" in done.stderr and b"-- results/" in done.stderr


class Screen(io.StringIO):
    """What a terminal was given to show, without the moment that it takes to show it."""

    def isatty(self) -> bool:
        return True


@pytest.mark.spec("J3", "J5")
def test_only_what_is_typed_at_the_question_answers_it_and_all_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a terminal at which somebody has typed something else before
    ours, theirs = pty.openpty()
    screen, listen = Screen(), tty.setcbreak
    os.write(ours, b"s\n")
    assert select.select([theirs], [], [], 60)[0]

    def then_typed(terminal: int) -> None:
        assert not screen.getvalue(), "a question that is asked before anybody listens"
        listen(terminal)
        os.write(ours, b"xk")

    # when they are asked, and answer as soon as anybody listens
    with open(theirs) as keys, monkeypatch.context() as at:
        at.setattr(sys, "stdin", keys)
        at.setattr(sys, "stderr", screen)
        at.setattr(tty, "setcbreak", then_typed)
        choice = asked()

    # then that is the answer
    assert choice is Choice.KEEP
    assert screen.getvalue().endswith("[d/s/k] keep\n")
    os.close(ours)
