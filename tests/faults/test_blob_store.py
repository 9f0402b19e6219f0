"""The store behind a network is gone for a while, slow, cut at every chunk, or full: what jobs made and saved waits and
arrives whole, or the job fails by a named reason that is not its owner's. Nothing is ever accepted half."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_network import SMALL, FaultNetwork, small_disk
from store_line import StoreLine

from holdfast.testing.processes import wait_for
from holdfast.testing.s3 import S3Server
from holdfast.wire.http import JobView

pytestmark = [pytest.mark.xdist_group("faults-store"), pytest.mark.timeout(300)]

ROOMY = {**SMALL, "disk_mib": 64}
MAKE = "head -c 1000000 /dev/urandom > large; seq 1 20000 > small; sha256sum large small > sums; cat sums"
HELD = f"echo begun; while [ ! -e release ]; do sleep 0.05; done; {MAKE}"
SAVING = (
    "cd $HOLDFAST_CHECKPOINT_DIR; while [ ! -e $OLDPWD/release ]; do head -c 300000 /dev/urandom > x.tmp; mv x.tmp x; "
    "sleep 2; done"
)
PATIENCE_S = 120.0
"""For a store that shares its machine with other tests."""
SLOW, A_PART = 100_000, 150_000
"""Bytes a second, and what of the megabyte is there soon: for a while it stays half done."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        server.bucket("files")
        yield server


@pytest.fixture
def up(s3: S3Server) -> Iterator[S3Server]:
    """The store, which a test may end."""
    yield s3
    if not s3.running():
        s3.start()


@pytest.fixture(scope="module")
def line(s3: S3Server) -> Iterator[StoreLine]:
    with StoreLine(s3.port) as line:
        yield line


@pytest.fixture(scope="module")
def machines(s3: S3Server, line: StoreLine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultNetwork]:
    """A network that keeps its files in S3, at the other end of the line."""
    with FaultNetwork(tmp_path_factory.mktemp("store")) as network:
        network.start_orchestrator(preset="lan", env=s3.keys(line.url), flags=["--blobs", "s3://files/here"])
        network.start_node("ant")
        yield network


@pytest.fixture
def network(machines: FaultNetwork, line: StoreLine) -> Iterator[FaultNetwork]:
    yield machines
    line.bytes_per_s, line.cut_first = 0, False


def held(network: FaultNetwork, script: str = HELD, **fields: int) -> str:
    """A job that makes its files once it is let go."""
    job = network.client().jobs.submit(["sh", "-c", script], **ROOMY, **fields).id
    network.node_running(job)
    return job


def assert_whole(network: FaultNetwork, view: JobView, into: Path) -> None:
    """The files are those that the job itself said it made, and every blob that is owned is what its name says."""
    assert view.verdict == "succeeded" and view.files is not None and view.files.files == 4
    network.client().jobs.results(view.id, to=into)
    said = {name: sha for sha, name in (row.split() for row in (into / "sums").read_text().splitlines())}
    assert said == {name: hashlib.sha256((into / name).read_bytes()).hexdigest() for name in ("large", "small")}
    assert len(network.journal("job.accepted", job=view.id)) == 1


def assert_only_whole_blobs(s3: S3Server) -> None:
    owned = [path for path in s3.bucket("files").rglob("owned/*/*") if path.is_file()]
    owned += [path for path in s3.bucket("files").rglob("owned/*/*/*") if path.is_file()]
    assert owned
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == path.name for path in owned)


@pytest.mark.spec("J10", "J7")
def test_a_store_that_is_gone_for_a_while_is_waited_for(
    network: FaultNetwork, up: S3Server, line: StoreLine, tmp_path: Path
) -> None:
    # given a job that runs
    job = held(network)

    # when the store dies, and then the job ends
    up.kill()
    before = line.unanswered
    network.let_go(job)

    # then its files wait, asked about again and again, and nothing is accepted without them
    wait_for(lambda: network.client().jobs.get(job).phase == "uploading", "its body to end", PATIENCE_S)
    wait_for(lambda: line.unanswered >= before + 8, "several tries", PATIENCE_S)
    assert network.client().jobs.get(job).phase == "uploading"
    assert not network.journal("job.accepted", "attempt.failed", job=job)

    # and when the store is back, they arrive: the same attempt, whole
    up.start()
    view = network.client().jobs.wait(job, timeout_s=PATIENCE_S)
    assert view.attempts_made == 1
    assert_whole(network, view, tmp_path / "results")
    assert not network.journal("node.strike", node=network.nodes["ant"].id)


