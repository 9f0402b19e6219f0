"""The sandbox: bubblewrap with every namespace its own, no network, no capability, the system read-only.

The body sees /usr, the node's Python, its own /proc and /tmp, and its scratch folder as /work. It is
told apart from the node by kernel means only; what it may use of memory and processor is not limited here.
"""

import contextlib
import os
import signal
from functools import cache

from holdfast.node import linux
from holdfast.node.core.warden import Order
from holdfast.node.runtimes import child
from holdfast.node.runtimes.runtime import Ended

MEMORY_MIB = 512
"""For /tmp and /dev/shm where an order names no memory."""
_UID = 1000
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
_PASSWD = f"job:x:{_UID}:{_UID}:job:/work:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = f"job:x:{_UID}:\nnogroup:x:65534:\n"


def _program() -> str | None:
    """Where bwrap is."""
    places = (os.path.join(folder, "bwrap") for folder in os.get_exec_path())
    return next((place for place in places if os.access(place, os.X_OK)), None)


def _system() -> list[str]:
    """The machine's programs, read-only, in the shape the machine has them."""
    words: list[str] = []
    for path in _SYSTEM:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            words += ["--ro-bind", path, path]
    if prefix := child.python_prefix():
        words += ["--ro-bind", prefix, prefix]
    return words


@cache
def _knows() -> str:
    """What this bwrap says it can do: releases before 0.8 lack options that are worth having. Empty without one."""
    import subprocess

    if (program := _program()) is None:
        return ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run([program, "--help"], capture_output=True, text=True, timeout=10).stdout
    return ""


def options(work: str, env: dict[str, str], passwd: int, group: int, memory_mib: int) -> list[str]:
    """What bwrap is told. The order matters: later mounts lie on earlier ones, the last line closes the root."""
    words = ["--unshare-all", "--unshare-user", "--uid", str(_UID), "--gid", str(_UID), "--cap-drop", "ALL"]
    words += ["--die-with-parent", "--new-session", "--hostname", "holdfast"]
    # bwrap leaves /proc/sys writable where the node is root: the kernel asks there who owns the file, not what may
    # be done, and core_pattern would be a way out of any sandbox.
    words += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    words += ["--disable-userns"] if "--disable-userns" in _knows() else []
    # What lies there is memory: no more of it than the job asked for.
    size = ["--size", str(max(1, memory_mib) << 20)] if "--size" in _knows() else []
    words += ["--dev", "/dev", *size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    words += [*size, "--tmpfs", "/tmp", "--dir", "/var", "--symlink", "/tmp", "/var/tmp"]
    words += _system()
    words += ["--ro-bind-data", str(passwd), "/etc/passwd", "--ro-bind-data", str(group), "/etc/group"]
    words += ["--bind", work, "/work", "--chdir", "/work", "--remount-ro", "/", "--clearenv"]
    for key, value in env.items():
        words += ["--setenv", key, value]
    return words


def _in_memory(name: str, text: str = "") -> int:
    """A file without a name, for what bwrap reads or writes by descriptor."""
    fd = os.memfd_create(name)
    os.write(fd, text.encode(errors="surrogateescape"))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class SandboxedBody:
    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = status

    def signal(self, number: int) -> None:
        """SIGTERM passes by the outer bwrap: its death would take the body with it, without the grace."""
        pids = linux.descendants(os.getpid())
        linux.signal_all([pid for pid in pids if number == signal.SIGKILL or pid != self.pid], number)

    def ended(self, wait_status: int, last_words: str) -> Ended:
        """bwrap tells a death by signal as 128 + its number, as a shell does: both readings are passed on."""
        finished = b'"exit-code"' in os.pread(self._status, 4096, 0)
        os.close(self._status)
        code = os.waitstatus_to_exitcode(wait_status)
        if code < 0:
            return Ended(signal=-code)
        if not finished:
            return Ended(exit_code=code, fault=f"the sandbox could not be set up: {last_words.strip()}")
        return Ended(exit_code=code, signal=code - 128 if 128 < code <= 128 + 64 else None)


class _Plan:
    """A command line for bwrap and the descriptors it reads from and writes to."""

    def __init__(self, order: Order, work: str) -> None:
        program = _program()
        if program is None:
            raise FileNotFoundError(2, "bwrap is not installed (package bubblewrap)")
        passwd, group = _in_memory("passwd", _PASSWD), _in_memory("group", _GROUP)
        memory = order.resources.get("memory_mib", MEMORY_MIB)
        words = options(os.path.abspath(work), child.environment(order, "/work"), passwd, group, memory)
        # by descriptor, not on the command line: anybody on the machine may read that, and env holds secrets
        told = _in_memory("options", "".join(word + "\0" for word in words))
        self.status = _in_memory("status")
        self.read_only = (passwd, group, told)
        self.keep = (*self.read_only, self.status)
        by_fd = ("--args", str(told), "--json-status-fd", str(self.status))
        self.argv = (program, *by_fd, "--", *child.SHELL, *order.argv)


class BubblewrapRuntime:
    def warm(self) -> None:
        """Find out once, in the launcher, what each shim would have to ask again."""
        _knows()

    def works(self) -> tuple[bool, str]:
        """Start a sandbox with nothing to do in it, exactly as a job's. For the agent, which has threads: so
        `subprocess`, where the shim forks by itself."""
        import subprocess

        try:
            plan = _Plan(Order("trial", 0, "trial", ("true",), 1, 1, 0, 0), "/tmp")
        except OSError as error:
            return False, str(error.strerror)
        try:
            trial = subprocess.run(
                plan.argv, env={}, pass_fds=plan.keep, stdin=subprocess.DEVNULL, capture_output=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return False, f"bwrap cannot be run: {error}"
        finally:
            for fd in plan.keep:
                os.close(fd)
        return trial.returncode == 0, trial.stderr.decode(errors="replace").strip()

    def start(self, order: Order, work: str, stdout: int, stderr: int) -> SandboxedBody:
        plan = _Plan(order, work)
        try:
            pid = child.spawn(plan.argv, {}, "/", stdout, stderr, keep=plan.keep)
        except OSError:
            os.close(plan.status)
            raise
        finally:
            for fd in plan.read_only:
                os.close(fd)
        return SandboxedBody(pid, plan.status)


RUNTIME = BubblewrapRuntime()
