"""The folder of a node: its identity, the highest epoch it has seen, and its attempts (SPEC N9). One agent at a time.

    lock         held by the running agent; a second one is refused
    uuid         the node's identity, generated at the first start
    epoch        the highest epoch obeyed: survives the agent, so that a deposed leader stays deposed
    attempts/    a folder per attempt (docs/architecture.md)

Writes are atomic. Nothing here does network I/O.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from uuid import UUID, uuid4

from holdfast.durable import durable_write
from holdfast.errors import Misconfigured
from holdfast.passing import patiently, raise_if_passing


class NodeHome:
    def __init__(self, path: Path) -> None:
        """Lock the folder. Raises Misconfigured if another agent holds it or it cannot be used."""
        self.path = path
        self.attempts = path / "attempts"
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.attempts.mkdir(mode=0o700, exist_ok=True)
            self._lock = patiently(os.open, path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        """The node's UUID: the configured one, else the stored one, else a new one."""
        path = self.path / "uuid"
        kept = ""
        with contextlib.suppress(FileNotFoundError):
            kept = patiently(path.read_text).strip()
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
            durable_write(path, chosen.encode())
        return chosen

    def epoch_seen(self) -> int:
        try:
            return max(0, int(patiently((self.path / "epoch").read_text)))
        except (OSError, ValueError) as wrong:
            raise_if_passing(wrong)
            # Nothing seen yet, or unreadable: the orchestrator's fences still hold.
            return 0

    def remember_epoch(self, epoch: int) -> None:
        durable_write(self.path / "epoch", str(epoch).encode())
