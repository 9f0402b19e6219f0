"""Errors of the operating system that pass by themselves: too many open files, no memory, an interrupted call, one
failed read of a disk. They say nothing about the file, so nothing may be concluded from them. Knows no callers.
"""

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})
PATIENCE_S = 30.0
"""How long a call is tried again. Longer than a burst of transfers holds its descriptors; the time limits of
preparation and upload are far longer."""
BRIEFLY_S = 5.0
"""The same for callers that must keep deadlines meanwhile, such as a shim or an event loop."""
_PAUSE_S, _PAUSE_S_MAX = 0.02, 1.0

log = logging.getLogger("holdfast")

P = ParamSpec("P")
T = TypeVar("T")


def is_passing(error: OSError) -> bool:
    """Whether the same call may succeed later, with nothing changed about the file."""
    return error.errno in PASSING


def once_more(call: Callable[P, T], *words: P.args, **named: P.kwargs) -> T:
    """Make a call, and once more if the disk failed. Does not wait."""
    try:
        return call(*words, **named)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    return call(*words, **named)


def raise_if_passing(error: Exception) -> None:
    """For handlers that conclude something from an error, such as that a file does not exist."""
    if isinstance(error, OSError) and is_passing(error):
        raise error


def raise_if_lasting(error: OSError) -> None:
    """For handlers that try again."""
    if not is_passing(error):
        raise error


@contextlib.contextmanager
def unless_passing() -> Iterator[None]:
    """Suppress errors of the operating system, except those that pass."""
    try:
        yield
    except OSError as error:
        raise_if_passing(error)


def patiently(call: Callable[P, T], *words: P.args, **named: P.kwargs) -> T:
    """Make a call again while it fails with a passing error; after EIO once more. Blocking: not for an event loop.
    Raises the last error if it has not passed within `PATIENCE_S`."""
    return _again(PATIENCE_S, call, *words, **named)


def briefly(call: Callable[P, T], *words: P.args, **named: P.kwargs) -> T:
    """The same, for `BRIEFLY_S`."""
    return _again(BRIEFLY_S, call, *words, **named)


def exists(path: str | os.PathLike[str]) -> bool:
    """Like `os.path.exists`, which says False whatever the error was. Raises OSError if it cannot be told now."""
    try:
        briefly(os.stat, path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _again(patience_s: float, call: Callable[P, T], *words: P.args, **named: P.kwargs) -> T:
    waited_s, pause_s, disk_failed = 0.0, _PAUSE_S, False
    while True:
        try:
            return call(*words, **named)
        except OSError as error:
            once_more = error.errno == errno.EIO and not disk_failed
            if not once_more and (not is_passing(error) or waited_s >= patience_s):
                raise
            if not waited_s:
                name = errno.errorcode.get(error.errno or 0, "")
                log.warning("%s fails with %s, trying again", getattr(call, "__name__", "a call"), name)
            disk_failed |= once_more
        time.sleep(pause_s)
        waited_s += pause_s
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
