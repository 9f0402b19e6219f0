"""The cgroups that an engine created for a container: where they are, and whether the OOM killer ended a process in
them. The engine creates them, and removes them as soon as the container has ended, so anything that is needed
afterwards has to be watched for. Only the group around the steps of a build is made here.
"""

import contextlib
import errno
import os
import select
import signal
import time

from holdfast.node import linux
from holdfast.node.runtimes.cgroups import Groups, KernelLog, LimitCalls, calls_for

_WORD_S = 5.0
"""For the kernel to notify of a cgroup's removal, which a worker thread does; usually some milliseconds."""
_UNREACHABLE = 1 << 62
_AFTER_CALL_S = 10.0
"""From the kernel's notification to the kill: it writes its log in between, which may be slow."""


def groups_of(pid: int) -> Groups:
    """The cgroups of a process, as far as they are visible from here."""
    mounts = _mounts()
    found: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/cgroup") as lines:
        for line in lines:
            _, names, path = line.rstrip("\n").split(":", 2)
            for name in names.split(","):
                if name in mounts and (place := _below(*mounts[name], path)):
                    found[name] = place
    if "memory" in found:
        return Groups(1, {name: place for name, place in found.items() if name})
    one = found.get("", "")
    return Groups(2, dict.fromkeys(("memory", "cpu", "cpuacct", "pids", "blkio"), one) if one else {})


def pids_in(token: str) -> set[int]:
    """The processes in cgroups whose name contains this token, and in those below."""
    pids: set[int] = set()
    for place, _ in set(_mounts().values()):
        for top, _, _ in os.walk(place):
            if token in top:
                with contextlib.suppress(OSError, ValueError), open(f"{top}/cgroup.procs") as lines:
                    pids |= {int(line) for line in lines}
    return pids - {os.getpid()}


def kill_all(token: str) -> int:
    """Kill these processes; returns how many there were."""
    pids = pids_in(token)
    linux.signal_all(sorted(pids), signal.SIGKILL)
    return len(pids)


def written_layers(token: str) -> set[str]:
    """The folders of the machine to which containers in these cgroups write, where the engine uses overlays."""
    found: set[str] = set()
    for pid in pids_in(token):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/mountinfo") as lines:
            roots = [line for line in lines if line.split()[4] == "/" and " - overlay " in line]
            options = roots[-1].split()[-1].split(",") if roots else []
            found |= {option.removeprefix("upperdir=") for option in options if option.startswith("upperdir=")}
    return found


def hold_pids(name: str, pids_max: int) -> None:
    """Limit the number of processes in the group of this name, at the top of its hierarchy; it is made if it does not
    exist. Raises OSError if there is no such limit on this machine."""
    mounts = _mounts()
    top = mounts.get("pids", mounts.get("", ("", "")))[0]
    if not top:
        raise OSError(errno.ENODEV, "the machine has no control group for processes")
    os.makedirs(f"{top}/{name}", exist_ok=True)
    with open(f"{top}/{name}/pids.max", "w") as file:
        file.write(str(pids_max))


def remove_groups(name: str) -> bool:
    """Remove the groups of this name, at the top of every hierarchy, and those in them. Returns False if one is in
    use."""
    tops = [f"{place}/{name}" for place, _ in set(_mounts().values())]
    for top in tops:
        for group, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(group)
    return not any(map(os.path.isdir, tops))


def hold_back(devices: tuple[str, ...], bytes_s: int) -> None:
    """Limit the write rate of these disks, `major:minor`, for everyone; 0: no limit. With version 1, writeback from the
    page cache is charged to no group, so that no limit on a container can hold it; but the container's own disk can be
    limited as a whole."""
    top = _mounts().get("blkio", ("", ""))[0]
    for device in devices if top else ():
        with open(f"{top}/blkio.throttle.write_bps_device", "w") as file:
            file.write(f"{device} {bytes_s}")