@pytest.mark.spec("J6")
def test_checkpoints_go_on_when_the_store_is_back_and_the_job_never_noticed(
    network: FaultNetwork, up: S3Server
) -> None:
    # given a job with a checkpoint that stands
    job = held(network, SAVING, checkpoint_ms=1_000)

    def saved() -> str:
        found = network.client().jobs.get(job).checkpoint
        return found.manifest if found else ""

    first = wait_for(saved, "a first checkpoint", PATIENCE_S)

    # when the store dies, then that one stays what the job would go on from
    up.kill()
    at = wait_for(saved, "the checkpoint to be there still")
    assert at == first or len(network.journal("job.saved", job=job)) > 1

    # and when it is back, newer ones stand, of the same attempt
    up.start()
    wait_for(lambda: saved() != at, "a newer checkpoint", PATIENCE_S)
    view = network.client().jobs.get(job)
    assert view.attempts_made == 1 and view.phase == "running"
    assert view.checkpoint is not None
    assert view.checkpoint.bytes in (300_000, 600_000), "the file, or that and the next one: both whole"
    network.let_go(job)
    assert network.client().jobs.wait(job, timeout_s=PATIENCE_S).verdict == "succeeded"
    assert_only_whole_blobs(up)


@pytest.mark.spec("J10")
def test_a_slow_store_costs_time_and_nothing_else(network: FaultNetwork, line: StoreLine, tmp_path: Path) -> None:
    # given a line that takes long for what the job makes
    job = held(network)
    line.bytes_per_s = SLOW
    before = line.carried

    # when it ends, then it is said to be uploading, and how far it is
    network.let_go(job)
    wait_for(lambda: network.client().jobs.get(job).progress, "how far it is", PATIENCE_S)
    wait_for(lambda: line.carried > before + A_PART, "a part of it to arrive", PATIENCE_S)
    assert network.client().jobs.get(job).phase == "uploading"
    line.bytes_per_s = 0  # it has been slow for long enough

    # and in the end all of it is there, by one attempt, and the machine is not to blame
    view = network.client().jobs.wait(job, timeout_s=PATIENCE_S)
    assert view.attempts_made == 1
    assert_whole(network, view, tmp_path / "results")
    assert not network.journal("node.strike", node=network.nodes["ant"].id)


@pytest.mark.spec("J10", "J11")
def test_an_upload_that_is_cut_at_every_chunk_arrives_whole(
    network: FaultNetwork, up: S3Server, line: StoreLine, tmp_path: Path
) -> None:
    # given a line on which the first try of every chunk is cut in its middle
    job = held(network)
    line.cut.clear()
    line.cut_first = True

    # when the job ends
    network.let_go(job)
    view = network.client().jobs.wait(job, timeout_s=PATIENCE_S)

    # then every chunk was cut once, and all of it is there; nothing half was taken over
    assert len(line.cut) >= 4, "three files and their list"
    line.cut_first = False
    assert view.attempts_made == 1
    assert_whole(network, view, tmp_path / "results")
    assert_only_whole_blobs(up)


@pytest.mark.spec("J5", "J10")
def test_a_node_killed_in_the_middle_of_an_upload_leaves_nothing_that_counts(
    network: FaultNetwork, up: S3Server, line: StoreLine, tmp_path: Path
) -> None:
    # given a job whose files are on their way
    job = held(network)
    line.bytes_per_s = SLOW
    before = line.carried
    first = network.nodes["ant"]
    network.let_go(job)
    wait_for(lambda: line.carried > before + A_PART, "a part of it to arrive", PATIENCE_S)

    # when its machine dies, and another one is there
    first.kill_tree()
    line.bytes_per_s = 0
    network.start_node("bee")
    second = network.successor(job, first, PATIENCE_S)
    assert second.name == "bee"
    view = network.finish(job, PATIENCE_S)

    # then what the second one made is what counts, whole
    assert view.attempts_made == 2
    assert_whole(network, view, tmp_path / "results")
    assert_only_whole_blobs(up)
    network.settle()


# --- full ---


def fill(disk: Path) -> Path:
    """Take all the room there is, but for a little less than the job's files need."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    return filler


@pytest.mark.spec("J7", "J10")
def test_a_store_that_is_full_is_waited_for_and_then_named_and_never_the_users_fault(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home" / "orchestrator" / "blobs", 16) as disk, FaultNetwork(tmp_path) as network:
        network.start_orchestrator()
        network.start_node("ant")
        job = held(network)

        # when the store's disk is full, and then the job ends
        filler = fill(disk)
        network.let_go(job)
        wait_for(lambda: "is full" in network.up.output(), "the orchestrator to say so")

        # then its files wait, and arrive when there is room
        assert network.client().jobs.get(job).phase == "uploading"
        filler.unlink()
        view = network.client().jobs.wait(job, timeout_s=PATIENCE_S)
        assert not network.journal("attempt.failed", job=job), "what waits has not failed"
        assert_whole(network, view, tmp_path / "results")

        # and where nobody makes room, the person is told whose fault it is not, and pays nothing
        network.rules = {"upload_ms_max": 3_000}
        network.restart_orchestrator()
        network.wait_node("ant")
        fill(disk)
        words = ["--memory", "32MiB", "--disk", "64MiB", "--cpu", "100m", "--attempts", "1", "--no-folder", "--json"]
        done = network.cli("run", *words, "--", "sh", "-c", MAKE, check=75, timeout_s=PATIENCE_S + 60)
        failure = json.loads(done.stdout)["job"]["failure"]
        assert (failure["code"], failure["blame"], failure["billable"]) == ("upload_timeout", "network", False)
