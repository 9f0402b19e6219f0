"""Networks by name: the address and credentials of each, kept in one private file.

    HOLDFAST_HOME/contexts.json     0600, replaced as a whole, changed under a lock
    {"current": "lab", "contexts": {"lab": {"url": …, "token": …, "certificate": …}, "local": {"folder": …}}}

A context's token is sent to that context's address only. `local` is the orchestrator of this machine: the files that
`holdfast up` left in HOLDFAST_HOME, or in the folder that it recorded here. This module uses no network.
"""

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.durable import durable_write
from holdfast.errors import Misconfigured, Misuse

LOCAL = "local"
FILE = "contexts.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    url: str = ""
    token: str = ""
    certificate: str = ""
    """PEM of the one certificate to trust; empty: the system's authorities."""
    folder: str = ""
    """The folder of an orchestrator on this machine; its address, token and certificate are read from there."""

    def __repr__(self) -> str:
        return f"Context({self.url or self.folder!r})"


class Contexts(msgspec.Struct, omit_defaults=True):
    current: str = ""
    """The context to use if none is named; empty: the local one."""
    contexts: dict[str, Context] = {}

    def get(self, name: str) -> Context:
        found = self.contexts.get(name)
        if found is None and name != LOCAL:
            known = ", ".join(sorted({*self.contexts, LOCAL}))
            raise Misconfigured(
                f"there is no context {name!r}; known are: {known}",
                hint="`holdfast context list` shows them; `holdfast context add` adds one.",
                code="no_context",
            )
        return found or Context()


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Misuse(
            f"{name!r} cannot be the name of a context",
            hint="It takes letters, digits, '.', '_' and '-', 64 at most, and begins with a letter or a digit.",
        )
    return name


def read(home: Path) -> Contexts:
    """The contexts stored in HOLDFAST_HOME; none if there is no file."""
    path = home / FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Contexts()
    except OSError as cause:
        raise Misconfigured(
            f"{path} cannot be read: {cause.strerror}", hint="Check its rights.", code="bad_contexts"
        ) from None
    with open(descriptor, "rb") as file:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            raise Misconfigured(
                f"{path} holds tokens, and others on this machine may read or write it",
                hint=f"chmod 600 {path}; if someone could have read it, make new tokens too.",
                code="bad_contexts",
            )
        try:
            return msgspec.json.decode(file.read(), type=Contexts)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as cause:
            raise Misconfigured(
                f"{path} cannot be understood: {cause}",
                hint="Correct it, or remove it and add the contexts again.",
                code="bad_contexts",
            ) from None


@contextlib.contextmanager
def changing(home: Path) -> Iterator[Contexts]:
    """The contexts, to be changed in place; written if the block ends without an exception."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(home / f"{FILE}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        contexts = read(home)
        yield contexts
        durable_write(home / FILE, msgspec.json.format(msgspec.json.encode(contexts)) + b"\n", mode=0o600)
    finally:
        os.close(lock)
