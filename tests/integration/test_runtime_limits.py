"""Limits of the sandbox that the suite cannot ask of every runtime, and what holds where the kernel does not help."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_network import FAR, NODE, FarNetwork

from holdfast.model import Failure, FailureCode, Result
from holdfast.node import shim
from holdfast.node.launcher import Launcher
from holdfast.node.runtimes import cgroups, gpus, netns, owners, scratch, seccomp
from holdfast.node.runtimes.runtime import runtime_named
from holdfast.testing.attempts import Attempts, now
from holdfast.testing.processes import wait_for

pytestmark = pytest.mark.spec("N4")

ASK = """
import sys, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=30).read(20).decode())
    except OSError as error:
        print("refused" if any(word in str(error) for word in ("unreachable", "refused", "ermission")) else error)
"""


@pytest.fixture(scope="module")
def network() -> Iterator[FarNetwork]:
    with FarNetwork() as network:
        yield network


@pytest.fixture(scope="module")
def far_launcher(network: FarNetwork) -> Iterator[Launcher]:
    launcher = Launcher()
    with network.inside(network.node):
        launcher.start()
    yield launcher
    launcher.close()


@pytest.fixture
def far(tmp_path: Path, far_launcher: Launcher) -> Iterator[Attempts]:
    """Attempts of a node that has a network around it."""
    attempts = Attempts(tmp_path, far_launcher, network=True)
    yield attempts
    attempts.clean_up()


# --- network ---


@pytest.mark.spec("J2", "N5")
def test_a_body_with_a_network_reaches_nothing_near_the_node(network: FarNetwork, far: Attempts) -> None:
    # given services on the node's loopback, on its own address, and on a private network beside it
    beside = "10.55.0.1"
    network.address(network.far, f"{beside}/32")
    network.route(network.node, f"{beside}/32", FAR)
    near = [network.serve(network.node, address, b"near") for address in ("127.0.0.1", NODE)]
    near.append(network.serve(network.far, beside, b"near"))
    assert all(network.reaches(network.node, url) for url in near)
    world = network.serve(network.far, FAR, b"world")
    # when a body asks for them, also for what its router would take for the node's loopback
    router = near[0].replace("127.0.0.1", netns.RESOLVER.rpartition(".")[0] + ".2")
    attempt = far.start("python3", "-c", ASK, *near, router, world)
    assert isinstance(attempt.verdict(150), Result), attempt.log("stderr")
    # then it reaches the world and none of them
    assert attempt.log("stdout").split("\n") == ["refused"] * 4 + ["world", ""]


@pytest.mark.spec("J2", "N5")
@pytest.mark.parametrize("address", ["168.63.129.16", "192.0.0.192", "192.0.2.9", "203.0.113.9"])
def test_a_body_does_not_reach_an_address_that_is_not_public(network: FarNetwork, far: Attempts, address: str) -> None:
    # given a machine beside the node that has it, as a cloud's metadata service would
    network.address(network.far, f"{address}/32")
    network.route(network.node, f"{address}/32", FAR)
    url = network.serve(network.far, address, b"near")
    assert network.reaches(network.node, url)
    attempt = far.start("python3", "-c", ASK, url)
    assert isinstance(attempt.verdict(150), Result), attempt.log("stderr")
    assert attempt.log("stdout") == "refused\n"


ASK_UNTIL_REFUSED = """
import sys, time, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode(), flush=True)
until = time.monotonic() + 60
while time.monotonic() < until:
    try:
        urllib.request.urlopen(sys.argv[1], timeout=5).read()
    except OSError as error:
        if "ermission" in str(error) or "unreachable" in str(error):
            print("refused")
            break
    time.sleep(0.1)
