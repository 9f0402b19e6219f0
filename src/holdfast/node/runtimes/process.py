"""The bare process: a body with no confinement but its own session and a clean environment.

For machines without a sandbox, and only where the operator said so: the body can read what the node can.
"""

import os

from holdfast.node import linux
from holdfast.node.core.warden import Order
from holdfast.node.runtimes import child
from holdfast.node.runtimes.runtime import Ended


class ProcessBody:
    """All descendants of the shim: it adopts orphans, so a body that daemonises stays within reach."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def signal(self, number: int) -> None:
        linux.signal_all(linux.descendants(os.getpid()), number)

    def ended(self, wait_status: int, last_words: str) -> Ended:
        code = os.waitstatus_to_exitcode(wait_status)
        return Ended(signal=-code) if code < 0 else Ended(exit_code=code)


class ProcessRuntime:
    def warm(self) -> None:
        """Nothing to find out."""

    def works(self) -> tuple[bool, str]:
        return os.path.exists("/bin/sh"), "" if os.path.exists("/bin/sh") else "there is no /bin/sh"

    def start(self, order: Order, work: str, stdout: int, stderr: int) -> ProcessBody:
        argv = (*child.SHELL, *order.argv)
        return ProcessBody(child.spawn(argv, child.environment(order, work), work, stdout, stderr))


RUNTIME = ProcessRuntime()
