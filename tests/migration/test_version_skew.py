"""Two releases that follow each other work together, also while a network is upgraded under running work; others are
told apart before anything is said, with what to do about it.

Both sides really run: this code, copied under other version numbers.
"""

import asyncio
import re
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.integration.wire_node import WireNode

import holdfast
from holdfast.client import Client
from holdfast.identity.keys import NodeKey
from holdfast.model.messages import Ping
from holdfast.node.link import Link, SessionOver
from holdfast.testing.processes import LocalNetwork
from holdfast.wire import convert, versions
from holdfast.wire import node_pb2 as pb

pytestmark = pytest.mark.spec("N1", "N9", "N12", "J6")

SOURCE = Path(holdfast.__file__).parent
MAJOR, MINOR = (int(part) for part in holdfast.__version__.split(".")[:2])
PRESENT = holdfast.__version__
NEXT = f"{MAJOR}.{MINOR + 1}.0"
NEWS = b"\xfa\x07\x03new"
"""A frame with field 127 and nothing else: a kind of message that no release has yet."""
AFTER_NEXT = f"{MAJOR}.{MINOR + 2}.0"


class Releases:
    """This code under any version number. Nodes of it ask a refusing orchestrator again within a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def environment(self, version: str) -> dict[str, str]:
        """What makes a process run that release."""
        home = self._folder / version
        if not home.exists():
            shutil.copytree(SOURCE, home / "holdfast")  # compiled files as well: they save a second a process
            about = home / "holdfast" / "__init__.py"
            text, changed = re.subn(r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"', about.read_text())
            assert changed == 1
            about.write_text(text)
            redial = home / "holdfast" / "node" / "core" / "redial.py"
            text, changed = re.subn(r"(?m)^APART_REDIAL_MS = .*$", "APART_REDIAL_MS = 500", redial.read_text())
            assert changed == 1
            redial.write_text(text)
        return {"PYTHONPATH": str(home)}


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    return Releases(tmp_path_factory.mktemp("releases"))


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path) as network:
        yield network


def version_of(client: Client, name: str) -> str:
    return next((node.version for node in client.nodes.list() if node.name == name and node.connected), "")


def printed(client: Client, job: str) -> str:
    return "".join(line.text for line in client.jobs.logs(job) if line.stream == "stdout")


def test_a_network_is_upgraded_under_running_work(network: LocalNetwork, releases: Releases) -> None:
    # Given a network of one release, patient enough for however long an upgrade takes, and a job that runs on its node
    upgraded = releases.environment(NEXT)
    network.start_orchestrator("lan")
    node = network.start_node("a")
    waits = "echo begun; until [ -e release ]; do sleep 0.05; done; echo done"
    job = network.client().jobs.submit(["sh", "-c", waits]).id
    network.node_running(job)
    shims = {shim.pid for shim in node.shims()}

    # When the orchestrator is stopped in good order, and the next release starts on its data
    assert network.orchestrator is not None and network.orchestrator.terminate() == 0
    network.start_orchestrator("lan", env=upgraded)
    client = network.client()

    # Then the node, which is still of the release before, comes back, and takes work
    network.wait_for(lambda: version_of(client, "a") == PRESENT, "the node to come back")
    quick = client.jobs.submit(["echo", "old node, new orchestrator"], cpu_milli=100).id
    assert client.jobs.wait(quick, timeout_s=60).verdict == "succeeded"

    # When its agent is replaced by the next release's (what `systemctl reload` does) while the job runs
    node.signal(signal.SIGHUP)
    node.process.wait(60)
    node = network.start_node("a", env=upgraded)
    network.wait_for(lambda: version_of(client, "a") == NEXT, "the upgraded node to be there")

    # Then the job was not started again: the same shim holds it, and there is one result
    assert {shim.pid for shim in node.shims()} >= shims
    next(node.home.glob(f"attempts/att_{job.removeprefix('job_')}.1/work")).joinpath("release").touch()
    ended = client.jobs.wait(job, timeout_s=60)
    assert ended.verdict == "succeeded" and ended.attempts_made == 1
    assert printed(client, job) == "begun\ndone\n"


def test_a_node_may_be_one_release_ahead_and_no_more(network: LocalNetwork, releases: Releases) -> None:
    # Given an orchestrator
    network.start_orchestrator()
    client = network.client()

    # When a node of the next release joins, then it works
    network.start_node("ahead", env=releases.environment(NEXT))
    network.wait_for(lambda: version_of(client, "ahead") == NEXT, "the node to be there")
    job = client.jobs.submit(["echo", "new node, old orchestrator"]).id
    assert client.jobs.wait(job, timeout_s=60).verdict == "succeeded"

    # When one of a release too far away wants to join
    far = network.start_node("far", env=releases.environment(AFTER_NEXT), wait=False)
    code = far.process.wait(60)

    # Then it is refused for good, and its operator reads which side to upgrade, and to what
    said = far.output()
    assert code == 3 and "[version]" in said and "Traceback" not in said
    assert f"the node runs Holdfast {AFTER_NEXT} and the orchestrator {PRESENT}" in said
    assert f"upgrade the orchestrator to {MAJOR}.{MINOR + 2}, by way of {MAJOR}.{MINOR + 1}" in said
    assert {node.name for node in client.nodes.list()} == {"ahead"}


def test_a_fleet_sits_out_an_orchestrator_that_was_upgraded_too_far_by_mistake(
    network: LocalNetwork, releases: Releases
) -> None:
    # Given a network whose work may go on without contact for an hour, and a job that runs on its node
    present, too_far = releases.environment(PRESENT), releases.environment(AFTER_NEXT)
    network.start_orchestrator("lan")
    node = network.start_node("a", env=present)
    waits = "echo begun; until [ -e release ]; do sleep 0.05; done; echo done"
    job = network.client().jobs.submit(["sh", "-c", waits]).id
    network.node_running(job)
    refused = f"the node runs Holdfast {PRESENT} and the orchestrator {AFTER_NEXT}"

    # When an orchestrator two releases ahead is started over its data
    assert network.orchestrator is not None and network.orchestrator.terminate() == 0
    network.start_orchestrator("lan", env=too_far)

    # Then the node is refused, and stays
    network.wait_for(lambda: refused in node.output(), "the node to be refused")
    assert node.process.poll() is None

    # When its agent is replaced meanwhile, then the new one, which finds the job, is refused and stays as well
    node.signal(signal.SIGHUP)
    node.process.wait(60)
    said = node.output().count(refused)
    node = network.start_node("a", env=present, wait=False)
    network.wait_for(lambda: node.output().count(refused) > said, "the new agent to be refused")
    assert node.process.poll() is None

    # When the orchestrator of before comes back
    assert network.orchestrator.terminate() == 0
    network.start_orchestrator("lan")
    client = network.client()

    # Then so does the node, with the job, which ends once
    network.wait_node("a")
    assert node.process.poll() is None
    next(node.home.glob(f"attempts/att_{job.removeprefix('job_')}.1/work")).joinpath("release").touch()
    ended = client.jobs.wait(job, timeout_s=60)
    assert ended.verdict == "succeeded" and ended.attempts_made == 1
    assert printed(client, job) == "begun\ndone\n"


def test_what_only_a_newer_node_says_ends_no_session(network: LocalNetwork) -> None:
    # Given a node that holds a session
    orchestrator = network.start_orchestrator("lan", flags=["--open"])
    with WireNode(orchestrator.listen, name="talks") as node:
        node.wait_welcome()
        line = node._line
        assert line is not None

        # When it says something that this release has never heard of
        line.say(pb.NodeFrame.FromString(NEWS))

        # Then it goes on being heard: a job that comes after it runs there, in the same session
        job = network.client().jobs.submit(["news"]).id
        assert network.client().jobs.wait(job, timeout_s=60).verdict == "succeeded"
        assert node.sessions == 1 and node.refusal is None


def test_what_only_a_newer_orchestrator_says_is_passed_over_by_a_node() -> None:
    heard: list[object] = []
    listener = SimpleNamespace(told=heard.append)
    link = Link("127.0.0.1:1", None, NodeKey.make(), listener, None)  # pyright: ignore[reportArgumentType]
    ping = convert.orchestrator_to_frame(Ping(1, 7))

    async def frames() -> AsyncIterator[pb.OrchestratorFrame]:
        yield pb.OrchestratorFrame.FromString(NEWS)
        yield ping

    with pytest.raises(SessionOver, match="ended the stream"):
        asyncio.run(link._hear(frames()))
    assert heard == [Ping(1, 7)]


@pytest.mark.parametrize(
    ("node", "orchestrator", "cure"),
    [
        ("0.1.0", "0.1.9", ""),
        ("0.1.0", "0.2.0", ""),
        ("0.2.0", "0.1.0", ""),
        ("1.4.2", "1.5.0", ""),
        ("0.2.0.dev1", "0.1.0", ""),
        ("0.1.0", "0.3.0", "upgrade the node to 0.3"),
        ("0.3.0", "0.1.0", "upgrade the orchestrator to 0.3, by way of 0.2, or install 0.1 on the node"),
        ("1.9.0", "2.0.0", "upgrade the node to 2.0"),
        ("2.0.0", "1.9.0", "upgrade the orchestrator to 2.0, or install 1.9 on the node"),
        ("another node 7", "0.1.0", ""),
        ("", "0.1.0", ""),
        ("01.2", "0.1.0", ""),
        ("999999.0", "0.1.0", "upgrade the orchestrator"),
        ("9" * 100 + ".0", "0.1.0", ""),
    ],
)
def test_which_releases_work_together(node: str, orchestrator: str, cure: str) -> None:
    refusal = versions.skewed(node, orchestrator)
    if not cure:
        assert refusal is None
        return
    assert refusal is not None and refusal.code == "version" and refusal.final
    assert cure in refusal.says and node in refusal.says and orchestrator in refusal.says
