"""A network goes on from a backup that was made while it worked, whatever happened to the original since."""

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_network import PRINTED, SMALL, FaultNetwork

from holdfast.errors import HoldfastError, NotFound
from holdfast.orchestrator import failpoints
from holdfast.orchestrator.backup import back_up
from holdfast.orchestrator.config import OrchestratorConfig
from holdfast.testing.processes import READY_S, NotInTime, wait_for


def start_from(network: FaultNetwork, data: Path) -> None:
    """`holdfast up --data-dir DATA` in place of the orchestrator, which is killed, where its nodes know it."""
    words = network.up.words
    words[words.index("--data-dir") + 1] = str(data)
    network.restart_orchestrator()


@pytest.mark.spec("J14", "J5", "J10")
def test_a_network_goes_on_from_a_backup_that_was_made_while_it_worked(network: FaultNetwork, tmp_path: Path) -> None:
    # given a job that has ended and made a file, one that runs, and somebody who sends more all the time, all of which
    # waits: the machine has no room for it now
    network.start_orchestrator()
    node = network.start_node("ant")
    client = network.client()
    (package := tmp_path / "package").mkdir()
    (package / "given.txt").write_text("given\n")
    sent = client.content.send(package).manifest
    old = client.jobs.run(["sh", "-c", "cat given.txt given.txt > made.txt"], package=sent, **SMALL, timeout_s=60)
    running = network.hold(key="held", package=sent)
    assert network.node_running(running) is node
    network.wait_output(running)
    all_of_it = client.nodes.get(node.id).total["cpu_milli"]
    over = threading.Event()

    def send_more() -> None:
        while not over.is_set():
            network.hold(cpu_milli=all_of_it)

    sender = threading.Thread(target=send_more)
    sender.start()

    # when a backup is made, and the original lives on for a while, over several lives, and is lost
    try:
        made = json.loads(network.cli("backup", str(tmp_path / "backup"), "--json", check=0).stdout)
    finally:
        over.set()
        sender.join()
    network.restart_orchestrator()
    network.restart_orchestrator()
    wait_for(lambda: network.connected(node), "the node to be back")  # it has obeyed the last of them
    late = network.hold(key="too late", cpu_milli=all_of_it)
    seen = network.now()
    network.up.kill()
    (network.home / "orchestrator").rename(tmp_path / "lost")
    start_from(network, tmp_path / "backup")

    # then its nodes obey it, what ran runs on and ends as the same attempt, and old results are there
    assert made["blobs"] >= 4 and not made["damaged"] and not made["left_out"]
    view = network.finish(running)
    assert (view.verdict, view.attempts_made) == ("succeeded", 1)
    assert network.output(running) == PRINTED
    assert old.files is not None
    network.client().content.fetch(old.files.manifest, tmp_path / "results")
    assert (tmp_path / "results" / "made.txt").read_text() == "given\ngiven\n"
    # and what came after it is not known; but nobody who followed the events misses one from now on
    with pytest.raises(NotFound):
        network.client().jobs.get(late)
    assert min(entry.seq for entry in network.journal("orchestrator.led", after=seen)) > seen


ALL = failpoints.names()
POINTS = (
    ALL if os.environ.get("HOLDFAST_TEST_ALL_FAULTS") else ["commit.written", "publish.before_sends", "verify.compared"]
)
"""All of them in `make fault-sites`."""
SHORT = ["sh", "-c", "cat given.txt"]
CLASSES = ("restart", "never")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultNetwork]:
    with FaultNetwork(tmp_path_factory.mktemp("restores")) as network:
        network.start_orchestrator()
        network.start_node("ant")
        yield network


def data_of(network: FaultNetwork) -> Path:
    return Path(network.up.words[network.up.words.index("--data-dir") + 1])


def die_at(network: FaultNetwork, point: str, work: Callable[[], object]) -> None:
    """The next life of the orchestrator ends at this point, the latest when the node comes and goes."""
    network.restart_orchestrator({failpoints.ENVIRONMENT: point}, wait=False)
    threading.Thread(target=work, daemon=True).start()
    with contextlib.suppress(NotInTime):
        wait_for(lambda: not network.up.running(), point, 4)
        return
    network.nodes["ant"].kill_agent()
    network.start_again(network.nodes["ant"])
    wait_for(lambda: not network.up.running(), f"the orchestrator to come by {point}")


def mix(backup: Path, lost: Path, number: int) -> None:
    """A backup is of the wrong moment in every way: its logs and its files are of its own or of a later moment, or its
    files are of an earlier one."""
    if number % 2:
        shutil.copytree(lost / "logs", backup / "logs", dirs_exist_ok=True)
    if number % 3 == 1:
        shutil.copytree(lost / "blobs", backup / "blobs", dirs_exist_ok=True)
    elif number % 3 == 2:
        shutil.rmtree(backup / "blobs" / "owned", ignore_errors=True)


@pytest.mark.spec("J14", "J5", "J8", "N9", "H3")
@pytest.mark.parametrize("point", POINTS)
def test_a_restore_after_a_death_at_any_point_mixes_nothing_and_blames_nobody(
    point: str, machines: FaultNetwork, tmp_path: Path
) -> None:
    network, number = machines, ALL.index(point)
    network.settle()
    client = network.client(patience_s=120)
    (package := tmp_path / "package").mkdir()
    (package / "given.txt").write_text(f"given at {point}\n")
    # given work that runs, work on its way, and a backup of this moment
    sent = client.content.send(package).manifest
    running = [network.hold(key=f"held {kind} {point}", recovery=kind) for kind in CLASSES]
    for job in running:
        network.wait_output(job)

    def work(when: str) -> list[str]:
        with contextlib.suppress(HoldfastError):
            return [
                client.jobs.submit(SHORT, key=f"{when} {point} {n}", recovery=CLASSES[n % 2], package=sent, **SMALL).id
                for n in range(4)
            ]
        return []

    early = work("early")
    data = data_of(network)
    backup = tmp_path / "backup"
    back_up(OrchestratorConfig(data=data), backup)

    # when more is done, the orchestrator dies at this point, and one starts from the backup
    die_at(network, point, lambda: work("late"))
    mix(backup, data, number)
    start_from(network, backup)
    wait_for(lambda: network.connected(network.nodes["ant"]), "the node to be back")

    # then what ran runs on as the same attempts, and prints what one body prints
    for job in running:
        view = network.finish(job)
        assert (view.verdict, view.attempts_made) == ("succeeded", 1), view.failure
        assert network.output(job) == PRINTED
    # and what was on its way ends: repeatable work well, and with the output of one attempt
    text = (package / "given.txt").read_text()
    for n, job in enumerate(early):
        view = client.jobs.wait(job, timeout_s=READY_S, check=False)
        lost_files = number % 3 == 2
        assert view.verdict == "succeeded" or CLASSES[n % 2] == "never" or lost_files, (view.verdict, view.failure)
        assert view.failure is None or view.failure.blame in ("platform", "node"), view.failure
        if view.verdict == "succeeded":
            printed = [line.text for line in client.jobs.logs(job, stream="stdout") if line.attempt == view.accepted]
            assert "".join(printed) == text
    # and what came later is not known, and is sent and done again
    assert client.content.send(package).manifest == sent
    for job in work("late"):
        assert client.jobs.wait(job, timeout_s=READY_S).verdict == "succeeded"
    # and nobody is blamed for any of it
    assert network.journal("node.strike", "node.quarantined") == []
    assert client.doctor().ok
