"""Retention with real processes: what is old goes, in order, and nothing runs twice because of it."""

from pathlib import Path

import httpx
import pytest

from holdfast.client import Client
from holdfast.errors import HoldfastError
from holdfast.orchestrator.api.self_check import DELETED_JOB_BYTES_MAX
from holdfast.testing.processes import LocalNetwork, wait_for

KEEP = ("jobs=2s", "--keep", "logs=1s", "--keep", "journal=2s", "--keep", "files=1s")
ARGV = ["sh", "-c", "echo printed"]


def refusal_of(client: Client, job: str) -> str:
    try:
        client.jobs.get(job)
    except HoldfastError as error:
        return error.code
    return ""


@pytest.mark.spec("J7", "J14", "H4", "N6")
def test_what_is_old_goes_and_its_key_runs_nothing_again(tmp_path: Path) -> None:
    with LocalNetwork(tmp_path) as network:
        # given a job that ended, on a network that keeps jobs for two seconds
        first = network.start_orchestrator(flags=("--keep", *KEEP))
        network.start_node("ant")
        client = network.client()
        job = client.jobs.run(ARGV, key="one key", timeout_s=120).id

        # then it is deleted after its output, and says so; also after the orchestrator was killed
        wait_for(lambda: refusal_of(client, job) == "job_deleted", "the job to be deleted", timeout_s=120)
        first.kill()
        up = network.start_orchestrator(flags=("--keep", *KEEP))
        client = network.client()
        assert refusal_of(client, job) == "job_deleted"

        # and the self-check says what the store keeps of it
        (bounded,) = [finding for finding in client.doctor().findings if finding.name == "store is bounded"]
        left = f"then at most {DELETED_JOB_BYTES_MAX} bytes of each (1 so far)"
        assert bounded.ok and "0 jobs, 1 nodes and " in bounded.says and left in bounded.says
        assert left in " ".join(network.cli("doctor").stdout.split())

        # and when it is sent again under its key, then nothing is run
        with pytest.raises(HoldfastError) as refused:
            client.jobs.submit(ARGV, key="one key")
        assert refused.value.code == "job_deleted"
        assert job not in [one.id for one in client.jobs.list()]

        # and a reader of events that was away for longer than the journal is kept is told where it begins, also if
        # nothing has happened since
        said = wait_for(lambda: expired(network, up.url), "the journal to be cut", timeout_s=120)
        assert said["code"] == "cursor_expired" and isinstance(said["oldest"], int) and said["oldest"] > 1


def expired(network: LocalNetwork, url: str) -> dict[str, object]:
    """What a reader is told who resumes after the first event; empty: the stream."""
    token = (network.home / "orchestrator" / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Last-Event-ID": "1"}
    answer = httpx.get(f"{url}/v1/events", headers=headers, trust_env=False, timeout=60)
    return answer.json() if answer.status_code == 410 else {}


@pytest.mark.spec("N6")
def test_a_token_is_for_one_machine_unless_more_are_asked_for(tmp_path: Path) -> None:
    with LocalNetwork(tmp_path) as network:
        network.start_orchestrator()
        once = network.cli("token", "new")
        many = network.cli("token", "new", "--uses", "unlimited")
        assert "for one machine," in once.stderr and "for any number of machines," in many.stderr
        assert sorted(token.uses_left for token in network.client().tokens.list()) == [-1, 1]
        for wrong in ("0", "-1", "many"):
            refused = network.cli("token", "new", "--uses", wrong, check=2)
            assert "unlimited" in refused.stderr


@pytest.mark.spec("J14")
@pytest.mark.parametrize("words", ["cats=3d", "jobs", "jobs=0s", "jobs=soon"])
def test_what_cannot_be_kept_is_named(tmp_path: Path, words: str) -> None:
    with LocalNetwork(tmp_path) as network:
        done = network.cli("up", "--listen", "127.0.0.1:0", "--keep", words, timeout_s=100)
        assert done.returncode not in (0, 70) and "error: " in done.stderr and "Traceback" not in done.stderr
