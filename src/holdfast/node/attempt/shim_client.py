"""Follows one shim from the agent's side: connects to it, receives its status, detects that it died or froze.

Knows nothing about the orchestrator. When it reports that a shim died, every process of that attempt is dead.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.node import control, linux
from holdfast.node.attempt import attempt_folders
from holdfast.node.core.attempt_lifecycle import Phase
from holdfast.node.core.events import ShimStatus
from holdfast.passing import patiently

START_S_MAX = 15.0
"""A shim that has not appeared by then did not start. Forks are fast, but disks are not."""
PING_S = 2.0
UNANSWERED_MAX = 3
"""Consecutive unanswered pings before a shim counts as frozen. They are counted, not timed: after the whole machine was
stopped, only the first of them is late."""
DISK_S_MAX = 120.0
"""How long a shim that waits for its disk is given."""
RETRY_S = 0.01
UNREADABLE_S = 0.5
"""Delay before files that could not be opened are tried again."""

log = logging.getLogger("holdfast.node")


class ShimClient:
    def __init__(
        self, attempt: str, folder: Path, said: Callable[[ShimStatus], None], died: Callable[[str], None]
    ) -> None:
        self.attempt = attempt
        self.folder = folder
        self._said = said
        self._died = died
        self._line: asyncio.StreamWriter | None = None

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message. It is lost if the shim cannot be reached now; callers repeat what matters."""
        if self._line is not None and not self._line.is_closing():
            self._line.write(json.dumps(message).encode() + b"\n")

    async def run(self, fresh: bool) -> None:
        """Run until the shim's final status, or its death. `fresh`: it was started just now."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + (START_S_MAX if fresh else 0.0)
        while True:
            try:
                identity = attempt_folders.read_identity(self.folder)
            except OSError as wrong:
                # Too many open files, for example: that says nothing about the shim.
                log.warning("the shim of %s cannot be looked for, trying again: %s", self.attempt, wrong)
                await asyncio.sleep(UNREADABLE_S)
                continue
            if identity is None:
                if clock() >= give_up and (
                    attempt_folders.claim(self.folder) or attempt_folders.is_claimed(self.folder)
                ):
                    # Claimed, but shim.json is unreadable: a power cut took its content.
                    await self._bury("the shim was never started, or was lost with the machine's power")
                    return
            elif not linux.is_alive(*identity):
                await self._bury("the shim died")
                return
            elif await self._listen():
                return
            elif self._has_ended():
                # There is no socket to connect to, for example because none could be created: the final status is on
                # disk.
                await self._bury("the shim could not be reached")
                return
            await asyncio.sleep(RETRY_S)

    def _has_ended(self) -> bool:
        try:
            status = attempt_folders.read_status(self.folder)
        except OSError:
            return False
        return status is not None and status.phase is Phase.ENDED

    async def _listen(self) -> bool:
        """Receive from the shim until the connection breaks. Returns True if nothing more will come."""
        try:
            line = await asyncio.to_thread(control.dial, str(self.folder))
            reader, self._line = await asyncio.open_unix_connection(sock=line, limit=attempt_folders.FILE_BYTES_MAX)
        except OSError:
            return False
        try:
            ended = await self._hear(reader)
        except (OSError, ValueError):
            return False
        finally:
            self._line.close()
        if not ended:
            log.error("the shim of %s does not answer; it is killed", self.attempt)
            await self._bury("the shim did not answer and was killed")
        return True

    async def _hear(self, reader: asyncio.StreamReader) -> bool:
        """True: its final status was received. False: it is frozen. Raises OSError if the connection broke."""
        clock = asyncio.get_running_loop().time
        unanswered, heard = 0, clock()
        while unanswered <= UNANSWERED_MAX:
            try:
                async with asyncio.timeout(PING_S):
                    line = await reader.readline()
            except TimeoutError:
                if self._waits_for_disk() and clock() < heard + DISK_S_MAX:
                    continue
                unanswered += 1
                self.tell({"do": "ping"})
                continue
            if not line:
                raise ConnectionResetError("the shim closed the connection")
            unanswered, heard = 0, clock()
            status = attempt_folders.status_from(json.loads(line))
            self._said(status)
            if status.phase is Phase.ENDED:
                return True
        return False

    def _waits_for_disk(self) -> bool:
        """Whether the shim waits for its disk: it syncs what it stores. On a busy disk that can take a minute without
        being frozen."""
        try:
            identity = attempt_folders.read_identity(self.folder)
        except OSError:
            return True  # the machine lacks something, which the shim may wait for too
        return identity is not None and linux.is_blocked(identity[0])

    async def _bury(self, why: str) -> None:
        """Kill every process of the attempt, then pass on its final status, if it left one."""
        await attempt_folders.until_ended(self.folder)
        status = await asyncio.to_thread(patiently, attempt_folders.read_status, self.folder)
        if status is not None and status.phase is Phase.ENDED:
            self._said(status)
            return
        words = attempt_folders.last_words(self.folder)
        self._died(f"{why}: {words}" if words else why)
