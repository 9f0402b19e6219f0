"""Whose limit it was that cost a container a process (SPEC J7), as the node finds out from outside: whoever looks
first, the node or the engine that takes the cgroup away, and whether or not the kernel's log can be read."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.launcher import Launcher
from holdfast.node.runtimes import cgroups, engine_cgroup
from holdfast.node.runtimes.cgroups import CgroupLimits, Groups, Hierarchy
from holdfast.node.runtimes.container_request import name_of
from holdfast.node.runtimes.engine_cgroup import MemoryWatch, groups_of
from holdfast.testing.attempts import Attempts, RealAttempt
from holdfast.testing.engines import EngineService
from holdfast.testing.processes import wait_for

pytestmark = [pytest.mark.spec("J7", "N4"), pytest.mark.xdist_group("engines"), pytest.mark.timeout(300)]

LOGS = ["/dev/kmsg", "/dev/null"]
"""Where the kernel's log is, and what a container may have in its place."""
GREEDY = "tail /dev/zero"
MIB = 1 << 20


class Share:
    """A cgroup for memory with one in it, as an engine makes one for a container; version 1 or 2 as the machine has."""

    def __init__(self) -> None:
        first = Path("/sys/fs/cgroup/memory")
        self.version = 1 if first.is_dir() else 2
        self._limit = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        self.name = f"holdfast-test-{secrets.token_hex(4)}"
        self.around = (first if self.version == 1 else first.parent) / self.name
        self.inner = self.around / f"{self.name}-inner"
        self.inner.mkdir(parents=True)

    def limit(self, place: Path, mib: int) -> None:
        (place / self._limit).write_text(str(mib * MIB))

    def watch(self) -> MemoryWatch:
        return MemoryWatch(Groups(self.version, {"memory": str(self.inner)}))

    def run(self, script: str) -> "subprocess.Popen[bytes]":
        words = ["sh", "-c", f"echo $$ > {self.inner}/cgroup.procs; {script}"]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def remove(self) -> None:
        wait_for(lambda: _removed(self.inner), "the inner cgroup to be empty")

    def close(self) -> None:
        """Engines make the one around in every hierarchy, and Podman one in it for who stands by."""
        tops = [*Path("/sys/fs/cgroup").glob(f"*/{self.name}"), *Path("/sys/fs/cgroup").glob(self.name)]
        for place in [Path(found) for top in tops for found, _, _ in os.walk(top, topdown=False)]:
            wait_for(lambda place=place: _removed(place), f"{place} to be empty")


def _removed(place: Path) -> bool:
    try:
        place.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture
def share() -> Iterator[Share]:
    share = Share()
    yield share
    share.close()


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(cgroups, "KERNEL_LOG", request.param)
    return request.param


