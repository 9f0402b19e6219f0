"""Stands by one shim from the agent's side: reaches it, hears it, finds out that it died or froze.

Knows nothing of the orchestrator. When it says that a shim died, every process of that attempt is dead.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.node import attempts, control, linux
from holdfast.node.core.stimuli import ShimStatus
from holdfast.node.core.warden import Phase

START_S_MAX = 15.0
"""A shim that did not show itself by then did not start. Forks are fast, but disks are not."""
PING_S = 2.0
UNANSWERED_MAX = 3
"""Pings in a row without an answer before a shim counts as frozen. Counted one by one and not by the clock:
when the whole machine was stopped, only the first of them is late."""
DISK_S_MAX = 120.0
"""A shim that waits for its disk is waited for this long."""
RETRY_S = 0.01

log = logging.getLogger("holdfast.node")


class ShimWatch:
    def __init__(
        self, attempt: str, folder: Path, said: Callable[[ShimStatus], None], died: Callable[[str], None]
    ) -> None:
        self.attempt = attempt
        self.folder = folder
        self._said = said
        self._died = died
        self._line: asyncio.StreamWriter | None = None

    def tell(self, message: dict[str, Any]) -> None:
        """Lost where the shim cannot be reached just now; whoever needs it repeats it."""
        if self._line is not None and not self._line.is_closing():
            self._line.write(json.dumps(message).encode() + b"\n")

    async def run(self, fresh: bool) -> None:
        """Until the shim's last word, or its death. `fresh`: it was asked for just now."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + (START_S_MAX if fresh else 0.0)
        while True:
            identity = attempts.read_identity(self.folder)
            if identity is None:
                if clock() >= give_up and (attempts.claim(self.folder) or attempts.is_claimed(self.folder)):
                    # Claimed, and by nobody that can be read: a power cut took the content of shim.json.
                    await self._bury("the shim was never started, or was lost with the machine's power")
                    return
            elif not linux.is_alive(*identity):
                await self._bury("the shim died")
                return
            elif await self._listen():
                return
            elif self._has_ended():
                # It cannot be dialled, as where no socket could be made: its last word is on the disk.
                await self._bury("the shim could not be reached")
                return
            await asyncio.sleep(RETRY_S)

    def _has_ended(self) -> bool:
        status = attempts.read_status(self.folder)
        return status is not None and status.phase is Phase.ENDED

    async def _listen(self) -> bool:
        """Hear the shim until its line breaks. True: nothing more will come."""
        try:
            line = await asyncio.to_thread(control.dial, str(self.folder))
            reader, self._line = await asyncio.open_unix_connection(sock=line, limit=attempts.FILE_BYTES_MAX)
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
        """True: its last word was heard. False: it is frozen. OSError: the line broke."""
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
                raise ConnectionResetError("the shim hung up")
            unanswered, heard = 0, clock()
            status = attempts.status_from(json.loads(line))
            self._said(status)
            if status.phase is Phase.ENDED:
                return True
        return False

    def _waits_for_disk(self) -> bool:
        """A shim syncs what it keeps. On a busy disk that can take a minute, and is not frozen but at work."""
        identity = attempts.read_identity(self.folder)
        return identity is not None and linux.is_blocked(identity[0])

    async def _bury(self, why: str) -> None:
        """See to it that nothing of the attempt lives, then pass on its last word, if it left one."""
        await attempts.until_ended(self.folder)
        status = attempts.read_status(self.folder)
        if status is not None and status.phase is Phase.ENDED:
            self._said(status)
            return
        words = attempts.last_words(self.folder)
        self._died(f"{why}: {words}" if words else why)
