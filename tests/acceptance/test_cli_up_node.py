"""One command and one terminal: an orchestrator with the node of this machine beside it, and the command that ends both
(SPEC J8, N1, N8)."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.testing.processes import LocalNetwork, free_port

pytestmark = pytest.mark.xdist_group("cli-up-node")

SMALL = ("--no-folder", "--memory", "64MiB", "--disk", "16MiB", "--no-results")


class OneMachine:
    """The commands of somebody who has one machine."""

    def __init__(self, folder: Path) -> None:
        self.network = LocalNetwork(folder)
        self.cli = self.network.cli
        self.data = self.network.home / "orchestrator"
        ports = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        self.ports = ("--http", ports[0], "--listen", ports[1], "--files", ports[2], "--preset", "test")

    def up(self, *words: str, check: int = 0) -> str:
        done = self.cli("up", "--node", "--detach", *words, *self.ports, check=check)
        return done.stdout + done.stderr

    def record(self) -> dict[str, Any]:
        return json.loads((self.data / "supervisor.json").read_text())

    def process(self, what: str) -> psutil.Process:
        return psutil.Process(self.record()[what]["pid"])


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[OneMachine]:
    machine = OneMachine(tmp_path)
    with machine.network:
        yield machine
        machine.cli("down", "--now")


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.spec("J8", "N1", "N8", "J14")
def test_one_command_is_a_network_and_one_ends_it_and_nothing_is_lost(machine: OneMachine) -> None:
    # when somebody starts it, then it is up with this machine as its node, and says what to do next
    said = machine.up()
    assert said.startswith("Holdfast is up: http://127.0.0.1:") and "this machine is its node" in said
    assert "holdfast run" in said and "holdfast down" in said and "hf1_" not in said
    assert machine.cli("run", *SMALL, "--name", "first", "--", "echo", "hello", check=0).stdout == "hello\n"

    # and starting it twice is refused
    assert "already" in machine.up(check=78)

    # when its node dies, then it is started again
    node = machine.process("node")
    node.kill()
    machine.network.wait_for(lambda: machine.record()["node"]["pid"] != node.pid, "another node")
    assert machine.cli("run", *SMALL, "--", "echo", "again", check=0).stdout == "again\n"

    # when it is ended, then both processes end, and everything stays
    running = [machine.process(what) for what in ("supervisor", "orchestrator", "node")]
    down = machine.cli("down", check=0)
    assert "down; its data stays in" in down.stdout and all(map(gone, running))
    assert "nothing" in machine.cli("down", check=0).stdout
    machine.up()
    assert "first" in machine.cli("jobs", check=0).stdout
    assert machine.cli("run", *SMALL, "--", "echo", "later", check=0).stdout == "later\n"


@pytest.mark.spec("J8", "N1")
def test_down_ends_what_a_killed_supervisor_left_behind(machine: OneMachine) -> None:
    machine.up()
    left = [machine.process(what) for what in ("orchestrator", "node")]
    machine.process("supervisor").kill()
    assert machine.cli("run", *SMALL, "--", "echo", "on", check=0).stdout == "on\n", "both go on without it"
    down = machine.cli("down", "--data-dir", str(machine.data), check=0)
    assert "left behind" in down.stderr and all(map(gone, left))


@pytest.mark.spec("J8", "N8")
def test_ctrl_c_ends_both_in_order(machine: OneMachine, tmp_path: Path) -> None:
    up = machine.network.start_cli("up", "--node", *machine.ports, log=tmp_path / "said")
    machine.network.wait_for(lambda: "this machine is its node" in up.output(), "it to be up")
    running = [machine.process(what) for what in ("orchestrator", "node")]
    up.signal(signal.SIGINT)
    machine.network.wait_for(lambda: not up.running(), "its end")
    assert all(map(gone, running)) and not (machine.data / "supervisor.json").exists()


@pytest.mark.spec("J8")
def test_what_cannot_start_says_why_and_leaves_nothing(machine: OneMachine) -> None:
    said = machine.up("--store", "nonsense://x", check=74)
    assert "nonsense" in said
    assert not (machine.data / "supervisor.json").exists()


@pytest.mark.spec("J8", "N6")
def test_a_public_network_serves_other_machines_with_tls(machine: OneMachine, tmp_path: Path) -> None:
    ports = [word.replace("127.0.0.1", "0.0.0.0") for word in machine.ports]
    done = machine.cli("up", "--node", "--detach", "--public", "holdfast.example", *ports, check=0)
    said = done.stdout
    port = ports[3].rpartition(":")[2]
    assert f"holdfast node --orchestrator holdfast.example:{port} --token TOKEN" in said
    assert "up to 10 machines within 24 h" in said and "https://" in said
    assert machine.cli("run", *SMALL, "--", "echo", "safe", check=0).stdout == "safe\n"
