"""The folder a node lives in: who it is, what it has seen, and what it holds (SPEC N9). One agent at a time.

    lock         held by the agent that runs; a second one is refused
    uuid         the node's identity, made at the first start
    epoch        the highest epoch obeyed: survives the agent, so that a deposed leader stays deposed
    attempts/    a folder per attempt (docs/architecture.md)

Writes are atomic. Nothing here talks to anybody.
"""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID, uuid4

from holdfast.errors import Misconfigured


class NodeHome:
    def __init__(self, path: Path) -> None:
        """Take possession of the folder. Misconfigured if another agent has it or it cannot be used."""
        self.path = path
        self.attempts = path / "attempts"
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.attempts.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as wrong:
            raise Misconfigured(
                f"the node's folder {path} cannot be used: {wrong.strerror}",
                hint="Give --home a folder that this user may write to.",
                code="home_unusable",
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._lock, 32).decode(errors="replace").strip()
            os.close(self._lock)
            raise Misconfigured(
                f"another node runs in {path}" + (f" (process {holder})" if holder.isdigit() else ""),
                hint="Stop it, or give this one a folder of its own with --home.",
                code="home_busy",
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def close(self) -> None:
        os.close(self._lock)

    def uuid(self, configured: str) -> str:
        """The node's UUID: the configured one, else the one kept here, else a new one."""
        path = self.path / "uuid"
        kept = path.read_text().strip() if path.exists() else ""
        chosen = configured or kept or str(uuid4())
        try:
            UUID(chosen)
        except ValueError:
            raise Misconfigured(
                f"{path} does not hold a UUID",
                hint="Set PNODE_UUID to the node's UUID, or remove the file to get a new one.",
                code="home_unusable",
            ) from None
        if chosen != kept:
            write_durably(path, chosen.encode())
        return chosen

    def epoch_seen(self) -> int:
        try:
            return max(0, int((self.path / "epoch").read_text()))
        except (OSError, ValueError):
            # Nothing seen yet, or unreadable: the orchestrator's own fences still hold.
            return 0

    def remember_epoch(self, epoch: int) -> None:
        write_durably(self.path / "epoch", str(epoch).encode())


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file so that after a crash it holds the old content or the new, whole."""
    write_all_durably({path: content})


def write_all_durably(contents: Mapping[Path, bytes]) -> None:
    """The same for several files of one folder, which get their names in this order: the folder is synced once
    for all."""
    for path, content in contents.items():
        with _beside(path).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    for path in contents:
        _beside(path).replace(path)
    for parent in {path.parent for path in contents}:
        folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".new")
