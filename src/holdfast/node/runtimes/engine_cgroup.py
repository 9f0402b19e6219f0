"""The cgroups that an engine made for a container, from the outside: where they are, and whether the kernel ended
something in them for want of memory. Reads only: the engine makes them, and takes them away at once when the
container has ended, so what must be known afterwards has to be watched for.
"""

import contextlib
import errno
import os
import select
import signal

from holdfast.node import linux
from holdfast.node.runtimes.cgroups import Groups, KernelLog

_WORD_S = 0.2
"""For the kernel to tell of a cgroup's removal, which it does by a worker of its own."""


def groups_of(pid: int) -> Groups:
    """The cgroups of a process, as far as they can be seen from here."""
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


def kill_all(token: str) -> int:
    """Kill every process in cgroups whose name holds this word, and in those below; how many there were."""
    pids: set[int] = set()
    for place, _ in set(_mounts().values()):
        for top, _, _ in os.walk(place):
            if token in top:
                with contextlib.suppress(OSError, ValueError), open(f"{top}/cgroup.procs") as lines:
                    pids |= {int(line) for line in lines}
    linux.signal_all(sorted(pids - {os.getpid()}), signal.SIGKILL)
    return len(pids)


def hold_back(devices: tuple[str, ...], bytes_s: int) -> None:
    """Limit how fast anybody may write to these disks, `major:minor`; 0: no more. With version 1, what was written to
    the page cache reaches the disk by nobody's hand, so that no limit on a container can hold it: but its own disk can
    be limited for all."""
    top = _mounts().get("blkio", ("", ""))[0]
    for device in devices if top else ():
        with open(f"{top}/blkio.throttle.write_bps_device", "w") as file:
            file.write(f"{device} {bytes_s}")


def _mounts() -> dict[str, tuple[str, str]]:
    """By controller, `""` for version 2: where its hierarchy is mounted, and which part of it."""
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
    """Hears of it when the kernel ends a process of the container for want of memory.

    Version 1 counts on an eventfd how often the cgroup's own limit (or that of one above it) brought that about, and
    once more when the cgroup is removed; `memory.failcnt` says whether its own limit was ever met. Version 2 has a
    file of counters that can be waited for: `oom` for its own limit, `oom_kill` for every kill. Where the kernel's
    log can be read, it names the cgroup whose limit it was.
    """

    def __init__(self, groups: Groups) -> None:
        """OSError where it cannot be watched."""
        self.kills = 0
        self._own = False
        self._calls = 0
        self._gone = False
        self._first = groups.version == 1
        place = groups.places.get("memory", "")
        self._name = os.path.basename(place)
        self._log = KernelLog()
        self._counters = os.open(f"{place}/memory.{'oom_control' if self._first else 'events'}", os.O_RDONLY)
        self.fd, self.events = self._counters, select.POLLPRI
        if self._first:
            self._failures = os.open(f"{place}/memory.failcnt", os.O_RDONLY)
            self.fd, self.events = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), select.POLLIN
            with open(f"{place}/cgroup.event_control", "w") as file:
                file.write(f"{self.fd} {self._counters}")
        self.look()

    def look(self) -> None:
        """Take in what happened until now."""
        if self._first:
            with contextlib.suppress(BlockingIOError):
                self._calls += os.eventfd_read(self.fd)
        try:
            counters = _table(os.pread(self._counters, 4096, 0))
            self.kills = max(self.kills, counters.get("oom_kill", 0))
            if self._first:
                self._own |= self._calls > 0 and int(os.pread(self._failures, 64, 0)) > 0
            else:
                self._own |= counters.get("oom", 0) > 0
        except (OSError, ValueError) as error:
            self._gone = isinstance(error, OSError) and error.errno == errno.ENODEV

    def verdict(self) -> str:
        """When the container has ended: `oom_job` where its own limit cost it a process, `oom_node` where it was
        another's or the machine's, empty where none was ended.

        The cgroup may be gone before its last counters were read. Then the calls are the evidence: one is for the
        removal, any other for memory."""
        self.look()
        if self._first and self._gone and not self.kills and self._calls:
            if self._calls == 1 and select.select([self.fd], [], [], _WORD_S)[0]:
                self._calls += os.eventfd_read(self.fd)
            if self._calls > 1:
                self.kills, self._own = 1, True
        blamed = self._log.blamed(self._name)
        if blamed:
            return "oom_job" if self._name in blamed else "oom_node"
        if not self.kills:
            return ""
        return "oom_job" if self._own else "oom_node"
