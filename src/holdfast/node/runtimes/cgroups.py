"""Control groups of one attempt, version 1 and 2: its limits, its usage, and why the kernel ended a process of it.

Groups are created below the node's own, so that a limit on the node also holds for its jobs. Their paths are written to
the attempt's folder before they are created, so that `clean` finds them after any crash. If a controller is missing,
its limit is enforced by other means, and `Hierarchy.missing` has the reason. Knows no sandbox and no order.

Version 2: on a machine that has only version 1, tests emulate it with a tree of plain files.
"""

import contextlib
import errno
import json
import os
import re
import signal
import stat
import time
from dataclasses import dataclass, field
from hashlib import sha256

from holdfast.durable import atomic_write
from holdfast.passing import briefly, once_more, raise_if_passing, unless_passing

RECORD = "cgroups.json"
CONTROLLERS = ("memory", "cpu", "cpuacct", "pids", "blkio")
"""The names in version 1; `_V2` maps them to those of version 2."""
_V2 = {"memory": "memory", "cpu": "cpu", "cpuacct": "cpu", "pids": "pids", "blkio": "io"}
NODE_LEAF = "holdfast-node"
"""Version 2 allows processes only in leaf groups: the node itself moves here, beside its jobs."""
_PERIOD_US = 100_000
_CHARGE_BYTES = MIB = 1 << 20
"""Memory is charged in batches: one that no longer fitted is not included in the peak usage."""
_EMPTY_S = 10.0
_SWEEP_S = 0.005
KERNEL_LOG = "/dev/kmsg"
_OOM = re.compile(r"oom-kill:.*oom_memcg=([^,]*),task_memcg=([^,]*)")


def name_of(folder: str) -> str:
    """The name of the groups of the attempt in this folder, even if the folder is gone."""
    return f"holdfast-{sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:20]}"


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, value: object) -> None:
    with open(path, "w") as file:
        file.write(str(value))


def _numbers(path: str) -> dict[str, int]:
    """A file with lines `name number`; empty if it does not exist. Raises OSError if it cannot be read now."""
    with unless_passing():
        pairs = [line.split() for line in _read(path).splitlines()]
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    return {}


def _number(path: str) -> int:
    with unless_passing(), contextlib.suppress(ValueError):
        return int(_read(path))
    return 0


# --- detection ---


@dataclass(frozen=True)
class Hierarchy:
    """Where the groups of attempts are created, by controller, and why some controllers are missing."""

    version: int = 0
    bases: dict[str, str] = field(default_factory=dict[str, str])
    missing: dict[str, str] = field(default_factory=dict[str, str])
    top: str = ""
    """Version 1: mount point of the blkio hierarchy. Writes that are charged to no group are limited there."""


def detect(proc: str = "/proc/self") -> Hierarchy:
    """What this process may use. Creates no group of an attempt, but with version 2 prepares the parent group. Raises
    OSError if that cannot be told now: a job must not run without its limits because of that."""
    try:
        mounts = [line.split() for line in _read(f"{proc}/mountinfo").splitlines()]
        own = {key: path for _, key, path in (line.split(":", 2) for line in _read(f"{proc}/cgroup").splitlines())}
    except (OSError, ValueError) as error:
        raise_if_passing(error)
        return Hierarchy(missing=dict.fromkeys(CONTROLLERS, f"control groups cannot be found: {error}"))
    v1: dict[str, tuple[str, str]] = {}
    v2 = ""
    for words in mounts:
        kind, options = words[words.index("-") + 1], words[-1].split(",")
        if kind == "cgroup2" and "" in own:
            v2 = v2 or _place(words[4], words[3], own[""])
        elif kind == "cgroup":
            keys = [key for key in own if key and set(key.split(",")) <= {*options}]
            v1 |= {name: (_place(words[4], words[3], own[key]), words[4]) for key in keys for name in key.split(",")}
    if "memory" in v1:
        return _first(v1)
    return _second(v2)


def _place(mounted: str, root: str, own: str) -> str:
    """The path of the group `own` in a hierarchy whose subtree `root` is mounted at `mounted`."""
    inner = own[len(root) :] if root != "/" and (own + "/").startswith(root + "/") else own
    return os.path.normpath(f"{mounted}/{inner}")


def _first(v1: dict[str, tuple[str, str]]) -> Hierarchy:
    bases: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in CONTROLLERS:
        if name not in v1:
            missing[name] = f"the controller {name} is not mounted"
        elif not os.access(v1[name][0], os.W_OK):
            missing[name] = f"no right to make groups in {v1[name][0]}"
        else:
            bases[name] = v1[name][0]
    return Hierarchy(1, bases, missing, v1.get("blkio", ("", ""))[1])


