"""`holdfast top`: one frame, a live screen in a real terminal, and a terminal that is left as it was found."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from holdfast.testing.processes import LocalNetwork

pytestmark = [pytest.mark.xdist_group("cli-top"), pytest.mark.spec("J15", "A5")]

SMALL = {"cpu_milli": 500, "memory_mib": 64, "disk_mib": 16}
ALTERNATE, BACK = b"\x1b[?1049h", b"\x1b[?1049l"
"""What opens a screen of its own, and what gives the old one back."""
HOME = b"\x1b[H"
"""Where each frame begins: on a slow day several were drawn before the first is read."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("top")) as network:
        network.start_orchestrator(preset="lan")
        network.start_node("ant", flags=["--cpu", "1"])
        client = network.client()
        client.jobs.run(["true"], name="early", **SMALL, timeout_s=100)
        running = client.jobs.submit(["sleep", "3600"], name="busy", cpu_milli=1_000, memory_mib=64, disk_mib=16)
        network.node_running(running.id)
        client.jobs.submit(["true"], name="patient", **SMALL)
        yield network


def test_one_frame_shows_machines_jobs_queue_and_events(network: LocalNetwork) -> None:
    frame = network.cli("top", "--once", env={"COLUMNS": "80"}, check=0).stdout
    assert max(map(len, frame.splitlines())) <= 80
    for part in ("1 of 1 machines take work", "machines (1)", "running (1)", "waiting (1)", "lately"):
        assert part in frame, frame
    row = next(line for line in frame.splitlines() if line.startswith("ant"))
    assert "full" in row and "1/1" in row
    assert any("busy" in line and "running" in line and "ant" in line for line in frame.splitlines())
    assert any("patient" in line and "a machine with" in line for line in frame.splitlines())
    assert "\x1b" not in frame


def test_a_pipe_gets_one_frame_and_programs_get_json(network: LocalNetwork) -> None:
    assert network.orchestrator is not None
    url, token = network.orchestrator.url, str(network.home / "orchestrator" / "admin.token")
    piped = network.cli("top", check=0).stdout
    assert "machines (1)" in piped
    seen = json.loads(network.cli("top", "--json", "--url", url, "--token-file", token, check=0).stdout)
    assert [node["name"] for node in seen["nodes"]] == ["ant"]
    assert [job["name"] for job in seen["running"]] == ["busy"] and seen["running"][0]["node"] == seen["nodes"][0]["id"]
    assert [job["name"] for job in seen["queued"]] == ["patient"]
    assert seen["nodes"][0]["silent_ms"] is not None and seen["events"] and "scores" in seen


class Terminal:
    """`holdfast top` in a terminal of a given size, as a person has it."""

    def __init__(self, network: LocalNetwork, columns: int, rows: int) -> None:
        self.mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        command = [sys.executable, "-m", "holdfast.cli", "top"]
        env = {**network.environment(), "TERM": "xterm-256color"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=network.desk)
        self.said = b""

    def until(self, wanted: bytes, timeout_s: float = 60.0) -> bytes:
        end = time.monotonic() + timeout_s
        while wanted not in self.said:
            assert time.monotonic() < end, self.said[-2_000:]
            if select.select([self.mine], [], [], 0.2)[0]:
                self.said += os.read(self.mine, 65_536)
        return self.said

    def ended(self) -> int:
        self.until(BACK)
        code = self.process.wait(60)
        assert termios.tcgetattr(self.theirs)[3] == self.before[3], "the terminal does not echo as it did before"
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        os.close(self.mine)
        os.close(self.theirs)


@pytest.mark.parametrize(("columns", "rows", "leave"), [(80, 24, "q"), (160, 50, "ctrl-c")])
def test_the_screen_fits_the_window_and_the_terminal_is_left_clean(
    network: LocalNetwork, columns: int, rows: int, leave: str
) -> None:
    terminal = Terminal(network, columns, rows)
    try:
        terminal.until(b"busy")
        said = terminal.until(b"q quits")
        assert ALTERNATE in said
        frames = said.partition(ALTERNATE)[2].replace(HOME, b"\n")
        text = re.sub(rb"\x1b(\[[0-9;?]*([A-Za-z]|$)|$)", b"", frames).decode("utf-8", "replace")
        assert "machines (1)" in text and "busy" in text
        lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
        assert max(len(line.rstrip()) for line in lines) <= columns
        if leave == "q":
            os.write(terminal.mine, b"q")
        else:
            terminal.process.send_signal(signal.SIGINT)
        assert terminal.ended() == 0
    finally:
        terminal.close()


@pytest.mark.spec("N8")
def test_a_node_shows_what_each_attempt_may_use_and_what_failed_there_lately(network: LocalNetwork) -> None:
    client = network.client()
    home = str(network.nodes["ant"].home)
    status = network.cli("node", "status", "--home", home, check=0).stdout
    row = next(line for line in status.splitlines() if line.startswith("att_"))
    assert "running" in row and "1 cores, 64 MiB memory, 16 MiB disk" in row
    held = json.loads(network.cli("node", "status", "--home", home, "--json", check=0).stdout)["held"]
    assert held[0]["limits"] == {"cpu_milli": 1_000, "memory_mib": 64, "disk_mib": 16, "gpus": 0, "gpu_ids": []}
    # when what runs is stopped, and something fails there
    for job in client.jobs.list(phase="running").jobs:
        client.jobs.stop(job.id)
    failed = client.jobs.run(["sh", "-c", "exit 7"], **SMALL, check=False, timeout_s=100)
    assert failed.exit_code == 7
    status = network.cli("node", "status", "--home", home, check=0).stdout
    assert "ago" in status and failed.id.removeprefix("job_") in status and "exit_code" in status
