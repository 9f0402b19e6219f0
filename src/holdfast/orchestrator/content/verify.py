"""Compares what an attempt delivered with what it declared. The kernel decides what follows."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from holdfast.blobs.errors import BlobError
from holdfast.kernel.decision import Verify
from holdfast.kernel.events import Verified
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.content.service import ContentService
from holdfast.orchestrator.failpoints import failpoint
from holdfast.orchestrator.leader.loop import Leader
from holdfast.orchestrator.logs.log_files import LogStore
from holdfast.orchestrator.logs.output_check import OutputFault, PrintedOutput, output_fault
from holdfast.state import StoreError
from holdfast.tasks import OwnedTasks

log = logging.getLogger("holdfast.verify")


AGAIN_S = 1.0
"""Pause, in seconds, before a verification is retried that failed because of the orchestrator's own storage."""


class Verifier:
    def __init__(self, logs: LogStore, content: ContentService) -> None:
        self._logs = logs
        self._content = content
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="verify")
        self._running = OwnedTasks()

    def begin(self, send: Verify, leader: Leader) -> None:
        self._running.start(f"verify {send.attempt}", self._verify(send, leader))

    async def _verify(self, send: Verify, leader: Leader) -> None:
        failpoint("verify.before")
        epoch = leader.epoch
        while True:
            try:
                fault = await asyncio.get_running_loop().run_in_executor(self._threads, self._fault, send)
                fault = fault or await self._missing_files(send)
                break
            except (OSError, BlobError, StoreError) as cause:
                # The fault is in our own storage, not the node's: no verdict; retry, as the kernel asks only once.
                log.error("%s cannot be verified yet: %s", send.attempt, cause)
            await asyncio.sleep(AGAIN_S)
            if leader.epoch != epoch:
                return
        failpoint("verify.compared")
        if leader.epoch != epoch:
            # The state was rebuilt meanwhile, and the node may have declared another result: the kernel asks again.
            return
        try:
            detail, damaged = ("", False) if fault is None else (fault.detail, fault.damaged)
            leader.tell(Verified(send.attempt, send.fence, ok=fault is None, detail=detail, damaged=damaged))
        except Unavailable:
            log.info("%s was verified for a leader that is gone", send.attempt)

    async def _missing_files(self, send: Verify) -> OutputFault | None:
        """The kernel asks only about files that were accepted, and they were verified then: if they are no longer all
        there, this store lost them, and not the node."""
        manifest = send.result.manifest
        if not manifest or await self._content.whole(send.owner, manifest):
            return None
        return OutputFault(f"the files of manifest {manifest} arrived, and are no longer all there", damaged=True)

    def _fault(self, send: Verify) -> OutputFault | None:
        self._logs.seal(send.attempt)
        declared = PrintedOutput(send.result.stdout_bytes, send.result.stdout_sha256)
        stored = PrintedOutput(*self._logs.digest(send.attempt))
        return output_fault(declared, stored, self._logs.received(send.attempt))

    async def close(self) -> None:
        await self._running.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
