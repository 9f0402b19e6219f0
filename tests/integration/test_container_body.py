"""What a body in a container is given and what it is not, beyond what every runtime keeps: the image's part in it."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.model import Failure, FailureCode, Result
from holdfast.node.launcher import Launcher
from holdfast.node.runtimes.container_request import name_of
from holdfast.node.runtimes.container_trial import try_engine
from holdfast.node.runtimes.runtime import runtime_named
from holdfast.testing.attempts import Attempts, RealAttempt, now
from holdfast.testing.engines import Docker, EngineService, tar_of
from holdfast.testing.processes import wait_for

pytestmark = [pytest.mark.xdist_group("engines"), pytest.mark.timeout(300)]

LONG_S = 90.0


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> EngineService:
    return request.getfixturevalue(request.param)


@pytest.fixture
def bodies(tmp_path: Path, launcher: Launcher, engine: EngineService, busybox: bytes) -> Iterator[Attempts]:
    made = Attempts(tmp_path, launcher, runtime="container", engine=engine.socket, image=engine.add_image(busybox))
    yield made
    made.clean_up()


def printed(attempt: RealAttempt) -> str:
    found = attempt.verdict(LONG_S)
    assert isinstance(found, Result), (found, attempt.log("stderr"))
    return attempt.log("stdout")


def inspected(engine: EngineService, attempt: RealAttempt) -> dict[str, Any]:
    return engine.api.inspect(name_of(str(attempt.home)))


# --- the image ---


@pytest.mark.spec("J2")
def test_an_image_needs_no_shell_and_no_library(bodies: Attempts, engine: EngineService) -> None:
    """The node lends its own shell to open the streams; then the job takes its place."""
    image = engine.add_image(tar_of({"busybox": Path("/usr/bin/busybox").read_bytes()}))
    assert printed(bodies.start("/busybox", "echo", "no shell here", image=image)) == "no shell here\n"


@pytest.mark.spec("J2")
def test_the_images_own_words_count_and_those_of_the_job_more(
    bodies: Attempts, engine: EngineService, busybox: bytes
) -> None:
    changes = ["ENV COLOUR=green", "ENV SHAPE=round", "ENV PATH=/opt/own:/bin", 'ENTRYPOINT ["/bin/false"]']
    image = engine.add_image(busybox, changes=changes)
    script = "echo $COLOUR $SHAPE; echo $PATH; id -un; echo $HOME $HOLDFAST_JOB"
    attempt = bodies.start("/bin/sh", "-c", script, image=image, env={"COLOUR": "blue"})
    assert printed(attempt).splitlines() == ["blue round", "/opt/own:/bin", "job", "/work job_0a"]


@pytest.mark.spec("J2", "N4")
@pytest.mark.parametrize("source", ["image", "job"])
def test_a_library_that_is_to_be_loaded_into_the_job_is_not_loaded_into_the_nodes_shell(
    bodies: Attempts, engine: EngineService, busybox: bytes, source: str
) -> None:
    # given a library that any program of the node's would fall over
    rootfs = tar_of({"bin/busybox": Path("/usr/bin/busybox").read_bytes(), "lib.so": b"\x7fELF broken"})
    word = "LD_PRELOAD=/lib.so"
    image = engine.add_image(rootfs, changes=[f"ENV {word}"] if source == "image" else [])
    env = dict([word.split("=")]) if source == "job" else {}
    # then a job of the image's own sees the variable, and starts
    attempt = bodies.start("/bin/busybox", "sh", "-c", "echo $LD_PRELOAD", image=image, env=env)
    assert printed(attempt) == "/lib.so\n"


@pytest.mark.spec("N4")
def test_a_volume_of_the_image_is_memory_and_not_the_engines_disk(
    bodies: Attempts, engine: EngineService, busybox: bytes
) -> None:
    image = engine.add_image(busybox, changes=['VOLUME ["/data/here"]'])
    script = "echo x > /data/here/mark && df /data/here | tail -n 1; dd if=/dev/zero of=/data/here/big bs=1M count=100"
    attempt = bodies.start("sh", "-c", script, image=image, resources={"memory_mib": 32})
    found = attempt.verdict(LONG_S)
    assert isinstance(found, Failure) and found.code in (FailureCode.OOM_JOB, FailureCode.EXIT_CODE), found
    assert "tmpfs" in attempt.log("stdout")
    listed = engine.api.call("GET", "/volumes")
    assert not (listed or {}).get("Volumes")


@pytest.mark.spec("N4")
def test_a_link_in_the_image_does_not_lead_the_node_out_of_it(bodies: Attempts, engine: EngineService) -> None:
    """The node gives /tmp to the body, as root: where /tmp is a link, it must not give away what that points to."""
    target = Path(f"/run/holdfast-test-{secrets.token_hex(4)}")
    target.mkdir(mode=0o700)
    try:
        rootfs = tar_of({"bin/busybox": Path("/usr/bin/busybox").read_bytes()}, links={"tmp": str(target)})
        attempt = bodies.start("/bin/busybox", "true", image=engine.add_image(rootfs))
        attempt.ended(LONG_S)
        assert target.stat().st_uid == 0
    finally:
        target.rmdir()


# --- what it is given ---


@pytest.mark.spec("J1", "J2")
def test_what_was_put_into_its_folder_is_its_own_to_change(bodies: Attempts, tmp_path: Path) -> None:
    attempt = bodies.prepare("sh", "-c", "echo more >> sub/input && rm link && cat sub/input")
    runtime_named("container").prepare(attempt.order, str(attempt.home))
    stranger = tmp_path / "stranger"
    stranger.write_text("not the job's\n")
    work = attempt.home / "work"
    (work / "sub").mkdir()
    (work / "sub" / "input").write_text("some\n")
    (work / "link").symlink_to(stranger)
    os.link(stranger, work / "hard")
    assert printed(attempt.start()) == "some\nmore\n"
    assert stranger.stat().st_uid == 0


@pytest.mark.spec("J2")
def test_a_folder_may_have_a_strange_name_and_one_that_no_engine_takes_is_said(
    bodies: Attempts, tmp_path: Path
) -> None:
    attempt = bodies.start("sh", "-c", "echo fine > out; cat out", home=tmp_path / "a:b 'c")
    assert printed(attempt) == "fine\n"
    found = bodies.start("true", home=tmp_path / "a,ro").verdict(LONG_S)
    assert isinstance(found, Failure) and found.code is FailureCode.RUNTIME_FAULT
    assert "a,ro" in found.detail


@pytest.mark.spec("N4", "J2")
@pytest.mark.parametrize("network", [False, True])
def test_the_nodes_own_network_is_never_given(bodies: Attempts, engine: EngineService, network: bool) -> None:
    attempt = bodies.start("sh", "-c", "readlink /proc/self/ns/net; sleep 1000", network=network)
    attempt.printed("net:[")
    assert attempt.log("stdout").strip() != os.readlink("/proc/self/ns/net")
    assert inspected(engine, attempt)["HostConfig"]["NetworkMode"] == "none"


@pytest.mark.spec("N4")
def test_the_engine_is_told_every_limit(bodies: Attempts, engine: EngineService) -> None:
    attempt = bodies.start(
        "sh", "-c", "echo here; sleep 1000", resources={"memory_mib": 64, "cpu_milli": 500}, limits={"pids": 20}
    )
    attempt.printed("here")
    told = inspected(engine, attempt)["HostConfig"]
    assert (told["Memory"], told["MemorySwap"]) == (64 << 20, 64 << 20)
    assert told["PidsLimit"] == 21  # and the container's own first process
    assert told["NanoCpus"] == 500_000_000 or told["CpuQuota"] == 50_000
    assert told["ReadonlyRootfs"] is True and told["Privileged"] is False


@pytest.mark.spec("J2", "J7")
def test_a_job_whose_gpu_cannot_be_given_does_not_run_without(bodies: Attempts) -> None:
    attempt = bodies.start("sh", "-c", "echo ran", gpu_ids=("GPU-00000000-0000-0000-0000-000000000000",))
    found = attempt.verdict(LONG_S)
    assert isinstance(found, Failure) and found.code is FailureCode.RUNTIME_FAULT, found
    assert "gpu" in found.detail.lower()
    assert attempt.log("stdout") == ""


@pytest.mark.spec("N4")
@pytest.mark.serial
def test_it_writes_to_its_disk_no_faster_than_it_may(bodies: Attempts) -> None:
    script = "dd if=/dev/zero of=big bs=64k count=128 conv=fsync"
    began = now()
    attempt = bodies.start("sh", "-c", script, resources={"disk_mib": 64}, limits={"disk_kib_s": 2048})
    assert isinstance(attempt.verdict(LONG_S), Result), attempt.log("stderr")
    assert now() - began > 2_500  # 8 MiB at 2 MiB a second, less what a burst may take


# --- the machine runs out ---


@pytest.fixture
def small_share() -> Iterator[str]:
    """A cgroup around an engine's containers that is smaller than the jobs in it."""
    name = f"holdfast-test-{secrets.token_hex(4)}"
    first = Path("/sys/fs/cgroup/memory")
    place = (first if first.is_dir() else Path("/sys/fs/cgroup")) / name
    place.mkdir()
    (place / ("memory.limit_in_bytes" if first.is_dir() else "memory.max")).write_text(str(96 << 20))
    yield f"/{name}"
    wait_for(lambda: _removed(name), "the cgroup to be empty")


