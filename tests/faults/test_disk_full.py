"""The disk under the state and the files of the orchestrator fills up: it says so, harms nothing that runs, and
recovers by itself."""

import contextlib
import os
from pathlib import Path

import httpx
import pytest
from fault_network import HELD, PRINTED, SMALL, FaultNetwork, lives, program_of, small_disk

from holdfast.testing.processes import READY_S, wait_for

SHORT = ["sh", "-c", "echo in time"]
MAKES = ["sh", "-c", f"head -c 6000000 /dev/urandom > made; {HELD[2]}"]


def fill(disk: Path) -> Path:
    """Take all the room there is, again if some of it was given back."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    return filler


def asking(network: FaultNetwork, disk: Path) -> httpx.Client:
    """Asks once, where the SDK would try again until it is answered."""
    token = (disk / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=network.up.url, headers=headers, trust_env=False, verify=False, timeout=READY_S)


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
        http = asking(network, disk)

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


@pytest.mark.spec("J14", "J10", "J5")
def test_a_result_that_finds_no_room_is_accepted_once_when_there_is_some(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home" / "orchestrator", 24) as disk, FaultNetwork(tmp_path) as network:
        # given state, logs and files on one disk, and a running job that has made a file
        network.start_orchestrator()
        node = network.start_node("ant")
        job = network.client().jobs.submit(MAKES, **SMALL).id
        network.node_running(job)
        network.wait_output(job)
        made = (network.folders(job)[0] / "work" / "made").read_bytes()

        # when the job ends, and its file is larger than the room that is left
        filler = fill(disk)
        os.truncate(filler, filler.stat().st_size - len(made) // 2)
        network.let_go(job)

        # then the file is refused, and the orchestrator leads on: the state still has room
        wait_for(lambda: "[store_full]" in network.up.log.read_text(), "its file to be refused")
        with asking(network, disk) as http:
            assert http.get("/healthz").status_code == 200
            assert network.client().jobs.get(job).phase == "uploading"

            # and when there is no room for the state either
            fill(disk)

            def unwell() -> bool:
                http.post("/v1/jobs", json={"argv": SHORT, **SMALL}, headers={"Idempotency-Key": "one more"})
                return http.get("/healthz").status_code == 503

            wait_for(unwell, "it to call itself unwell")

        # then it recovers by itself once there is room, and the result is accepted once
        filler.unlink()
        client = network.client()
        view = client.jobs.wait(job, timeout_s=READY_S)
        assert (view.verdict, view.attempts_made) == ("succeeded", 1)
        assert len(network.journal("job.accepted", job=job)) == 1
        assert network.output(job) == PRINTED
        assert view.files is not None
        client.content.fetch(view.files.manifest, tmp_path / "results")
        assert (tmp_path / "results" / "made").read_bytes() == made
        again = client.jobs.submit(SHORT, key="one more", **SMALL)
        assert client.jobs.wait(again.id, timeout_s=READY_S).verdict == "succeeded"
        network.wait_clean(node)
