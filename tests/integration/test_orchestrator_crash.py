"""kill -9 of the orchestrator, at every fail point of its source and at any moment, loses nothing acknowledged."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from orchestrators import KILLED, PATIENT, START_S, OrchestratorProcess
from wire_node import WireNode

from holdfast.client import Client
from holdfast.orchestrator import failpoints, record
from holdfast.testing.processes import wait_for

ARGV = ["say", "one", "and", "two"]
MIDDLE = {
    "commit.before": 4,
    "commit.written": 4,
    "publish.before_answers": 3,
    "publish.before_sends": 3,
    "publish.between_sends": 2,
}
"""Which visit is in the middle of a job's life, for the points that are passed already when an orchestrator starts."""


@contextmanager
def restarted_when_it_dies(orchestrator: OrchestratorProcess, recording: Path) -> Iterator[list[int]]:
    """Starts the orchestrator again whenever it was killed; the list holds the pids of those that died."""
    deaths: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            if orchestrator.died():
                deaths.append(orchestrator.pid)
                assert orchestrator.exit_code() == KILLED, orchestrator.tail()
                orchestrator.start(recording=recording, wait=False)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield deaths
    finally:
        over.set()
        watcher.join()


def run_a_job_through_everything(client: Client, node: WireNode) -> str:
    """Submit, start, deliver half the log, lose the connection, come back, finish. Visits every fail point."""
    job = client.jobs.submit(ARGV, key="the-one").id
    # Not before it is known to run: else what is lost with the connection may be the word that it does.
    wait_for(lambda: client.jobs.get(job).phase == "running", "the job to run")
    wait_for(lambda: any(offset for offset in node.acked.values()), "half of the log to be durable")
    sessions = node.sessions
    node.hang_up()
    wait_for(lambda: node.sessions > sessions, "the node to be back")
    node.let_go()
    return job


@pytest.mark.spec("J14", "J5")
@pytest.mark.parametrize("name", failpoints.names())
def test_killed_at_a_fail_point_nothing_acknowledged_is_lost(name: str, tmp_path: Path, store_url: str) -> None:
    # Given an orchestrator that will be killed when it comes by this point
    recording = tmp_path / "record.jsonl"
    with OrchestratorProcess(tmp_path, store_url, open_join=True) as orchestrator:
        orchestrator.start(failpoint=f"{name}:{MIDDLE.get(name, 1)}", recording=recording, wait=False)
        wait_for(lambda: (orchestrator.config.data / "admin.token").exists(), "the admin token", START_S)
        client = orchestrator.client()
        with (
            restarted_when_it_dies(orchestrator, recording) as deaths,
            WireNode(orchestrator.listen, hold_back=True) as node,
        ):
            # When a job goes its way
            job = run_a_job_through_everything(client, node)
            view = client.jobs.wait(job, timeout_s=60)

            # Then it was killed there, and the job still ended once and right, adopted and not run again
            assert len(deaths) == 1
            assert view.verdict == "succeeded"
            assert [line.text for line in client.jobs.logs(job, stream="stdout") if line.stream == "stdout"] == [
                "say one and two\n"
            ]
            assert sum(1 for discard in node.discards if discard.accepted) <= 1
            assert client.jobs.submit(ARGV, key="the-one").again
            assert client.doctor().ok
        assert orchestrator.stop() == 0
    # And what the kernel was told, told again, gives the same decisions
    assert record.replay(recording) == []


@pytest.mark.spec("J14")
def test_running_work_is_adopted_after_kill_nine(tmp_path: Path) -> None:
    # Given a job that runs, with some of its output acknowledged
    with OrchestratorProcess(tmp_path, open_join=True).start() as orchestrator:
        client = orchestrator.client()
        with WireNode(orchestrator.listen, hold_back=True) as node:
            job = client.jobs.submit(ARGV).id
            wait_for(lambda: client.jobs.get(job).phase == "running", "the job to run")
            wait_for(lambda: any(node.acked.values()), "output to be acknowledged")

            # When the orchestrator is killed and started again
            orchestrator.kill()
            orchestrator.start()
            repeated = len(node.repeated)
            node.wait_welcome(sessions=2)
            node.let_go()

            # Then the same attempt ends the job, which was seen to run and is not started once more
            view = client.jobs.wait(job, timeout_s=60)
            assert (view.verdict, view.attempts_made) == ("succeeded", 1)
            assert (len(node.starts), len(node.repeated)) == (1, repeated)


@pytest.mark.spec("J14")
def test_a_node_that_never_returns_after_a_restart_is_given_up(tmp_path: Path) -> None:
    # Given a job on one node, and another node that idles
    settings = msgspec.structs.replace(PATIENT, reconnect_grace_ms=2_000)
    with OrchestratorProcess(tmp_path, settings=settings, open_join=True).start() as orchestrator:
        client = orchestrator.client()
        with WireNode(orchestrator.listen, name="first", hold_back=True) as first:
            first.wait_welcome()
            job = client.jobs.submit(ARGV).id
            wait_for(lambda: client.jobs.get(job).phase == "running", "the job to run")
            # When the orchestrator is killed and the first node vanishes while it is away
            orchestrator.kill()
        with WireNode(orchestrator.listen, name="second"):
            orchestrator.start()
            # Then after the grace for returning nodes the second one ends the job
            view = client.jobs.wait(job, timeout_s=60)
            assert (view.verdict, view.attempts_made) == ("succeeded", 2)


@pytest.mark.spec("J14")
def test_a_second_orchestrator_on_the_same_file_is_turned_away(tmp_path: Path) -> None:
    # Given an orchestrator on a SQLite file
    with OrchestratorProcess(tmp_path, open_join=True).start() as first:
        # When another one is started on it
        second = OrchestratorProcess(tmp_path, open_join=True)
        second.log = tmp_path / "second.log"
        second.start(wait=False)
        # Then it ends at once and says who holds it, and the first is not disturbed
        assert second.exit_code() not in (0, None)
        assert "already_running" in second.tail() and str(first.pid) in second.tail()
        assert first.health() == 200


@pytest.mark.spec("J14")
def test_a_stop_in_good_order_is_no_failure_for_anyone(tmp_path: Path) -> None:
    # Given a running job
    with OrchestratorProcess(tmp_path, open_join=True).start() as orchestrator:
        client = orchestrator.client()
        with WireNode(orchestrator.listen, hold_back=True) as node:
            job = client.jobs.submit(ARGV).id
            wait_for(lambda: client.jobs.get(job).phase == "running", "the job to run")
            # When the orchestrator is asked to stop and started again
            assert orchestrator.stop() == 0
            assert not (orchestrator.config.data / "endpoint.json").exists()
            orchestrator.start()
            node.wait_welcome(sessions=2)
            node.let_go()
            # Then the job ends on its first attempt, and its node was never suspected
            assert client.jobs.wait(job, timeout_s=60).attempts_made == 1
            assert not [e for e in client.events() if e.kind == "node.suspect"]