def _removed(name: str) -> bool:
    """Engines make it in every hierarchy."""
    for place in [*Path("/sys/fs/cgroup").glob(f"*/{name}"), *Path("/sys/fs/cgroup").glob(name)]:
        try:
            place.rmdir()
        except OSError:
            return False
    return True


@pytest.mark.spec("J7", "N4")
def test_a_job_that_is_within_its_limit_when_memory_runs_out_is_not_to_blame(
    tmp_path: Path, launcher: Launcher, busybox: bytes, small_share: str
) -> None:
    with Docker(flags=[f"--cgroup-parent={small_share}"]) as engine:
        made = Attempts(tmp_path, launcher, runtime="container", engine=engine.socket, image=engine.add_image(busybox))
        attempt = made.start("sh", "-c", "tail /dev/zero", resources={"memory_mib": 512})
        found = attempt.verdict(LONG_S)
        made.clean_up()
    assert isinstance(found, Failure) and found.code is FailureCode.OOM_NODE, found
    assert found.meaning.retryable and not found.meaning.billable


# --- whether it can be used at all ---


@pytest.mark.spec("J2", "N8")
def test_an_engine_that_works_is_found_to_work(engine: EngineService, monkeypatch: pytest.MonkeyPatch) -> None:
    assert try_engine(engine.socket) == ""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine.socket}")
    assert runtime_named("container").works() == (True, "")
    assert engine.containers() == []


@pytest.mark.spec("J2", "N8")
def test_an_engine_that_does_not_work_says_why(tmp_path: Path) -> None:
    assert "no container engine was found" in try_engine("")
    assert str(tmp_path) in try_engine(str(tmp_path / "socket"))
