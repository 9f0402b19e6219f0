"""Control groups as the kernel's documentation describes them, on trees of plain files: where they are found, what is
written into them, and what is read out of them. Both versions; the machine's own are in the integration tests.
"""

import contextlib
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from holdfast.node.core.order import Order
from holdfast.node.runtimes import cgroups
from holdfast.node.runtimes.body_folders import Folders
from holdfast.node.runtimes.cgroups import CgroupLimits, Groups, Hierarchy
from holdfast.node.runtimes.container import ContainerBody
from holdfast.node.runtimes.container_supervisor import Task
from holdfast.node.runtimes.engine_api import Engine
from holdfast.node.runtimes.runtime import Ended

pytestmark = pytest.mark.spec("N4")

FULL = CgroupLimits(memory_bytes=64 << 20, cpu_milli=1500, pids=20, disk_bytes_s=1 << 20, devices=("8:0",))


class Tree:
    """A machine's /proc/self and its mounted control groups, as files."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.mounted = folder / "cgroup"
        self.proc.mkdir()

    def second(self, own: str = "/user/node", controllers: str = "cpu io memory pids", root: str = "/") -> Path:
        """Version 2; the node's own group, with these controllers given to it and one stranger in it."""
        line = f"30 23 0:26 {root} {self.mounted} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
        (self.proc / "mountinfo").write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n{line}\n")
        (self.proc / "cgroup").write_text(f"0::{own}\n")
        place = Path(f"{self.mounted}{own.removeprefix(root) if root != '/' else own}")
        place.mkdir(parents=True)
        (place / "cgroup.controllers").write_text(controllers + "\n")
        (place / "cgroup.type").write_text("domain\n")
        (place / "cgroup.procs").write_text("4711\n")
        (place / "cgroup.subtree_control").write_text("")
        return place

    def first(self) -> None:
        """Version 1 as distributions mount it: some controllers share a hierarchy."""
        lines = []
        for number, names in enumerate(("cpu,cpuacct", "memory", "pids", "blkio")):
            lines.append(f"{30 + number} 25 0:{30 + number} / {self.mounted}/{names} rw - cgroup cgroup rw,{names}")
            (self.mounted / names / "slice").mkdir(parents=True)
        lines.append(f"40 25 0:40 / {self.mounted}/unified rw - cgroup2 cgroup2 rw")
        (self.proc / "mountinfo").write_text("\n".join(lines) + "\n")
        own = [f"{number}:{names}:/slice" for number, names in enumerate(("cpu,cpuacct", "memory", "pids", "blkio"))]
        (self.proc / "cgroup").write_text("\n".join([*own, "0::/slice"]) + "\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def groups_in(tmp_path: Path, version: int, limits: CgroupLimits) -> tuple[Groups, Path]:
    """Groups with these limits, made in a folder that stands for all controllers."""
    base, folder = tmp_path / "base", tmp_path / "att"
    for made in (base, folder):
        made.mkdir()
    top = tmp_path / "top"
    top.mkdir()
    hierarchy = Hierarchy(version, dict.fromkeys(cgroups.CONTROLLERS, str(base)), {}, str(top))
    return Groups.make(str(folder), hierarchy, limits), base / cgroups.name_of(str(folder))


def contents(place: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in place.iterdir()}


# --- where they are found ---


def test_version_2_makes_the_nodes_own_group_ready_and_moves_the_node_aside(tree: Tree) -> None:
    # given a node in a group of its own, with every controller
    place = tree.second()
    # when it looks
    cgroups.detect(str(tree.proc))
    # then its processes are in a leaf beside the jobs to come, and the controllers are handed on
    assert (place / cgroups.NODE_LEAF / "cgroup.procs").read_text() == "4711"
    assert (place / "cgroup.subtree_control").read_text().startswith("+")


def test_version_2_uses_what_is_handed_on_and_names_what_is_not(tree: Tree) -> None:
    place = tree.second(controllers="cpu memory pids")
    (place / "cgroup.subtree_control").write_text("cpu memory pids\n")
    found = cgroups.detect(str(tree.proc))
    assert found.version == 2
    assert found.bases == dict.fromkeys(("memory", "cpu", "cpuacct", "pids"), str(place))
    assert list(found.missing) == ["blkio"]
    assert "io is not given" in found.missing["blkio"]


def test_version_2_finds_its_place_again_from_the_leaf_it_moved_to(tree: Tree) -> None:
    place = tree.second(own=f"/user/{cgroups.NODE_LEAF}")
    for name, text in (("cgroup.controllers", "memory"), ("cgroup.subtree_control", "memory")):
        (place.parent / name).write_text(text)
    assert cgroups.detect(str(tree.proc)).bases == {"memory": str(place.parent)}


def test_version_2_in_a_container_sees_its_group_as_the_root(tree: Tree) -> None:
    place = tree.second(own="/docker/abc", controllers="memory", root="/docker/abc")
    (place / "cgroup.subtree_control").write_text("memory\n")
    assert place == tree.mounted
    assert cgroups.detect(str(tree.proc)).bases == {"memory": str(place)}


def test_version_1_is_taken_where_memory_is_there(tree: Tree) -> None:
    tree.first()
    found = cgroups.detect(str(tree.proc))
    assert found.version == 1
    assert found.bases["memory"] == f"{tree.mounted}/memory/slice"
    assert found.bases["cpu"] == found.bases["cpuacct"] == f"{tree.mounted}/cpu,cpuacct/slice"
    assert found.top == f"{tree.mounted}/blkio"
    assert found.missing == {}


def test_without_any_every_controller_is_missing_by_name(tree: Tree) -> None:
    (tree.proc / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    (tree.proc / "cgroup").write_text("0::/\n")
    assert cgroups.detect(str(tree.proc)).missing == dict.fromkeys(cgroups.CONTROLLERS, "no control groups are mounted")
    assert set(cgroups.detect("/nowhere").missing) == set(cgroups.CONTROLLERS)


# --- what is written ---


def test_version_2_is_told_every_limit_in_its_own_words(tmp_path: Path) -> None:
    _, place = groups_in(tmp_path, 2, FULL)
    assert contents(place) == {
        "memory.max": str(64 << 20),
        "memory.oom.group": "1",
        "memory.swap.max": "0",
        "cpu.max": "150000 100000",
        "io.max": "8:0 rbps=1048576 wbps=1048576",
        "pids.max": "20",
    }


def test_version_1_is_told_every_limit_in_its_own_words(tmp_path: Path) -> None:
    _, place = groups_in(tmp_path, 1, FULL)
    assert contents(place) == {
        "memory.limit_in_bytes": str(64 << 20),
        "memory.swappiness": "0",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "150000",
        "blkio.throttle.read_bps_device": "8:0 1048576",
        "blkio.throttle.write_bps_device": "8:0 1048576",
        "pids.max": "20",
    }


@pytest.mark.parametrize("version", [1, 2])
def test_no_limit_is_set_where_none_is_asked_for(tmp_path: Path, version: int) -> None:
    _, place = groups_in(tmp_path, version, CgroupLimits())
    assert contents(place) == {}


def test_a_disk_of_ones_own_is_limited_for_everybody_and_set_free_again(tmp_path: Path) -> None:
    limits = CgroupLimits(disk_bytes_s=1 << 20, devices=("7:3",), own_devices=("7:3",))
    groups, _ = groups_in(tmp_path, 1, limits)
    told = tmp_path / "top" / "blkio.throttle.write_bps_device"
    assert told.read_text() == "7:3 1048576"
    groups.lift(("7:3",))
    assert told.read_text() == "7:3 0"


def test_a_limit_that_the_kernel_refuses_is_an_error_and_never_left_out(tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "att"
    folder.mkdir()
    (base / cgroups.name_of(str(folder)) / "memory.max").mkdir(parents=True)
    with pytest.raises(OSError, match=r"memory\.max cannot be set to 1"):
        Groups.make(str(folder), Hierarchy(2, {"memory": str(base)}), CgroupLimits(memory_bytes=1))


def test_where_they_are_is_written_down_before_they_are_made(tmp_path: Path) -> None:
    groups, place = groups_in(tmp_path, 2, FULL)
    found = cgroups.recorded(str(tmp_path / "att"))
    assert found is not None
    assert (found.version, found.places) == (2, groups.places)
    assert set(found.places.values()) == {str(place)}
    # and what somebody else wrote there is not believed
    (tmp_path / "att" / cgroups.RECORD).write_text('{"version": 2, "places": {"memory": "/etc"}, "top": ""}')
    assert cgroups.recorded(str(tmp_path / "att")) is None


# --- what is read ---


def test_version_2_tells_what_is_used(tmp_path: Path) -> None:
    groups, place = groups_in(tmp_path, 2, CgroupLimits())
    files = {
        "cpu.stat": "usage_usec 2500000\nuser_usec 1\nnr_periods 40\nnr_throttled 10\n",
        "memory.current": str(50 << 20),
        "memory.stat": f"anon 1\ninactive_file {10 << 20}\n",
        "memory.peak": str(60 << 20),
        "pids.current": "7",
        "memory.events.local": "low 0\noom 0\noom_kill 0\n",
    }
    for name, text in files.items():
        (place / name).write_text(text)
    seen = groups.sample()
    assert (seen.cpu_ms, seen.memory_mib, seen.memory_peak_mib, seen.pids) == (2500, 40, 60, 7)
    assert (seen.throttled_permille, seen.oom_kills) == (250, 0)
    # and how much it was held back is asked anew each time
    (place / "cpu.stat").write_text("usage_usec 2600000\nnr_periods 50\nnr_throttled 20\n")
    assert groups.sample().throttled_permille == 1_000
    assert groups.sample().throttled_permille == 0


@pytest.mark.spec("J7")
@pytest.mark.parametrize(
    ("events", "code"),
    [
        ("oom 1\noom_kill 2\n", "oom_job"),
        ("oom 0\noom_kill 1\n", "oom_node"),
        ("oom 3\noom_kill 0\n", ""),
        ("oom 0\noom_kill 0\n", ""),
    ],
)
def test_version_2_counts_whose_limit_it_was(tmp_path: Path, events: str, code: str) -> None:
    groups, place = groups_in(tmp_path, 2, CgroupLimits())
    (place / "memory.events.local").write_text(events)
    assert groups.oom() == code


@pytest.mark.spec("J7")
@pytest.mark.parametrize(
    ("kills", "most", "code"),
    [(1, 64 << 20, "oom_job"), (1, (64 << 20) - 4096, "oom_job"), (1, 20 << 20, "oom_node"), (0, 64 << 20, "")],
)
def test_version_1_without_the_kernels_log_goes_by_the_most_that_was_used(
    tmp_path: Path, kills: int, most: int, code: str
) -> None:
    groups, place = groups_in(tmp_path, 1, CgroupLimits(memory_bytes=64 << 20))
    (place / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
    (place / "memory.max_usage_in_bytes").write_text(str(most))
    assert groups.oom() == code


@pytest.mark.spec("J7")
@pytest.mark.parametrize(("blamed", "code"), [("NAME", "oom_job"), ("slice", "oom_node"), ("", "oom_node")])
def test_version_1_believes_the_kernels_log_first(tmp_path: Path, blamed: str, code: str) -> None:
    groups, place = groups_in(tmp_path, 1, CgroupLimits(memory_bytes=64 << 20))
    (place / "memory.oom_control").write_text("oom_kill 1\n")
    (place / "memory.max_usage_in_bytes").write_text(str(64 << 20))
    name = place.name
    path = f"/slice/{name}" if blamed == "NAME" else f"/{blamed}"
    line = (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg={path},task_memcg=/slice/{name},task=x,pid=1"
    )
    groups._kernel_log._lines = [line, "oom-kill:constraint=X,oom_memcg=/other,task_memcg=/other,task=y"]
    assert groups.oom() == code


@pytest.mark.spec("J7")
@pytest.mark.parametrize("instead", ["null", "zero", "file", "pipe", "nothing"])
def test_what_is_not_the_kernels_log_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instead: str
) -> None:
    # given a container that has something else in its place, as they do: read, it would never come to an end, or lie
    place = tmp_path / "kmsg"
    if instead in ("null", "zero"):
        place.symlink_to(f"/dev/{instead}")
    elif instead == "file":
        place.write_text("6,1,1,-;oom-kill:constraint=X,oom_memcg=/other,task_memcg=/slice/me,task=x\n")
    elif instead == "pipe":
        os.mkfifo(place)
    monkeypatch.setattr(cgroups, "KERNEL_LOG", str(place))
    # then it says nothing
    log = cgroups.KernelLog()
    assert not log.readable
    assert log.blamed("me") == set()


@pytest.mark.spec("J7")
def test_the_kernels_log_is_known_by_its_device() -> None:
    # given whatever this machine has in its place, and whatever this process may do with it
    readable = False
    with contextlib.suppress(OSError):
        found = os.stat("/dev/kmsg")
        if stat.S_ISCHR(found.st_mode) and (os.major(found.st_rdev), os.minor(found.st_rdev)) == (1, 11):
            os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
            readable = True
    assert cgroups.KernelLog().readable == readable


@pytest.mark.spec("J7")
@pytest.mark.parametrize("watches", [True, False])
def test_what_the_kernel_ended_is_counted_where_a_containers_keeper_does_not_hear_of_it(
    tmp_path: Path, watches: bool
) -> None:
    # given a container that met its limit, and what its keeper said when the body began
    groups, place = groups_in(tmp_path, 2, CgroupLimits())
    (place / "memory.events.local").write_text("oom 1\noom_kill 1\n")
    status = os.memfd_create("keeper")
    words = {"pid": 1, "version": 2, "places": groups.places, "watches": watches}
    os.write(status, json.dumps(words).encode() + b"\n")
    task = Task(Engine("/nowhere"), "name", "image", lambda found: found, lambda: None, str(tmp_path), 0, 64, None)
    folders = Folders(Order("att_0a.1", 1, "job_0a", ("true",), 1, 1, 1, 1), str(tmp_path))
    with subprocess.Popen(["true"]) as keeper:
        body = ContainerBody(keeper.pid, status, task, folders)
        # then whoever asks for its use hears of it, unless the keeper sees to it
        assert body.usage().oom_kills == (0 if watches else 1)
    os.write(status, b'{"exit_code": 0}\n')
    assert body.ended(0, "") == Ended(0)


def test_processes_of_all_groups_are_found(tmp_path: Path) -> None:
    groups, place = groups_in(tmp_path, 1, CgroupLimits())
    (place / "cgroup.procs").write_text("12\n7\n")
    assert groups.pids() == [7, 12]


def test_the_name_does_not_depend_on_how_the_folder_is_written(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.symlink(tmp_path / "a", tmp_path / "b")
    assert cgroups.name_of(str(tmp_path / "b")) == cgroups.name_of(f"{tmp_path}/x/../a")
