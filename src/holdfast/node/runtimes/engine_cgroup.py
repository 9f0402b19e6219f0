"""The cgroups that an engine made for a container, from the outside: where they are, and whether the kernel ended
something in them for want of memory. Reads only: the engine makes them, and takes them away at once when the
container has ended, so what must be known afterwards has to be watched for.
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
"""For the kernel to tell of a cgroup's removal, which it does by a worker of its own; some milliseconds as a rule."""
_UNREACHABLE = 1 << 62
_AFTER_CALL_S = 10.0
"""From the kernel's call to the kill that it was for: it writes pages into its log between them, which may be slow."""


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
    """Hears of it when the kernel ends a process of the container for want of memory, and whose limit it was.

    Version 1 calls (`LimitCalls`), before it ends anything; what it called for is kept, whoever looks when, and however
    soon the engine has removed the cgroup. The removal is one more call for each eventfd of it, so that a third one
    stands by, for an amount that nobody reaches: that is called for nothing else, and last, since the kernel has more
    to do for it. Version 2 has a file of counters that can be waited for: `oom` for its own limit, `oom_kill` for
    every kill. Where the kernel's log can be read, it names the cgroup whose limit it was.
    """

    def __init__(self, groups: Groups) -> None:
        """OSError where it cannot be watched."""
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
        """Whether the last look could count every kill: the cgroup was still there."""
        return not self._gone

    @property
    def sure(self) -> bool:
        """Whether no kill can have been missed, not even one for want of the machine's own memory, for which nobody is
        called."""
        return self.counted or self._log.readable

    @property
    def met_above(self) -> bool:
        """Whether it was a cgroup above that met its limit, and not this one."""
        return self._calls is not None and self._calls.above > 0 and not self._own

    def expects(self) -> bool:
        """Whether somebody was called a moment ago, and no kill is seen yet: to be looked for again soon."""
        return not self.kills and not self._gone and time.monotonic() < self._called_at + _AFTER_CALL_S

    def look(self) -> None:
        """Take in what happened until now."""
        if self._calls is not None and self._calls.take():
            self._called_at = time.monotonic()
        try:
            counters = _table(os.pread(self._counters, 4096, 0))
            self.kills = max(self.kills, counters.get("oom_kill", 0))
            # What can be read is not removed, so no call was for that.
            self._own |= self._calls.for_own() if self._calls else counters.get("oom", 0) > 0
        except OSError as error:
            self._gone = error.errno == errno.ENODEV

    def verdict(self) -> str:
        """When the container has ended: `oom_job` where its own limit cost it a process, `oom_node` where it was
        another's or the machine's, empty where none is known to have been ended."""
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
