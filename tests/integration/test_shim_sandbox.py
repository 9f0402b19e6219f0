"""What a body in the sandbox can see, reach and change: its own folder and the system, read-only."""

import gc
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.node.launcher import Launcher
from holdfast.node.runtimes import child
from holdfast.node.runtimes.runtime import runtime_named
from holdfast.testing.attempts import Attempts

RUNTIMES = ("bubblewrap", "process")


def told_by(attempts: Attempts, script: str, **changes: object) -> object:
    """Run a Python script in an attempt; what it printed, read as JSON."""
    attempt = attempts.start("python3", "-c", script, **changes)
    assert attempt.outcome()["exit_code"] == 0, attempt.log("stderr")
    return json.loads(attempt.log("stdout"))


@pytest.mark.spec("N4", "J2")
def test_there_is_no_network_in_the_sandbox(attempts: Attempts) -> None:
    # given a server on the machine's loopback that this test can reach
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        script = f"""
import json, socket
def reach(address):
    try:
        socket.create_connection(address, timeout=2).close()
        return "reached"
    except OSError as error:
        return type(error).__name__
print(json.dumps([[name for _, name in socket.if_nameindex()], reach(("127.0.0.1", {port}))]))
"""
        # when a body tries, then it finds nobody and has no way out
        assert told_by(attempts, script) == [["lo"], "ConnectionRefusedError"]


