"""Starts a child of the shim that dies with it, and says what environment a body gets. Knows no sandbox."""

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Sequence

from holdfast.node import linux
from holdfast.node.core.warden import Order

SHELL = ("/bin/sh", "-c", 'exec "$@"', "sh")
"""In front of a body's argv: a command that is not there is exit code 127, one that may not run 126."""


def spawn(
    argv: Sequence[str], env: dict[str, str], cwd: str, stdout: int, stderr: int, keep: Sequence[int] = ()
) -> int:
    """Fork and exec; `keep` are further descriptors the program inherits. Returns the pid.

    A plain fork, not `subprocess`: the shim has one thread, so Python may run in the child, and setting the
    death signal there costs nothing, where a helper program between would cost its start.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 126
    try:
        _prepare(parent, cwd, stdout, stderr, keep)
        os.execve(argv[0], list(argv), env)
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        with contextlib.suppress(OSError):
            os.write(2, f"holdfast: {argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(code)


def _prepare(parent: int, cwd: str, stdout: int, stderr: int, keep: Sequence[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    linux.die_with_parent()
    if os.getppid() != parent:  # it died before the line above
        os._exit(126)
    os.setsid()
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for fd in keep:
        os.set_inheritable(fd, True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # without /proc there is no choosing
        linux.offer_to_oom_killer()
    os.chdir(cwd)


def python_prefix() -> str:
    """The folder of the node's Python where it is not under /usr; else empty."""
    prefix = os.path.realpath(sys.base_prefix)
    return "" if prefix == "/usr" or prefix.startswith("/usr/") else prefix


def environment(order: Order, work: str) -> dict[str, str]:
    """What a body finds in its environment: nothing of the node's own, the job's words, then ours."""
    prefix = python_prefix()
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    base = {"PATH": f"{prefix}/bin:{path}" if prefix else path, "HOME": work, "LANG": "C.UTF-8"}
    ours = {"HOLDFAST_JOB": order.job, "HOLDFAST_ATTEMPT": order.attempt, "HOLDFAST_WORK_DIR": work}
    amounts = {f"HOLDFAST_{key.upper()}": str(amount) for key, amount in sorted(order.resources.items())}
    return base | order.env | amounts | ours
