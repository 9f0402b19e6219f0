"""The orchestrator in trouble of its own: a full disk, a lost database, a freeze, a rival. No node is blamed."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from orchestrators import PATIENT, OrchestratorProcess
from wire_node import WireNode

from holdfast.client import Client
from holdfast.testing.processes import wait_for

ARGV = ["say", "it"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Take all the room that is left."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return ballast


def refused(orchestrator: OrchestratorProcess) -> str:
    """The code with which a submission is refused right now; empty if it is taken."""
    with orchestrator.http() as http:
        answer = http.post("/v1/jobs", json={"argv": [*ARGV, "x" * 20_000]})
    if answer.status_code == 503:
        assert int(answer.headers["Retry-After"]) >= 1
        return answer.json()["code"]
    return ""


@pytest.mark.spec("J14", "J5")
def test_a_full_disk_stops_deciding_and_nothing_else_and_it_recovers_by_itself(
    tmp_path: Path, small_disk: Path
) -> None:
    # Given a job that runs, with its orchestrator's store on a small disk
    store = f"sqlite:///{small_disk / 'state.db'}"
    with OrchestratorProcess(tmp_path, store, open_join=True).start() as orchestrator:
        client = orchestrator.client()
        with WireNode(orchestrator.listen, hold_back=True) as node:
            running = client.jobs.submit(ARGV).id
            wait_for(lambda: client.jobs.get(running).phase == "running", "the job to run")
            # When the disk is full
            ballast = fill(small_disk)
            wait_for(lambda: refused(orchestrator) == "store_unavailable", "submissions to be refused")
            # Then it says so, what was committed can still be read, and nothing is lost
            wait_for(lambda: orchestrator.health() == 503, "the health check to say so")
            assert client.jobs.get(running).phase == "running"
            # And when there is room again, it leads again by itself, and the job ends on its first attempt
            ballast.unlink()
            wait_for(lambda: orchestrator.health() == 200, "the orchestrator to lead again")
            node.let_go()
            view = client.jobs.wait(running, timeout_s=60)
            assert (view.verdict, view.attempts_made) == ("succeeded", 1)
            assert not [e for e in client.events() if e.kind == "node.suspect"]
            assert client.doctor().findings[2].ok


@pytest.mark.spec("J4", "J14")
def test_logs_wait_on_the_node_while_their_disk_is_full(tmp_path: Path, small_disk: Path) -> None:
    # Given an orchestrator whose logs lie on a full disk, and whose store does not
    (tmp_path / "data").symlink_to(small_disk)
    with OrchestratorProcess(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", open_join=True).start() as orchestrator:
        client = orchestrator.client()
        ballast = fill(small_disk)
        with WireNode(orchestrator.listen, output=lambda _: b"x" * 100_000) as node:
            job = client.jobs.submit(ARGV).id
            wait_for(lambda: node.undelivered, "the delivery to be turned away")
            # Then the job is not failed, and everything else works
            wait_for(lambda: client.jobs.get(job).phase == "running", "the job to run")
            assert orchestrator.health() == 200
            # And when there is room again, the output arrives whole
            ballast.unlink()
            assert client.jobs.wait(job, timeout_s=60).result_bytes == 100_000


@pytest.mark.spec("J14")
def test_of_two_orchestrators_on_one_database_the_newer_leads(tmp_path: Path, postgres_url: str) -> None:
    # Given an orchestrator on PostgreSQL
    for name in ("older", "newer"):
        (tmp_path / name).mkdir()
    with OrchestratorProcess(tmp_path / "older", postgres_url, open_join=True).start() as older:
        epoch = epoch_of(older)
        submitted = older.client().jobs.submit(ARGV).id
        # When a second one is started there
        with OrchestratorProcess(tmp_path / "newer", postgres_url, open_join=True).start() as newer:
            # Then it leads with a higher epoch, and knows what the first one knew
            assert epoch_of(newer) > epoch
            assert newer.client().jobs.get(submitted).phase == "queued"
            # And the first one commits nothing any more: at its next try it ends and says why
            with contextlib.suppress(httpx.TransportError):  # it may have tried of its own accord, and be gone
                assert refused(older) == "store_unavailable"
            assert older.exit_code() == 1 and "leadership_lost" in older.tail()
            assert len(newer.client().jobs.list().jobs) == 1


@pytest.mark.spec("J14")
def test_the_database_server_goes_away_and_comes_back(
    tmp_path: Path, postgres_server: "Server", postgres_url: str
) -> None:
    # Given a running job, its state in PostgreSQL
    database = postgres_url.partition("?")[0].rpartition("/")[2]
    with OrchestratorProcess(tmp_path, postgres_url, open_join=True).start() as orchestrator:
        client = orchestrator.client()
        with WireNode(orchestrator.listen, hold_back=True) as node:
            job = client.jobs.submit(ARGV).id
            wait_for(lambda: client.jobs.get(job).phase == "running", "the job to run")
            epoch = epoch_of(orchestrator)
            # When all its connections are cut
            postgres_server.do(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")
            node.let_go()
            # Then it leads again under a higher epoch and the job ends on its first attempt
            view = client.jobs.wait(job, timeout_s=60)
            assert (view.verdict, view.attempts_made) == ("succeeded", 1)
            assert epoch_of(orchestrator) > epoch


class Server:
    """What this file needs of the fixture `postgres_server`."""

    def do(self, statement: str) -> None: ...


def epoch_of(orchestrator: OrchestratorProcess) -> int:
    return httpx.get(f"{orchestrator.url}/healthz", timeout=60, trust_env=False, verify=False).json()["epoch"]


@pytest.mark.spec("J5", "H2")
@pytest.mark.parametrize("first_news", ["the clock", "a request"])
def test_a_frozen_orchestrator_blames_no_one(tmp_path: Path, first_news: str) -> None:
    # Given two nodes and a running job
    settings = msgspec.structs.replace(PATIENT, silence_floor_ms=2_000, silence_ceiling_ms=4_000, idle_silence_ms=4_000)
    with OrchestratorProcess(tmp_path, settings=settings, open_join=True).start() as orchestrator:
        client = orchestrator.client()
        with (
            WireNode(orchestrator.listen, hold_back=True) as node,
            WireNode(orchestrator.listen, hold_back=True) as spare,
        ):
            node.wait_welcome()
            spare.wait_welcome()
            job = client.jobs.submit(ARGV).id
            wait_for(lambda: client.jobs.get(job).phase == "running", "the job to run")
            # When the orchestrator stands still for longer than any silence it would forgive a node
            os.kill(orchestrator.pid, signal.SIGSTOP)
            wait_until_silent(node, settings.idle_silence_ms * 3 // 2)
            if first_news == "a request":
                client_of_a_moment(orchestrator)
            os.kill(orchestrator.pid, signal.SIGCONT)
            # Then it says by how much it was late, and neither node was suspected
            wait_for(lambda: max(late_ms(client), default=0) > settings.silence_ceiling_ms, "the lateness to be told")
            node.let_go()
            spare.let_go()
            wait_for(lambda: client.jobs.get(job).phase == "ended", lambda: whereabouts(client, job, node, spare))
            assert client.jobs.get(job).attempts_made == 1
            assert not [e for e in client.events() if e.kind in ("node.suspect", "job.takeover")]


def late_ms(client: Client) -> list[int]:
    """By how much the orchestrator was late, each time: on a busy machine also a little, before anybody froze it."""
    return [int(event.text.split()[0]) for event in client.events() if event.kind == "orchestrator.late"]


def whereabouts(client: Client, job: str, *nodes: WireNode) -> str:
    """What everybody thinks of the job, for whoever has to find out why it did not end."""
    seen = [(n.sessions, n.undelivered, n.acked, n.refusal, list(n.held.values())) for n in nodes]
    return f"the job to end; {client.jobs.explain(job)}; {[e.text for e in client.events()]}; the nodes: {seen}"


def wait_until_silent(node: WireNode, for_ms: int) -> None:
    """Wait until the node's own clock says that it reported in vain for so long."""
    reports = node.reported + for_ms // 100
    wait_for(lambda: node.reported >= reports, "the node to report in vain", timeout_s=60)


