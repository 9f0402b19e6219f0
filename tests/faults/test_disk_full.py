"""The disk under the orchestrator's state fills up: it says so, harms nothing that runs, and recovers by itself."""

import contextlib
from pathlib import Path

import httpx
import pytest
from fault_network import PRINTED, SMALL, FaultNetwork, lives, program_of, small_disk

from holdfast.testing.processes import READY_S, wait_for

SHORT = ["sh", "-c", "echo in time"]


def fill(disk: Path) -> Path:
    """Take all the room there is."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    return filler


@pytest.mark.spec("J14", "H6", "J5")
def test_a_full_disk_refuses_submissions_and_harms_nothing_that_runs(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home" / "orchestrator", 8) as disk, FaultNetwork(tmp_path) as network:
        # given a running job
        network.start_orchestrator()
        node = network.start_node("ant")
        job = network.hold(key="standing")
        network.node_running(job)
        network.wait_output(job)
        body = program_of(node)
        since = network.now()
        token = (disk / "admin.token").read_text().strip()
        http = httpx.Client(base_url=network.up.url, trust_env=False, verify=False, timeout=READY_S)
        http.headers["Authorization"] = f"Bearer {token}"

        # when the disk is full
        filler = fill(disk)
        answers: dict[str, httpx.Response] = {}

        def refused() -> httpx.Response | None:
            key = f"sent {len(answers)}"
            body = {"argv": SHORT, **SMALL}
            answers[key] = http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})
            return answers[key] if answers[key].status_code != 201 else None

        # then a submission is refused by name, with the hint that repeating is safe
        answer = wait_for(refused, "the store to be full")
        assert answer is not None
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert "retry-after" in answer.headers

        def unwell() -> bool:
            if http.get("/healthz").status_code == 503:
                return True
            refused()  # it leads again, by the last of the room: until the next that is to be written
            return False

        wait_for(unwell, "it to call itself unwell")
        # and what runs, runs
        assert lives(body) and node.running()

        # and when there is room again, it works again by itself, without anybody restarting anything
        filler.unlink()
        client = network.client()
        for key, first in answers.items():
            again = client.jobs.submit(SHORT, key=key, **SMALL)
            assert first.status_code != 201 or (again.id, again.again) == (first.json()["id"], True)
            assert client.jobs.wait(again.id, timeout_s=READY_S).verdict == "succeeded"
        assert len(client.jobs.list(limit=1000).jobs) == len(answers) + 1
        assert network.up.running()

        # and the job that ran all the while ends where it was
        assert lives(body)
        view = network.finish(job)
        assert (view.verdict, view.attempts_made) == ("succeeded", 1)
        assert network.output(job) == PRINTED
        wrong = [finding.name for finding in client.doctor().findings if not finding.ok]
        assert wrong in ([], ["disk has room"]), wrong
        assert network.journal("orchestrator.led", after=since)
        network.wait_clean(node)
        http.close()
