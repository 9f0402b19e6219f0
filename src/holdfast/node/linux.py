"""Kernel services that Python 3.11 does not offer: prctl, mounts, a timer on CLOCK_BOOTTIME, descendants of a process.

Standard library only; used by the shim, the launcher and the runtimes. Knows nothing about attempts.
"""

import contextlib
import ctypes
import os
import re
import signal
import time
from dataclasses import dataclass
from functools import cache

from holdfast.passing import briefly, once_more, unless_passing

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_TFD_TIMER_ABSTIME = 1

MS_NOSUID, MS_NODEV, MS_NOATIME, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 1024, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_KEEP_SIZE = 1
CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000


class _TimeSpec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _TimerSpec(ctypes.Structure):
    _fields_ = [("interval", _TimeSpec), ("value", _TimeSpec)]


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this signal when the parent dies. The caller checks that the parent was still alive."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, so that none can escape by daemonising."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def name_process(name: str) -> None:
    """The name that `ps` and `top` show, up to 15 letters."""
    _checked(_libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0), "prctl")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = (os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _checked(_libc.mount(*words), f"mount {target}")


def unmount(target: str) -> None:
    """Unmount lazily: detached at once even if in use, and freed when no longer used."""
    _checked(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"unmount {target}")


def enter(fd: int, kind: int) -> None:
    """Move this process into the namespace behind the descriptor."""
    _checked(_libc.setns(fd, kind), "setns")


def leave(kind: int) -> None:
    """Move this process into a new namespace of this kind."""
    _checked(_libc.unshare(kind), "unshare")


def own_addresses(fib_trie: str = "/proc/net/fib_trie", if_inet6: str = "/proc/net/if_inet6") -> list[str]:
    """The addresses of the machine's interfaces at this moment, except loopback. A kernel without IPv6 has no
    `if_inet6`."""
    found = set(re.findall(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL", briefly(_text, fib_trie)))
    with contextlib.suppress(FileNotFoundError):
        digits = [line.split()[0] for line in briefly(_text, if_inet6).splitlines()]
        found |= {":".join(re.findall("....", address)) for address in digits if int(address, 16) != 1}
    return sorted(address for address in found if not address.startswith("127."))


def reserve(fd: int, size: int, *, keep_size: bool = False) -> None:
    """Reserve disk space for a file of this size. Raises OSError if there is not enough, or if it cannot be guaranteed.
    `keep_size`: the file stays as short as it is, and grows into that space.

    Unlike this, `os.posix_fallocate` writes zeros if the file system has no support."""
    mode = _KEEP_SIZE if keep_size else 0
    _checked(_libc.fallocate64(fd, mode, ctypes.c_longlong(0), ctypes.c_longlong(size)), "fallocate")


class BootTimer:
    """A file descriptor that becomes readable at a time of CLOCK_BOOTTIME.

    An epoll timeout stops while the machine is suspended; this one has expired on resume.
    """

    def __init__(self) -> None:
        flags = os.O_CLOEXEC | os.O_NONBLOCK
        self.fd = _checked(_libc.timerfd_create(time.CLOCK_BOOTTIME, flags), "timerfd_create")

    def fileno(self) -> int:
        return self.fd

    def set(self, at_ms: int) -> None:
        at_ms = max(at_ms, 1)  # 0 would disarm it
        value = _TimeSpec(at_ms // 1000, at_ms % 1000 * 1_000_000)
        spec = _TimerSpec(_TimeSpec(0, 0), value)
        _checked(_libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None), "timerfd_settime")

    def clear(self) -> None:
        with contextlib.suppress(OSError):  # one that is not cleared is seen again at once
            os.read(self.fd, 8)


def _text(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()


def _stat(pid: int | str) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; the name before it may contain any characters. None: there is no
    such process. Raises OSError if it cannot be read for another reason."""
    try:
        return once_more(_text, f"/proc/{pid}/stat").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _stat_if_readable(pid: int | str) -> list[str] | None:
    """For callers that look again soon, and conclude nothing from None."""
    with contextlib.suppress(OSError):
        return _stat(pid)
    return None


@cache
def boot_id() -> str:
    """Names this run of the kernel: pids and ticks mean nothing in another one. Empty: the kernel does not say. Raises
    OSError if that cannot be told now."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        return briefly(_text, "/proc/sys/kernel/random/boot_id").strip()
    return ""


def is_in(pid: int, folder: str) -> bool:
    """Whether the current folder of this process is this one, as far as can be seen."""
    with unless_passing():
        return os.path.samestat(briefly(os.stat, f"/proc/{pid}/cwd"), briefly(os.stat, folder))
    return False


def start_ticks(pid: int) -> int | None:
    """The start time in ticks since boot, which together with the pid identifies a process. None: no such process."""
    stat = _stat(pid)
    return int(stat[19]) if stat else None


def is_alive(pid: int, ticks: int) -> bool:
    """Whether exactly this process still runs: neither another one with its pid nor a zombie."""
    try:
        stat = _stat(pid)
    except OSError:
        # Too many open files, for example. A process that is taken for dead loses its work: only its pid is checked
        # now, which needs no file.
        return _exists(pid)
    return stat is not None and int(stat[19]) == ticks and stat[0] not in ("Z", "X")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs as another user
    return True


def is_blocked(pid: int) -> bool:
    """Whether the process is in uninterruptible sleep (waiting for a device)."""
    stat = _stat_if_readable(pid)
    return stat is not None and stat[0] == "D"


def oom_kills() -> int:
    """How many processes the OOM killer of this machine has ended."""
    lines = briefly(_text, "/proc/vmstat").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def offer_to_oom_killer() -> None:
    """Have the OOM killer choose this process and its children before the node around them."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def descendants(ancestor: int) -> list[int]:
    """Every process below this one, from /proc. One that forks meanwhile may be missed, so call it again. Raises
    OSError if they cannot be told now."""
    children: dict[int, list[int]] = {}
    for name in once_more(os.listdir, "/proc"):
        with contextlib.suppress(PermissionError):  # not ours to see
            if name.isdigit() and (stat := _stat(name)) is not None:
                children.setdefault(int(stat[1]), []).append(int(name))
    found: list[int] = []
    unseen = children.get(ancestor, [])
    while unseen:
        found += unseen
        unseen = [child for pid in unseen for child in children.get(pid, [])]
    return found


@dataclass(frozen=True)
class Measured:
    cpu_ms: int
    memory_mib: int
    pids: int


def measure(pids: list[int]) -> Measured:
    """What these processes use, and what their reaped children used, from /proc."""
    stats = [stat for pid in pids if (stat := _stat_if_readable(pid)) is not None and stat[0] not in ("Z", "X")]
    ticks = sum(int(number) for stat in stats for number in stat[11:15])
    pages = sum(int(stat[21]) for stat in stats)
    return Measured(ticks * 1000 // os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") >> 20, len(stats))


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):  # gone, or owned by another user through a setuid program
            continue
