"""What the README tells a person to type works as printed, but for the free ports and the names of things."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.processes import LocalNetwork

README = Path(__file__).resolve().parent.parent.parent / "README.md"


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path) as network:
        yield network


def commands() -> list[list[str]]:
    """The words after `holdfast` on each line of the README's shell blocks, comments apart."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [words[1:] for words in lines if words and words[0] == "holdfast"]


@pytest.mark.spec("N1", "J3", "H6", "A6")
def test_the_quick_start_runs_as_printed(network: LocalNetwork, tmp_path: Path) -> None:
    # given the first two lines: an orchestrator, and a node that joins it by what `up` printed
    up, node, *rest = commands()
    assert up == ["up"]
    orchestrator = network.start_orchestrator()
    printed = network.wait_for(
        lambda: re.search(r"^  holdfast (node .*)$", orchestrator.output(), re.MULTILINE), "the join command"
    )
    assert printed is not None
    join = printed[1].split()
    assert [word for word in node if word.startswith("--")] == [word for word in join if word.startswith("--")]
    unsafe = ["--unsafe-process-runtime"] if network.unsafe else []
    network.start_cli(*join, *unsafe, log=tmp_path / "node.log")
    client = network.client()
    machine = network.wait_for(lambda: [n.id for n in client.nodes.list() if n.connected], "the node to join")[0]

    # when the others are typed in turn, then each does what it says
    ran = network.cli(*rest[0], check=0)
    assert ran.stdout == "42\n"
    job = client.jobs.list().jobs[0].id
    for words in rest[1:]:
        wanted = machine if words[0] == "node" else job
        done = network.cli(*[wanted if word == "ID" else word for word in words])
        # A job that has ended waits for nothing; `explain` may say so as a refusal.
        assert done.returncode == 0 or words[:2] == ["job", "explain"], done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
