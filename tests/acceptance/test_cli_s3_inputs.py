"""Inputs from S3: the orchestrator holds the key, a node gets an address for one object, and nobody writes it down."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.processes import LocalNetwork, wait_for
from holdfast.testing.s3 import ACCESS, SECRET, S3Server

pytestmark = [pytest.mark.xdist_group("cli-s3"), pytest.mark.spec("J1", "N13")]

SMALL = ("--memory", "64MiB", "--disk", "16MiB", "--cpu", "100m", "--no-folder", "--no-results")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        public = server.bucket("public")
        (public / "data").mkdir()
        (public / "data" / "small.txt").write_text("from s3\n")
        (public / "data" / "odd+name=100%25.bin").write_bytes(os.urandom(3_000_000))
        with (public / "data" / "large").open("wb") as file:
            file.truncate(40 << 20)
        (public / "elsewhere.txt").write_text("not below data\n")
        (server.bucket("private") / "secret.txt").write_text("secret\n")
        yield server


@pytest.fixture(scope="module")
def network(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """Only the orchestrator has the key; the store is reached on loopback, which no stranger could name to a node."""
    with LocalNetwork(tmp_path_factory.mktemp("s3")) as network:
        network.start_orchestrator(env=s3.keys(), flags=["--s3-inputs", "s3://public/data"], preset="lan")
        network.start_node("ant")
        yield network


def written_down(network: LocalNetwork) -> str:
    """Everything that a node or the orchestrator keeps, that was said to a person, or that stands in a log."""
    found: list[str] = []
    for folder, _, names in os.walk(network.folder):
        for path in (Path(folder) / name for name in names):
            with contextlib.suppress(FileNotFoundError):  # a node clears up while we look
                if path.is_file() and path.stat().st_size < 50_000_000:
                    found.append(path.read_bytes().decode("latin-1"))
    return "".join(found)


@pytest.mark.spec("J11")
def test_a_job_reads_an_object_and_its_address_is_written_down_nowhere(network: LocalNetwork, s3: S3Server) -> None:
    # given an object with an awkward name, whose hash is known
    content = (s3.bucket("public") / "data" / "odd+name=100%25.bin").read_bytes()
    sha = hashlib.sha256(content).hexdigest()
    awkward = f"s3://public/data/odd+name=100%25.bin#sha256={sha}"

    # when a job reads it, and another one
    inputs = ["--input", f"big={awkward}", "--input", "small=s3://public/data/small.txt"]
    done = network.cli("run", *SMALL, *inputs, "--", "sh", "-c", "cat inputs/small; sha256sum < inputs/big", check=0)

    # then it had exactly that
    assert done.stdout == f"from s3\n{sha}  -\n"

    # and neither the key nor a signed address was written down anywhere, on either side
    everything = written_down(network)
    assert "s3://public/data/small.txt" in everything, "this looks at the right files"
    for secret in (SECRET, "X-Amz-Signature", "X-Amz-Credential"):
        assert secret not in everything
    assert ACCESS not in everything


def test_what_may_not_be_read_is_refused_at_once_by_name(network: LocalNetwork) -> None:
    refused = {
        "s3://private/secret.txt": ("bucket_not_allowed", "--s3-inputs s3://private"),
        "s3://public/elsewhere.txt": ("bucket_not_allowed", "it reads from: s3://public/data"),
        "s3://public/data/../elsewhere.txt": ("bad_request", "no single object"),
        "s3://public": ("bad_request", "names no object"),
    }
    for address, (code, says) in refused.items():
        done = network.cli("run", *SMALL, "--input", f"x={address}", "--", "true", check=65)
        assert f"[{code}]" in done.stderr and says in done.stderr, done.stderr
    missing = network.cli("run", *SMALL, "--input", "x=s3://public/data/nothing", "--", "true", check=66)
    assert "there is nothing at s3://public/data/nothing [not_found]" in missing.stderr
    large = network.cli("run", *SMALL, "--input", "x=s3://public/data/large", "--", "true", check=65)
    assert "Ask for more disk" in large.stderr


@pytest.mark.spec("J7", "J8")
def test_every_attempt_gets_an_address_of_its_own_and_a_store_that_is_away_is_waited_for(
    network: LocalNetwork, s3: S3Server
) -> None:
    # given a store that is away when the job is sent, so that nobody can look
    s3.stop()
    try:
        words = ["run", *SMALL, "--attempts", "9", "--detach", "--input", "x=s3://public/data/small.txt"]
        job = network.cli(*words, "--", "cat", "inputs/x", check=0).stdout.strip()
        wait_for(lambda: network.client().jobs.get(job).attempts, "a first attempt")
        failed = wait_for(
            lambda: [e for e in network.client().events(job=job) if e.kind == "attempt.failed"], "it to fail", 60
        )
        # then that is the network's fault, and named by the address that the person gave
        assert "s3://public/data/small.txt cannot be reached" in failed[0].text
    finally:
        s3.start()

    # when it is back, then a further attempt has what it needs
    view = network.client().jobs.wait(job, timeout_s=100)
    assert view.attempts_made > 1
    assert network.cli("logs", job, "--stream", "stdout", check=0).stdout == "from s3\n"


@pytest.mark.spec("J7")
def test_an_object_that_is_not_what_its_hash_says_is_the_users(network: LocalNetwork, s3: S3Server) -> None:
    wrong = f"x=s3://public/data/small.txt#sha256={'0' * 64}"
    done = network.cli("run", *SMALL, "--json", "--input", wrong, "--", "true", check=1)
    failure = json.loads(done.stdout)["job"]["failure"]
    assert (failure["code"], failure["blame"]) == ("data", "user")
    assert "s3://public/data/small.txt has the hash" in failure["detail"]


def test_jobs_can_never_be_let_into_the_networks_own_store(s3: S3Server, tmp_path: Path) -> None:
    with LocalNetwork(tmp_path) as network:
        flags = ["--blobs", "s3://public/own", "--s3-inputs", "s3://public"]
        up = network.start_orchestrator(env=s3.keys(), flags=flags, wait=False)
        assert up.process.wait(60) == 78
        assert "would let every job read the files of all users" in up.output()
