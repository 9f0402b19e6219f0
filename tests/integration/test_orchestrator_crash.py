"""An orchestrator that is killed or stopped, and started again: work goes on (tests/faults/test_fail_points.py kills it
at every fail point)."""

from pathlib import Path

import msgspec
import pytest
from orchestrators import PATIENT, OrchestratorProcess
from wire_node import WireNode

from holdfast.testing.processes import wait_for

ARGV = ["say", "one", "and", "two"]


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
