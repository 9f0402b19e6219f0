"""A machine that blames every owner, on the real wire, beside honest ones: it ends nobody's job and is set aside."""

from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from orchestrators import PATIENT, OrchestratorProcess
from wire_node import WireNode

from holdfast.client import Client
from holdfast.model import Failure, FailureCode, JobPhase, Result
from holdfast.model.messages import Held, HeldPhase, Start
from holdfast.testing.processes import wait_for

SETTINGS = msgspec.structs.replace(PATIENT, quarantine_ms=30_000, quarantine_ms_max=3_600_000, backoff_ms=500)
"""Quarantine as it is shipped: a liar must not come back many times within one test."""
EMPTY = Result(sha256(b"").hexdigest(), 0)
EXIT = Failure(FailureCode.EXIT_CODE, "exit code 1", exit_code=1)
ENDED_S = 300.0
JOBS, BATCH = 1_000, 250
TOUCHED_MAX = 20


class QuickNode(WireNode):
    """Ends every attempt at once, in the way given, without output."""

    says: Failure | None = None

    def _perform(self, start: Start) -> None:
        result = EMPTY if self.says is None else None
        with self._lock:
            self.held[start.attempt] = Held(start.attempt, start.fence, HeldPhase.FINISHED, result, self.says)
        self.report()


@pytest.fixture
def orchestrator(tmp_path: Path) -> Iterator[OrchestratorProcess]:
    with OrchestratorProcess(tmp_path, settings=SETTINGS, open_join=True) as running:
        yield running.start()


def joined(stack: ExitStack, orchestrator: OrchestratorProcess, name: str, says: Failure | None = None) -> QuickNode:
    node = QuickNode(orchestrator.listen, name=name)
    node.says = says
    stack.enter_context(node)
    node.wait_welcome()
    return node


def submitted(orchestrator: OrchestratorProcess, count: int) -> None:
    with orchestrator.http() as http:
        for first in range(0, count, BATCH):
            jobs = [
                {"argv": ["true"], "cpu_milli": 100, "memory_mib": 16, "disk_mib": 16, "key": f"job {number}"}
                for number in range(first, first + min(BATCH, count - first))
            ]
            answer = http.post("/v1/jobs/batch", json=jobs, timeout=60)
            assert answer.status_code < 300, answer.text[:300]


def all_ended(client: Client, count: int) -> list[Any]:
    """Every job, once none is live."""
    live = [phase.value for phase in JobPhase if phase is not JobPhase.ENDED]

    def none_live() -> bool:
        return not any(client.jobs.list(phase=phase, limit=1).jobs for phase in live)

    wait_for(none_live, "the end of every job", timeout_s=ENDED_S, every_s=0.3)
    jobs: list[Any] = []
    page = client.jobs.list(limit=500)
    jobs += page.jobs
    while page.next:
        page = client.jobs.list(limit=500, after=page.next)
        jobs += page.jobs
    assert len(jobs) == count
    return jobs


@pytest.mark.spec("A12", "J7", "H3")
def test_one_liar_among_three_honest_machines_ends_no_job_and_touches_few(orchestrator: OrchestratorProcess) -> None:
    with ExitStack() as stack:
        liar = joined(stack, orchestrator, "liar", EXIT)
        for name in ("ant", "bee", "cat"):
            joined(stack, orchestrator, name)
        submitted(orchestrator, JOBS)
        client = orchestrator.client()
        jobs = all_ended(client, JOBS)
        assert {job.verdict for job in jobs} == {"succeeded"}
        assert len({start.job for start in liar.starts}) <= TOUCHED_MAX
        assert client.nodes.get("liar").state in ("quarantined", "probation")


@pytest.mark.spec("A12", "J7")
def test_a_program_that_fails_everywhere_fails_confirmed_and_strikes_nobody(orchestrator: OrchestratorProcess) -> None:
    with ExitStack() as stack:
        for name in ("ant", "bee", "cat"):
            joined(stack, orchestrator, name, EXIT)
        submitted(orchestrator, 60)
        client = orchestrator.client()
        jobs = all_ended(client, 60)
        assert {(job.verdict, job.failure.code) for job in jobs} == {("failed", "exit_code")}
        assert {job.confirmation for job in jobs} <= {"confirmed", "record"}
        assert {node.state for node in client.nodes.list()} == {"ready"}


@pytest.mark.spec("A12", "J7", "J12")
def test_whoever_has_one_machine_waits_for_nothing(orchestrator: OrchestratorProcess) -> None:
    with ExitStack() as stack:
        joined(stack, orchestrator, "ant", EXIT)
        job = orchestrator.client().jobs.run(["false"], check=False, timeout_s=60)
        assert (job.verdict, job.confirmation, job.attempts_made) == ("failed", "unconfirmed", 1)