def client_of_a_moment(orchestrator: OrchestratorProcess) -> None:
    """A request that waits in the socket of the frozen process, to be the first thing it sees."""
    host, _, port = orchestrator.config.http.rpartition(":")
    with socket.create_connection((host, int(port))) as waiting:
        waiting.sendall(
            f"POST /v1/jobs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {orchestrator.admin_token()}\r\n"
            f"Content-Type: application/json\r\nContent-Length: 23\r\n\r\n".encode()
            + b'{"argv":["say","late"]}'
        )


@pytest.mark.spec("J5")
def test_a_takeover_follows_a_node_that_really_fell_silent(tmp_path: Path) -> None:
    # Given a job on a node that stops reporting while its streams stay open
    settings = msgspec.structs.replace(PATIENT, silence_floor_ms=2_000, silence_ceiling_ms=4_000)
    with OrchestratorProcess(tmp_path, settings=settings, open_join=True).start() as orchestrator:
        client: Client = orchestrator.client()
        with WireNode(orchestrator.listen, name="frozen", hold_back=True) as frozen:
            frozen.wait_welcome()
            job = client.jobs.submit(ARGV).id
            wait_for(lambda: client.jobs.get(job).phase == "running", "the job to run")
            with WireNode(orchestrator.listen, name="lively"):
                frozen.mute()
                # Then another node ends the job, and the journal says why
                view = client.jobs.wait(job, timeout_s=60)
                assert view.attempts_made == 2 and view.node is not None
                assert client.nodes.get(view.node).name == "lively"
                assert "job.takeover" in [e.kind for e in view.events]
