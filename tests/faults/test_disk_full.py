"""The disk under the state and the files of the orchestrator fills up: it says so, harms nothing that runs, and
recovers by itself."""

import contextlib
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from fault_network import HELD, PRINTED, SMALL, FaultNetwork, small_disk

from holdfast.testing.processes import READY_S, wait_for

SHORT = ["sh", "-c", "echo in time"]
SILENT = ["sh", "-c", "while [ ! -e release ]; do sleep 0.05; done; rm release"]
LARGE = {**SMALL, "disk_mib": 128}
RESERVE = "state.db.reserve"
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


def until_refused(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    """Make one more, again and again, until there is no space for another one."""

    def refused() -> bool:
        answer = http.post(f"/v1/{path}", json=body)
        if answer.status_code != 503:
            assert answer.status_code == 201, answer.text
        return answer.status_code == 503 and answer.json()["code"] == "store_unavailable"

    wait_for(refused, f"{path} to be refused", every_s=0)


@pytest.mark.spec("J14", "H6", "J5", "A12")
def test_a_full_disk_refuses_submissions_and_what_runs_can_end(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home" / "orchestrator", 64) as disk, FaultNetwork(tmp_path) as network:
        # given two running jobs, and a reserve that only the state may use
        network.start_orchestrator()
        node = network.start_node("ant")
        job, silent = network.hold(key="standing"), network.client().jobs.submit(SILENT, **SMALL).id
        network.node_running(job)
        network.node_running(silent)
        network.wait_output(job)
        since = network.now()
        wait_for(lambda: (disk / RESERVE).exists(), "the reserve to be held")

        # when the disk is full, then submissions are refused by name, with the hint that repeating is safe
        filler = fill(disk)
        with asking(network, disk) as http:
            again = {"Idempotency-Key": "sent"}
            answer = http.post("/v1/jobs", json={"argv": SHORT, **SMALL}, headers=again)
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable"), answer.text
            assert "retry-after" in answer.headers

            # and a job that ends now ends, although nobody gives the disk more space: the state uses its reserve
            network.let_go(silent)
            wait_for(lambda: not (disk / RESERVE).exists(), "the reserve to be given up")
            view = network.client().jobs.wait(silent, timeout_s=READY_S)
            assert (view.verdict, view.attempts_made) == ("succeeded", 1)
            wait_for(lambda: http.get("/healthz").status_code == 200, "it to call itself well")
            answer = http.post("/v1/jobs", json={"argv": SHORT, **SMALL}, headers=again)
            assert answer.status_code == 503 and "left on its disk" in answer.json()["says"]

        # and when there is room again, it works again by itself, and the reserve is held again
        filler.unlink()
        client = network.client()
        sent = client.jobs.submit(SHORT, key="sent", **SMALL)
        assert client.jobs.wait(sent.id, timeout_s=READY_S).verdict == "succeeded"
        wait_for(lambda: (disk / RESERVE).exists(), "the reserve to be held again")

        # and the job that ran all the while ends where it was, and nobody is to blame
        view = network.finish(job)
        assert (view.verdict, view.attempts_made) == ("succeeded", 1)
        assert network.output(job) == PRINTED
        assert not network.journal("node.strike", "node.quarantined", after=since)
        network.wait_clean(node)


@pytest.mark.spec("J14", "J10", "A12")
def test_files_that_fill_the_disk_stop_files_only_and_go_with_their_job(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home" / "orchestrator", 64) as disk, FaultNetwork(tmp_path) as network:
        # given a job whose files are larger than the orchestrator's disk
        network.start_orchestrator()
        network.start_node("ant")
        client = network.client()
        greedy = client.jobs.submit(["sh", "-c", "head -c 80000000 /dev/urandom > made"], **LARGE).id
        since = network.now()
        # when they have filled what files may take
        wait_for(lambda: "[store_full]" in network.up.log.read_text(), "its files to be refused")

        # then everything else goes on: people are answered, jobs run, logs are kept
        with asking(network, disk) as http:
            assert http.get("/healthz").status_code == 200
        quick = client.jobs.submit(SHORT, **SMALL).id
        assert client.jobs.wait(quick, timeout_s=READY_S).verdict == "succeeded"
        assert network.output(quick) == "in time\n"
        assert client.jobs.get(greedy).phase == "uploading"

        # and when that job is stopped, its files are cleared away, and there is room for the files of others
        client.jobs.stop(greedy)
        made = client.jobs.submit(["sh", "-c", "head -c 6000000 /dev/zero > made"], **SMALL).id
        view = client.jobs.wait(made, timeout_s=READY_S)
        assert view.verdict == "succeeded" and view.files is not None
        client.content.fetch(view.files.manifest, tmp_path / "results")
        assert (tmp_path / "results" / "made").stat().st_size == 6_000_000
        assert not network.journal("node.strike", "node.quarantined", after=since)


@pytest.mark.spec("J14", "J4", "A12")
def test_logs_that_fill_the_disk_wait_and_are_kept_once_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home" / "orchestrator", 64), FaultNetwork(tmp_path) as network:
        # given a job that prints more than the disk holds, and one whose first line is acknowledged
        network.rules = {"logs_keep_ms": 2_000}
        network.start_orchestrator()
        network.start_node("ant")
        client = network.client()
        job = network.hold()
        network.wait_output(job)
        since = network.now()
        loud = client.jobs.submit(["sh", "-c", "head -c 62000000 /dev/zero; sleep 600"], **LARGE).id
        wait_for(lambda: "logs cannot be written" in network.up.log.read_text(), "its logs to be refused")

        # then the state has room, people are answered, and what prints nothing ends
        silent = client.jobs.submit(["true"], **SMALL).id
        assert client.jobs.wait(silent, timeout_s=READY_S).verdict == "succeeded"
        # and a line that is printed now waits at its node
        network.let_go(job)
        wait_for(lambda: client.jobs.get(job).phase == "uploading", "its line to wait")
        # and when the other job has ended, and its output was kept for its time, that is deleted without being asked
        # for: the line is kept, and nobody is to blame
        client.jobs.stop(loud)

        def ended() -> bool:
            client.jobs.submit(["true"], **SMALL)  # time is stored with every commit
            return client.jobs.get(job).phase == "ended"

        wait_for(ended, "the waiting line to be taken", every_s=0.5)
        view = client.jobs.get(job)
        assert (view.verdict, view.attempts_made) == ("succeeded", 1)
        assert not network.journal("node.strike", "node.quarantined", after=since)


@pytest.mark.spec("J14", "J13", "A12", "H6")
def test_state_that_fills_the_disk_is_forgotten_in_its_time_and_the_disk_is_free_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home" / "orchestrator", 32) as disk, FaultNetwork(tmp_path) as network:
        # given a running job, and a state that keeps what has ended for seconds
        network.rules = {"jobs_keep_ms": 3_000, "journal_keep_ms": 3_000, "logs_keep_ms": 1_000}
        network.start_orchestrator()
        node = network.start_node("ant")
        client = network.client()
        silent = client.jobs.submit(SILENT, **SMALL).id
        network.node_running(silent)
        wait_for(lambda: (disk / RESERVE).exists(), "the reserve to be held")

        # when jobs that wait for their turn fill the disk with rows
        large = {"argv": ["true"], "env": {"TEXT": "x" * 16_000}, "queue_limit_ms": 10_000}
        large["cpu_milli"] = client.nodes.get(node.id).offered["cpu_milli"]
        with asking(network, disk) as http:
            # then everything that is new is refused by name, the large things first, and people are answered
            until_refused(http, "arrays", {"job": large, "items": ["x"] * 50})
            until_refused(http, "jobs", large)
            until_refused(http, "tokens", {})
            until_refused(http, "access", {"role": "user", "owner": "ann"})
            assert http.get("/healthz").status_code == 200
        largest = (disk / "state.db").stat().st_size
        assert largest > 8 << 20

        # and what runs can end
        network.let_go(silent)
        view = client.jobs.wait(silent, timeout_s=READY_S)
        assert (view.verdict, view.attempts_made) == ("succeeded", 1)
        # and once the others have waited for long enough and were kept for their time, the state gives their space
        # back, the reserve is held, and there is room for new jobs: nobody did anything
        wait_for(lambda: (disk / "state.db").stat().st_size < largest * 3 // 4, "the state to give space back")
        wait_for(lambda: (disk / RESERVE).exists(), "the reserve to be held again")
        again = client.jobs.submit(SHORT, **SMALL)
        assert client.jobs.wait(again.id, timeout_s=READY_S).verdict == "succeeded"
        assert client.nodes.get(node.id).state == "ready"


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

            # and when there is no room for the state either, and none in its reserve
            def unwell() -> bool:
                fill(disk)
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
