"""Assigns a user of the machine to each attempt, so that attempts cannot access each other's files and processes.

A user is a uid that nothing else on the machine uses. The assignments are stored in one folder for all nodes of the
machine; the uid of an attempt that is gone is reused. Only root can assign users: the jobs of any other node all run as
its own user. Knows no sandbox.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from hashlib import sha256

from holdfast.durable import atomic_write
from holdfast.node.runtimes.hindrances import NONE, NOT_ROOT, Hindrance
from holdfast.passing import briefly, exists, raise_if_passing

FIRST = 1_900_000_000
"""Above the ranges that distributions assign to people, services and containers."""
COUNT = 1 << 24
RECORD = "owner"
REGISTRY = "/run/holdfast/owners"


def hindrance() -> Hindrance:
    """Why attempts get no users of their own; empty if they do."""
    if os.geteuid() != 0:
        return NOT_ROOT
    lines = briefly(_read, "/proc/self/uid_map").splitlines()
    ranges = [[int(word) for word in line.split()] for line in lines]
    known = any(first <= FIRST and first + count >= FIRST + COUNT for first, _, count in ranges)
    return NONE if known else Hindrance("the node runs in a user namespace that has no such users")


@contextlib.contextmanager
def _alone(registry: str) -> Iterator[None]:
    os.makedirs(registry, mode=0o700, exist_ok=True)
    lock = os.open(os.path.join(registry, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def recorded(folder: str) -> int:
    """The user of the attempt in this folder; 0: none. Raises OSError if that cannot be told now."""
    try:
        return int(briefly(_read, os.path.join(folder, RECORD)))
    except (OSError, ValueError) as error:
        raise_if_passing(error)
        return 0


def _read(path: str) -> str:
    with open(path) as file:
        return file.read(1 << 16)


def _holder(registry: str, uid: int) -> str:
    """The folder of the attempt that has this user; empty: none."""
    try:
        folder = briefly(os.readlink, os.path.join(registry, str(uid)))
    except OSError as error:
        raise_if_passing(error)
        return ""
    return folder if recorded(folder) == uid else ""


def take(folder: str, registry: str = REGISTRY) -> int:
    """The user of the attempt in this folder. Repeated calls return the same one."""
    folder = os.path.realpath(folder)
    with _alone(registry):
        start = int.from_bytes(sha256(os.fsencode(folder)).digest()[:8])
        for step in range(COUNT):
            uid = FIRST + (start + step) % COUNT
            if _holder(registry, uid) in ("", folder):
                entry = os.path.join(registry, str(uid))
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry)
                os.symlink(folder, entry)
                _record(folder, uid)
                return uid
    raise OSError(errno.EAGAIN, "every user this node may give to a job is taken")


def _record(folder: str, uid: int) -> None:
    atomic_write(os.path.join(folder, RECORD), str(uid).encode())


def release(folder: str, registry: str = REGISTRY) -> None:
    """Called when nothing of the attempt is left: frees its user, and those of folders that are gone. Idempotent."""
    folder = os.path.realpath(folder)
    if not os.path.isdir(registry):
        return
    with _alone(registry):
        for name in os.listdir(registry):
            with contextlib.suppress(OSError):
                holder = os.readlink(os.path.join(registry, name))
                if holder == folder or not exists(holder):
                    os.unlink(os.path.join(registry, name))
