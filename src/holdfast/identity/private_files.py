"""Files that are generated at the first start: written once and atomically; with mode 0600 if they are secret.

Knows nothing about what the files contain.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from holdfast.durable import durable_create
from holdfast.errors import Misconfigured
from holdfast.passing import exists, patiently


def read(path: Path, what: str, secret: bool = True) -> bytes:
    """The content of the file. A secret that others can read is refused, because it may be compromised."""
    try:
        mode, content = patiently(_read, path)
    except OSError as cause:
        raise Misconfigured(
            f"the {what} {path} cannot be read: {cause.strerror}", hint="Check the path and its rights."
        ) from None
    if secret and os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise Misconfigured(
            f"the {what} {path} can be read by others (mode {stat.S_IMODE(mode):04o})",
            hint=f"If nobody else has seen it, run `chmod 600 {path}`; otherwise delete it and start again.",
            code="secret_exposed",
        )
    return content


def _read(path: Path) -> tuple[int, bytes]:
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mode, file.read(1 << 20)


def make_once(path: Path, what: str, make: Callable[[], bytes], secret: bool = True) -> bytes:
    """The content of the file, which is created if it does not exist. Processes that start together get the same."""
    if not exists(path):
        with contextlib.suppress(FileExistsError):
            _create(path, what, make(), 0o600 if secret else 0o644)
    return read(path, what, secret)


def _create(path: Path, what: str, content: bytes, mode: int) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        durable_create(path, content, mode=mode, draft=draft)
    except FileExistsError:
        raise
    except OSError as cause:
        raise Misconfigured(
            f"the {what} {path} cannot be written: {cause.strerror}",
            hint="Check that the folder exists, is yours and has space.",
        ) from None