"""


@pytest.mark.spec("J2", "N5")
def test_a_running_body_does_not_reach_an_address_that_the_node_gets_meanwhile(
    network: FarNetwork, far: Attempts
) -> None:
    # given a body that reaches an address of another machine
    moving = "203.0.114.99"
    network.address(network.far, f"{moving}/24")
    url = network.serve(network.far, moving, b"world")
    attempt = far.start("python3", "-c", ASK_UNTIL_REFUSED, url)
    wait_for(lambda: attempt.log("stdout") == "world\n", "the body to reach it")
    # when the node gets that address, then the body reaches it no more
    network.address(network.node, f"{moving}/24")
    assert isinstance(attempt.verdict(150), Result), attempt.log("stderr")
    assert attempt.log("stdout") == "world\nrefused\n"


@pytest.mark.spec("J2")
def test_the_network_of_a_body_cannot_be_changed_by_it(far: Attempts) -> None:
    attempt = far.start("sh", "-c", "ip route del prohibit 10.0.0.0/8; ip link set tap0 down; ip -o link | wc -l")
    assert isinstance(attempt.verdict(), Result)
    assert attempt.log("stderr").count("Operation not permitted") == 2
    assert attempt.log("stdout") == "2\n"


@pytest.mark.spec("N9")
def test_mounts_of_the_machine_that_are_shared_are_left_alone(network: FarNetwork, far: Attempts) -> None:
    """Names of network namespaces are such mounts; a router that tidies up in the wrong place takes them away."""
    attempt = far.start("true")
    assert isinstance(attempt.verdict(), Result)
    with network.inside(network.far):
        assert os.path.exists("/proc/self/ns/net")


@pytest.mark.parametrize("way", ["down", "up"])
def test_bandwidth_of_the_network_is_limited_each_way(network: FarNetwork, far: Attempts, way: str) -> None:
    # given a mebibyte to carry at 512 KiB/s
    url = network.serve(network.far, FAR, b"x" * (1 << 20))
    body = "None" if way == "down" else 'b"x" * (1 << 20)'
    url = url if way == "down" else network.serve(network.far, FAR, b"")
    script = f"""
import sys, time, urllib.request
began = time.monotonic()
urllib.request.urlopen(sys.argv[1], data={body}, timeout=60).read()
print(time.monotonic() - began)
"""
    attempt = far.start("python3", "-c", script, url, limits={"net_kib_s": 512})
    assert isinstance(attempt.verdict(120), Result), attempt.log("stderr")
    # then it takes two seconds, but for what a queue lets through at once
    assert 1.2 < float(attempt.log("stdout")) < 60


# --- disk ---


@pytest.mark.serial
def test_bandwidth_of_the_disk_is_limited_also_for_what_was_only_cached(attempts: Attempts) -> None:
    # given 8 MiB to write at 1 MiB/s
    script = """
import os, time
began = time.monotonic()
with open("big", "wb") as file:
    file.write(bytes(8 << 20))
    file.flush()
    os.fsync(file.fileno())
