"""A network goes on from a backup that was made while it worked, whatever happened to the original since."""

import json
import shutil
import threading
from pathlib import Path

import pytest
from fault_network import PRINTED, SMALL, FaultNetwork

from holdfast.errors import NotFound
from holdfast.orchestrator import failpoints
from holdfast.testing.processes import wait_for


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


POINTS = ("commit.before", "commit.written", "publish.before_answers", "publish.before_sends", "publish.between_sends")


@pytest.mark.spec("J14", "J5", "J8", "N9")
def test_restores_of_any_moment_share_no_attempt_with_what_was_lost(network: FaultNetwork, tmp_path: Path) -> None:
    """A backup whose state is older than its logs and than what nodes hold: what was lost has run meanwhile and has
    printed, and died at a point of a commit."""
    network.start_orchestrator()
    node = network.start_node("ant")
    data = network.home / "orchestrator"
    for number, point in enumerate(POINTS):
        # given a backup with jobs that wait, one of which must not be repeated
        client = network.client()
        client.nodes.drain(node.id)
        classes = ("restart", "never")
        jobs = [network.hold(key=f"{kind} {number}", recovery=kind) for kind in classes]
        backup = tmp_path / f"backup-{number}"
        words = ["backup", str(backup), "--data-dir", str(data), "--json"]
        assert not json.loads(network.cli(*words, check=0).stdout)["damaged"]

        # when they run and print, the orchestrator dies, and its logs are newer than the state that is restored
        client.nodes.drain(node.id, on=False)
        for job in jobs:
            network.wait_output(job)
        network.restart_orchestrator({failpoints.ENVIRONMENT: point}, wait=False)
        wait_for(lambda: not network.up.running(), f"the orchestrator to come by {point}")
        lost = {folder.name for job in jobs for folder in network.folders(job)}
        assert lost
        shutil.copytree(data / "logs", backup / "logs", dirs_exist_ok=True)
        data = backup
        start_from(network, data)
        wait_for(lambda: network.connected(node), "the node to be back")
        client.nodes.drain(node.id, on=False)

        # then they run again under other names, end well with exactly what they print, and nobody is struck
        for job in jobs:
            wait_for(lambda job=job: network.client().jobs.get(job).attempts, f"{job} to be placed")
            view = network.finish(job)
            assert (view.verdict, view.attempts_made) == ("succeeded", 1), view.failure
            assert {attempt.id for attempt in view.attempts} & lost == set()
            assert network.output(job) == PRINTED
        assert network.journal("node.strike", "node.quarantined") == []