@pytest.mark.usefixtures("log")
def test_its_own_limit_is_its_own_also_if_the_cgroup_goes_in_the_midst_of_a_look(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a container that met its limit
    share.limit(share.inner, 32)
    watch = share.watch()
    share.run(GREEDY).wait()
    # when its cgroup is removed as soon as the first of its files was read
    read = os.pread

    def pread(fd: int, length: int, offset: int) -> bytes:
        found = read(fd, length, offset)
        if share.inner.exists():
            share.remove()
        return found

    monkeypatch.setattr(os, "pread", pread)
    watch.look()
    # then it was its own limit all the same
    assert watch.verdict() == "oom_job"
    assert not watch.counted


def test_its_own_limit_is_its_own_also_if_nobody_looked_before_the_cgroup_was_gone(share: Share, log: str) -> None:
    share.limit(share.inner, 32)
    watch = share.watch()
    share.run(GREEDY).wait()
    share.remove()
    # version 2 counts in the cgroup alone: what is not known is not said, unless by the log
    known = share.version == 1 or log == "/dev/kmsg"
    assert (watch.verdict(), watch.sure) == (("oom_job" if known else ""), log == "/dev/kmsg")


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("seen", [True, False])
def test_a_limit_above_is_not_its_own_though_its_own_was_met_by_files(share: Share, tmp_path: Path, seen: bool) -> None:
    # given a container that filled its memory with files, which costs nobody anything
    share.limit(share.inner, 32)
    watch = share.watch()
    read = share.run(f"head -c {64 * MIB} /dev/zero > {tmp_path}/big; cat {tmp_path}/big")
    assert read.wait() == 0
    # when the machine around it runs out
    share.limit(share.around, 16)
    share.run(GREEDY).wait()
    if not seen:
        share.remove()
    # then it is not to blame; where nobody could count, there is only the limit above that was met
    found = watch.verdict()
    assert found == "oom_node" or (found, seen, watch.sure) == ("", False, False), found
    assert watch.met_above or share.version == 2


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("own", [True, False])
def test_a_sandbox_knows_as_much_of_its_own(share: Share, tmp_path: Path, own: bool) -> None:
    # given a sandbox that filled its memory with files
    share.remove()
    hierarchy = Hierarchy(share.version, {"memory": str(share.around)})
    groups = Groups.make(str(tmp_path), hierarchy, CgroupLimits(memory_bytes=32 * MIB))
    share.inner = Path(groups.places["memory"])
    script = f"head -c {64 * MIB} /dev/zero > {tmp_path}/big; cat {tmp_path}/big"
    assert share.run(script).wait() == 0
    # when it, or the machine around it, runs out
    if not own:
        share.limit(share.around, 16)
    share.run(GREEDY).wait()
    # then it is known which
    assert groups.oom() == ("oom_job" if own else "oom_node")


def test_what_ends_by_itself_lacked_no_memory(share: Share) -> None:
    share.limit(share.inner, 32)
    watch = share.watch()
    share.run("kill -9 $$").wait()
    assert (watch.verdict(), watch.counted, watch.expects()) == ("", True, False)
    share.remove()
    assert watch.verdict() == ""


def test_a_neighbour_that_is_ended_for_a_limit_above_is_nobodys_end_here(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a container that lives while another in the same share runs out of memory
    watch = share.watch()
    lives = share.run("exec sleep 60")
    share.limit(share.around, 32)
    words = ["sh", "-c", f"echo $$ > {share.around}/cgroup.procs; {GREEDY}"]
    assert share.version == 2 or subprocess.run(words, stderr=subprocess.DEVNULL).returncode != 0
    # then it was called, and looks out for a kill for a while; but none was here
    monkeypatch.setattr(engine_cgroup, "_AFTER_CALL_S", 60.0)
    watch.look()
    assert watch.expects() or share.version == 2
    monkeypatch.setattr(engine_cgroup, "_AFTER_CALL_S", 0.0)
    assert not watch.expects()
    assert (watch.verdict(), watch.counted) == ("", True)
    lives.kill()
    lives.wait()


# --- the same with containers ---


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> EngineService:
    return request.getfixturevalue(request.param)


KEEPS = """
import json, os, signal, sys, time
from holdfast.node.core.attempt_lifecycle import Order
from holdfast.node.runtimes import cgroups, container_request
from holdfast.node.runtimes.runtime import runtime_named
folder, cgroups.KERNEL_LOG, share = sys.argv[1:]
request = container_request.request
def within(*words):
    wanted = request(*words)
    wanted["HostConfig"] |= {"CgroupParent": f"/{share}"} if share else {}
    return wanted
container_request.request = within
with open(f"{folder}/order.json") as file:
    order = Order.from_dict(json.load(file))
runtime = runtime_named("container")
runtime.prepare(order, folder)
said = os.memfd_create("said")
body = runtime.start(order, folder, said, said)
print(body.pid, flush=True)
counted = 0
while os.waitid(os.P_PID, body.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
    if not counted and (counted := body.usage().oom_kills):
        body.signal(signal.SIGKILL)
    time.sleep(0.02)
_, status = os.waitpid(body.pid, 0)
ended = body.ended(status, "")
print(json.dumps(["counted" if counted else ended.code, ended.signal, ended.fault]), flush=True)
"""
"""Stands where a shim stands, with a kernel's log and a share of the machine of its own choice, and ends a body as that
does of which it counts a process that the kernel ended."""
READ_ONLY = ["unshare", "-m", "--propagation", "unchanged", "sh", "-c", 'mount -o remount,bind,ro "$0" && exec "$@"']
"""For a command that finds this mount read-only, and nobody else does."""


class Kept:
    """A container with its keeper, under such a shim."""

    def __init__(self, attempt: RealAttempt, log: str, share: str, around: list[str] | None = None) -> None:
        """`around`: words before its own."""
        self.work = attempt.home / "work"
        self.name = name_of(str(attempt.home))
        words = [*(around or []), sys.executable, "-c", KEEPS, str(attempt.home), log, share]
        self._shim = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._shim.stdout is not None
        self.lines = self._shim.stdout
        self.keeper = int(self.lines.readline())

    def ended(self) -> list[object]:
        """Code, signal and fault; `counted` for a code: the keeper did not tell, but a kill could be counted."""
        return json.loads(self.lines.readline())

    @contextlib.contextmanager
    def keeper_stopped(self) -> Iterator[None]:
        """Whatever happens meanwhile: one that stands still would outlive its shim."""
        keeper = os.pidfd_open(self.keeper)
        try:
            signal.pidfd_send_signal(keeper, signal.SIGSTOP)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(keeper, signal.SIGCONT)
            os.close(keeper)

    def __enter__(self) -> "Kept":
        return self

    def __exit__(self, *_: object) -> None:
        self._shim.kill()
        self._shim.wait()
        self.lines.close()


@pytest.fixture
def bodies(tmp_path: Path, launcher: Launcher, engine: EngineService, busybox: bytes) -> Iterator[Attempts]:
    made = Attempts(tmp_path, launcher, runtime="container", engine=engine.socket, image=engine.add_image(busybox))
    yield made
    made.clean_up()


@pytest.mark.parametrize(("own", "log"), [(True, LOGS[0]), (True, LOGS[1]), (False, LOGS[1])])
def test_a_keeper_that_was_held_until_the_engine_had_cleared_up_knows_whose_limit_it_was(
    share: Share, bodies: Attempts, engine: EngineService, own: bool, log: str
) -> None:
    # given a job in a container, with a limit of its own that it will meet, or in a small share of the machine
    share.limit(share.around, 96)
    script = f"echo > begun; while [ ! -e go ]; do sleep 0.02; done; {GREEDY}"
    attempt = bodies.prepare("sh", "-c", script, resources={"memory_mib": 64 if own else 512})
    with Kept(attempt, log, "" if own else share.name) as kept:
        wait_for((kept.work / "begun").exists, "the job to begin")
        place = groups_of(int(engine.api.inspect(kept.name)["State"]["Pid"])).places["memory"]
        assert own or share.name in place
        # when its keeper stands still while the job runs out of memory, and the engine clears up
        with kept.keeper_stopped():
            (kept.work / "go").touch()
            wait_for(lambda: not os.path.exists(place), "the engine to remove the container's cgroup")
        # then it knows all the same
        assert kept.ended() == ["oom_job" if own else "oom_node", signal.SIGKILL, ""]


@pytest.mark.parametrize("engine", ["docker"], indirect=True)
def test_a_body_that_lost_a_process_for_a_limit_above_is_ended_as_a_whole(share: Share, bodies: Attempts) -> None:
    """The kernel calls before it kills: who looks at once sees nothing yet."""
    share.limit(share.around, 96)
    attempt = bodies.prepare("sh", "-c", f"{GREEDY} & wait; sleep 1000", resources={"memory_mib": 512})
    with Kept(attempt, "/dev/null", share.name) as kept:
        assert kept.ended() == ["oom_node", signal.SIGKILL, ""]


@pytest.mark.parametrize("engine", ["docker"], indirect=True)
def test_what_a_keeper_cannot_watch_is_counted_by_the_shim(share: Share, bodies: Attempts) -> None:
    """Version 1 must be written to before it calls; version 2 is watched by reading."""
    # given a node that finds the control groups read-only
    mounted = str(share.around.parent)
    attempt = bodies.prepare("sh", "-c", f"{GREEDY} & wait; sleep 20", resources={"memory_mib": 64})
    # when a body loses a process for its memory, then the rest of it is ended
    with Kept(attempt, "/dev/null", "", [*READ_ONLY, mounted]) as kept:
        assert kept.ended() == ["counted" if share.version == 1 else "oom_job", signal.SIGKILL, ""]