def _mounts() -> dict[str, tuple[str, str]]:
    """By controller, `""` for version 2: the mount point of its hierarchy, and the subtree that is mounted."""
    found: dict[str, tuple[str, str]] = {}
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split(None, 2)
            root, place = before.split()[3:5]
            names = [""] if kind == "cgroup2" else options.strip().split(",") if kind == "cgroup" else []
            for name in names:
                found.setdefault(name, (place, root))
    return found


def _below(place: str, root: str, path: str) -> str:
    if root != "/" and not (path + "/").startswith(root + "/"):
        return ""
    whole = os.path.normpath(place + "/" + (path if root == "/" else path[len(root) :]))
    return whole if os.path.isdir(whole) else ""


def _table(text: bytes) -> dict[str, int]:
    """`name value` lines."""
    pairs = (line.split() for line in text.decode().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


class MemoryWatch:
    """Is notified when the OOM killer ends a process of the container, and finds out whose limit was hit.

    Version 1 sends notifications (`LimitCalls`) before it ends anything; they are kept, whenever they are read, and
    even if the engine has already removed the cgroup. The removal is one more notification for each of its eventfds, so
    there is a third eventfd, for a threshold that is never reached: it is signalled only at the removal, and last.
    Version 2 has a file of counters that can be waited for: `oom` for its own limit, `oom_kill` for every kill. If the
    kernel's log can be read, it names the cgroup whose limit was hit.
    """

    def __init__(self, groups: Groups) -> None:
        """Raises OSError if it cannot be watched."""
        self.kills = 0
        self._own = False
        self._called_at = -_AFTER_CALL_S
        self._gone = False
        self._first = groups.version == 1
        place = groups.places.get("memory", "")
        self._name = os.path.basename(place)
        self._log = KernelLog()
        self._counters = os.open(f"{place}/memory.{'oom_control' if self._first else 'events'}", os.O_RDONLY)
        self.fd, self.events = self._counters, select.POLLPRI
        self._calls: LimitCalls | None = None
        if self._first:
            self._removal = calls_for(place, "memory.usage_in_bytes", _UNREACHABLE)
            self._calls = LimitCalls(place)
            self.fd, self.events = self._calls.fd, select.POLLIN
        self.look()

    @property
    def counted(self) -> bool:
        """Whether the last check could count every kill: the cgroup still existed."""
        return not self._gone

    @property
    def sure(self) -> bool:
        """Whether no kill can have been missed, not even one because the machine's own memory ran out, for which there
        is no notification."""
        return self.counted or self._log.readable

    @property
    def met_above(self) -> bool:
        """Whether a cgroup above hit its limit, and not this one."""
        return self._calls is not None and self._calls.above > 0 and not self._own

    def expects(self) -> bool:
        """Whether a notification came a moment ago, and no kill has been seen yet: check again soon."""
        return not self.kills and not self._gone and time.monotonic() < self._called_at + _AFTER_CALL_S

    def look(self) -> None:
        """Read what happened so far."""
        if self._calls is not None and self._calls.take():
            self._called_at = time.monotonic()
        try:
            counters = _table(os.pread(self._counters, 4096, 0))
            self.kills = max(self.kills, counters.get("oom_kill", 0))
            # The cgroup can be read, so it was not removed, and no notification was for its removal.
            self._own |= self._calls.for_own() if self._calls else counters.get("oom", 0) > 0
        except OSError as error:
            self._gone = error.errno == errno.ENODEV

    def verdict(self) -> str:
        """After the container has ended: `oom_job` if its own limit cost it a process, `oom_node` if another limit or
        the machine's memory did, empty if no kill is known."""
        self.look()
        if self._calls is not None and self._gone:
            removed = bool(select.select([self._removal], [], [], _WORD_S)[0])
            self.look()
            if self._calls.for_own(removed):
                self.kills, self._own = max(1, self.kills), True
        blamed = self._log.blamed(self._name)
        if blamed:
            return "oom_job" if self._name in blamed else "oom_node"
        if not self.kills:
            return ""
        return "oom_job" if self._own else "oom_node"
