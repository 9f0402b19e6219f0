"""Requirements of a stranger: pip runs in the job's sandbox, within the job's limits, and reaches the indexes of the
node alone; what it leaves is not shared before the node has made it its own (SPEC A12, N5, N13)."""

import io
import json
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from package_index import Node, PackageIndex, failed, node_fixture, served

from holdfast.model import FailureCode, Result
from holdfast.node.attempt import venvs
from holdfast.node.attempt.venvs import VenvFailed
from holdfast.node.runtimes import child, owners, scratch
from holdfast.node.runtimes.container_request import WORK
from holdfast.testing.attempts import Attempts
from holdfast.testing.packages import make_wheel

pytestmark = pytest.mark.spec("A12", "N5", "N13", "J1")

__all__ = ["node_fixture"]

NOBODY = 65_534
SETUP = """
import os
open(os.path.join(os.environ["HOME"], "ran"), "w")
from setuptools import setup
setup(name="sly", version="1.0")
"""


def make_source(folder: Path) -> None:
    """A source package whose code leaves a mark when it is built."""
    with tarfile.open(folder / "sly-1.0.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("sly-1.0/setup.py")
        entry.size = len(SETUP)
        archive.addfile(entry, io.BytesIO(SETUP.encode()))


def ran(node: Node) -> bool:
    return (node.attempts / "att_f" / "venv" / "ran").exists()


# --- what a package may ask for ---


@pytest.mark.spec("J7")
def test_a_dependency_at_an_address_that_is_no_index_is_not_fetched(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a package that needs a source archive at another address
    make_source(tmp_path)
    with served(node, monkeypatch), PackageIndex(tmp_path) as other:
        make_wheel(node.wheels, "bait", "1.0", f"sly @ http://127.0.0.1:{other.port}/sly-1.0.tar.gz")
        # when it is asked for
        wrong = failed(node, "bait")
        # then nobody asked there, nothing ran, and the owner is told which address it was
        assert other.asked == []
        assert not ran(node)
        assert wrong.failure.code is FailureCode.BUILD
        assert f"127.0.0.1:{other.port}, which is none of this node's indexes" in wrong.failure.detail


@pytest.mark.spec("J7")
def test_a_dependency_that_the_index_has_as_an_archive_is_not_built(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given one that the index itself has, at an address, so that pip takes no notice of `--only-binary`
    make_source(node.wheels)
    with served(node, monkeypatch) as index:
        make_wheel(node.wheels, "bait", "1.0", f"sly @ http://127.0.0.1:{index.port}/sly-1.0.tar.gz")
        # when it is asked for
        wrong = failed(node, "bait")
        # then it was fetched, and none of its code ran
        assert "/sly-1.0.tar.gz" in index.asked
        assert not ran(node)
        assert wrong.failure.code is FailureCode.BUILD
        assert "not a wheel" in wrong.failure.detail


@pytest.mark.spec("J7")
@pytest.mark.parametrize("address", ["git+https://127.0.0.1/x", f"file://{WORK}/pip_runner.py"])
def test_a_dependency_in_a_repository_or_a_file_is_not_fetched(
    node: Node, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(node, monkeypatch):
        make_wheel(node.wheels, "bait", "1.0", f"sly @ {address}")
        assert failed(node, "bait").failure.code is FailureCode.BUILD


@pytest.mark.spec("J7")
def test_hashes_are_checked_and_must_be_complete_where_one_is_given(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    digest = hashlib.sha256((node.wheels / "pear-2.0-py3-none-any.whl").read_bytes()).hexdigest()
    with served(node, monkeypatch):
        wrong_one, incomplete = f"pear==2.0 --hash=sha256:{'0' * 64}", f"pear==2.0 --hash=sha256:{digest}\napple==1.0"
        for attempt, text in (("att_b", wrong_one), ("att_c", incomplete)):
            wrong = failed(node, text, attempt)
            assert wrong.failure.code is FailureCode.BUILD
            assert "hash" in wrong.failure.detail.lower()
        assert node.take("att_a", f"--require-hashes\npear==2.0 --hash=sha256:{digest}").exists()


# --- limits ---


@pytest.mark.spec("J7")
def test_metadata_of_300_mebibytes_take_no_more_memory_than_the_job_has(node: Node) -> None:
    # given a wheel of half a mebibyte that unpacks to 300
    info, place = "vast-1.0.dist-info", node.wheels / "vast-1.0-py3-none-any.whl"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        with wheel.open(f"{info}/METADATA", "w", force_zip64=True) as file:
            file.write(b"Metadata-Version: 2.1\nName: vast\nVersion: 1.0\nDescription: ")
            for _ in range(300):
                file.write(b"a" * (1 << 20))
        wheel.writestr(f"{info}/RECORD", "")
    assert place.stat().st_size < 2 << 20
    # when a job of 64 MiB needs it, then it is that job's memory that is full
    order = node.prepared("att_f", resources={"memory_mib": 64, "disk_mib": 64})
    with pytest.raises(VenvFailed) as wrong:
        node.venvs().take(order, "vast")
    assert wrong.value.failure.code is FailureCode.OOM_JOB
    assert "64 MiB of memory" in wrong.value.failure.detail
    assert node.there() == []


@pytest.mark.spec("J7")
def test_packages_that_do_not_fit_on_the_jobs_disk_are_the_jobs_fault(node: Node) -> None:
    make_wheel(node.wheels, "big", "1.0", padding=48 << 20)
    order = node.prepared("att_f", resources={"memory_mib": 256, "disk_mib": 32})
    with pytest.raises(VenvFailed) as wrong:
        node.venvs().take(order, "big")
    assert wrong.value.failure.code is FailureCode.DISK_QUOTA
    assert "32 MiB of disk" in wrong.value.failure.detail
    assert node.there() == []


@pytest.mark.spec("J7")
@pytest.mark.parametrize(
    ("time_limit_ms", "build_s_max", "code"),
    [(500, 60.0, FailureCode.TIME_LIMIT), (600_000, 0.5, FailureCode.BUILD)],
)
def test_an_index_that_never_answers_ends_with_the_time_of_the_job_or_of_a_build(
    node: Node, time_limit_ms: int, build_s_max: float, code: FailureCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        order = node.prepared("att_f", time_limit_ms=time_limit_ms)
        with pytest.raises(VenvFailed) as wrong:
            node.venvs(build_s_max=build_s_max).take(order, "pear")
    assert wrong.value.failure.code is code


# --- where pip itself is hostile: what the kernel holds, not what our own hook refuses ---

HOSTILE = f"""
import ctypes, os, sys
# The C library starts a program without asking Python, so that no hook sees it.
status = ctypes.CDLL(None).system((sys.executable + " -I {WORK}/probe.py").encode())
sys.exit(1)
"""

LOOK = """
import json, os, socket, urllib.request
def reads(path):
    try:
        return bool(open(path, "rb").read(1))
    except OSError:
        return False
def connects(family, address):
    try:
        with socket.socket(family) as line:
            line.settimeout(5)
            line.connect(address)
        return True
    except OSError:
        return False
found = {
    "secret": reads(SECRET), "shadow": reads("/etc/shadow"), "root": sorted(os.listdir("/")),
    "host": connects(socket.AF_INET, ("127.0.0.1", PORT)), "engine": connects(socket.AF_UNIX, "/run/docker.sock"),
    "devices": sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else [],
    "interfaces": [name for _, name in socket.if_nameindex()],
    "processes": [name for name in os.listdir("/proc") if name.isdigit()],
    "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")],
    "others": sorted(os.listdir(WORK)),
}
with open(WORK + "/found.json", "w") as file:
    json.dump(found, file)
"""


def hostile_pip(node: Node, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """A pip of which every line is the attacker's."""
    folder = node.folder / "hostile" / "pip"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "__main__.py").write_text(program)
    real = venvs._pip()
    monkeypatch.setattr(venvs, "_pip", lambda: (str(folder), real[1]))


def test_code_that_runs_in_a_build_is_the_jobs_user_without_a_network_and_sees_nothing_of_the_node(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a secret beside the node's folder, a service on the node's loopback, and a pip that belongs to the attacker
    secret = node.folder / "key"
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as service:
        look = (
            LOOK.replace("WORK", repr(WORK))
            .replace("SECRET", repr(str(secret)))
            .replace("PORT", str(service.getsockname()[1]))
        )
        write = f"open('{WORK}/probe.py', 'w').write({look!r})\n"
        hostile_pip(node, monkeypatch, write + HOSTILE)
        # when it runs
        failed(node, "pear")
        service.setblocking(False)
        with pytest.raises(BlockingIOError):
            service.accept()
    # then it was the attempt's own user, on the attempt's own disk
    folder = node.attempts / "att_f"
    report = folder / "venv" / "found.json"
    found: dict[str, Any] = json.loads(report.read_text())
    if not owners.hindrance():
        assert report.stat().st_uid == owners.recorded(str(folder)) != 0
    if not scratch.hindrance():
        assert report.stat().st_dev == (folder / "work").stat().st_dev != folder.stat().st_dev
    # and it saw, reached and could do nothing
    assert not found["secret"] and not found["shadow"] and not found["host"] and not found["engine"]
    assert found["interfaces"] == ["lo"]
    assert set(found["capabilities"]) == {"0000000000000000"}
    system = {"bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "sys", "usr", "var"}
    given = {path.split("/")[1] for path in (child.python_prefix() or "/usr", str(node.wheels))}
    assert set(found["root"]) <= system | given | {".pip", "tmp", "venv", "work"}
    assert len(found["processes"]) < 10
    assert set(found["others"]) <= {
        "tree", "tmp", "pip_runner.py", "requirements.txt", "cert.pem", "probe.py", "found.json"
    }  # fmt: skip


@pytest.mark.spec("J7")
def test_a_build_has_no_more_processor_seconds_than_the_job(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile_pip(node, monkeypatch, "while True: pass\n")
    with pytest.raises(VenvFailed) as wrong:
        node.venvs().take(node.prepared("att_f", limits={"cpu_s": 1}), "pear")
    assert wrong.value.failure.code is FailureCode.TIME_LIMIT
    assert "1 s of processor time" in wrong.value.failure.detail


FORKS = """
import ctypes, os, signal, sys
# By the C library, which our own hook does not see.
library, children = ctypes.CDLL(None), []
for _ in range(200):
    child = library.fork()
    if child == 0:
        signal.pause()
    if child < 0:
        break
    children.append(child)
with open(f"{WORK}/count", "w") as file:
    file.write(str(len(children)))
sys.exit(1)
"""


@pytest.mark.spec("J7")
def test_a_build_has_no_more_processes_than_the_job_and_leaves_none(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile_pip(node, monkeypatch, f"WORK = {WORK!r}\n" + FORKS)
    with pytest.raises(VenvFailed):
        node.venvs().take(node.prepared("att_f", limits={"pids": 20}), "pear")
    assert 0 < int((node.attempts / "att_f" / "venv" / "count").read_text()) < 20


# --- a node that is not root ---

UNPRIVILEGED = """
import sys
from pathlib import Path
from package_index import Node
from holdfast.node.attempt.venvs import VenvFailed
node = Node(Path(sys.argv[1]))
print("made", node.take("att_a", "pear").exists())
try:
    node.take("att_b", "--index-url http://127.0.0.1/\\npear")
except VenvFailed as wrong:
    print(wrong.failure.code.value)
try:
    node.venvs().take(node.prepared("att_c", resources={"memory_mib": 256, "disk_mib": 8}), "big")
except VenvFailed as wrong:
    print(wrong.failure.code.value)
"""


def is_reachable(path: str) -> bool:
    """Whether every user of the machine gets there."""
    return os.path.exists(path) and all(parent.stat().st_mode & 0o001 for parent in Path(path).parents)


def for_everybody() -> str:
    """A Python of this version that every user of the machine may run; if there is none, this one."""
    pythons = (os.path.realpath(sys.executable), f"/usr/bin/python3.{sys.version_info.minor}")
    return next((python for python in pythons if is_reachable(python)), sys.executable)


def shown_in(folder: Path) -> tuple[list[str], list[str]]:
    """Where this process imports from, and the commands that show it in `folder` where others could not get there."""
    places, mounts = [], []
    for number, place in enumerate(path for path in sys.path if os.path.isdir(path)):
        seen = folder / str(number)
        if is_reachable(place):
            places.append(place)
            continue
        if Path(place).is_relative_to(sys.base_prefix):
            continue  # of this Python; another one has its own
        seen.mkdir(parents=True)
        mounts.append(shlex.join(["mount", "--bind", place, str(seen)]))
        places.append(str(seen))
    return places, mounts


def test_a_node_that_is_not_root_installs_in_the_sandbox_and_within_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = for_everybody()
    home = Path(tempfile.mkdtemp(dir="/tmp"))  # its user may not see pytest's own folders
    try:
        (home / "node").mkdir()
        make_wheel(home, "big", "1.0", padding=16 << 20)
        places, mounts = shown_in(home / "places")
        for path in (home, *home.iterdir()):
            if os.geteuid() == 0:
                os.chown(path, NOBODY, NOBODY)
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": os.pathsep.join(places)}
        env |= {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1"}
        env |= {"PIP_FIND_LINKS": f"{home / 'node' / 'wheels'} {home}"}
        words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
        script = " && ".join([*mounts, 'exec "$@"'])
        words = ["unshare", "--mount", "sh", "-c", script, "sh", *words] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*words, python, "-c", UNPRIVILEGED, str(home / "node")],
            env=env, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert (done.stdout.splitlines(), done.returncode) == (["made True", "build", "disk_quota"], 0), done.stderr
    finally:
        shutil.rmtree(home)


def test_an_environment_with_something_else_than_files_is_never_shared(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile_pip(node, monkeypatch, "import os\nos.symlink('/etc/passwd', '/venv/lib/passwd')\n")
    wrong = failed(node, "pear")
    assert wrong.failure.code is FailureCode.BUILD
    assert "neither a file nor a folder" in wrong.failure.detail


def test_what_is_shared_belongs_to_the_node_and_nobody_else_may_write_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a build that leaves files for everybody to write, one of them for root to run
    spoil = (
        "import os\nopen('/venv/lib/x', 'w').write('x')\nos.chmod('/venv/lib/x', 0o6777)\nos.chmod('/venv', 0o777)\n"
    )
    hostile_pip(node, monkeypatch, spoil)
    # when it is kept
    tree = node.take("att_a", "pear")
    # then what others get are files of the node's own
    assert tree.is_relative_to(node.home)
    for path in (tree, *tree.rglob("*")):
        found = path.lstat()
        assert found.st_uid == os.geteuid(), path
        assert stat.S_ISLNK(found.st_mode) or not found.st_mode & 0o7022, path
    # and the job has its disk to itself again
    assert os.listdir(node.attempts / "att_a" / "venv") == []


def test_an_environment_for_which_there_is_no_room_serves_its_own_job_and_no_other(
    node: Node, attempts: Attempts
) -> None:
    # given a cache that takes nothing
    order = node.prepared("att_a")
    tree = node.venvs(mib_max=0).take(order, "pear")
    assert tree == node.attempts / "att_a" / "venv" / "tree"
    assert node.there() == []
    # when a job runs in it, then it finds its packages and cannot change them
    home = node.attempts / "att_a"
    shutil.copytree(tree, copied := attempts.folder / "copied", symlinks=True)
    attempt = attempts.start("sh", "-c", "pear; touch /venv/mark || echo refused", venv=str(copied))
    assert isinstance(attempt.verdict(), Result), attempt.log("stderr")
    assert attempt.log("stdout").splitlines() == ["pear 2.0", "refused"]
    assert all(path.lstat().st_uid == os.geteuid() for path in (tree, *tree.rglob("*")))
    assert home.exists()