print(time.monotonic() - began)
"""
    attempt = attempts.start("python3", "-c", script, resources={"disk_mib": 32}, limits={"disk_kib_s": 1024})
    assert isinstance(attempt.verdict(90), Result), attempt.log("stderr")
    assert float(attempt.log("stdout")) > 4.8
    # and the next holder of the same device is not slowed down
    attempt.clean_up()
    free = attempts.start("python3", "-c", script, resources={"disk_mib": 32})
    assert isinstance(free.verdict(90), Result)
    assert float(free.log("stdout")) < float(attempt.log("stdout"))


@pytest.mark.spec("J7")
def test_too_many_files_are_too_much_disk_as_well(attempts: Attempts) -> None:
    script = "i=0; while : > f$i; do i=$((i+1)); done; exit 1"
    found = attempts.start("bash", "-c", script, resources={"disk_mib": 4}).verdict(60)
    assert isinstance(found, Failure)
    assert found.code is FailureCode.DISK_QUOTA


@pytest.mark.spec("J7")
def test_a_body_that_made_room_again_and_failed_for_another_reason_is_not_over_its_quota(attempts: Attempts) -> None:
    script = (
        "dd if=/dev/zero of=big bs=64k count=2000; rm big; echo room; while [ ! -e go ]; do sleep 0.05; done; exit 3"
    )
    attempt = attempts.start("sh", "-c", script, resources={"disk_mib": 64})
    attempt.printed("room")
    # when it was looked at since: what was seen before that is heard first
    attempt.dial()
    attempt.until(lambda status: (used := status["usage"]) and used["disk_mib"] < 32)
    (attempt.home / "work" / "go").touch()
    found = attempt.verdict(60)
    assert isinstance(found, Failure)
    assert (found.code, found.exit_code) == (FailureCode.EXIT_CODE, 3), attempt.log("stderr")


@pytest.mark.spec("J7")
def test_room_is_kept_for_a_body_from_the_start_and_cannot_be_taken_by_others(
    attempts: Attempts, small_disk: Path
) -> None:
    # given a body with 8 MiB of a disk of 24, and a neighbour who fills the rest after its start
    script = "echo here; while [ ! -e go ]; do sleep 0.05; done; dd if=/dev/zero of=big bs=1M count=7 2>/dev/null"
    attempt = attempts.prepare("sh", "-c", script, home=small_disk / "att", resources={"disk_mib": 8}).start()
    attempt.printed("here")
    room = os.statvfs(small_disk)
    with (small_disk / "filler").open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, room.f_bavail * room.f_frsize - (128 << 10))
    assert scratch.is_full(str(small_disk))
    # when it writes what it was promised, then it can
    (attempt.home / "work" / "go").touch()
    assert isinstance(attempt.verdict(), Result), attempt.log("stderr")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    import subprocess

    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


# --- GPUs ---


@pytest.mark.spec("J2")
def test_only_the_device_nodes_of_leased_gpus_are_named(tmp_path: Path) -> None:
    # given a machine with two GPUs
    driver, dev = tmp_path / "driver", tmp_path / "dev"
    dev.mkdir()
    for minor, uuid in enumerate(("GPU-aa", "GPU-bb")):
        (driver / f"slot{minor}").mkdir(parents=True)
        facts = f"Model: \t\t NVIDIA X\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        (driver / f"slot{minor}" / "information").write_text(facts)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (dev / name).touch()
    # then one that is leased is seen, and the other is not
    names = [os.path.basename(node) for node in gpus.device_nodes(("GPU-bb",), str(driver), str(dev))]
    assert names == ["nvidia1", "nvidiactl", "nvidia-uvm"]
    assert gpus.device_nodes((), str(driver), str(dev)) == []
    with pytest.raises(OSError, match="no GPU GPU-cc"):
        gpus.device_nodes(("GPU-cc",), str(driver), str(dev))


@pytest.mark.spec("J2", "J7")
def test_a_lease_on_a_gpu_that_is_not_there_is_the_nodes_fault(attempts: Attempts) -> None:
    found = attempts.start("true", gpu_ids=("GPU-none",)).verdict()
    assert isinstance(found, Failure)
    assert found.code is FailureCode.RUNTIME_FAULT
    assert "GPU-none" in found.detail


@pytest.mark.spec("J2")
def test_a_leased_gpu_is_seen_in_the_sandbox_and_named_in_its_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # given a device node that could be a GPU's
    monkeypatch.setattr(gpus, "device_nodes", lambda ids: ["/dev/urandom", "/dev/fuse"] if ids else [])
    attempt = Attempts(tmp_path, InProcess()).start(
        "sh", "-c", "ls /dev; echo $CUDA_VISIBLE_DEVICES", gpu_ids=("GPU-a",)
    )
    assert isinstance(attempt.verdict(), Result), attempt.log("stderr")
    assert {"fuse", "GPU-a"} <= set(attempt.log("stdout").split())
    attempt.clean_up()


# --- where the kernel does not help ---


class InProcess(Launcher):
    """Forks shims off this process, so that they see what a test has changed in it."""

    def spawn_now(self, home: str) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                shim.main(home)
            finally:
                os._exit(0)
        deadline = time.monotonic() + 60
        while not os.path.exists(f"{home}/shim.json"):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        return pid


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Attempts]:
    """Attempts on a machine that gives its node nothing: no control group, no loop device, no user."""
    for module in (scratch, owners, netns, seccomp):
        monkeypatch.setattr(module, "hindrance", lambda: "the machine has none")
    monkeypatch.setattr(seccomp, "program", lambda: b"")
    monkeypatch.setattr(netns, "rate_hindrance", lambda: "the machine has none")
    missing = dict.fromkeys(cgroups.CONTROLLERS, "the machine has none")
    monkeypatch.setattr(cgroups, "detect", lambda: cgroups.Hierarchy(missing=missing))
    attempts = Attempts(tmp_path, InProcess())
    yield attempts
    attempts.clean_up()


@pytest.mark.spec("J7")
@pytest.mark.parametrize("runtime", ["bubblewrap", "process"])
@pytest.mark.parametrize(
    ("script", "asked", "limits", "code"),
    [
        ("{ head -c 200000000 /dev/zero; sleep 60; } | tail", {"memory_mib": 64}, {}, FailureCode.OOM_JOB),
        ("dd if=/dev/zero of=big bs=1M count=40; sleep 60", {"disk_mib": 16}, {}, FailureCode.DISK_QUOTA),
        ("while :; do :; done", {}, {"cpu_s": 1}, FailureCode.TIME_LIMIT),
    ],
)
def test_what_cannot_be_held_is_measured_and_stopped(
    bare: Attempts,
    runtime: str,
    script: str,
    asked: dict[str, int],
    limits: dict[str, int],
    code: FailureCode,
) -> None:
    found = bare.start("sh", "-c", script, runtime=runtime, resources=asked, limits=limits).verdict(60)
    assert isinstance(found, Failure)
    assert found.code is code, found


@pytest.mark.spec("N8")
def test_what_cannot_be_held_is_said(bare: Attempts) -> None:
    said = runtime_named("bubblewrap").capabilities()
    assert said["memory"] == "measured: the machine has none"
    assert said["disk"] == "measured: the machine has none"
    for limit in ("cpu", "disk_kib_s", "net_kib_s", "network", "user", "syscalls"):
        assert said[limit] == "none: the machine has none", limit
    attempt = bare.start("true", network=True)
    found = attempt.verdict()
    assert isinstance(found, Failure)
    assert found.code is FailureCode.RUNTIME_FAULT
    assert "there is no network for jobs" in found.detail


@pytest.mark.spec("N8")
def test_what_is_held_is_said_in_the_same_words_by_every_runtime() -> None:
    said = {name: runtime_named(name).capabilities() for name in ("bubblewrap", "process")}
    assert {how.partition(":")[0] for one in said.values() for how in one.values()} <= {"kernel", "measured", "none"}
    assert set(said["bubblewrap"]) == set(said["process"])
    assert {how.partition(":")[0] for how in said["bubblewrap"].values()} == {"kernel", "measured"}


# --- users ---


@pytest.mark.spec("N9")
def test_no_two_attempts_get_the_same_user_and_one_that_is_gone_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a machine with three users to give, and three attempts
    monkeypatch.setattr(owners, "COUNT", 3)
    registry = str(tmp_path / "registry")
    held = [tmp_path / name for name in ("a", "b", "c", "d")]
    for folder in held:
        folder.mkdir()
    uids = [owners.take(str(folder), registry) for folder in held[:3]]
    assert len(set(uids)) == 3
    assert [owners.take(str(folder), registry) for folder in held[:3]] == uids
    # when a fourth comes, there is none left
    with pytest.raises(OSError, match="every user"):
        owners.take(str(held[3]), registry)
    # until one is given back, in order, or because its folder is gone
    owners.release(str(held[0]), registry)
    assert owners.take(str(held[3]), registry) == uids[0]
    (held[1] / owners.RECORD).unlink()
    held[1].rmdir()
    held[0].joinpath(owners.RECORD).unlink()
    assert owners.take(str(held[0]), registry) == uids[1]


@pytest.mark.spec("J2", "N5")
def test_no_process_of_a_body_is_root_to_the_machine(attempts: Attempts) -> None:
    attempt = attempts.start("sh", "-c", "echo here; sleep 1000")
    attempt.printed("here")
    uids = {os.stat(f"/proc/{pid}").st_uid for pid, _ in attempt.family()}
    assert len(uids) == 1
    assert uids.pop() >= owners.FIRST


@pytest.mark.spec("J5")
def test_a_measured_limit_is_enforced_however_the_body_hides(attempts: Attempts) -> None:
    """Processor time of children that ended counts as well."""
    script = "while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done"
    began = now()
    found = attempts.start("sh", "-c", script, limits={"cpu_s": 2}).verdict(60)
    assert isinstance(found, Failure)
    assert found.code is FailureCode.TIME_LIMIT
    assert now() - began >= 1_000
