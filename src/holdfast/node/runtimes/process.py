"""The plain process: a body without confinement, except for a session of its own and a clean environment.

For machines without a sandbox, and only if the operator allowed it: the body can read whatever the node can.
"""

import os
import signal

from holdfast.node import linux
from holdfast.node.core.order import Order
from holdfast.node.runtimes import child, lent, scratch
from holdfast.node.runtimes.body_folders import Folders
from holdfast.node.runtimes.runtime import BodyView, Ended, Usage


class ProcessBody:
    """All descendants of the shim: it adopts orphans, so a body that daemonises remains reachable."""

    def __init__(self, pid: int, folders: Folders) -> None:
        self.pid = pid
        self._folders = folders
        self._memory = child.MachineMemory()
        self._peak_mib = 0

    def signal(self, number: int) -> None:
        linux.signal_all(child.descendants(self.pid, number), number)

    def ended(self, wait_status: int, last_words: str) -> Ended:
        code = os.waitstatus_to_exitcode(wait_status)
        if code < 0:
            short = "oom_node" if -code == signal.SIGKILL and self._memory.ran_out() else self._folders.lack()
            return Ended(signal=-code, code=short)
        return Ended(exit_code=code, code=self._folders.lack() if code else "")

    def usage(self) -> Usage:
        found = linux.measure(linux.descendants(os.getpid()))
        self._peak_mib = max(self._peak_mib, found.memory_mib)
        return Usage(found.cpu_ms, found.memory_mib, self._peak_mib, self._folders.used_mib(), found.pids)


class ProcessRuntime:
    def warm(self) -> None:
        """Nothing to detect."""

    def works(self) -> tuple[bool, str]:
        return os.path.exists("/bin/sh"), "" if os.path.exists("/bin/sh") else "there is no /bin/sh"

    def prepare(self, order: Order, folder: str) -> None:
        child.make_folders(order, folder)

    def capabilities(self) -> dict[str, str]:
        """The shim stops a body that exceeds what can be measured; nothing else is enforced."""
        disk = scratch.hindrance()
        none = "none: jobs are not confined on this node"
        return {
            "memory": "measured",
            "cpu": none,
            "cpu_s": "measured",
            "pids": none,
            "disk": f"measured: {disk}" if disk else "kernel: a file system of its own",
            "disk_kib_s": none,
            "net_kib_s": none,
            "network": none,
            "user": none,
            "syscalls": none,
        }

    def end(self, folder: str) -> None:
        """There is no group of its processes: the removal of the attempt finds them one by one."""

    def clean(self, folder: str) -> None:
        scratch.detach(folder)

    def start_build(self, order: Order, folder: str, view: BodyView, stdout: int, stderr: int) -> ProcessBody:
        place = view.writable["/work"]
        env = child.environment(order, place)
        folders = Folders(order, folder)  # before the body: what fails afterwards would leave it to itself
        return ProcessBody(child.spawn(order.argv, env, place, stdout, stderr, keep=view.keep), folders)

    def start(self, order: Order, folder: str, stdout: int, stderr: int) -> ProcessBody:
        argv = (*child.SHELL, *order.argv)
        work = os.path.join(folder, "work")
        saved = os.path.join(folder, "checkpoint")
        env = child.environment(order, work, saved, child.python_prefix(), lent.place(folder))
        if order.venv:
            env |= {"VIRTUAL_ENV": order.venv, "PATH": env["PATH"].replace(child.VENV, order.venv, 1)}
        folders = Folders(order, folder)
        return ProcessBody(child.spawn(argv, env, work, stdout, stderr), folders)


RUNTIME = ProcessRuntime()
