"""An attempt that is killed at one line after the other, and what stays of it: a program of its own, since it forks.

`python killed_lines.py FOLDER NETWORK FIRST EVERY` lives through an attempt in FOLDER, counts the lines of the runtimes
between its first word and its last, and does it again and again, killed at every EVERYth of them from FIRST on. Says
how many lines there are, or where something stayed.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.node import linux
from holdfast.node.attempt import attempt_folders as folders
from holdfast.node.core.order import Order
from holdfast.node.runtimes import bubblewrap, cgroups, child, owners, runtime, scratch

RUNTIMES = os.path.dirname(runtime.__file__)
LIMITED = {"cpu_milli": 500, "memory_mib": 64, "disk_mib": 4}


def remains(folder: Path) -> list[str]:
    """Everything of an attempt on the machine that is no file of its folder."""
    name = cgroups.name_of(str(folder))
    found = [f"process {pid}" for pid in folders.processes_of(folder)]
    found += scratch.mounts_below(str(folder)) + scratch.loops_below(str(folder))
    found += [group for group, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(group) == name]
    return found + [
        f"user {uid}"
        for uid in os.listdir(owners.REGISTRY)
        if os.path.realpath(os.path.join(owners.REGISTRY, uid)) == str(folder)
    ]


def live(order: Order, folder: Path) -> None:
    """What a shim does with a runtime, from its first to its last line."""
    null = os.open("/dev/null", os.O_RDWR)
    bubblewrap.RUNTIME.prepare(order, str(folder))
    body = bubblewrap.RUNTIME.start(order, str(folder), null, null)
    body.usage()
    body.signal(signal.SIGKILL)
    body.ended(child.wait(body.pid, 60), "")
    bubblewrap.RUNTIME.clean(str(folder))


def in_a_process(play: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        linux.adopt_orphans()
        try:
            play()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def counting(at: int, seen: set[tuple[str, int]]) -> Callable[[FrameType, str, Any], Any]:
    """A tracer that notes the lines of the runtimes, and kills its process when it comes to the `at`th new one."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(RUNTIMES):
            return None
        if event == "line":
            seen.add((frame.f_code.co_filename, frame.f_lineno))
            if len(seen) == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def lines_of(order: Order, folder: Path) -> int:
    """How many lines there are between the first word of an attempt and the last."""
    count = folder.with_name("count")

    def whole() -> None:
        seen = set[tuple[str, int]]()
        sys.settrace(counting(-1, seen))
        live(order, folder)
        sys.settrace(None)
        count.write_text(str(len(seen)))

    folder.mkdir()
    in_a_process(whole)
    left = remains(folder)
    assert left == [], f"not killed at all: {left}"
    folders.remove(folder)
    return int(count.read_text())


def kill_at(number: int, order: Order, folder: Path) -> None:
    """Whoever finds the folder of one that was killed there can clear up and remove it."""

    def broken() -> None:
        sys.settrace(counting(number, set()))
        live(order, folder)

    folder.mkdir()
    in_a_process(broken)
    folders.end_processes(folder)
    folders.clean(folder)
    left = remains(folder)
    assert left == [], f"killed at line {number}: {left}"
    folders.remove(folder)


def main(folder: Path, network: bool, first: int, every: int) -> None:
    order = Order("att_0a.1", 7, "job_0a", ("sleep", "60"), 1, 1, 0, 0, resources=LIMITED, network=network)
    bubblewrap.RUNTIME.warm()
    lines = lines_of(order, folder)
    for number in range(first, lines, every):
        kill_at(number, order, folder)
    print(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "network", int(sys.argv[3]), int(sys.argv[4]))
