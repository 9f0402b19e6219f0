"""Errors of the operating system that pass by themselves: too many open files, no memory, an interrupted call, one
failed read of a disk. They say nothing about the file, so nothing may be concluded from them. Knows no callers.
"""

import errno
import logging
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})
PATIENCE_S = 30.0
"""How long a call is tried again. Longer than a burst of transfers holds its descriptors; the time limits of
preparation and upload are far longer."""
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


def patiently(call: Callable[P, T], *words: P.args, **named: P.kwargs) -> T:
    """Make a call again while it fails with a passing error; after EIO once more. Blocking: not for an event loop.
    Raises the last error if it has not passed within `PATIENCE_S`."""
    waited_s, pause_s, disk_failed = 0.0, _PAUSE_S, False
    while True:
        try:
            return call(*words, **named)
        except OSError as error:
            once_more = error.errno == errno.EIO and not disk_failed
            if not once_more and (not is_passing(error) or waited_s >= PATIENCE_S):
                raise
            if not waited_s:
                name = errno.errorcode.get(error.errno or 0, "")
                log.warning("%s fails with %s, trying again", getattr(call, "__name__", "a call"), name)
            disk_failed |= once_more
        time.sleep(pause_s)
        waited_s += pause_s
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
