"""Whether a process runs: only its absence says that it does not, never an error of the look at it."""

import builtins
import errno
import os
import signal
import subprocess
from typing import Any

import pytest

from holdfast.node import linux
from holdfast.node.runtimes import child

PASSING = [errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EIO, errno.ENOMEM, errno.EAGAIN]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """No file of /proc can be opened."""
    opened = builtins.open

    def failing(path: Any, *how: Any, **more: Any) -> Any:
        if str(path).startswith("/proc/"):
            raise OSError(request.param, os.strerror(request.param))
        return opened(path, *how, **more)

    monkeypatch.setattr(builtins, "open", failing)
    return request.param


def ended() -> int:
    with subprocess.Popen(["true"]) as process:
        return process.pid


@pytest.mark.spec("J8", "N9")
def test_a_process_is_known_by_its_pid_and_its_start() -> None:
    me = os.getpid()
    ticks = linux.start_ticks(me)
    assert ticks is not None and linux.is_alive(me, ticks)
    assert not linux.is_alive(me, ticks + 1)
    gone = ended()
    assert linux.start_ticks(gone) is None and not linux.is_alive(gone, ticks)


@pytest.mark.spec("J8", "N9")
@pytest.mark.parametrize("broken", PASSING, indirect=True, ids=errno.errorcode.get)
def test_a_process_that_cannot_be_looked_at_is_not_dead(broken: int) -> None:
    assert linux.is_alive(os.getpid(), 1)
    assert not linux.is_alive(ended(), 1)
    assert not linux.is_blocked(os.getpid())
    for look in (linux.start_ticks, linux.descendants):
        with pytest.raises(OSError) as told:
            look(os.getpid())
        assert told.value.errno == broken
    # and a body that cannot be looked for is killed all the same, but not asked to end as if that had reached it
    assert child.descendants(17, signal.SIGKILL) == [17]
    with pytest.raises(OSError):
        child.descendants(17, signal.SIGTERM)


@pytest.mark.spec("J8", "N9")
@pytest.mark.parametrize("broken", [errno.EMFILE], indirect=True)
def test_a_process_of_another_user_that_cannot_be_looked_at_is_not_dead(
    broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "kill", kill)
    assert linux.is_alive(os.getpid(), 1)