@pytest.mark.spec("J2", "N5")
def test_files_of_the_machine_and_of_the_node_are_out_of_sight(attempts: Attempts, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    home = tmp_path / "att0"
    places = [str(secret), str(home / "order.json"), str(home / "control.sock"), "/etc/shadow", "/home"]
    places += ["/sys/class", "/sys/block", "/sys/fs", "/sys/devices/system/cpu/cpu0"]
    script = f"import json, os; print(json.dumps([p for p in {places!r} if os.path.lexists(p)]))"
    assert told_by(attempts, script, home=home) == []


@pytest.mark.spec("J2")
def test_other_processes_are_out_of_sight(attempts: Attempts) -> None:
    script = "import json, os; print(json.dumps([int(n) for n in os.listdir('/proc') if n.isdigit()]))"
    pids = told_by(attempts, script)
    assert isinstance(pids, list)
    assert len(pids) <= 3
    assert max(pids) < 10


@pytest.mark.spec("J2")
def test_only_work_and_tmp_can_be_written_to(attempts: Attempts) -> None:
    script = """
import json, os, sys
def writes(folder):
    try:
        with open(os.path.join(folder, "mark"), "w") as file:
            file.write("x")
        return True
    except OSError:
        return False
system = ["/", "/usr", "/usr/bin", "/etc", "/root", "/var", "/dev", sys.base_prefix, "/proc/sys/kernel"]
places = ["/work", "/tmp", "/dev/shm", *system]
print(json.dumps([place for place in places if writes(place)]))
"""
    attempt = attempts.start("python3", "-c", script)
    assert attempt.outcome()["exit_code"] == 0
    assert json.loads(attempt.log("stdout")) == ["/work", "/tmp", "/dev/shm"]
    assert (attempt.home / "work" / "mark").read_text() == "x"
    assert not Path("/tmp/mark").exists()


@pytest.mark.spec("J2")
def test_the_body_has_no_privilege_and_cannot_gain_one(attempts: Attempts) -> None:
    script = """
import json, os, pwd, socket
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
caps = {status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
names = [pwd.getpwuid(os.getuid()).pw_name, socket.gethostname(), os.getcwd()]
print(json.dumps([os.getuid() != 0, sorted(caps), status["NoNewPrivs"], names]))
"""
    assert told_by(attempts, script) == [True, ["0" * 16], "1", ["job", "holdfast", "/work"]]


@pytest.mark.spec("J2", "N5")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_environment_is_that_of_the_job_and_nothing_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    # given a node with secrets in its environment
    monkeypatch.setenv("NODE_SECRET", "s3cret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    launcher = Launcher()
    launcher.start()
    attempt = Attempts(tmp_path, launcher).start(
        "env",
        runtime=runtime,
        env={"COLOUR": "blue", "HOLDFAST_JOB": "forged", "LANG": "de"},
        resources={"cpu_milli": 1500, "memory_mib": 64},
    )
    assert attempt.outcome()["exit_code"] == 0
    found = dict(line.split("=", 1) for line in attempt.log("stdout").splitlines())
    work = "/work" if runtime == "bubblewrap" else str(attempt.home / "work")
    lent = "/holdfast" if runtime == "bubblewrap" else str(attempt.home / "lent")
    # then its job sees its own words, ours, and no other
    assert {key: value for key, value in found.items() if key not in ("PATH", "PWD", "OLDPWD", "_", "SHLVL")} == {
        "COLOUR": "blue",
        "LANG": "de",
        "HOME": work,
        "HOLDFAST_WORK_DIR": work,
        "PYTHONPATH": lent,
        "HOLDFAST_JOB": "job_0a",
        "HOLDFAST_ATTEMPT": "att_0a.1",
        "HOLDFAST_CPU_MILLI": "1500",
        "HOLDFAST_MEMORY_MIB": "64",
        "PYTHONUNBUFFERED": "1",
        **dict.fromkeys(child.THREADS, "2"),
    }
    attempt.clean_up()
    launcher.close()


@pytest.mark.spec("J2", "N5")
def test_the_jobs_environment_cannot_be_read_off_the_machines_process_list(attempts: Attempts) -> None:
    attempt = attempts.start("sh", "-c", "echo here; sleep 1000", env={"API_KEY": "s3cret"})
    attempt.printed("here")
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid, _ in attempt.family()]
    assert lines
    assert not any(b"s3cret" in line for line in lines)


@pytest.mark.spec("J2")
def test_an_environment_as_large_as_an_order_may_carry_arrives_whole(attempts: Attempts) -> None:
    env = {f"WORD_{n}": "x" * 10_000 for n in range(11)}
    script = "import json, os; print(json.dumps(sum(len(v) for k, v in os.environ.items() if k[:5] == 'WORD_')))"
    assert told_by(attempts, script, env=env) == 110_000


@pytest.mark.spec("J2")
def test_no_descriptor_of_the_shim_reaches_the_body(attempts: Attempts) -> None:
    script = """
import json, os
links = []
for name in os.listdir("/proc/self/fd"):
    try:
        links.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
    except FileNotFoundError:
        pass
print(json.dumps(sorted(fd for fd, target in links)))
"""
    for runtime in RUNTIMES:
        assert told_by(attempts, script, runtime=runtime) == [0, 1, 2]


@pytest.mark.spec("J2")
def test_files_of_an_attempt_are_the_nodes_alone(attempts: Attempts) -> None:
    attempt = attempts.start("true")
    attempt.ended()
    for name in ("control.sock", "status.json", "shim.json", "stdout.log", "stderr.log", "shim.log", "work"):
        assert os.stat(attempt.home / name).st_mode & 0o077 == 0, name


@pytest.mark.spec("J2")
def test_a_deep_folder_is_no_hindrance(attempts: Attempts, tmp_path: Path) -> None:
    """The kernel takes 107 bytes of path for a socket; a node's home may be longer."""
    home = tmp_path / ("deep" * 20) / ("er" * 40)
    assert attempts.start("true", home=home).outcome()["exit_code"] == 0


@pytest.mark.spec("J2", "N1")
def test_whether_a_sandbox_works_is_found_by_trying(monkeypatch: pytest.MonkeyPatch, public_folder: Path) -> None:
    assert runtime_named("bubblewrap").works() == (True, "")
    assert runtime_named("process").works() == (True, "")
    gc.collect()  # what earlier tests left must not be closed just now
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setenv("PATH", str(public_folder))
    works, why = runtime_named("bubblewrap").works()
    assert not works
    assert "bwrap is not installed" in why
    fake = public_folder / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    assert runtime_named("bubblewrap").works() == (False, "bwrap: No permissions to create new namespace")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.spec("N4", "J2")
def test_nothing_of_the_machines_kernel_can_be_set_from_inside(attempts: Attempts) -> None:
    """On a node that runs as root `core_pattern` would be a way out. Files are opened, never written."""
    script = """
import json, os
found = []
for folder, _, files in os.walk("/proc/sys"):
    for name in files:
        try:
            os.close(os.open(os.path.join(folder, name), os.O_WRONLY))
            found.append(name)
        except OSError:
            pass
print(json.dumps(found))
"""
    assert told_by(attempts, script) == []


@pytest.mark.spec("N4")
def test_scratch_in_memory_is_no_larger_than_what_the_job_asked_for(attempts: Attempts) -> None:
    script = """
import json, os
def size(path):
    disk = os.statvfs(path)
    return disk.f_blocks * disk.f_frsize >> 20
print(json.dumps([size("/tmp"), size("/dev/shm")]))
"""
    assert told_by(attempts, script, resources={"memory_mib": 64}) == [64, 64]


@pytest.mark.spec("N4", "J5")
def test_a_sandbox_starts_although_another_ends_in_the_same_moment(tmp_path: Path) -> None:
    """What was mounted when it looked is gone when it would take it out of sight."""
    script = (
        "import sys; from holdfast.node.runtimes import scratch, bubblewrap; RUNTIME = bubblewrap.RUNTIME; "
        "scratch.scratch_mounts = lambda: sys.argv[1:]; print(RUNTIME.works())"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "gone"), str(tmp_path)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "(True, '')\n"
