"""What `holdfast node` becomes: one small process that knows no command line, and keeps its token to itself."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from holdfast.testing.processes import LocalNetwork

pytestmark = pytest.mark.xdist_group("cli-agent")

NOT_FOR_AN_AGENT = (
    "typer", "click", "rich", "pydantic", "numpy", "sqlalchemy", "litestar", "holdfast.cli", "holdfast.client",
    "holdfast.wire.http",
)  # fmt: skip
NOT_FOR_ERRORS = ("msgspec", "httpx", "grpc", "asyncio", "litestar", "holdfast.wire", "holdfast.model")
RESIDENT_MIB_MAX = 80


def told(process: psutil.Process) -> bytes:
    """All that others on the machine could read of how a process was started; of one that is gone by now, nothing."""
    folder = Path("/proc") / str(process.pid)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
    return b""


@pytest.mark.spec("N6", "N1")
def test_no_process_of_a_node_shows_its_token(tmp_path: Path) -> None:
    # given nodes that were started with a token: one by a flag, one by the environment
    with LocalNetwork(tmp_path) as network:
        up = network.start_orchestrator(preset="lan")
        token = network.client().tokens.create(uses=2).token
        unsafe = ["--unsafe-process-runtime"] if network.unsafe else []
        where = ["--orchestrator", up.listen, "--home", str(tmp_path / "bee"), "--name", "bee"]
        environ = {"HOLDFAST_TOKEN": token}
        bee = network.start_cli("node", *where, *unsafe, log=tmp_path / "bee.log", env=environ)
        ant = network.start_node("ant", token=token)
        client = network.client()
        network.wait_for(lambda: len([n for n in client.nodes.list() if n.connected]) == 2, "both nodes")

        # and jobs that run on them
        jobs = [client.jobs.submit(["sleep", "600"], memory_mib=64, disk_mib=16) for _ in range(2)]
        network.wait_for(lambda: all(client.jobs.get(one.id).phase == "running" for one in jobs), "the jobs to run")

        # then they are still the processes that were started, and neither they nor any below them shows the token
        for node in (ant, bee):
            agent = psutil.Process(node.pid)
            family = [agent, *agent.children(recursive=True)]
            assert "holdfast.node" in agent.cmdline()
            assert len(family) > 1
            assert [process for process in family if token.encode() in told(process)] == []
            assert agent.memory_info().rss < RESIDENT_MIB_MAX * 2**20, "it is small"


@pytest.mark.spec("N1")
@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        # all that an agent loads while it lives
        ("holdfast.node.__main__, holdfast.node.run, holdfast.node.agent, holdfast.node.link", NOT_FOR_AN_AGENT),
        ("holdfast.errors", NOT_FOR_ERRORS),
    ],
    ids=["agent", "errors"],
)
def test_an_agent_loads_nothing_of_the_command_line_and_of_the_api(modules: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys; import {modules}\nprint([m for m in {unwanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.spec("N3")
def test_what_lies_in_the_folder_where_a_node_is_started_is_not_the_program(tmp_path: Path) -> None:
    # given a folder with a module that has the name of one that the agent uses
    (tmp_path / "msgspec.py").write_text("raise SystemExit('this is not msgspec')\n")

    # when a node is started there, with a folder that it cannot use
    words = ["node", "--orchestrator", "127.0.0.1:9", "--home", "/proc/nowhere"]
    program = str(Path(sys.executable).with_name("holdfast"))
    done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    # then it is the agent that says so, with its exit code
    assert done.returncode == 78
    assert "[home_unusable]" in done.stderr
