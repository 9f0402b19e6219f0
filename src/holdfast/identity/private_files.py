"""Files made on the first start: written once, whole, never half-made by a crash; secret where it matters.

Knows nothing of what the files hold.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import Misconfigured


def read(path: Path, what: str, secret: bool = True) -> bytes:
    """The content of the file. A secret that others can read is refused: it is no secret any more."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(1 << 20)
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


def make_once(path: Path, what: str, make: Callable[[], bytes], secret: bool = True) -> bytes:
    """The content of the file; made if there is none. Two processes that start together get the same."""
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            _create(path, what, make(), 0o600 if secret else 0o644)
    return read(path, what, secret)


def _create(path: Path, what: str, content: bytes, mode: int) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # A link, not a rename: a rename would replace what another process made a moment ago.
            os.link(draft, path)
        finally:
            draft.unlink()
        _sync_folder(path.parent)
    except FileExistsError:
        raise
    except OSError as cause:
        raise Misconfigured(
            f"the {what} {path} cannot be written: {cause.strerror}",
            hint="Check that the folder exists, is yours and has space.",
        ) from None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