def _second(own: str) -> Hierarchy:
    if not own:
        return Hierarchy(missing=dict.fromkeys(CONTROLLERS, "no control groups are mounted"))
    base = os.path.dirname(own) if os.path.basename(own) == NODE_LEAF else own
    try:
        _settle(base)
        there = _read(f"{base}/cgroup.subtree_control").split()
    except OSError as error:
        raise_if_passing(error)
        why = f"no groups can be made in {base}: {error.strerror}"
        return Hierarchy(2, missing=dict.fromkeys(CONTROLLERS, why))
    missing = {name: f"the controller {v2} is not given to {base}" for name, v2 in _V2.items() if v2 not in there}
    return Hierarchy(2, {name: base for name in CONTROLLERS if name not in missing}, missing)


def _settle(base: str) -> None:
    """Enable the controllers for groups below `base`. Processes must leave `base` first, unless it is the root group,
    which has no `cgroup.type`."""
    given = set(_read(f"{base}/cgroup.controllers").split())
    wanted = {*_V2.values()} & given - {*_read(f"{base}/cgroup.subtree_control").split()}
    if wanted and os.path.exists(f"{base}/cgroup.type"):
        leaf = f"{base}/{NODE_LEAF}"
        os.makedirs(leaf, exist_ok=True)
        for pid in _read(f"{base}/cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                _write(f"{leaf}/cgroup.procs", pid)
    for name in sorted(wanted):
        with unless_passing():  # a controller that cannot be enabled is reported as missing
            _write(f"{base}/cgroup.subtree_control", f"+{name}")


# --- the groups of one attempt ---


@dataclass(frozen=True)
class CgroupLimits:
    """0: none."""

    memory_bytes: int = 0
    cpu_milli: int = 0
    pids: int = 0
    disk_bytes_s: int = 0
    devices: tuple[str, ...] = ()
    """`major:minor` of the disks whose bandwidth is limited."""
    own_devices: tuple[str, ...] = ()
    """Those of them that only this attempt uses."""


@dataclass
class Sample:
    cpu_ms: int = 0
    memory_mib: int = 0
    memory_peak_mib: int = 0
    pids: int = 0
    throttled_permille: int = 0
    oom_kills: int = 0


class Groups:
    """The groups of one attempt, by controller."""

    def __init__(self, version: int, places: dict[str, str], top: str = "") -> None:
        self.version = version
        self.places = places
        self._top = top
        self._periods = (0, 0)
        self._kernel_log = KernelLog()
        self._calls: LimitCalls | None = None

    @staticmethod
    def make(folder: str, hierarchy: Hierarchy, limits: CgroupLimits) -> "Groups":
        """Create them with their limits. Raises OSError if the kernel refuses one: no limit is silently omitted."""
        name = name_of(folder)
        groups = Groups(hierarchy.version, {key: f"{base}/{name}" for key, base in hierarchy.bases.items()})
        groups._top = hierarchy.top
        groups._record(folder)
        for place in dict.fromkeys(groups.places.values()):
            os.makedirs(place, mode=0o755, exist_ok=True)
        groups._limit(limits)
        if groups.version == 1 and "memory" in groups.places:
            with contextlib.suppress(OSError):
                groups._calls = LimitCalls(groups.places["memory"])
        return groups

    def _record(self, folder: str) -> None:
        record = {"version": self.version, "places": self.places, "top": self._top}
        atomic_write(os.path.join(folder, RECORD), json.dumps(record).encode())

    def _set(self, controller: str, file: str, value: object) -> None:
        if controller in self.places:
            try:
                _write(f"{self.places[controller]}/{file}", value)
            except OSError as error:
                raise OSError(error.errno, f"{file} cannot be set to {value}: {error.strerror}") from None

    def _limit(self, limits: CgroupLimits) -> None:
        quota = max(1_000, limits.cpu_milli * _PERIOD_US // 1_000)
        rate = limits.disk_bytes_s
        if self.version == 1:
            self._limit_memory_v1(limits.memory_bytes)
            if limits.cpu_milli:
                self._set("cpu", "cpu.cfs_period_us", _PERIOD_US)
                self._set("cpu", "cpu.cfs_quota_us", quota)
            for device in limits.devices if rate else ():
                for way in ("read", "write"):
                    self._set("blkio", f"blkio.throttle.{way}_bps_device", f"{device} {rate}")
            for device in limits.own_devices if rate and "blkio" in self.places else ():
                # Writeback from the page cache is done by the kernel's own threads and charged to no group.
                _write(f"{self._top}/blkio.throttle.write_bps_device", f"{device} {rate}")
        else:
            if limits.memory_bytes:
                self._set("memory", "memory.max", limits.memory_bytes)
                self._set("memory", "memory.oom.group", 1)
                with contextlib.suppress(FileNotFoundError):  # a kernel without swap has no such file
                    self._set("memory", "memory.swap.max", 0)
            if limits.cpu_milli:
                self._set("cpu", "cpu.max", f"{quota} {_PERIOD_US}")
            for device in limits.devices if rate else ():
                self._set("blkio", "io.max", f"{device} rbps={rate} wbps={rate}")
        if limits.pids:
            self._set("pids", "pids.max", limits.pids)

    def _limit_memory_v1(self, limit: int) -> None:
        if not limit or "memory" not in self.places:
            return
        self._set("memory", "memory.limit_in_bytes", limit)
        if os.path.exists(f"{self.places['memory']}/memory.memsw.limit_in_bytes"):
            self._set("memory", "memory.memsw.limit_in_bytes", limit)
        else:
            self._set("memory", "memory.swappiness", 0)

    def join(self) -> None:
        """Move this process, and so all its future children, into the groups."""
        for place in dict.fromkeys(self.places.values()):
            _write(f"{place}/cgroup.procs", 0)

    # --- usage ---

    def sample(self) -> Sample:
        return self._sample_v1() if self.version == 1 else self._sample_v2()

    def _sample_v1(self) -> Sample:
        memory, cpu = self.places.get("memory", ""), self.places.get("cpu", "")
        used = _number(f"{memory}/memory.usage_in_bytes")
        idle = _numbers(f"{memory}/memory.stat").get("total_inactive_file", 0)
        return Sample(
            _number(f"{self.places.get('cpuacct', '')}/cpuacct.usage") // 1_000_000,
            max(0, used - idle) // MIB,
            _number(f"{memory}/memory.max_usage_in_bytes") // MIB,
            _number(f"{self.places.get('pids', '')}/pids.current"),
            self._throttled(_numbers(f"{cpu}/cpu.stat")),
            self._own_oom_kills(),
        )

    def _sample_v2(self) -> Sample:
        memory, cpu = self.places.get("memory", ""), self.places.get("cpu", "")
        used = _number(f"{memory}/memory.current")
        idle = _numbers(f"{memory}/memory.stat").get("inactive_file", 0)
        spent = _numbers(f"{cpu}/cpu.stat")
        return Sample(
            spent.get("usage_usec", 0) // 1_000,
            max(0, used - idle) // MIB,
            max(used, _number(f"{memory}/memory.peak")) // MIB,
            _number(f"{self.places.get('pids', '')}/pids.current"),
            self._throttled(spent),
            self._own_oom_kills(),
        )

    def _throttled(self, stat: dict[str, int]) -> int:
        """In how many of 1,000 periods since the last check the quota ran out."""
        periods, throttled = stat.get("nr_periods", 0), stat.get("nr_throttled", 0)
        passed, held = periods - self._periods[0], throttled - self._periods[1]
        self._periods = periods, throttled
        return min(1_000, 1_000 * held // passed) if passed > 0 else 0

    @property
    def sees_memory(self) -> bool:
        """Whether `oom` can be used: it needs the memory controller."""
        return "memory" in self.places

    def _oom_kills(self) -> int:
        """Processes in the group that the OOM killer ended, for any limit."""
        memory = self.places.get("memory", "")
        if self.version == 1:
            return _numbers(f"{memory}/memory.oom_control").get("oom_kill", 0)
        return self._events().get("oom_kill", 0)

    def _events(self) -> dict[str, int]:
        memory = self.places.get("memory", "")
        return _numbers(f"{memory}/memory.events.local") or _numbers(f"{memory}/memory.events")

    def _own_oom_kills(self) -> int:
        kills = self._oom_kills()
        return kills if kills and self._by_own_limit() else 0

    def _by_own_limit(self) -> bool:
        """Whether this group's own limit was hit, rather than that of a parent group or the machine's memory.

        Version 2 counts this. Version 1 does not: there the kernel log names the group. If the log cannot be read, the
        OOM notifications decide; if nobody was subscribed to them, a group that never reached its limit is not to
        blame, although one that filled it with page cache may be innocent as well."""
        if self.version == 2:
            return self._events().get("oom", 0) > 0
        memory = self.places["memory"]
        if blamed := self._kernel_log.blamed(os.path.basename(memory)):
            return os.path.basename(memory) in blamed
        if self._calls is not None:
            self._calls.take()
            return self._calls.for_own()
        most = _number(f"{memory}/memory.max_usage_in_bytes")
        return most + _CHARGE_BYTES >= _number(f"{memory}/memory.limit_in_bytes")

    def oom(self) -> str:
        """`oom_job`: a process was ended because this group hit its own limit. `oom_node`: one was ended although it
        did not. Empty: none was ended."""
        return briefly(self._oom)

    def _oom(self) -> str:
        if not self._oom_kills():
            return ""
        return "oom_job" if self._by_own_limit() else "oom_node"

    def pids(self) -> list[int]:
        found: set[int] = set()
        for place in dict.fromkeys(self.places.values()):
            with contextlib.suppress(OSError, ValueError):
                found |= {int(pid) for pid in _read(f"{place}/cgroup.procs").split()}
        return sorted(found)

    # --- removal ---

    def remove(self) -> None:
        """Kill every process in the groups, then remove them. Raises OSError if one cannot be removed."""
        deadline = time.monotonic() + _EMPTY_S
        for place in dict.fromkeys(self.places.values()):
            while not self._removed(place):
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, f"processes in {place} do not die")
                self._kill()
                time.sleep(_SWEEP_S)

    def _removed(self, place: str) -> bool:
        try:
            os.rmdir(place)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def _kill(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def lift(self, devices: tuple[str, ...]) -> None:
        """Remove the limits that were set for these disks outside of the groups: device numbers are reused."""
        for device in devices if self._top else ():
            with contextlib.suppress(OSError):
                _write(f"{self._top}/blkio.throttle.write_bps_device", f"{device} 0")


class LimitCalls:
    """Counts OOM notifications for a group's own limit and for a limit above it (version 1).

    The group's eventfd is signalled for its own limit and for those above it, the parent's eventfd only for the latter,
    and first: the difference of the two counts is the number of times that its own limit was hit."""

    def __init__(self, place: str) -> None:
        """Raises OSError if the kernel does not support it."""
        self.calls = self.above = 0
        self.fd = self._above = -1
        self.fd = calls_for(place, "memory.oom_control")
        with contextlib.suppress(OSError):  # the root group has no limit
            self._above = calls_for(os.path.dirname(place), "memory.oom_control")

    def take(self) -> int:
        """Read the new notifications; returns how many there were for the group."""
        called = _taken(self.fd)
        self.calls += called
        self.above += _taken(self._above)  # read last, because it is signalled first
        return called

    def for_own(self, others: int = 0) -> bool:
        """Whether some notification was for its own limit; `others`: how many were for something else."""
        return self.calls - others > self.above

    def __del__(self) -> None:
        for fd in (self.fd, self._above):
            if fd >= 0:
                os.close(fd)


def calls_for(place: str, file: str, *words: object) -> int:
    """An eventfd that the kernel signals for events of this file of a group (version 1), and when the group is
    removed."""
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        with open(f"{place}/{file}") as about, open(f"{place}/cgroup.event_control", "w") as control:
            control.write(" ".join(str(word) for word in (fd, about.fileno(), *words)))
    except OSError:
        os.close(fd)
        raise
    return fd


def _taken(fd: int) -> int:
    with contextlib.suppress(BlockingIOError):
        return os.eventfd_read(fd) if fd >= 0 else 0
    return 0


class KernelLog:
    """Kernel log lines since this object was created; empty if the log may not be read.

    In a container another device (the null device, a terminal) is often in its place; that is not read."""

    def __init__(self) -> None:
        self._fd = -1
        self._lines: list[str] = []
        with contextlib.suppress(OSError):
            if _is_kernel_log(os.stat(KERNEL_LOG)):
                self._fd = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
                os.lseek(self._fd, 0, os.SEEK_END)

    @property
    def readable(self) -> bool:
        return self._fd >= 0

    def blamed(self, group: str) -> set[str]:
        """The groups because of whose limit a process in `group` was ended; the root's name is empty."""
        while self._fd >= 0:
            try:
                self._lines += [
                    line for line in [os.read(self._fd, 8192).decode(errors="replace")] if "oom-kill:" in line
                ]
            except BlockingIOError:
                break
            except BrokenPipeError:  # older lines were overwritten: continue with newer ones
                continue
            except OSError:
                break
        found = [match.groups() for line in self._lines if (match := _OOM.search(line))]
        return {os.path.basename(oom) for oom, task in found if os.path.basename(task) == group}

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _is_kernel_log(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 11)


def recorded(folder: str) -> Groups | None:
    """The groups of the attempt in this folder, as recorded before they were created; None: it had none. Raises OSError
    if that cannot be told now."""
    try:
        raw = json.loads(once_more(_read, os.path.join(folder, RECORD)))
        version, places, top = raw["version"], raw["places"], raw["top"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise_if_passing(error)
        return None
    name = name_of(folder)
    if not isinstance(places, dict) or any(os.path.basename(str(place)) != name for place in places.values()):
        return None
    return Groups(2 if version == 2 else 1, {str(key): str(place) for key, place in places.items()}, str(top))
