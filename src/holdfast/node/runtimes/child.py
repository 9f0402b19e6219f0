"""Starts a child of the shim that dies with it, and says what environment a body gets. Knows no sandbox."""

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence

from holdfast.node import linux
from holdfast.node.core.warden import Order
from holdfast.node.runtimes import lent, scratch

SHELL = ("/bin/sh", "-c", 'exec "$@"', "sh")
"""In front of a body's argv: a command that is not there is exit code 127, one that may not run 126."""


def _free() -> None:
    """No confinement."""


WORK_DIR = "HOLDFAST_WORK_DIR"
"""By this variable a body finds its folder; and the node, in processes outside of sandboxes, whose they are."""
VENV = "/venv"
"""Where a body sees its virtual environment, if it has one."""


def spawn(
    argv: Sequence[str],
    env: dict[str, str],
    cwd: str,
    stdout: int,
    stderr: int,
    keep: Sequence[int] = (),
    confine: Callable[[], None] = _free,
) -> int:
    """Fork and exec; `keep` are further descriptors the program inherits, `confine` is called in the child before the
    program takes its place. Returns the pid.

    A plain fork, not `subprocess`: the shim has one thread, so Python may run in the child, and setting the
    death signal there costs nothing, where a helper program between would cost its start.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 126
    try:
        _prepare(parent, cwd, stdout, stderr, keep, confine)
        os.execve(argv[0], list(argv), env)
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        with contextlib.suppress(OSError):
            os.write(2, f"holdfast: {argv[0]}: {error.strerror or error}\n".encode())
    finally:
        os._exit(code)


def _prepare(parent: int, cwd: str, stdout: int, stderr: int, keep: Sequence[int], confine: Callable[[], None]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.setsid()
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for fd in keep:
        os.set_inheritable(fd, True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # without /proc there is no choosing
        linux.offer_to_oom_killer()
    confine()
    linux.die_with_parent()  # not earlier: becoming another user takes it away
    if os.getppid() != parent:  # it died before the line above
        os._exit(126)
    os.chdir(cwd)


def make_folders(order: Order, folder: str, uid: int = 0) -> None:
    """Where the body works and keeps its checkpoints, for user `uid` (0: the node's own), within the disk it asked for
    where this machine can hold it to that; and beside it what the body may import."""
    names = ("work", "checkpoint") if order.checkpoint else ("work",)
    lent.lay_out(folder)
    disk_mib = order.resources.get("disk_mib", 0)
    if disk_mib and not scratch.hindrance():
        scratch.make(folder, names, disk_mib, uid)
        return
    for name in names:
        os.makedirs(os.path.join(folder, name), mode=0o700, exist_ok=True)
        if uid:
            os.chown(os.path.join(folder, name), uid, uid)


def wait(pid: int, timeout_s: float) -> int:
    """The wait status of a child that ends soon; one that does not is killed."""
    deadline = time.monotonic() + timeout_s
    while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return found[1]


def python_prefix() -> str:
    """The folder of the node's Python where it is not under /usr; else empty."""
    prefix = os.path.realpath(sys.base_prefix)
    return "" if prefix == "/usr" or prefix.startswith("/usr/") else prefix


def environment(
    order: Order, work: str, checkpoint: str = "/checkpoint", python: str = "", imports: str = lent.SEEN_AS
) -> dict[str, str]:
    """What a body finds in its environment: nothing of the node's own, the job's words, then ours. `work`,
    `checkpoint` and `imports` are its folders as it sees them, `python` the folder of a Python that is not where such
    things are."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    base = {"PATH": f"{python}/bin:{path}" if python else path, "HOME": work, "LANG": "C.UTF-8"}
    ours = {"HOLDFAST_JOB": order.job, "HOLDFAST_ATTEMPT": order.attempt, WORK_DIR: work}
    ours["PYTHONPATH"] = lent.python_path(order.env.get("PYTHONPATH", ""), imports)
    if order.checkpoint:
        ours["HOLDFAST_CHECKPOINT_DIR"] = checkpoint
    if order.gpu_ids:
        ours["CUDA_VISIBLE_DEVICES"] = ",".join(order.gpu_ids)
    amounts = {f"HOLDFAST_{key.upper()}": str(amount) for key, amount in sorted(order.resources.items())}
    whole = base | order.env | amounts | ours
    if order.venv:
        whole |= {"VIRTUAL_ENV": VENV, "PATH": f"{VENV}/bin:{whole['PATH']}"}
    return whole


class MachineMemory:
    """Whether the machine ran out of memory since this was made. A weak witness: it cannot tell whose process the
    kernel ended, so it is heard only where nothing better is known, and only of a body that was killed."""

    def __init__(self) -> None:
        self._kills = linux.oom_kills()

    def ran_out(self) -> bool:
        return linux.oom_kills() > self._kills
