"""Makes one backup after the other, each killed at another line, and looks at what it left. A script: it forks.

python killed_backups.py DATA TARGET
"""

import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.errors import Misconfigured
from holdfast.orchestrator import backup
from holdfast.orchestrator.config import OrchestratorConfig
from holdfast.state import Store

EVERY = 12
"""Of the lines that a backup comes to for the first time, one in so many is where one dies."""


def in_a_process(data: Path, target: Path, dies_at: int) -> int:
    """Make a backup that is killed at the so-many-th line of the module that it comes to for the first time; how many
    it came to if it was not killed, else 0."""
    count, counted = os.pipe()
    child = os.fork()
    if child == 0:
        seen: set[int] = set()

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            if frame.f_code.co_filename != backup.__file__:
                return None
            seen.add(frame.f_lineno)
            if len(seen) >= dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        threading.settrace(trace)
        sys.settrace(trace)
        backup.back_up(OrchestratorConfig(data=data), target)
        sys.settrace(None)
        os.write(counted, str(len(seen)).encode())
        os._exit(0)
    os.close(counted)
    told = os.read(count, 20)
    os.close(count)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if told else -signal.SIGKILL), status
    return int(told or 0)


def complete(draft: Path) -> bool:
    """Whether a draft that was left behind says of itself that all of it is there, and only its name is not."""
    note = draft / backup.NOTE
    return note.exists() and note.read_bytes() != backup.UNFINISHED


def starts_nothing(draft: Path, scratch: Store) -> bool:
    """Whether no orchestrator starts from a draft that was left behind: it has nothing yet, or says that it is one."""
    if not (draft / backup.NOTE).exists():
        return not (draft / backup.STATE).exists()
    try:
        backup.begin_from(draft, scratch)
    except Misconfigured:
        return True
    return False


def whole(target: Path) -> bool:
    """Whether it is: then a backup of the backup lacks nothing."""
    made = backup.back_up(OrchestratorConfig(data=target), target.with_name("again"))
    shutil.rmtree(target.with_name("again"))
    return not made.damaged and made.blobs == 2


def main(data: Path, target: Path) -> None:
    draft = target.with_name(target.name + ".part")
    scratch = Store.open(f"sqlite:///{target.with_name('scratch.db')}")
    assert whole(data)  # also so that no process has to load anything any more
    lines = in_a_process(data, target, sys.maxsize)
    shutil.rmtree(target)
    last = [lines - 3, lines - 1, lines]  # before it has its name, and after
    deaths = [*range(1, last[0], EVERY), *last]
    named = completed = 0
    for death in deaths:
        if death in last:
            shutil.rmtree(draft, ignore_errors=True)  # clearing it away takes lines of its own
        assert in_a_process(data, target, death) == 0
        left = f"a death at line {death} of {lines} left "
        if target.exists():
            named += 1
            assert whole(target), left + "half a backup under its name"
            shutil.rmtree(target)
        elif complete(draft):
            completed += 1
            assert whole(draft), left + "half a backup that says it is whole"
        else:
            assert not draft.exists() or starts_nothing(draft, scratch), left + "something to start from"
    scratch.close()
    # and what the last of them left is in nobody's way
    assert in_a_process(data, target, sys.maxsize) and whole(target) and not draft.exists()
    print(json.dumps({"killed": len(deaths), "named": named, "completed": completed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
