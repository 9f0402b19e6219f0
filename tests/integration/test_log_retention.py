"""How long what a job printed is kept after its end, and what a reader hears who comes too late."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from orchestrators import OrchestratorProcess
from wire_node import WireNode

from holdfast.model import AttemptId, Instant, Job, JobPhase, Meta, Settings
from holdfast.orchestrator.logs import log_retention as shelf_module
from holdfast.orchestrator.logs.log_files import LogStore
from holdfast.orchestrator.logs.log_retention import LogRetention
from holdfast.orchestrator.wakeups import Wakeups
from holdfast.state import Store
from holdfast.testing.processes import wait_for
from holdfast.testing.store import a_job
from holdfast.wire.convert import LogPiece

KEEP_MS = 1_000_000


class Network:
    """A store, the output of its jobs, and the time on its orchestrator's clock."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(f"sqlite:///{folder}/state.db")
        self.epoch = self.store.take_lead("me")
        self.logs = LogStore(folder / "logs", bytes_max=1_000)
        self.wakeups = Wakeups()
        self.shelf = LogRetention(self.logs, self.store, self.wakeups, KEEP_MS)
        self.now_ms = self.late_ms = 0
        self.passes(1)

    def passes(self, ms: int, served: bool = True) -> None:
        """Time goes by, in which an orchestrator serves or not."""
        self.now_ms += ms
        self.late_ms += 0 if served else ms
        self.store.commit([Meta(now_ms=Instant(self.now_ms), late_ms=self.late_ms)], self.epoch)

    def prints(self, job: Job) -> None:
        self.store.commit([job], self.epoch)
        attempt = AttemptId(f"att_{job.id[4:]}.1")
        assert self.logs.append([LogPiece(attempt, 1, "stdout", 0, b"hello")]) == [5]

    def ends(self, job: Job) -> None:
        self.store.commit([replace(job, phase=JobPhase.ENDED, ended_ms=Instant(self.now_ms))], self.epoch)

    def clear(self) -> int:
        return asyncio.run(self.shelf.clear())

    def output(self, job: Job) -> bytes:
        return self.logs.read(f"att_{job.id[4:]}.1", "stdout", 0, 100)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    network = Network(tmp_path)
    yield network
    network.logs.close()
    network.store.close()


@pytest.mark.spec("J4", "J10")
def test_output_is_kept_for_its_time_after_the_end_and_then_deleted(network: Network, tmp_path: Path) -> None:
    # Given a job that has printed and runs on, and one that has ended
    live, ended = a_job(1, phase=JobPhase.RUNNING), a_job(2)
    for job in (live, ended):
        network.prints(job)
    network.ends(ended)
    assert network.clear() == 0

    # When almost all of the time has passed, then both are there
    network.passes(KEEP_MS - 1)
    assert network.clear() == 0
    assert network.output(ended) == network.output(live) == b"hello"

    # When all of it has, then what the ended one printed is gone, without a trace, and the other's is not
    network.passes(1)
    assert network.clear() == 1
    assert network.output(ended) == b"" and network.output(live) == b"hello"
    assert [path.name for path in (tmp_path / "logs").iterdir()] == [live.id]
    assert network.clear() == 0


@pytest.mark.spec("J4", "J14")
def test_time_in_which_nobody_could_ask_does_not_count(network: Network) -> None:
    job = a_job(1)
    network.prints(job)
    network.ends(job)
    network.clear()
    # Given an orchestrator that was away for longer than output is kept
    network.passes(3 * KEEP_MS, served=False)
    # Then nothing is deleted when it is back, and the owner has the rest of the time to read it
    assert network.clear() == 0 and network.output(job) == b"hello"
    network.passes(KEEP_MS)
    assert network.clear() == 1


@pytest.mark.spec("J4")
def test_what_somebody_is_reading_stays(network: Network) -> None:
    job = a_job(1)
    network.prints(job)
    network.ends(job)
    network.clear()
    network.passes(KEEP_MS)
    with network.wakeups.listen(job.id):
        assert network.clear() == 0
    assert network.output(job) == b"hello"
    assert network.clear() == 1


@pytest.mark.spec("J4", "J14")
def test_a_mark_that_a_crash_cut_short_deletes_nothing(network: Network, tmp_path: Path) -> None:
    job = a_job(1)
    network.prints(job)
    network.ends(job)
    network.passes(KEEP_MS)
    # Given a mark of which a crash left nothing
    (tmp_path / "logs" / job.id / "ended").write_text("")
    # Then the time begins anew
    assert network.clear() == 0 and network.output(job) == b"hello"
    network.passes(KEEP_MS)
    assert network.clear() == 1


@pytest.mark.spec("J4")
def test_only_who_leads_clears_and_it_does_so_by_itself(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "CLEAR_S", 0.001)
    job = a_job(1)
    network.prints(job)
    network.ends(job)
    network.clear()
    network.passes(KEEP_MS)

    async def story() -> None:
        asked: list[bool] = []

        def leads() -> bool:
            asked.append(len(asked) >= 3)
            return asked[-1]

        clearing = asyncio.create_task(network.shelf.run(leads))
        await asyncio.to_thread(wait_for, lambda: network.output(job) == b"", "the output to be deleted")
        assert asked[:4] == [False, False, False, True]
        clearing.cancel()

    asyncio.run(story())


@pytest.mark.spec("J4", "H6")
def test_a_reader_who_comes_too_late_is_told_so(tmp_path: Path) -> None:
    settings = replace(Settings.test(), logs_keep_ms=1)
    with OrchestratorProcess(tmp_path, settings=settings, open_join=True) as orchestrator:
        orchestrator.start()
        with WireNode(orchestrator.listen) as node:
            node.wait_welcome()
            job = orchestrator.client().jobs.run(["say", "hello"], timeout_s=60)
        attempt = job.attempts[0].id
        with orchestrator.http() as http:
            # Given a job whose output is there, also after its time, until somebody clears it away
            assert http.get(f"/v1/jobs/{job.id}/output/{attempt}/stdout").content == b"say hello\n"
            shelved = LogStore(orchestrator.config.data / "logs", 1)
            shelved.delete(job.id)
            shelved.close()
            # When it is asked for after that, then the answer is not an empty output
            gone = http.get(f"/v1/jobs/{job.id}/output/{attempt}/stdout")
            assert (gone.status_code, gone.json()["code"]) == (410, "output_gone")
            assert "what it printed is gone" in http.get(f"/v1/jobs/{job.id}/logs").text
