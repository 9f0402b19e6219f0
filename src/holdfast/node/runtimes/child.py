"""Starts a child of the shim that dies with it, and defines the environment of a body. Knows no sandbox."""

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence

from holdfast.node import linux
from holdfast.node.core.order import Order
from holdfast.node.runtimes import lent, scratch
from holdfast.passing import briefly

SHELL = ("/bin/sh", "-c", 'exec "$@"', "sh")
"""Runs a body's argv: exit code 127 if the command does not exist, 126 if it cannot be executed."""


def _free() -> None:
    """No confinement."""


WORK_DIR = "HOLDFAST_WORK_DIR"
"""With this variable a body finds its folder, and the node finds out which attempt a process outside of a sandbox
belongs to."""
VENV = "/venv"
"""Where a body sees its virtual environment, if it has one."""
BUILD = "venv"
"""Folder of an attempt in which its environment is built."""
STASH = "checkpoint.stash"
"""Folder of an attempt for what a capture has read: the body may overwrite it before it is sent."""
LISTS = "lists"
"""Folder of an attempt for the list of its package's files."""


def spawn(
    argv: Sequence[str],
    env: dict[str, str],
    cwd: str,
    stdout: int,
    stderr: int,
    keep: Sequence[int] = (),
    confine: Callable[[], None] = _free,
) -> int:
    """Fork and exec. `keep`: further descriptors that the program inherits. `confine`: called in the child before the
    exec. Returns the pid.

    A plain fork, not `subprocess`: the shim has one thread, so Python code may run in the child. Setting the death
    signal there is free, while a helper program would have to be started.
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
    os.dup2(briefly(os.open, "/dev/null", os.O_RDONLY), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for fd in keep:
        os.set_inheritable(fd, True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # without /proc it cannot be set
        linux.offer_to_oom_killer()
    confine()
    linux.die_with_parent()  # not earlier: a change of user resets it
    if os.getppid() != parent:  # the parent died before the line above
        os._exit(126)
    os.chdir(cwd)


def folder_names(order: Order) -> tuple[str, ...]:
    """Everything that grows with what a job brings or does is on its own disk: the folders that it sees, the list of
    its package's files, the environment that is built for it, and what a capture of its checkpoint reads. Its output
    has space of its own (`disk_room`)."""
    names = ["work", LISTS]
    names += ["checkpoint", STASH] if order.checkpoint else []
    names += [BUILD] if order.requirements else []
    return tuple(names)


def make_folders(order: Order, folder: str, uid: int = 0) -> None:
    """Create the folders of the attempt, for user `uid` (0: the node's own), within the disk limit if this machine can
    enforce it; and beside them what the body may import."""
    names = folder_names(order)
    lent.lay_out(folder)
    disk_mib = order.resources.get("disk_mib", 0)
    # Agent and shim both call this, and one of them may have found that this machine cannot mount a file: the first
    # decides.
    if disk_mib and not scratch.is_plain(folder, names) and not scratch.hindrance():
        scratch.make(folder, names, disk_mib, uid)
        return
    for name in names:
        os.makedirs(os.path.join(folder, name), mode=0o700, exist_ok=True)
        if uid:
            os.chown(os.path.join(folder, name), uid, uid)


def wait(pid: int, timeout_s: float) -> int:
    """The wait status of a child that ends soon; it is killed if it does not."""
    deadline = time.monotonic() + timeout_s
    while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return found[1]


def python_prefix() -> str:
    """The prefix of the node's Python if it is not below /usr; otherwise empty."""
    prefix = os.path.realpath(sys.base_prefix)
    return "" if prefix == "/usr" or prefix.startswith("/usr/") else prefix


THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_MAX_THREADS", "RAYON_NUM_THREADS", "GOMAXPROCS", "JULIA_NUM_THREADS", "LOKY_MAX_CPU_COUNT",
)  # fmt: skip
"""Variables by which libraries decide how many threads to start. Without them each starts one for every processor of
the machine, and they hinder each other within the job's share."""


def cores(order: Order) -> int:
    """Whole cores that the job may use; 0: it set no limit."""
    return -(-order.resources.get("cpu_milli", 0) // 1000)


def cpu_list(order: Order) -> str:
    """The processors that the job may use, as the kernel lists them."""
    count = cores(order) or os.cpu_count() or 1
    return f"0-{count - 1}" if count > 1 else "0"


def defaults(order: Order) -> dict[str, str]:
    """Variables that a job or an image may set otherwise."""
    threads = str(cores(order))
    return {"PYTHONUNBUFFERED": "1", **(dict.fromkeys(THREADS, threads) if cores(order) else {})}


def environment(
    order: Order, work: str, checkpoint: str = "/checkpoint", python: str = "", imports: str = lent.SEEN_AS
) -> dict[str, str]:
    """A body's environment: nothing of the node's own, the job's variables, then ours. `work`, `checkpoint` and
    `imports` are its folders as it sees them, `python` the prefix of a Python in an unusual place."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    base = {"PATH": f"{python}/bin:{path}" if python else path, "HOME": work, "LANG": "C.UTF-8"}
    ours = {"HOLDFAST_JOB": order.job, "HOLDFAST_ATTEMPT": order.attempt, WORK_DIR: work}
    ours["PYTHONPATH"] = lent.python_path(order.env.get("PYTHONPATH", ""), imports)
    if order.checkpoint:
        ours["HOLDFAST_CHECKPOINT_DIR"] = checkpoint
    if order.gpu_ids:
        ours["CUDA_VISIBLE_DEVICES"] = ",".join(order.gpu_ids)
    amounts = {f"HOLDFAST_{key.upper()}": str(amount) for key, amount in sorted(order.resources.items())}
    whole = base | defaults(order) | order.env | amounts | ours
    if order.venv:
        whole |= {"VIRTUAL_ENV": VENV, "PATH": f"{VENV}/bin:{whole['PATH']}"}
    return whole


def descendants(body: int, number: int) -> list[int]:
    """The processes of a body, to be sent this signal. The body itself can be killed even if nothing can be listed now.
    Raises OSError if another signal cannot be sent now."""
    try:
        return linux.descendants(os.getpid())
    except OSError:
        if number != signal.SIGKILL:
            raise
        return [body]


class MachineMemory:
    """Whether the machine ran out of memory since this object was created. Weak evidence: it does not show whose
    process was ended, so it is only used if there is nothing better, and only for a body that was killed."""

    def __init__(self) -> None:
        self._kills = self._counted()

    def ran_out(self) -> bool:
        before, now = self._kills, self._counted()
        return before is not None and now is not None and now > before

    @staticmethod
    def _counted() -> int | None:
        with contextlib.suppress(OSError):
            return linux.oom_kills()
        return None
